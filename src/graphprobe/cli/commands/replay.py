"""`graphprobe replay`: a recorded frame, traced again in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from graphprobe.cli.shared_options import JsonCommand, JsonTo, json_option
from graphprobe.cli.target import check_backend, import_first
from graphprobe.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED, UsageError
from graphprobe.report.document import counted
from graphprobe.report.run_document import replay_lines
from graphprobe.report.terminal import print_closing
from graphprobe.report.visible import echo, one_line
from graphprobe.store import layout
from graphprobe.store.frame_record import REPLAY, find_records, read_record

LEFT_OUT = ("TORCH_COMPILE_DEBUG", "TORCHDYNAMO_REPRO_AFTER", "TORCHDYNAMO_REPRO_LEVEL")
"""Variables that would make the replay write files of its own."""
EXIT_CODES = {"reproduced": EXIT_FOUND, "gone": EXIT_OK}


@click.command(cls=JsonCommand)
@click.argument("record", type=click.Path(path_type=Path), default=layout.ROOT)
@click.option("--backend", metavar="NAME", help="Compile with this backend and run. Default: only trace.")
@click.option("--device", metavar="DEVICE", help="Put all tensors there, e.g. cpu. Default: where they were.")
@click.option("--import", "modules", multiple=True, metavar="MODULE", help="Import first, e.g. for its operators.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0, min_open=True), default=300.0, metavar="SECONDS")
@json_option
def command(
    record: Path, backend: str | None, device: str | None, modules: tuple[str, ...], timeout_s: float, json_to: JsonTo
) -> int:
    """Trace a frame again that could not be traced, from its record alone.

    RECORD is the folder of a record, or of runs with records. It defaults to torch_compile_debug. The program itself is
    not needed.

    \b
    Examples:
      graphprobe run --record-frames train.py
      graphprobe replay torch_compile_debug/run_.../graphprobe/frames/000_forward
      graphprobe replay torch_compile_debug --json

    Exit codes: 0 the frame is traced, 1 it fails as recorded, 2 wrong usage, 125 undecided.
    """
    named = [("--backend", backend), ("--device", device), *(("--import", module) for module in modules)]
    options = [part for option, value in named if value is not None for part in (option, value)]
    if backend is not None or device is not None:
        for module in modules:
            import_first(module)
        _check(backend, device)
    found = [(folder, read_record(folder)) for folder in find_records(record)]
    verdicts, documents, verdict = [], [], ""
    for folder, described in found:
        result = _replay(folder, options, timeout_s)
        verdicts.append(EXIT_CODES.get(str(result.get("verdict")), EXIT_UNDECIDED))
        documents.append({"record": str(folder), "function": described.function, **result})
        if not json_to.printed:
            *lines, verdict = replay_lines(str(folder), described, result)
            for line in lines if len(found) == 1 else [*lines, verdict, ""]:
                echo(one_line(line))
    if not json_to.replaces_text(lambda: {"replays": documents}):
        _end(record, found[0][0], verdicts, verdict if len(found) == 1 else "", compiled=backend is not None)
    return EXIT_FOUND if EXIT_FOUND in verdicts else max(verdicts)


def _end(record: Path, first: Path, verdicts: list[int], only: str, *, compiled: bool) -> None:
    """`first`: the record replayed first; `only`: the verdict of a single one; `compiled`: the frames ran, too."""
    count = counted(len(verdicts), "frame")
    if EXIT_FOUND in verdicts:
        verdict, tone = f"REPRODUCED: {verdicts.count(EXIT_FOUND)} of {count} failed as recorded", "red"
    elif EXIT_UNDECIDED in verdicts:
        verdict, tone = f"CANNOT DECIDE: {verdicts.count(EXIT_UNDECIDED)} of {count}", "yellow"
    else:
        verdict, tone = f"GONE: {count} traced", "green"
    follow = ["python", str(first / REPLAY)]
    if tone == "green" and not compiled:
        follow = ["graphprobe", "replay", str(record), "--backend", "inductor"]
    print_closing(only or verdict, follow=follow, style=f"bold {tone}")


def _check(backend: str | None, device: str | None) -> None:
    import torch

    check_backend(backend)
    try:
        torch.device(device or "cpu")
    except RuntimeError as error:
        raise UsageError(f"--device {device}: {str(error).splitlines()[0]}") from error


def _replay(folder: Path, options: list[str], timeout_s: float) -> dict[str, Any]:
    """What the record's own script says; why it said nothing, where it did not."""
    script = (folder / REPLAY).resolve()
    if not script.is_file():
        return _undecided(f"{script} is missing")
    environ = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        answer = Path(temporary) / "result.json"
        command = [sys.executable, str(script), "--json", str(answer), *options]
        try:
            done = subprocess.run(
                command, env=environ, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            return _undecided(f"it did not end within {timeout_s:g} s")
        try:
            return dict(json.loads(answer.read_text("utf-8")))
        except (OSError, ValueError):
            last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
            return _undecided(f"the replay ended with exit code {done.returncode}: {last}")


def _undecided(text: str) -> dict[str, Any]:
    return {"verdict": "undecided", "text": text, "error": None, "differences": [], "caveats": [], "seconds": None}
