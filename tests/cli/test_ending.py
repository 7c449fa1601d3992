"""How commands end: with a verdict and a command to type, when interrupted, without output, by a fault of our own."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

import graphprobe
from analysis.test_timing import compiled, profile_of
from cli.calling import Python, call, command_of, record
from cli.test_replay import record as record_frame
from conftest import ROOT
from graphprobe.analysis.timing import write_profile
from graphprobe.cli import main as main_module
from graphprobe.cli.commands import demo
from graphprobe.errors import Interrupted
from report import samples

PLANTED = [
    (TypeError("planted"), 125, "please report it with"),
    (RecursionError("planted"), 125, "please report it with"),
    (MemoryError(), 125, "please report it with"),
    (OSError(28, "No space left on device", "some/file"), 125, "error[no-output]: some/file: No space left on device"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (Interrupted("SIGTERM"), 143, "interrupted"),
    (BrokenPipeError(32, "Broken pipe"), 141, ""),
]


@pytest.mark.parametrize(("error", "code", "said"), PLANTED, ids=[type(row[0]).__name__ for row in PLANTED])
def test_no_command_ends_with_1_by_what_it_raises(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(main_module.main, "get_command", lambda ctx, word: click.Command(word, callback=fails))
    result = CliRunner().invoke(main_module.main, ["ls"])
    assert result.exit_code == code, result.output
    assert said in result.output and "Traceback" not in result.output
    if "please report" in said:
        (file,) = tmp_path.glob("graphprobe-error-*.txt")
        text = file.read_text()
        assert str(file) in result.output and "in fails" in text and type(error).__name__ in text


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def shell(line: str, **options: Any) -> subprocess.CompletedProcess[str]:
    options = {"env": ENVIRONMENT, "capture_output": True, "text": True, "timeout": 120, "check": False} | options
    return subprocess.run(["bash", "-c", line], **options)


def test_outputs_that_cannot_take_it(tmp_path: Path) -> None:
    import torch

    with graphprobe.trace(tmp_path / "runs"):  # without a pass: its line has a character that ASCII lacks
        torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(2))
    ls = f'"{sys.executable}" -m graphprobe ls "{tmp_path}/runs"'
    closed = shell(f"{ls} >&-")
    assert closed.returncode == 2 and "the standard output is closed" in closed.stderr
    full = shell(f"{ls} > /dev/full")
    assert full.returncode == 125 and full.stderr.count("\n") == 1
    assert "error[no-output]: a file or the output cannot be written: No space left on device" in full.stderr
    for env in ({"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}, {"PYTHONIOENCODING": "latin-1"}):
        done = shell(ls, env=ENVIRONMENT | env)
        assert (done.returncode, done.stderr) == (0, "") and "model__0" in done.stdout


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump that is larger than a small disk."""
    import torch

    folder = tmp_path_factory.mktemp("dump") / "calls"
    with graphprobe.dump(folder, data="stats"):
        x = torch.ones(64, 64)
        for _ in range(99):
            x = torch.relu(x) + 1
    return folder


@pytest.mark.parametrize(
    ("command", "made"),
    [
        ("compare calls calls --out there", "comparison.json"),
        ("convert calls --to ptdbg --out there.pkl", ""),
    ],
)
def test_a_disk_that_is_full_leaves_nothing_half(
    command: str, made: str, calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "calls").symlink_to(calls)
    full = shell(f'ulimit -f 2; "{sys.executable}" -B -m graphprobe {command}', cwd=tmp_path)
    assert full.returncode == 125, full.stderr
    assert full.stderr.startswith("error[no-output]: ") and "File too large" in full.stderr
    assert command.startswith("compare") or "there" in full.stderr
    assert "Traceback" not in full.stderr
    left = list((tmp_path / "there").rglob("*")) if (tmp_path / "there").is_dir() else []
    assert left == [] and {path.name for path in tmp_path.iterdir()} <= {"calls", "there"}
    monkeypatch.chdir(tmp_path)
    call(*command.split(), code=0)
    assert not made or list((tmp_path / "there").rglob(made))


