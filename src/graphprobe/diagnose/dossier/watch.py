"""The parent half of every long repro: runs it uncompiled, then compiled, in processes of their own, and judges.

The part between the marks is copied, as text, into each repro. It needs the standard library only, so that the parent
need not import torch.
"""

from __future__ import annotations

# <watch>
import argparse
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TIMEOUT_S = 300.0
REPORT = "report.jsonl"


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Runs the program of this file uncompiled and compiled, and compares. "
        "Exits 1 while they differ, 0 when they agree, 125 when it cannot tell."
    )
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=TIMEOUT_S, help="default: %(default)s")
    parser.add_argument("--import", metavar="MODULE", dest="modules", action="append", default=[], help="import first")
    parser.add_argument("--child", metavar="FOLDER", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def watch(kind: str, calls: int, file: str) -> int:
    """Runs this file again, uncompiled and then compiled, where it may crash or hang, and returns the exit code."""
    options = options_of(sys.argv[1:])
    until, code, events = time.monotonic() + options.timeout, None, list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        report = Path(folder) / REPORT
        isolated = ["-I"] if sys.flags.isolated else []
        command = [sys.executable, *isolated, str(Path(file).resolve()), "--child", folder]
        command += [part for module in options.modules for part in ("--import", module)]
        for ends_with in ("uncompiled", "compiled"):
            code = ending_of(command, until - time.monotonic())
            lines = report.read_text("utf-8").splitlines() if report.is_file() else []
            events = [json.loads(line) for line in lines]
            if not any(ends_with in event for event in events):
                break
    exit_code, texts = judge(kind, calls, events, code, options.timeout)
    sys.stdout.write("".join(f"{text}\n" for text in texts))
    return exit_code


def ending_of(command: Sequence[str], limit_s: float) -> int | None:
    """The exit code of a process that is ended with all that it started; None where it takes longer than that."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        return child.wait(max(0.0, limit_s))
    except subprocess.TimeoutExpired:
        return None
    finally:  # workers of the compiler included
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL) if hasattr(os, "killpg") else child.kill()
        child.wait()


def end_with_parent() -> None:
    """However the process that started this one ends, this one does, too; only Linux can do this."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG


def ending(code: int | None, timeout_s: float) -> str:
    """How a process ended: its exit status, where a negative one is a signal and None means that it was stopped."""
    if code is None:
        return f"did not end within {timeout_s:g} s"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def judge(
    kind: str, calls: int, events: Sequence[Mapping[str, Any]], code: int | None, timeout_s: float
) -> tuple[int, list[str]]:
    """The exit code and what to print, from what the processes reported until they ended."""
    found = {name: [event[name] for event in events if name in event] for event in events for name in event}
    notes = found.get("note", [])
    if "undecided" in found:
        return 125, [*notes, f"CANNOT DECIDE: {found['undecided'][0]}"]
    if "uncompiled" not in found:
        return 125, [*notes, f"CANNOT DECIDE: the process {ending(code, timeout_s)} before the uncompiled run was done"]
    texts = [*notes, *dict.fromkeys(found.get("difference", []))]
    where = found.get("phase", ["the compiled run"])[-1]
    if code is None and kind != "hang" and "difference" not in found:
        return 125, [*texts, f"CANNOT DECIDE: {where} {ending(code, timeout_s)}; --timeout gives it more"]
    if code is None or code < 0 or "compiled" not in found:
        texts.append(f"{where}: the process {ending(code, timeout_s)}; the uncompiled run went well")
        return 1, [*texts, f"FAULT: {kind}"]
    if "difference" in found:
        return 1, [*texts, f"FAULT: {kind}"]
    return 0, [*texts, f"GONE: compiled and uncompiled agree in {calls} call(s)"]


# </watch>
