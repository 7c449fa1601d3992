"""`graphprobe demo`: a fault is planted in the compiler, found in a small transformer, and shown."""

from __future__ import annotations

import importlib.resources
import json
import os
import shlex
import subprocess
import sys
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from graphprobe.cli.ending import check_signals
from graphprobe.cli.shared_options import new_folder
from graphprobe.errors import EXIT_FOUND, EXIT_OK, UsageError
from graphprobe.report.terminal import ProgressLine, print_closing
from graphprobe.report.visible import echo

PLANTED = ("aten.relu.default", "codegen")
"""Operation and stage of the fault that `demo_transformer.py` plants."""

PROGRAM = "transformer.py"


@click.command()
@click.option(
    "-o", "--out", "out_dir", metavar="DIR", default="graphprobe-demo", show_default=True, help="Folder for all output."
)
@click.option("--no-open", is_flag=True, help="Do not open the report in a browser.")
@click.option("--no-control", is_flag=True, help="Leave out the run without the fault.")
def command(out_dir: str, no_open: bool, no_control: bool) -> int:
    """Show in a minute what graphprobe does: plant a fault in the compiler, and find it in a small transformer.

    The demo writes a program into DIR, which must be new or empty, and diagnoses it: it is healthy. Then it compiles
    the program with a fault that torch has for its own tests: the C++ for ReLU adds 1. It finds the fault, proves it
    and reports it. You see each command that does this, and can repeat it. On a terminal with a display, the report
    opens in a browser.

    \b
    Examples:
      graphprobe demo
      graphprobe demo --out /tmp/demo --no-open

    Exit codes: 0 the fault was found as it was planted, 1 it was not, 2 wrong usage.
    """
    folder = new_folder(out_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out_dir}: it cannot be made: {error.strerror}") from error
    began = time.monotonic()
    source = importlib.resources.files("graphprobe") / "diagnose" / "demo_transformer.py"  # nothing of it is imported
    (folder / PROGRAM).write_bytes(source.read_bytes())
    shown = Path(os.path.relpath(folder))
    program = shown / PROGRAM
    echo(f"Wrote a small transformer to {program}. All output goes to {shown}/.")
    problems: list[str] = []
    if not no_control:
        _head("Compiled by a healthy compiler: is anything wrong?")
        if _graphprobe("diagnose", "--no-grad", f"{program}:healthy") != EXIT_OK:
            problems.append("the program without the fault was not found healthy")
    _head("Now ReLU is compiled to wrong code. Which pass, which operation, which line?")
    result, proofs = shown / "diagnosis.json", shown / "proofs"
    _graphprobe("diagnose", "--no-grad", "--json", str(result), "--out", str(proofs), f"{program}:faulty")
    finding = _planted(result)
    if finding is None:
        problems.append(f"the planted fault, {' in '.join(PLANTED)}, was not found")
    elif not _shows(Path(finding["dossier"])):
        problems.append("its proof does not show it")
    report = _report(shown, result)
    _end(finding, problems, report, time.monotonic() - began)
    if report is not None and not no_open and _on_terminal() and _has_display():
        webbrowser.open(report.absolute().as_uri())
    return EXIT_FOUND if problems else EXIT_OK


def _head(text: str) -> None:
    echo(f"\n== {text}")
    sys.stdout.flush()


def _graphprobe(*args: str) -> int:
    """Run one of our commands in this process, as it would be typed, and give its exit code."""
    from graphprobe.cli.main import main

    echo(f"$ graphprobe {shlex.join(args)}")
    sys.stdout.flush()
    code = main.main(args=list(args), prog_name="graphprobe", standalone_mode=False)
    sys.stdout.flush()
    check_signals()
    return int(code or 0)


def _planted(result: Path) -> dict[str, Any] | None:
    """The finding that names what was planted, with a proof; None where there is none."""
    if not result.is_file():
        return None
    findings: Sequence[dict[str, Any]] = json.loads(result.read_text(encoding="utf-8"))["findings"]
    return next((f for f in findings if (f["op"], f["stage"]) == PLANTED and f["dossier"]), None)


def _shows(dossier: Path) -> bool:
    """Whether the proof shows the fault in a process of its own."""
    repro = os.path.relpath(dossier / "repro.py")
    _head("The proof needs torch only, and runs in a process of its own.")
    echo(f"$ python {shlex.quote(repro)}")
    sys.stdout.flush()
    with ProgressLine() as progress:
        progress.tell("running the proof")
        done = subprocess.run([sys.executable, repro], check=False, capture_output=True, text=True)
    echo((done.stdout + done.stderr).rstrip())
    fault = done.returncode == EXIT_FOUND
    echo(f"exit code {done.returncode}: {'the fault is there' if fault else 'the fault does not show'}")
    return fault


def _report(folder: Path, result: Path) -> Path | None:
    """The HTML report of the diagnosis; None where there is none to be had."""
    if not result.is_file():
        return None
    report = folder / "report.html"
    _head("The whole story, in one file.")
    ended = _graphprobe("report", str(result), "-o", str(report), "--source-root", str(folder))
    return report if ended in (EXIT_OK, EXIT_FOUND) else None


def _end(finding: dict[str, Any] | None, problems: Sequence[str], report: Path | None, seconds: float) -> None:
    echo()
    facts: list[tuple[str, str]] = []
    if finding is not None:
        facts.append(("where", f"{os.path.relpath(finding['source'])} in {finding['module']}"))
        facts.append(("proof", f"python {shlex.quote(os.path.relpath(finding['dossier']))}/repro.py"))
    if report is not None:
        facts.append(("report", str(report)))
    if problems:
        verdict = f"NOT FOUND AS PLANTED: {'; '.join(problems)} ({seconds:.0f} s)"
        print_closing(verdict, facts, follow=["graphprobe", "doctor"], style="bold red")
        return
    verdict = f"FOUND: the planted fault, as it was planted: {', '.join(PLANTED)} ({seconds:.0f} s)"
    print_closing(verdict, facts, follow=["graphprobe", "help", "diagnose"], style="bold green")


def _on_terminal() -> bool:
    return sys.stdout.isatty()


def _has_display() -> bool:
    """Whether a browser would have a window: without one, a browser that draws text takes the terminal over."""
    if os.environ.get("CI"):
        return False
    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