def test_a_command_that_is_told_works_as_it_is_told(tmp_path: Path) -> None:
    called = Path(sys.executable).parent / "graphprobe"
    for path, name in (("/usr/bin:/bin", str(called)), (f"{called.parent}:/usr/bin:/bin", "graphprobe")):
        now = {"cwd": tmp_path, "env": {**ENVIRONMENT, "PATH": path}}
        done = shell(f'"{called}" run -c "print(1)"', **now)
        assert done.returncode == 0, done.stderr
        command = done.stderr.strip().splitlines()[-1].removeprefix("graphprobe: next: ")
        assert command.startswith(f"{name} ls ")
        shown = shell(command, **now)
        assert shown.returncode == 0 and "run_" in shown.stdout, shown.stderr


LINES = 5
"""A verdict is in so many last lines."""
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

TRAINING = """\
import torch

torch.manual_seed(0)
layer = torch.nn.Linear(3, 1)
compiled = torch.compile(layer, backend="eager")
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    compiled(torch.ones(2, 3)).square().mean().backward()
    optimizer.step()
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
    "parse": ["parse dump Functional.relu.0.forward", "parse dump #1 --no-values"],
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
    "watch": ["watch program.py"],
    "drift": ["drift --steps 2 --perturbed 1 training.py"],
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
    (tmp_path / "training.py").write_text(TRAINING)
    (tmp_path / "plain.py").write_text("import torch\ntorch.relu(torch.ones(3))\n")
    (tmp_path / "log.txt").write_text("nothing of torch\n")
    write_profile(profile_of(compiled()), tmp_path / "cold.json")
    write_profile(profile_of(compiled()[:9]), tmp_path / "warm.json")
    np.save(tmp_path / "values.npy", np.ones((2, 2), np.float32))
    for name in ("dump", "other"):
        shutil.copytree(ROOT / "tests" / "data" / "msprobe" / "tensor", tmp_path / name)
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
        assert program in ("python", "head")
        assert name == "-m" or (folder / name).exists(), command
        return
    if name == "help":
        name, words = words[0], ["--help"]
    command_of(name).make_context(name, words, resilient_parsing=True)
    named = [word for word in words if not word.startswith("-")]
    assert name == "compare" or not named or any(Path(word.partition(":")[0]).exists() for word in named), command


def test_every_command_is_walked() -> None:
    assert {*READING, *RUNNING} == set(main_module.COMMANDS), "a new command needs a line in READING or RUNNING"


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
    done = call(*line.split())
    assert done.exit_code in (0, 1, 125), done.output
    _, command = last_lines(done.output)
    check_typed(command, folder)
    name, *words = shlex.split(command)
    if name == "graphprobe":
        again = call(*words)
        assert again.exit_code in (0, 1, 125), f"{command}: {again.output}"


@pytest.mark.parametrize("line", [line for lines in RUNNING.values() for line in lines])
def test_last_lines_of_what_runs(folder: Path, run_warm: Python, line: str) -> None:
    done = run_warm("-m", "graphprobe", *line.split(), cwd=folder)
    output = done.out + done.err
    assert "Traceback" not in output
    verdict, command = last_lines(done.err if line.startswith(("run ", "profile ", "watch ")) else done.out)
    check_typed(command, folder)
    assert "--dump-to eager" not in line or ("nothing was collected" not in output and "dumped to eager" in verdict)


@pytest.mark.parametrize(
    "line",
    [
        "ls runs --json",
        "compare dump dump --no-replay --json",
        "profile cold.json --json",
        "--version",
        "help ls",
        "issue proofs/codegen-aten.relu.default --title",
    ],
)
def test_what_another_program_reads_has_none(folder: Path, line: str) -> None:
    assert "next:" not in call(*line.split()).output
