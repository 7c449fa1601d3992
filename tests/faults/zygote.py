"""Processes that have torch imported before they start: a parent imports it once, each program runs in a fork of it.

As a script, this is that parent: it reads one JSON request a line from stdin and answers each with one on stdout.
"""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parents[2] / "src"
ENVIRONMENT = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}


@dataclasses.dataclass(frozen=True)
class Ended:
    """A program that ended: exit code (negative: the signal that killed it), what it said, and its process id."""

    code: int
    out: str
    err: str
    pid: int


class Zygote:
    """The side of the tests. graphprobe itself is not imported before a program runs."""

    def __init__(self) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(SOURCES)},
        )

    def python(self, *args: str, cwd: Path, env: dict[str, str] | None = None, timeout_s: float = 120) -> Ended:
        """`python ARGS`, where ARGS begins with a script or is `-m graphprobe …`; never raises on a bad exit."""
        assert self._parent.stdin is not None and self._parent.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            request = {
                "args": args,
                "cwd": str(cwd),
                "env": env or {},
                "out": str(out),
                "err": str(err),
                "timeout_s": timeout_s,
            }
            self._parent.stdin.write(json.dumps(request) + "\n")
            self._parent.stdin.flush()
            answer = json.loads(self._parent.stdout.readline())
            return Ended(answer["code"], out.read_text("utf-8"), err.read_text("utf-8"), answer["pid"])

    def graphprobe(self, *args: str, cwd: Path, env: dict[str, str] | None = None, timeout_s: float = 120) -> Ended:
        """`python -m graphprobe ARGS`."""
        return self.python("-m", "graphprobe", *args, cwd=cwd, env=env, timeout_s=timeout_s)

    def close(self) -> None:
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        self._parent.wait(30)


def _serve() -> dict[str, Any] | None:
    """Answers requests; returns one in each forked child, and None in the parent when there are no more."""
    _warm_up()
    answers = os.fdopen(os.dup(1), "w")
    for line in iter(sys.stdin.readline, ""):
        request: dict[str, Any] = json.loads(line)
        pid = os.fork()
        if pid == 0:
            answers.close()
            return request
        code = _wait(pid, time.monotonic() + request["timeout_s"])
        answers.write(json.dumps({"code": code, "pid": pid}) + "\n")
        answers.flush()
    return None


def _warm_up() -> None:
    """Compile once, so that torch has loaded what it loads on first use and registered its patterns; then forget it."""
    import torch

    x = torch.ones(4, 4, requires_grad=True)
    torch.compile(lambda x: torch.relu(x @ x).sum())(x).backward()
    torch.compiler.reset()


def _wait(pid: int, deadline: float) -> int:
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _become(request: dict[str, Any]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for descriptor, path, mode in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["out"], flags),
        (2, request["err"], flags),
    ):
        opened = os.open(path, mode, 0o666)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    args = request["args"]
    if args[:2] == ["-m", "graphprobe"]:
        from graphprobe.cli.main import main

        sys.argv = ["graphprobe", *args[2:]]
        sys.path[0] = os.getcwd()
        main()
        return
    sys.argv = args
    runpy.run_path(args[0], run_name="__main__")


if __name__ == "__main__":
    found = _serve()
    if found is not None:
        _become(found)
