"""Runs a proof alone in a fresh process: under this python, or under another that has another version of torch."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphprobe.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED, UsageError
from graphprobe.findings import Stage

START_S, PROOF_S = 120.0, 300.0
"""What importing torch may take, and one run of a proof."""

OUTPUT = 20_000
"""Characters of a script's output that are kept, the last ones."""


def run_group(command: Sequence[str] | str, timeout_s: float, **how: Any) -> tuple[int | None, str]:
    """Exit code and output of a command, which ends with all that it started; no code where it takes longer than that.

    `how`: further arguments of `Popen`.
    """
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "preexec_fn": end_with_parent, **how}
    process = subprocess.Popen(command, start_new_session=True, **how)
    try:
        output, _ = process.communicate(timeout=max(0.0, timeout_s))
    except subprocess.TimeoutExpired:
        return None, ""
    finally:  # workers of the compiler included
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
        process.wait()
    return process.returncode, (output or b"").decode("utf-8", "replace")


def end_with_parent() -> None:
    """However the process that started this one ends, this one does, too; only Linux can do this."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG


def run_script(
    arguments: Sequence[str], timeout_s: float, stage: Stage, *, python: str = sys.executable, compiled: bool = True
) -> tuple[int, str]:
    """Exit code and output of a script, run alone.

    torch's caches of graphs are left alone; a fault of the stage `runtime` may come out of them, so that it gets empty
    ones of its own.

    Args:
        python: the interpreter.
        compiled: False: `torch.compile` does nothing in it.
    """
    env = {**os.environ, "TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
    if not compiled:
        env["TORCH_COMPILE_DISABLE"] = "1"
    if stage != "runtime" and python == sys.executable and "torch" in sys.modules:  # keys of caches would be others
        from graphprobe.internals.after_fork import instructions_known

        env |= instructions_known()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as elsewhere:
        if stage == "runtime":
            env |= dict.fromkeys(("TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_AUTOGRAD_CACHE"), "1")
            env["TORCHINDUCTOR_CACHE_DIR"] = str(Path(elsewhere) / "cache")
        command = [python, "-I", *arguments]
        code, output = run_group(command, timeout_s, cwd=elsewhere, env=env)
    if code is None:
        return EXIT_UNDECIDED, f"it did not end within {timeout_s:g} s"
    return (code if code >= 0 else EXIT_UNDECIDED), output[-OUTPUT:]


def proof_under(python: str, repro: Path, stage: Stage, *, limit_s: float = PROOF_S) -> tuple[str, str]:
    """What a proof shows under an interpreter: `wrong`, `right` or `unsure`, and why it could not tell.

    A script that fails shows the fault only if it does not fail uncompiled, too.
    """
    code, output = run_script([str(repro)], limit_s, stage, python=python)
    reason = _last_line(output)
    if code == EXIT_FOUND:
        code, output = run_script([str(repro)], limit_s, stage, python=python, compiled=False)
        if code == EXIT_OK:
            return "wrong", ""
        reason = f"it fails uncompiled, too: {_last_line(output)}"
    elif code == EXIT_OK:
        return "right", ""
    return "unsure", reason


def torch_of(python: str) -> str:
    """The version of the torch that an interpreter has; raises UsageError where it has none, or does not start."""
    hint = "name the python of an environment that has torch, e.g. other/bin/python"
    try:
        ask = [python, "-I", "-c", "import torch; print(torch.__version__)"]
        done = subprocess.run(ask, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=START_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--python {python}: it does not start: {error}", hint=hint) from error
    if done.returncode != 0 or not done.stdout.strip():
        raise UsageError(f"--python {python}: it cannot import torch: {_last_line(done.stderr)}", hint=hint)
    return _last_line(done.stdout)


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
