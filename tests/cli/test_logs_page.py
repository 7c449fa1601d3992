"""docs/logs.md and docs/troubleshooting.md: what they show is what happens."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import graphprobe
from conftest import ROOT, Finished
from graphprobe.cli.main import COMMANDS, LazyGroup, main

Python = Callable[..., Finished]

LOGS = (ROOT / "docs" / "logs.md").read_text(encoding="utf-8")
TROUBLES = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
SEED_ROWS = (
    "Info logging",
    "Debug logging",
    "Minifier for any backend",
    "Minifier for TorchInductor",
    "Dynamo accuracy minifier",
    "Inductor accuracy minifier",
    "`torch._dynamo.explain`",
    "Record/Replay",
    "TorchDynamo function name filtering",
    "TorchInductor Debug logging",
    "TorchInductor Tracing",
)
"""The tools of PyTorch's guide, in its order."""


def test_logs_page(run_warm: Python, tmp_path: Path) -> None:
    for program in re.findall(r"```python\n(.*?)```", LOGS, re.DOTALL):
        (tmp_path / program.split()[1]).write_text(program)
    for block in re.findall(r"```console\n(.*?)```", LOGS, re.DOTALL):
        for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = piece.partition("\n")
            done = run_warm("-m", *shlex.split(command), cwd=tmp_path)
            if shown:
                pattern = re.escape(shown.strip()).replace("…", r"[^\n]*")
                said = done.out + done.err
                assert re.fullmatch(pattern, said.strip()), said


def table(text: str) -> list[list[str]]:
    rows = [line.strip("| \n").split(" | ") for line in text.split("## ")[0].splitlines() if line.startswith("| ")]
    return rows[1:]


def test_every_row_of_the_guide_is_there_with_a_page() -> None:
    rows = table(TROUBLES)
    assert [row[0] for row in rows] == list(SEED_ROWS)
    for row in rows:
        assert len(row) == 4
        assert re.findall(r"\]\(([\w./]+\.md)", row[3])


def test_every_command_and_option_of_the_table_exists() -> None:
    assert isinstance(main, LazyGroup)
    seen = 0
    for words in map(shlex.split, re.findall(r"`graphprobe ([a-z][^`]*)`", TROUBLES)):
        assert words[0] in COMMANDS
        command = main.get_command(click.Context(main), words[0])
        assert command is not None
        known = {name for parameter in command.params for name in parameter.opts}
        options = [word for word in words[1:] if word.startswith("-")]
        assert set(options) <= known, (words, known)
        seen += len(options)
    assert seen > 10


def test_every_name_of_the_table_exists() -> None:
    names = set(re.findall(r"`graphprobe\.(\w+)", TROUBLES))
    assert {"enable", "diagnose", "explain", "profile", "CompileProfiler"} <= names
    for name in names:
        assert hasattr(graphprobe, name)


@pytest.mark.parametrize("page", re.findall(r"\]\(([\w./]+\.md)", TROUBLES + LOGS))
def test_pages_exist(page: str) -> None:
    assert (ROOT / "docs" / page).is_file()


def test_random_numbers(run_warm: Python, tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", TROUBLES, re.DOTALL)
    shown = re.findall(r"```text\n(.*?)```", TROUBLES, re.DOTALL)
    done = run_warm("-c", programs[0], cwd=tmp_path)
    assert (done.code, done.out) == (0, shown[0]), done.err
    done = run_warm("-c", programs[1], cwd=tmp_path)
    assert (done.code, done.out) == (0, shown[1]), done.err
