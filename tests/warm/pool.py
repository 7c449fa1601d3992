"""The side of the tests: starts the server, and ends it."""

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


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
        said = self._server.stdout.readline()
        assert said == "listening\n", f"the server of warm processes said {said!r}"

    def close(self) -> None:
        self._server.stdin.close()
        self._server.wait(30)
        self._folder.cleanup()
