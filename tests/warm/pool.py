"""The side of the tests: starts the server, and ends it."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1] / "src"


@dataclasses.dataclass(frozen=True)
class Ended:
    """A program that ended: exit code (negative: the signal that killed it), and what it said."""

    code: int
    out: str
    err: str


class Warm:
    """A server, started with the environment of the tests.

    Attributes:
        executable: to be called as Python is.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="warm-")
        folder = Path(self._folder.name)
        words = [sys.executable, "-IS", str(HERE / "client.py"), str(folder)]
        path = folder / "python"
        path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
        path.chmod(0o755)
        self.executable = str(path)
        self._server = subprocess.Popen(
            [sys.executable, str(HERE / "server.py"), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._server.stdout is not None
        said = self._server.stdout.readline()
        assert said == "listening\n", f"the server of warm processes said {said!r}"

    def python(self, *args: str, cwd: Path, env: dict[str, str] | None = None, timeout_s: float = 120) -> Ended:
        """`python ARGS` with the sources of this repository; never raises on a bad exit."""
        path = os.pathsep.join(filter(None, [str(SOURCES), os.environ.get("PYTHONPATH", "")]))
        done = subprocess.run(
            [self.executable, *args],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": path, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def graphprobe(self, *args: str, cwd: Path, env: dict[str, str] | None = None, timeout_s: float = 120) -> Ended:
        """`python -m graphprobe ARGS`."""
        return self.python("-m", "graphprobe", *args, cwd=cwd, env=env, timeout_s=timeout_s)

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(30)
        self._folder.cleanup()


@functools.cache
def shared() -> Warm:
    """The one of this process, started when it is first asked for."""
    started = Warm()
    atexit.register(started.close)
    return started
