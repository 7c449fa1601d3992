"""Every command ends with a verdict and, on the last line, a command that can be typed as it is printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from analysis.test_timing import compiled, profile_of
from cli.test_reading import record
from cli.test_replay import record as record_frame
from conftest import Finished
from foreign_dumps import example
from graphprobe.analysis.timing_records import write_profile
from graphprobe.cli.commands import demo
from graphprobe.cli.main import main
from graphprobe.report.terminal import LINES
from graphprobe.store.foreign.msprobe_write import write_msprobe
from report import samples

FOLLOW = re.compile(r"(?:  next:|graphprobe: next:) +(?P<command>\S.*)$")
VERDICT = re.compile(r"(?:graphprobe: )?(?:[A-Z]+[A-Z ]*: |Wrote |\d+ )\S")

PROGRAM = """\
import torch

def f(x):
    return torch.relu(x) + 1

def make():
    return f, (torch.ones(4),)

if __name__ == "__main__":
    torch.compile(f, backend="eager")(torch.ones(4))
"""

READING = {
    "ls": ["ls", "ls --all runs"],
    "show": ["show model__0/forward/graph", "show runs after:fuse"],
    "diff": ["diff --pass fuse", "diff runs model__0/forward/graph model__0/forward/graph"],
    "logs": ["logs runs", "logs log.txt"],
    "explain": ["explain runs"],
    "recompiles": ["recompiles runs"],
    "profile": ["profile cold.json", "profile cold.json warm.json"],
    "compare": ["compare dump dump --no-replay", "compare dump other --no-replay --out compared"],
    "parse": ["parse dump Functional.linear.0.forward", "parse dump #1 --no-values"],
    "merge": ["merge dump other --out merged"],
    "report": ["report result.json -o fault.html", "report dump -o dump.html"],
    "issue": ["issue proofs/codegen-aten.relu.default"],
    "export": ["export runs --to onnx-text -o onnx", "export cold.json --to chrome-trace -o trace.json"],
    "convert": ["convert values.npy --to txt", "convert dump --to ptdbg --out made.pkl"],
    "replay": ["replay ."],
    "demo": ["demo --no-control --out demonstration"],
}
"""Command lines by command, on what is made in no time."""

RUNNING = {
    "run": ["run program.py", "run --dump stats program.py", "run --dump stats --dump-to eager plain.py"],
    "profile": ["profile program.py"],
    "diagnose": ["diagnose --backend eager program.py:make"],
    "explain": ["explain program.py", "explain program.py:make"],
    "recompiles": ["recompiles program.py"],
    "reduce": ["reduce --after dynamo program.py"],
    "doctor": ["doctor --names"],
}
"""Command lines that take torch."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with something of each kind that is read."""
    monkeypatch.chdir(tmp_path)
    for name in ("runs", "torch_compile_debug"):
        record(tmp_path / name)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "plain.py").write_text("import torch\ntorch.relu(torch.ones(3))\n")
    (tmp_path / "log.txt").write_text("nothing of torch\n")
    write_profile(profile_of(compiled()), tmp_path / "cold.json")
    write_profile(profile_of(compiled()[:9]), tmp_path / "warm.json")
    np.save(tmp_path / "values.npy", np.ones((2, 2), np.float32))
    write_msprobe(example(), tmp_path / "dump")
    write_msprobe(example(), tmp_path / "other")
    samples.fault(tmp_path)
    record_frame(tmp_path / "frames" / "000_f", "reproduced")

    def made_up(*words: str) -> int:
        """What the demo gets of the commands that it runs, which take a minute."""
        if words[0] == "diagnose":
            samples.fault(tmp_path)
            text = (tmp_path / "result.json").read_text()
            Path(words[words.index("--json") + 1]).write_text(text)
        return 1

    monkeypatch.setattr(demo, "_graphprobe", made_up)
    return tmp_path


def last_lines(output: str) -> tuple[str, str]:
    """The verdict in the last lines, and the command behind `next:`; a failure where one of the two is not there."""
    *before, last = output.rstrip().splitlines()[-LINES:]
    follow = FOLLOW.match(last)
    assert follow is not None, f"the last line is no command: {last!r}"
    verdicts = [line for line in before if VERDICT.match(line)]
    assert verdicts, f"no verdict in {before}"
    return verdicts[-1], follow["command"]


def check_typed(command: str, folder: Path) -> None:
    """What can be seen without running it: the program is one, its options exist, its files are there."""
    assert not re.search(r"\b[A-Z]{4,}_[A-Z]", command), f"a placeholder in {command!r}"
    program, name, *words = shlex.split(command)
    if program != "graphprobe":
        assert program in ("python", "head", "tensorboard")
        assert name == "-m" or (folder / name).exists(), command
        return
    if name == "help":
        name, words = words[0], ["--help"]
    found = main.get_command(click.Context(main), name)
    assert found is not None, command
    found.make_context(name, words, resilient_parsing=True)
    named = [word for word in words if not word.startswith("-")]
    assert name == "compare" or not named or any(Path(word.partition(":")[0]).exists() for word in named), command


def test_every_command_is_walked() -> None:
    commands = main.list_commands(click.Context(main))
    assert {*READING, *RUNNING} == set(commands), "a new command needs a line in READING or RUNNING"


def test_an_ending_that_lacks_something_is_found() -> None:
    assert last_lines("rows\n\nSAME: nothing\n  next: graphprobe ls\n") == ("SAME: nothing", "graphprobe ls")
    for output in ("rows\n", "SAME: nothing\n", "rows\n  next: graphprobe ls\n"):
        with pytest.raises(AssertionError):
            last_lines(output)
    for command in ("graphprobe diagnose YOUR_SCRIPT.py", "graphprobe nothing", "graphprobe ls missing.d"):
        with pytest.raises(AssertionError):
            check_typed(command, Path())


@pytest.mark.parametrize("line", [line for lines in READING.values() for line in lines])
def test_last_lines_of_what_reads(folder: Path, line: str) -> None:
    done: Result = CliRunner().invoke(main, line.split())
    assert done.exit_code in (0, 1, 125), done.output
    _, command = last_lines(done.output)
    check_typed(command, folder)
    name, *words = shlex.split(command)
    if name == "graphprobe":
        again = CliRunner().invoke(main, words)
        assert again.exit_code in (0, 1, 125), f"{command}: {again.output}"


@pytest.mark.parametrize("line", [line for lines in RUNNING.values() for line in lines])
def test_last_lines_of_what_runs(folder: Path, run_warm: Callable[..., Finished], line: str) -> None:
    done = run_warm("-m", "graphprobe", *line.split(), cwd=folder)
    output = done.out + done.err
    assert "Traceback" not in output
    verdict, command = last_lines(done.err if line.startswith(("run ", "profile ")) else done.out)
    check_typed(command, folder)
    assert "--dump-to eager" not in line or ("nothing was collected" not in output and "dumped to eager" in verdict)


@pytest.mark.parametrize("line", ["ls runs --json", "compare dump dump --no-replay --json", "profile cold.json --json"])
def test_json_has_no_last_lines(folder: Path, line: str) -> None:
    assert "next:" not in CliRunner().invoke(main, line.split()).output


@pytest.mark.parametrize("line", ["--version", "help ls", "issue proofs/codegen-aten.relu.default --title"])
def test_what_another_program_reads_has_none(folder: Path, line: str) -> None:
    assert "next:" not in CliRunner().invoke(main, line.split()).output
