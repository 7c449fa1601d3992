"""What commands say on a terminal, through a pipe and under NO_COLOR; the verdict is in the last five lines."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import ROOT, Finished

Python = Callable[..., Finished]

COLOUR = re.compile(r"\x1b\[[0-9;]*[349][0-7]m|\x1b\[[0-9;]*;[349][0-7]m")
CLEAR = "\x1b[2K"
"""Clears a line."""

PROGRAM = """\
import torch


def wrong(x):
    y = torch.relu(x)
    torch._dynamo.graph_break()
    return y + 1


def make():
    return wrong, (torch.linspace(-1, 1, 8),)


if __name__ == "__main__":
    torch.compile(wrong, backend="eager")(torch.ones(3))
    print("the end of the program")
"""

DUMPS = """\
import sys, torch, graphprobe

def dumped(path, factor):
    x = torch.linspace(-1, 1, 64)
    with graphprobe.dump(path, data="stats"):
        y = torch.exp(torch.relu(x * factor))
        torch.tanh(y).sum()

dumped("new", 1.01)
dumped("old", 1.0)
"""


def lines_of(text: str) -> list[str]:
    """What a terminal shows at the end: what was drawn and cleared again is not there."""
    rows, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if token == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif token == "\r":
            column = 0
        elif token == CLEAR:
            rows[row] = ""
        elif token.startswith("\x1b"):
            row -= int(token[2:-1]) if token.endswith("A") else 0
        else:
            rows[row] = rows[row][:column].ljust(column) + token + rows[row][column + len(token) :]
            column += len(token)
    while rows and not rows[-1].strip():
        rows.pop()
    return [line.rstrip() for line in rows]


def on_terminal(*args: str, cwd: Path, env: dict[str, str] | None = None, timeout_s: float = 120) -> tuple[int, str]:
    """Exit code of a command, and what it wrote to the terminal that both of its streams are."""
    ours, theirs = pty.openpty()
    variables = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS")}
    variables |= {"PYTHONPATH": str(ROOT / "src"), "TERM": "xterm-256color", "COLUMNS": "100", **(env or {})}
    command = [sys.executable, "-m", "graphprobe", *args]
    process = subprocess.Popen(command, cwd=cwd, env=variables, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    text, ends = b"", time.monotonic() + timeout_s
    try:
        while time.monotonic() < ends:
            if not select.select([ours], [], [], 0.2)[0]:
                if process.poll() is not None:
                    break
                continue
            try:
                text += os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
        return process.wait(timeout=5), text.decode()
    finally:
        process.kill()
        os.close(ours)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, run_python: Python) -> Iterator[Path]:
    """A program, a run of it, and two dumps that differ."""
    made = tmp_path_factory.mktemp("terminal")
    (made / "program.py").write_text(PROGRAM)
    (made / "dumps.py").write_text(DUMPS)
    done = run_python("-m", "graphprobe", "run", "--out", "runs", "dumps.py", cwd=made)
    assert done.code == 0, done.err
    done = run_python("-m", "graphprobe", "run", "--out", "runs", "program.py", cwd=made)
    assert done.code == 0, done.err
    (made / "run.txt").write_text(done.out + done.err)
    return made


COMPARE = ("compare", "new", "old")
EXPLAIN = ("explain", "runs")


def test_lines_of_forgets_what_was_drawn_over() -> None:
    drawn = f"a\r\n\x1b[?25l\x1b[2mone\x1b[0m\r{CLEAR}two\r\n\x1b[?25h\r\x1b[1A{CLEAR}\x1b[31mend\x1b[0m\r\n\r\n"
    assert lines_of(drawn) == ["a", "end"]
    assert COLOUR.search("\x1b[1;31mend") and COLOUR.search("\x1b[36mend") and not COLOUR.search("\x1b[1m\x1b[2mend")


@pytest.mark.parametrize(
    ("command", "verdict"),
    [(COMPARE, "DIFFERENT: 1 cause found"), (EXPLAIN, "BREAKS: 1 graph break, 0 functions not compiled")],
    ids=["compare", "explain"],
)
def test_plain_through_a_pipe(folder: Path, run_python: Python, command: tuple[str, ...], verdict: str) -> None:
    done = run_python("-m", "graphprobe", *command, cwd=folder, env={"TERM": "xterm-256color", "CI": ""})
    assert done.code == 1, done.err
    assert "\x1b" not in done.out + done.err and "\r" not in done.out + done.err
    assert done.err == ""
    assert verdict in done.out.splitlines()[-5:]


@pytest.mark.parametrize("command", [COMPARE, EXPLAIN], ids=["compare", "explain"])
def test_colours_on_a_terminal_and_none_with_no_color(folder: Path, command: tuple[str, ...]) -> None:
    code, coloured = on_terminal(*command, cwd=folder)
    assert code == 1 and COLOUR.search(coloured), coloured
    code, plain = on_terminal(*command, cwd=folder, env={"NO_COLOR": "1"})
    assert code == 1 and not COLOUR.search(plain), plain
    assert lines_of(plain) == lines_of(coloured)


def test_compare_shows_progress_and_takes_it_away(folder: Path) -> None:
    _, text = on_terminal(*COMPARE, cwd=folder)
    assert "graphprobe: rank 0, step 0: call 0 of 5" in text
    assert not any("call 0 of 5" in line for line in lines_of(text)), lines_of(text)
    assert lines_of(text)[0].startswith("DIFFERENT")
    assert re.match(r"  next:  +graphprobe parse new Tensor\.mul\.0\.forward", lines_of(text)[-1]), lines_of(text)


def test_what_compare_wrote_comes_before_the_verdict(folder: Path, run_python: Python, tmp_path: Path) -> None:
    done = run_python("-m", "graphprobe", *COMPARE, "--out", str(tmp_path / "out"), cwd=folder)
    assert done.out.count("Wrote ") == 4
    assert done.out.rindex("Wrote ") < done.out.rindex("DIFFERENT: ")
    assert any(line.startswith("DIFFERENT: ") for line in done.out.splitlines()[-5:])


def test_run_says_last_what_was_collected_and_where(folder: Path) -> None:
    *_, counts, where, command = (folder / "run.txt").read_text().splitlines()
    assert re.fullmatch(r"graphprobe: 2 compiled graphs, \d+ files, .*", counts)
    assert where.startswith("graphprobe: in runs/run_")
    assert command.startswith("graphprobe: next: graphprobe ls ")


FAULTY = "relu_accuracy_error_TESTING_ONLY"


@pytest.mark.heavy
def test_diagnose_on_a_terminal(folder: Path) -> None:
    code, text = on_terminal("diagnose", "--backend", FAULTY, "program.py:make", cwd=folder, timeout_s=300)
    shown = lines_of(text)
    assert code == 1, text
    assert COLOUR.search(text)
    for step in ("running it uncompiled", "running Dynamo's graphs", "looking into the generated code"):
        assert step in text and not any(step in line for line in shown), step
    verdict, fault, where, proof, follow = shown[-5:]
    assert verdict == "FAULT: program.py:make"
    assert "relu gives wrong numbers" in fault
    assert where == "  where: program.py:5"
    assert (folder / proof.rpartition(" ")[2]).is_file()
    assert (folder / follow.removeprefix("  next:  graphprobe reduce ")).is_dir()


def test_diagnose_through_a_pipe(folder: Path, run_python: Python) -> None:
    """The control: a healthy program, and one line when it begins."""
    done = run_python("-m", "graphprobe", "diagnose", "--backend", "eager", "program.py:make", cwd=folder)
    assert done.code == 0, done.err
    assert done.err == "graphprobe: diagnosing program.py:make …\n"
    assert "\x1b" not in done.out
    assert done.out.splitlines()[-2:] == ["HEALTHY: program.py:make", "  next: graphprobe explain program.py:make"]


@pytest.mark.heavy
def test_reduce_on_a_terminal(folder: Path, tmp_path: Path) -> None:
    script = PROGRAM.replace('backend="eager"', f'backend="{FAULTY}"')
    (tmp_path / "script.py").write_text(script)
    code, text = on_terminal("reduce", "-o", "small", "script.py", cwd=tmp_path, timeout_s=300)
    shown = lines_of(text)
    assert code == 1, text
    assert re.search(r"graphprobe: \d+ of \d+ calls, \d+ asked", text)
    assert not any(" asked, " in line for line in shown), shown
    assert any(line.startswith("REDUCED: ") for line in shown[-5:]), shown
    assert "the end of the program" not in shown, "a script is left once its graph is reduced"
