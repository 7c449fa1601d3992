"""Frames of a program fail in another process as they did in it, from their records alone."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import graphprobe
from conftest import ROOT, Finished
from graphprobe.cli.main import main
from graphprobe.probe import script
from graphprobe.program_text.loading import HELPERS
from probe.frames.conftest import Recorded

NAMES = (
    *("dict_key", "branch", "c_function", "generator", "raises", "bad_shapes", "forward", "forward", "inner"),
    *("with_dataclass", "aliased", "with_object", "with_defaults", "imports_late"),
    *("wrapper", "in_context", "calls_refused", "calls_compiled", "lambda"),
    *("only_without_grad", "only_in_autocast", "only_in_double", "item", "partly", "grows", "with_lock"),
)


def record_named(recorded: Recorded, name: str) -> Path:
    return next(folder for key, folder in recorded.records.items() if key.partition("_")[2] == name)


def document(recorded: Recorded, name: str) -> dict[str, Any]:
    return json.loads((record_named(recorded, name) / "record.json").read_text())  # type: ignore[no-any-return]


def test_every_frame_of_a_program_fails_as_it_did(recorded: Recorded) -> None:
    assert recorded.program.code == 0, recorded.program.err
    assert [name.partition("_")[2] for name in recorded.records] == list(NAMES)
    wrong = {
        name: (verdict["text"], verdict["differences"], verdict["caveats"])
        for name, verdict in recorded.verdicts.items()
        if verdict["verdict"] != "reproduced"
    }
    assert wrong == {}


def test_the_text_holds_what_the_frame_needs_and_where_it_was(recorded: Recorded) -> None:
    folder = record_named(recorded, "dict_key")
    assert recorded.lines > 500
    text = (folder / "program.py").read_text("utf-8").split("\n")
    line = document(recorded, "dict_key")["failure"]["stack"][-1]
    assert line["file"].endswith("/failing.py") and not Path(line["file"]).exists()
    found = recorded.verdicts[folder.name]["error"]["line"]
    assert found["file"].endswith("/program.py")
    assert text[found["line"] - 1].strip() == line["text"] == "return table[y]"
    assert f"#@ {line['file']}:{line['line'] - 2}" in text
    assert sum(bool(entry.strip()) for entry in text) <= 20  # the function, its arguments, the modules


def test_only_what_cannot_be_recorded_is_named(recorded: Recorded) -> None:
    said = {name.partition("_")[2]: v["caveats"] for name, v in recorded.verdicts.items() if v["caveats"]}
    assert list(said) == ["with_lock"]
    assert [line.partition(":")[0] for line in said["with_lock"]] == [
        "lock (_thread.lock)",
        "counts['file'] (_io.BufferedRandom)",
    ]


def test_a_record_knows_what_else_the_frame_depended_on(recorded: Recorded) -> None:
    names = ("partly", "branch", "only_without_grad", "item")
    partly, branch, without_grad, item = (document(recorded, name) for name in names)
    texts = [(record_named(recorded, name) / "program.py").read_text("utf-8") for name in ("grows", "branch")]
    assert ["(x, [0])" in text for text in texts] == [True, False]
    assert partly["fullgraph"] is False and partly["failure"]["suppressed"]
    assert branch["settings"]["grad_enabled"] is True and without_grad["settings"]["grad_enabled"] is False
    assert item["settings"]["dynamo"]["capture_scalar_outputs"] is True


def test_the_run_tells_of_its_records(recorded: Recorded) -> None:
    manifest = json.loads((recorded.run / "graphprobe" / "manifest.json").read_text())
    assert len([line for line in manifest["notes"] if "failed to trace; recorded in frames/" in line]) == len(NAMES)
    assert not [line for line in manifest.get("missing", []) if "frame" in line]
    lines = (recorded.run / "graphprobe" / "events.jsonl").read_text().splitlines()
    events = [event for event in map(json.loads, lines) if event["name"] == "frame"]
    assert [event["path"] for event in events] == [f"frames/{name}/record.json" for name in recorded.records]
    assert events[0]["message"].startswith("Unsupported: Observed exception")


def test_the_script_alone_and_what_it_says_of_a_repaired_program(
    recorded: Recorded, run_warm: Callable[..., Finished], tmp_path: Path
) -> None:
    folder = tmp_path / "moved"
    shutil.copytree(record_named(recorded, "inner"), folder)
    broken = run_warm(str(folder / "replay.py"), cwd=tmp_path, env={"PYTHONPATH": ""})
    assert broken.code == 1, broken.err
    assert "Data-dependent branching" in broken.out and "moved/program.py" in broken.out
    assert broken.out.rstrip().endswith("REPRODUCED: the frame fails as it was recorded")
    source = folder / "program.py"
    text = source.read_text("utf-8")
    source.write_text(text.replace("if y.sum() > limit:", "if y.dim() > 0:"), "utf-8")
    assert source.read_text("utf-8") != text
    repaired = run_warm("-m", "graphprobe", "replay", str(folder), "--json", cwd=tmp_path)
    assert repaired.code == 0, repaired.err
    (answer,) = json.loads(repaired.out)["replays"]
    assert answer["verdict"] == "gone" and answer["function"] == "with_closure.<locals>.inner"
    assert answer["error"] is None and answer["seconds"] > 0


def test_a_torch_that_does_not_load_decides_nothing(
    recorded: Recorded, run_python: Callable[..., Finished], tmp_path: Path
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libtorch.so: not found')\n", "utf-8")
    script = record_named(recorded, "dict_key") / "replay.py"
    done = run_python(str(script), env={"PYTHONPATH": str(tmp_path)})
    assert (done.code, "libtorch.so: not found" in done.err) == (125, True)  # 1 would make git bisect blame it


PAGE = (ROOT / "docs" / "replay.md").read_text("utf-8")
FORMAT = (ROOT / "docs" / "formats" / "record.md").read_text("utf-8")


def shortened(text: str) -> str:
    return re.sub(r"\(\d+\.\d s\)", "(… s)", re.sub(r"run_[\w-]+", "run_…", text))


@pytest.mark.slow
def test_the_page_shows_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (console,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    run, replay, *shown = console.splitlines()
    assert run.split()[-2:] == ["runs", "train.py"] and replay == "$ graphprobe replay runs"
    (tmp_path / "train.py").write_text(program, "utf-8")
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    with graphprobe.trace("runs", record_frames=True):
        torch.compiler.reset()
        assert script.run(script.ScriptTarget("script", "train.py")).error is not None
    done = CliRunner().invoke(main, ["replay", "runs"])
    assert shortened(done.output).splitlines() == shown
    assert done.exit_code == 1
    (record,) = tmp_path.glob("runs/*/graphprobe/frames/*/record.json")
    document = json.loads(record.read_text("utf-8"))
    for key in document:
        assert f"`{key}`" in FORMAT, key


def test_options_and_exit_codes_are_those_of_the_command() -> None:
    text = CliRunner().invoke(main, ["replay", "--help"]).output
    for option in ("--backend", "--device", "--import", "--json"):
        assert option in text and f"`{option}" in PAGE
    for code in ("1", "0", "125"):
        assert f"| {code} |" in PAGE


def test_helpers_of_the_text_are_described() -> None:
    assert [name for name in HELPERS if f"`{name}`" not in FORMAT] == []
