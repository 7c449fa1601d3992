"""`graphprobe recompiles`: a script, a run on disk, JSON, exit codes, and the wrong way round."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from cli.calling import Python, call
from graphprobe.analysis.recompiles import Function, RecompileReport
from graphprobe.cli.commands import recompiles as command
from graphprobe.probe.script import Ended
from graphprobe.store import Run

RECOMPILES = """
import sys, threading
import torch
assert sys.argv[1:] in ([], ["--epochs", "2"]), sys.argv
def scale(x, n):
    for _ in range(n):
        x = x + 1
    return x
fast = torch.compile(scale, backend="eager")
def work():
    for n in (2, 3, 4):
        fast(torch.ones(4), n)
threading.Thread(target=work, name="late").start()
print("program")
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)  # its idle thread ends only as Python does
pool.submit(int).result()
"""
SILENT = "import torch\nf = torch.compile(lambda x: x + 1, backend='eager')\nf(torch.ones(3)), f(torch.ones(3))\n"


def invoke(*args: object, **options: Any) -> Result:
    return call("recompiles", *args, **options)


@pytest.fixture(scope="module")
def recorded(run_warm: Python, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "program.py").write_text(RECOMPILES)
    done = run_warm("-m", "graphprobe", "run", "-q", "--no-ops", "program.py", cwd=folder)
    assert done.code == 0, done.err
    return folder


LIMIT = """
import sys
import torch
@torch.compile(backend="eager")
def step(x, mode):
    return x.sin() if mode == "m0" else x.cos()
for i in range(12):
    step(torch.ones(3), f"m{i}")
print("ended", file=sys.stderr)
"""


@pytest.mark.parametrize(("script", "causes"), [(LIMIT, 1), (SILENT, 0)])
def test_each_new_cause_is_said_as_it_comes(script: str, causes: int, run_warm: Python, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(script)
    done = run_warm("-m", "graphprobe", "recompiles", "program.py", cwd=tmp_path)
    live = [line for line in done.err.splitlines() if line.startswith("graphprobe: recompiles: ")]
    assert len(live) == causes and done.code == bool(causes)
    if causes:
        assert live[0].startswith("graphprobe: recompiles: string-changed in step: ")
        assert done.err.index(live[0]) < done.err.index("ended")
        assert "limit-reached" in done.out and "first:  string-changed in step" in done.out, (
            "what it leads to is no cause"
        )
        assert "next:   remove the first cause, then: graphprobe recompiles program.py" in done.out
        printed = run_warm("-m", "graphprobe", "recompiles", "--json", "-", "program.py", cwd=tmp_path)
        assert "graphprobe: recompiles: " not in printed.err and json.loads(printed.out)["groups"]


def test_a_script(run_warm: Python, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(RECOMPILES)
    done = run_warm("-m", "graphprobe", "recompiles", "--json", "out.json", "program.py", "--epochs", "2", cwd=tmp_path)
    assert done.code == 1, done.err
    said = done.out.splitlines()
    assert said[:4] == [
        "program",
        "2 recompilations of 1 function, 1 cause",
        "",
        "scale (program.py:5): 2 recompilations, 3 versions of at most 8",
    ]
    assert "  int-changed ×2: n changed: 2, 3, 4" in said
    assert "    guard at program.py:6 in scale" in said and "    called from program.py:12 in work" in said
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["problem"] is None and document["recompilations"] == 2
    (group,) = document["groups"]
    assert (group["kind"], group["where"]["line"], group["count"]) == ("int-changed", 6, 2)


GONE = """
import os, shutil, torch
f = torch.compile(lambda x: x + 1, backend="eager")
f(torch.ones(2)), shutil.rmtree(os.getcwd()), f(torch.ones(3))
"""


def test_a_program_that_removes_its_folder(run_warm: Python, tmp_path: Path) -> None:
    (tmp_path / "gone.py").write_text(GONE)
    (tmp_path / "there").mkdir()
    done = run_warm("-m", "graphprobe", "recompiles", "../gone.py", cwd=tmp_path / "there")
    assert done.code == 1 and "RECOMPILES: 1 recompilation" in done.out, done.err
    assert not (tmp_path / "there").exists() and "error[" not in done.err


def test_a_silent_script(run_warm: Python, tmp_path: Path) -> None:
    done = run_warm("-m", "graphprobe", "recompiles", "-c", SILENT, cwd=tmp_path)
    story, _, follow = done.out.partition("  next: graphprobe profile -c ")
    assert (done.code, story) == (0, "no recompilations\n\nSTEADY: nothing was compiled again\n"), done.err
    typed = subprocess.run(["bash", "-c", f"printf %s {follow}"], capture_output=True, text=True)
    assert typed.stdout == SILENT and "\n" not in follow[:-1]
    assert not list(tmp_path.iterdir())


def test_a_program_that_fails_is_undecided_unless_something_was_found() -> None:
    nothing, found = RecompileReport(), RecompileReport(functions=[Function(function="f", file="x.py", line=1)])
    found.functions[0].recompilations = 1
    problem = Ended(1, "ValueError: no").problem
    assert problem == "the script was ended by ValueError: no"
    assert Ended(3).problem == "the script ended with exit code 3" and Ended(0).problem is None
    assert [command._exit_code(report, problem) for report in (nothing, found)] == [125, 1]
    assert [command._exit_code(report, None) for report in (nothing, found)] == [0, 1]
    assert command._exit_code(RecompileReport(complete=False), None) == 125


def test_a_run_on_disk(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same groups as of the script itself."""
    monkeypatch.chdir(recorded)
    done = invoke(str(recorded), code=1)
    assert "  int-changed ×2: n changed: 2, 3, 4" in done.output
    assert "    guard at program.py:6 in scale" in done.output
    assert "    called from program.py:12 in work" in done.output
    assert "3 versions of at most 8" in done.output and "note" not in done.output
    done = invoke("--json", str(recorded / "torch_compile_debug"))
    document = json.loads(done.output)
    assert done.exit_code == 1 and document["recompilations"] == 2
    assert [group["values"] for group in document["groups"]] == [["2", "3", "4"]]
    allowed = invoke("--allow", "2", str(recorded), code=0)
    assert "allowed: 2 of each function; kept" in allowed.output
    before, behind = invoke("--json", "--allow", "1", str(recorded)), invoke(str(recorded), "--allow", "1", "--json")
    assert json.loads(before.stdout) == json.loads(behind.stdout)
    assert before.exit_code == behind.exit_code == 1


def test_the_file_of_a_run(recorded: Path) -> None:
    run = Run.open(recorded)
    (event,) = [event for event in run.events() if event.name == "recompiles"]
    assert (event.kind, event.path) == ("log", "recompiles.jsonl")
    assert len((run.tool_dir / "recompiles.jsonl").read_text().splitlines()) == 2


@pytest.fixture
def copy(recorded: Path, tmp_path: Path) -> Path:
    (run,) = (recorded / "torch_compile_debug").iterdir()
    return Path(shutil.copytree(run / "graphprobe", tmp_path / "run_copy" / "graphprobe"))


def test_a_run_without_the_tap_is_incomplete(copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    del manifest["taps"]["recompiles"]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    done = invoke(str(copy.parent), code=1)
    assert "note: recompilations were not recorded" in done.output and "incomplete" in done.output


def test_a_run_with_a_torn_line_is_incomplete(copy: Path) -> None:
    (copy / "recompiles.jsonl").write_text('{"function": "sca')
    done = invoke(str(copy.parent), code=125)
    assert "recompiles.jsonl line 1 is cut off" in done.output and "incomplete" in done.output
