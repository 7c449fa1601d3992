"""docs/replay.md: its script fails, is recorded and replayed as the page shows; docs/formats/record.md names it all."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import graphprobe
from conftest import ROOT
from graphprobe.cli.main import main
from graphprobe.probe import script
from graphprobe.probe.frames.rebuild import Rebuilder

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
    kinds = {entry["kind"] for entry in document["objects"]}
    assert {"class", "function", "import", "instance", "tensor"} <= kinds
    for key in (*document, *document["modules"][0]):
        assert f"`{key}`" in FORMAT, key


def test_options_and_exit_codes_are_those_of_the_command() -> None:
    text = CliRunner().invoke(main, ["replay", "--help"]).output
    for option in ("--backend", "--device", "--import", "--json"):
        assert option in text and f"`{option}" in PAGE
    for code in ("1", "0", "125"):
        assert f"| {code} |" in PAGE


def test_every_kind_is_described() -> None:
    kinds = {name.removeprefix("make_") for name in vars(Rebuilder) if name.startswith("make_")}
    table = FORMAT.partition("| `kind` |")[2]
    assert kinds == {name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)}
