"""`graphprobe recompiles`: what is compiled again and again, why, and what to do about it."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphprobe.cli.output import new_file
from graphprobe.cli.target import STDOUT, TargetCommand, is_run, program_of, program_options
from graphprobe.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED, UsageError
from graphprobe.report.visible import echo
from graphprobe.store import layout

if TYPE_CHECKING:
    from graphprobe.analysis.recompiles import RecompileReport
    from graphprobe.probe.script import Ended, ScriptTarget


@click.command(cls=TargetCommand, reads=is_run, bare_json=True)
@click.option(
    "--json", "json_path", metavar="[FILE]", help="Print JSON; or write it to FILE, which must be new: *.json."
)
@click.option(
    "--allow",
    "allowed",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="So many recompilations of each function are as wanted. Default: 0.",
)
@program_options
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT [ARGS]... | RUN]")
@click.pass_context
def command(
    ctx: click.Context,
    json_path: str | None,
    allowed: int,
    module: str | None,
    code: str | None,
    target: tuple[str, ...],
) -> None:
    """Count the guard failures of a whole program, group them by cause, and name the remedy of each.

    SCRIPT runs as `python` would run it, with its own arguments. RUN is a run that `graphprobe run` recorded, by its
    folder or the folder of several, of which the newest is taken (default: torch_compile_debug). Options stand before
    a script.

    \b
    Examples:
      graphprobe recompiles train.py --epochs 1
      graphprobe recompiles --allow 1 --json out.json train.py
      graphprobe recompiles torch_compile_debug

    Exit codes: 0 no recompilation (beyond --allow), 1 there are some, 2 wrong usage, 125 could not decide: the program
    failed, or the run does not hold them.
    """
    file = None if json_path in (None, STDOUT) else new_file("--json", json_path)
    if module is None and code is None and (not target or is_run(target[0])):
        if len(target) > 1:
            raise UsageError(f"{target[0]} is a run, which takes no arguments; got {' '.join(target[1:])!r}")
        report = _read(target[0] if target else layout.ROOT, allowed)
        problem = None
    else:
        report, problem = _watched(program_of(module, code, target), allowed)
    _show(report, problem, file, as_json=json_path == STDOUT)
    ctx.exit(_exit_code(report, problem))


def _read(target: str, allowed: int) -> RecompileReport:
    from graphprobe.analysis.recompiles import report_from_run
    from graphprobe.store.reader import Run

    return report_from_run(Run.open(target), allowed=allowed)


def _watched(program: ScriptTarget, allowed: int) -> tuple[RecompileReport, str | None]:
    """Run the program to its end, threads included; what it failed with, if it failed."""
    from graphprobe.probe import script
    from graphprobe.probe.recompile_watch import Recompiles

    script.check(program)
    process = os.getpid()
    watch = Recompiles(allowed=allowed)
    watch.open()
    ended = script.run(program)
    if os.getpid() != process:
        sys.exit(ended.code)  # a forked child of the program, which has nothing to report
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    watch.close()
    return watch.result(), _problem(ended)


def _problem(ended: Ended) -> str | None:
    if ended.error is not None:
        return f"the program raised {ended.error}"
    return None if ended.code == 0 else f"the program ended with exit code {ended.code}"


def _show(report: RecompileReport, problem: str | None, file: Path | None, *, as_json: bool) -> None:
    import msgspec

    from graphprobe.report.run_text import recompile_lines
    from graphprobe.report.terminal import print_lines
    from graphprobe.store.files import replace_file

    sys.stdout.flush()
    document = msgspec.json.format(msgspec.json.encode({**msgspec.to_builtins(report), "problem": problem}), indent=2)
    if file is not None:
        replace_file(file, document + b"\n")
    if as_json:
        echo(document.decode())
        return
    print_lines(recompile_lines(report))
    if problem is not None:
        echo(f"{problem}: there may be more")


def _exit_code(report: RecompileReport, problem: str | None) -> int:
    if report.unwanted:
        return EXIT_FOUND
    return EXIT_OK if problem is None and report.complete else EXIT_UNDECIDED
