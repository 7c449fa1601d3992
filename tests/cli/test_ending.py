"""How commands end that are interrupted, have no output, or fail by a fault of our own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from conftest import ROOT, Finished
from graphprobe.cli import main as main_module
from graphprobe.cli.ending import Terminated

SLOW = """
import torch, time
@torch.compile(backend="aot_eager")
def f(x):
    print("in")
    return x + 1
f(torch.ones(2)); f(torch.ones(3))
print("READY", flush=True)
time.sleep(200)
"""

PLANTED = [
    (TypeError("planted"), 125, "please report it with"),
    (RecursionError("planted"), 125, "please report it with"),
    (MemoryError(), 125, "please report it with"),
    (OSError(28, "No space left on device", "some/file"), 125, "error[no-output]: some/file: No space left on device"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (Terminated(), 143, "interrupted"),
    (BrokenPipeError(32, "Broken pipe"), 141, ""),
]


@pytest.mark.parametrize(("error", "code", "said"), PLANTED, ids=[type(row[0]).__name__ for row in PLANTED])
@pytest.mark.parametrize("name", sorted(main_module.COMMANDS))
def test_no_command_ends_with_1_by_what_it_raises(
    name: str, error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(main_module.main, "get_command", lambda ctx, word: click.Command(word, callback=fails))
    result = CliRunner().invoke(main_module.main, [name])
    assert result.exit_code == code, result.output
    assert said in result.output and "Traceback" not in result.output
    if "please report" in said:
        (file,) = tmp_path.glob("graphprobe-error-*.txt")
        text = file.read_text()
        assert str(file) in result.output and "in fails" in text and type(error).__name__ in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("command", "told"), [("explain", "BREAKS: 1 graph break"), ("recompiles", "there may be more")]
)
def test_what_was_learnt_is_told_when_a_signal_comes(
    command: str, told: str, number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    process = subprocess.Popen(
        [sys.executable, "-m", "graphprobe", command, "slow.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while "READY" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(number)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert told in out


@pytest.fixture
def recorded(tmp_path: Path, run_warm: Callable[..., Finished]) -> Path:
    code = "import torch; torch.compile(lambda x: x + 1, backend='aot_eager')(torch.ones(2))"
    done = run_warm("-m", "graphprobe", "run", "-q", "--out", str(tmp_path / "runs"), "-c", code)
    assert done.code == 0, done.err
    return tmp_path / "runs"


def test_outputs_that_cannot_take_it(recorded: Path) -> None:
    def ls(ending: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
        line = f'"{sys.executable}" -m graphprobe ls "{recorded}" {ending}'
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
        return subprocess.run(["bash", "-c", line], capture_output=True, env=env, check=False, timeout=120)

    closed = ls(">&-")
    assert closed.returncode == 2 and b"the standard output is closed" in closed.stderr
    full = ls("> /dev/full")
    assert full.returncode == 125 and full.stderr.count(b"\n") == 1
    assert b"error[no-output]: a file or the output cannot be written: No space left on device" in full.stderr
    for env in ({"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}, {"PYTHONIOENCODING": "latin-1"}):
        done = ls("", **env)
        assert (done.returncode, done.stderr) == (0, b"") and b"model__0" in done.stdout


@pytest.mark.parametrize(
    ("command", "made"),
    [
        ("compare calls calls --out there", "comparison.json"),
        ("convert calls --to msprobe --out there", "dump.json"),
        ("convert calls --to ptdbg --out there.pkl", ""),
    ],
)
def test_a_disk_that_is_full_leaves_nothing_half(
    command: str, made: str, tmp_path: Path, run_warm: Callable[..., Finished]
) -> None:
    code = "import torch; x = torch.ones(64, 64)\nfor _ in range(99): x = torch.relu(x) + 1"
    done = run_warm("-m", "graphprobe", "run", "-q", "--dump", "stats", "--dump-to", "calls", "-c", code, cwd=tmp_path)
    assert done.code == 0, done.err
    before = sorted(path.name for path in tmp_path.iterdir())
    line = f'ulimit -f 2; "{sys.executable}" -B -m graphprobe {command}'
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    full = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert full.returncode == 125, full.stderr
    assert full.stderr.startswith("error[no-output]: ") and "File too large" in full.stderr
    assert command.startswith("compare") or "there" in full.stderr
    assert "Traceback" not in full.stderr
    left = list((tmp_path / "there").rglob("*")) if (tmp_path / "there").is_dir() else []
    assert left == [] and {path.name for path in tmp_path.iterdir()} - set(before) <= {"there"}
    again = run_warm("-m", "graphprobe", *command.split(), cwd=tmp_path)
    assert again.code == 0, again.err
    assert not made or list((tmp_path / "there").rglob(made))


def test_a_command_that_is_told_works_as_it_is_told(tmp_path: Path) -> None:
    called = str(Path(sys.executable).parent / "graphprobe")
    code = "import torch; torch.compile(lambda x: x + 1, backend='aot_eager')(torch.ones(2))"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"}
    for path, name in ((env["PATH"], called), (f"{Path(called).parent}:{env['PATH']}", "graphprobe")):
        now = {**env, "PATH": path}
        done = subprocess.run([called, "run", "-c", code], cwd=tmp_path, env=now, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        command = done.stderr.strip().splitlines()[-1].removeprefix("graphprobe: next: ")
        assert command.startswith(f"{name} ls ")
        shown = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=now, capture_output=True, text=True)
        assert shown.returncode == 0 and "model__0" in shown.stdout, shown.stderr
