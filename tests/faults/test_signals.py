"""A signal at any moment: what is known is printed, the code is the signal's, and nothing is left or half written."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT
from graphprobe.store import Run

HARD = """
import os, sys, threading, time
import torch

def wrong(gm, inputs):
    return lambda *args: tuple(out + 1 if isinstance(out, torch.Tensor) else out for out in gm(*args))

def compiled(backend="aot_eager"):
    @torch.compile(backend=backend)
    def f(x):
        return (x.sin() * 2).relu() + x.cos()
    return f

f = compiled()
"""

PROGRAMS = {
    "sleeps": "f(torch.ones(2)), f(torch.ones(3))\nready()\ntime.sleep(300)",
    "stuck": "f(torch.ones(2))\nthreading.Thread(target=threading.Event().wait).start()\nready()",
    "swallows": """
f(torch.ones(2))
ready()
while True:
    try:
        time.sleep(300)
    except BaseException:
        pass
""",
    "wrong": "f(torch.ones(2))\ncompiled(wrong)(torch.ones(2))\nready()\ntime.sleep(300)",
    "children": """
import multiprocessing as mp, subprocess
f(torch.ones(2))
started = [mp.get_context("fork").Process(target=time.sleep, args=(300,)) for _ in range(2)]
for child in started: child.start()
subprocess.Popen(["sleep", "300"])
ready()
started[0].join()
""",
    "pool": """
from concurrent.futures import ThreadPoolExecutor
def work(n):
    while True: f(torch.ones(n % 5 + 2)), time.sleep(0.01)
with ThreadPoolExecutor(3) as pool:
    for n in range(3): pool.submit(work, n)
    time.sleep(1), ready()
""",
    "server": """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        f(torch.ones(int(self.path[1:])))
        self.send_response(200), self.end_headers(), self.wfile.write(b"x")
    def log_message(self, *args): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
def ask():
    try:
        for n in range(2, 500): urlopen(f"http://127.0.0.1:{server.server_port}/{n % 4 + 2}").read()
    except OSError: pass  # it has ended
for _ in range(2): threading.Thread(target=ask, daemon=True).start()
ready()
server.serve_forever()
""",
}
"""A program each, which goes on until somebody ends it; `ready()` prints a line."""

COMMANDS = {
    "run": "run",
    "run --dump": "run --dump stats --dump-to calls",
    "run --dump-graph": "run --dump-graph stats",
    "diagnose": "diagnose --json result.json",
    "explain": "explain",
    "recompiles": "recompiles",
    "profile": "profile",
    "reduce": "reduce",
}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LIMIT_S = 20.0
"""Five are promised, on a machine with nothing else to do."""


def _as_usual() -> None:
    """What a shell or `nohup` may have had ignored is not: a command leaves that as it is."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


class Command:
    """A command under way, in a group of its own. What it starts is known by a variable of its environment."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self.folder, self._mark = folder, f"ENDS_MARK={uuid.uuid4()}"
        name, _, value = self._mark.partition("=")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "graphprobe", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1", name: value},
            stdout=(folder / "out").open("w"),
            stderr=(folder / "err").open("w"),
            start_new_session=True,
            preexec_fn=_as_usual,
        )

    def wait_until(self, text: str, limit_s: float = 300) -> None:
        until = time.monotonic() + limit_s
        while text not in self.output:
            assert self.process.poll() is None and time.monotonic() < until, self.output
            time.sleep(0.02)

    @property
    def output(self) -> str:
        return (self.folder / "out").read_text() + (self.folder / "err").read_text()

    def end(self, number: signal.Signals) -> float:
        """Send a signal, and wait for the end; how long that took."""
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(120)
        return time.monotonic() - began

    def left(self) -> list[str]:
        """Processes of its group, or that it has started, after a moment in which they may see that it is gone."""
        until = time.monotonic() + 8
        while (found := list(self._left())) and time.monotonic() < until:
            time.sleep(0.2)
        return found

    def _left(self) -> Iterator[str]:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                stat = (folder / "stat").read_bytes().rpartition(b")")[2].split()
                marked = self._mark.encode() in (folder / "environ").read_bytes()
                if (marked or int(stat[2]) == self.process.pid) and stat[0] != b"Z":
                    yield (folder / "cmdline").read_text().replace("\0", " ")
            except (OSError, IndexError):
                pass


def check_files(folder: Path) -> None:
    """Everything that was written can be read, and nothing else is there."""
    for path in folder.rglob("*"):
        assert ".part-" not in path.name and not path.name.endswith(".tmp"), path
        if path.suffix == ".json":
            json.loads(path.read_text())
        if path.suffix == ".jsonl":
            assert all(json.loads(line) for line in path.read_text().splitlines()), path
        if path.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(path, "np") as file:
                list(file.keys())
        if path.name.startswith("run_") and (path / "graphprobe").is_dir():
            Run.open(path)


def program(name: str, folder: Path) -> str:
    said = "def ready(): print('READY', flush=True)\n"
    (folder / f"{name}.py").write_text(f"{HARD}{said}{PROGRAMS[name]}\n")
    return f"{name}.py"


def as_python(command: str, number: signal.Signals) -> bool:
    return command.startswith("run") or (command == "profile" and number == signal.SIGINT)


def codes(command: str, number: signal.Signals) -> set[int]:
    """The exit codes that are right: as python ends of what is to end the program as python does."""
    if as_python(command, number):
        return {-number, 0} if number == signal.SIGINT else {-number}  # 0: python has come to its end, and waits
    return {128 + number}


CASES = [
    ("diagnose", "stuck", signal.SIGTERM, "stuck.py: 1 healthy"),
    ("diagnose", "wrong", signal.SIGINT, "1 healthy, 1 fault"),
    ("diagnose", "server", signal.SIGTERM, "the script was ended: interrupted by SIGTERM"),
    ("explain", "swallows", signal.SIGTERM, "1 graph, "),
    ("recompiles", "sleeps", signal.SIGHUP, "RECOMPILES: 1 recompilation of 1 function"),
    ("recompiles", "stuck", signal.SIGINT, "the script was ended by SIGINT: there may be more"),
    ("profile", "stuck", signal.SIGTERM, "wrote "),
    ("profile", "sleeps", signal.SIGINT, "wrote "),
    ("reduce", "children", signal.SIGTERM, "UNDECIDED"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "name", "number", "known"), CASES, ids=[f"{c} {p} {n.name}" for c, p, n, _ in CASES]
)
def test_what_is_known_is_printed(command: str, name: str, number: signal.Signals, known: str, tmp_path: Path) -> None:
    begun = Command([*COMMANDS[command].split(), program(name, tmp_path)], tmp_path)
    begun.wait_until("READY")
    took_s = begun.end(number)
    assert begun.process.returncode in codes(command, number), begun.output
    assert known in begun.output, begun.output
    assert took_s < LIMIT_S and begun.left() == []
    assert "graphprobe/cli/ending.py" not in begun.output
    assert command == "profile" or "Traceback" not in begun.output, begun.output
    check_files(tmp_path)


@pytest.mark.slow
def test_the_first_fact_and_where_it_was(tmp_path: Path) -> None:
    begun = Command(["diagnose", program("wrong", tmp_path)], tmp_path)
    begun.wait_until("looking for the smallest case")
    assert begun.end(signal.SIGTERM) < LIMIT_S and begun.process.returncode == 143 and begun.left() == []
    assert "1 healthy, 1 fault" in begun.output and "interrupted by SIGTERM: which" in begun.output
    assert "Traceback" not in begun.output


IMPORTS = """
import os, signal, sys

