"""`graphprobe profile`, and docs/profile.md: its program is profiled, its commands run, its block runs."""

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from analysis.test_timing import check_trace, compiled, profile_of
from cli.calling import Python, call
from conftest import ROOT
from graphprobe.analysis.timing import GLOSSES, read_profile, write_profile

PAGE = (ROOT / "docs" / "profile.md").read_text(encoding="utf-8")
SCRIPT, BLOCK = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(CONSOLE,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)


def profile(*args: object, **options: Any) -> Result:
    return call("profile", *args, **options)


def shape(line: str) -> str:
    return re.sub(r"[\d.]+", "#", line.split(" on torch ")[0]).strip()


def test_page(run_warm: Python, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Without the C++ compiler, which takes a minute here; tests/probe/test_profile.py has Inductor.
    quick = SCRIPT.replace("torch.compile(model)", 'torch.compile(model, backend="aot_eager")')
    assert quick != SCRIPT
    (tmp_path / "train.py").write_text(quick)
    command, *shown = CONSOLE.splitlines()
    words = command.removeprefix("$ graphprobe ").split()
    done = run_warm("-m", "graphprobe", *words, cwd=tmp_path)
    assert done.code == 0, done.err[-4000:]
    got = {shape(line) for line in done.err.splitlines()}
    for line in (*shown[:2], "phases, by time of their own", "s      %  CPU s  count  phase"):
        assert shape(line) in got, line
    names = {line.split("  — ")[0].split()[-1] for line in shown if "  — " in line}
    assert names <= GLOSSES.keys() and len(names) >= 4
    check_trace(json.loads((tmp_path / "trace.json").read_text()))
    result = read_profile(tmp_path / "before.json")
    assert result.program == "train.py" and result.exit_code == 0 and result.notes == []
    assert any(span.name == "bytecode_tracing" for span in result.spans)

    assert "compiling: " in profile("before.json").output
    document = json.loads(profile("--json", "before.json").output)
    assert document["accounted"] > 0.6 and document["phases"][0]["self_ns"] > 0
    same = profile("before.json", "before.json", code=0)
    assert "+0.000 s (+0%)" in same.output

    import torch

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    exec(compile(BLOCK, "page", "exec"), {"torch": torch, "model": torch.nn.Linear(16, 1)})
    assert read_profile("block.json").compiles


PROGRAM = """
import sys, torch
print(sys.argv[1:], torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).tolist())
raise KeyError("the program's own")
"""


def test_a_program_that_fails_ends_as_before(run_warm: Python, tmp_path: Path) -> None:
    program = tmp_path / "fails.py"
    program.write_text(PROGRAM)
    alone = run_warm(str(program), "--json", "x", cwd=tmp_path)
    done = run_warm("-m", "graphprobe", "profile", "-q", str(program), "--json", "x", cwd=tmp_path)
    assert (done.code, done.out) == (alone.code, alone.out) == (1, "['--json', 'x'] [2.0]\n")
    assert done.err == alone.err
    result = read_profile(tmp_path / "profile-fails.json")
    assert (result.exit_code, result.error) == (1, 'KeyError: "the program\'s own"')
    assert result.compiles[0].function == "<lambda>"


def test_options_may_stand_behind_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_profile(profile_of(compiled()), tmp_path / "a.json")
    write_profile(profile_of(compiled()[:9]), tmp_path / "b.json")
    assert json.loads(profile("a.json", "b.json", "--json").output)["phases"][0]["delta_ns"] == 250_000_000
    profile("a.json", "--top", "1", "--trace", "t.json", code=0)
    check_trace(json.loads(Path("t.json").read_text()))