class Signalled:
    def find_spec(self, name, *args):
        if name == "torch.distributed":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Signalled())
import torch
"""


@pytest.mark.parametrize("command", ["recompiles", "diagnose"])
def test_no_exception_is_raised_while_torch_is_imported(command: str, tmp_path: Path) -> None:
    """Raised in a function that C++ calls, it would end the process by SIGABRT."""
    (tmp_path / "imports.py").write_text(IMPORTS)
    begun = Command([command, "imports.py"], tmp_path)
    assert begun.process.wait(120) == 143
    assert "UNDECIDED: " in begun.output and "interrupted by SIGTERM" in begun.output
    assert "ended by SIGTERM" not in begun.output and "no compiled function" not in begun.output, "it was not raised"
    assert "Traceback" not in begun.output and begun.left() == []


@pytest.mark.slow
def test_a_second_signal_ends_at_once_and_one_that_comes_twice_does_not(tmp_path: Path) -> None:
    for apart_s, told in ((0.02, True), (1.0, False)):
        folder = tmp_path / str(apart_s)
        folder.mkdir()
        begun = Command(["recompiles", program("swallows", folder)], folder)
        begun.wait_until("READY")
        begun.process.send_signal(signal.SIGTERM)
        time.sleep(apart_s)
        took_s = begun.end(signal.SIGTERM)
        assert begun.process.returncode == 143
        assert ("there may be more" in begun.output) is told, begun.output
        assert told or took_s < 1.5


@pytest.mark.slow
def test_demo_ends_without_a_verdict(tmp_path: Path) -> None:
    begun = Command(["demo", "--no-open"], tmp_path)
    begun.wait_until("diagnosing")
    assert begun.end(signal.SIGINT) < LIMIT_S and begun.process.returncode == 130
    assert "FOUND" not in begun.output and "Traceback" not in begun.output
    assert begun.output.endswith("graphprobe: interrupted\n") and begun.left() == []


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(60))
def test_a_signal_at_any_moment(seed: int, tmp_path: Path) -> None:
    drawn = random.Random(seed)
    command, name, number = drawn.choice([*COMMANDS]), drawn.choice([*PROGRAMS]), drawn.choice(SIGNALS)
    # Python itself waits for these, or leaves their processes.
    while as_python(command, number) and name in ("children", "pool", "swallows"):
        name = drawn.choice([*PROGRAMS])
    begun = Command([*COMMANDS[command].split(), program(name, tmp_path)], tmp_path)
    time.sleep(drawn.uniform(0.5, 15))
    done = begun.process.poll() is not None
    took_s = begun.end(number)
    assert done or begun.process.returncode in {*codes(command, number), 128 + number, -number}, begun.output
    assert took_s < LIMIT_S and begun.left() == [], begun.output
    assert "graphprobe/cli/ending.py" not in begun.output
    check_files(tmp_path)
