"""`graphprobe recompiles`: what is compiled again and again, why, and what to do about it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from graphprobe.analysis.recompiles import RecompileReport, report_from_run
from graphprobe.cli.ending import AtSignal, at_signal
from graphprobe.cli.shared_options import JsonTo, exit_code, filtered, json_option, only_function_option
from graphprobe.cli.target import TargetCommand, TypedTarget, check_backend, compiled_with, is_run
from graphprobe.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED, UsageError
from graphprobe.report.explanation import print_end_of_recompiles, recompile_lines
from graphprobe.report.terminal import print_lines
from graphprobe.report.visible import echo
from graphprobe.store import layout
from graphprobe.store.reader import Run

if TYPE_CHECKING:
    from graphprobe.probe.script import ScriptTarget


@click.command(cls=TargetCommand, takes="[SCRIPT [ARGS]... | RUN]", reads=is_run)
@json_option
@click.option(
    "--allow",
    "allowed",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Accept N recompilations of each function. Default: 0.",
)
@click.option("--backend", metavar="NAME", help="Compile with this backend. Default: as the script says.")
@only_function_option
def command(
    json_to: JsonTo,
    allowed: int,
    backend: str | None,
    only_function: tuple[str, ...],
    target: TypedTarget,
) -> int:
    """Count the guard failures of a whole program, group them by cause, and name the remedy of each.

    SCRIPT runs as `python` would run it, with its own arguments. Options stand before it. RUN is a run folder of
    `graphprobe run`, or a folder with runs: then the newest is taken. RUN defaults to torch_compile_debug.

    \b
    Examples:
      graphprobe recompiles train.py --epochs 1
      graphprobe recompiles --allow 1 --json out.json train.py
      graphprobe recompiles torch_compile_debug

    Exit codes: 0 no recompilation (beyond --allow), 1 there are some, 2 wrong usage, 125 could not decide: the program
    failed, or the run does not hold them.
    """
    if not target.typed or is_run(target.first):
        run, *more = target.words or (layout.ROOT,)
        if more:
            raise UsageError(f"{run} is a run, which takes no arguments; got {' '.join(more)!r}")
        if backend is not None or only_function:
            raise UsageError("--backend and --only-function: a run has been compiled already")
        report = report_from_run(Run.open(run), allowed=allowed)
        _show(report, None, json_to=json_to, typed=[run], run=True)
        return _exit_code(report, None)
    check_backend(backend)
    base = Path.cwd()  # the program may go elsewhere, or remove it
    tell = partial(_show, json_to=json_to, typed=target.typed, run=False, base=base)
    with filtered(only_function) as only, compiled_with(backend):
        report, problem = _watched(target.program(), allowed, tell, live=not json_to.printed)
    tell(report, problem)
    return exit_code(only, _exit_code(report, problem))


def _watched(
    program: ScriptTarget, allowed: int, tell: Callable[[RecompileReport, str], None], *, live: bool
) -> tuple[RecompileReport, str | None]:
    """Run the program to its end, threads included; what it failed with, if it failed.

    `tell` shows what is known where a signal does not end it. `live`: each new cause is printed as it comes.
    """
    from graphprobe.probe import script
    from graphprobe.probe.recompile_watch import Recompiles

    script.check(program)
    process = os.getpid()
    watch = Recompiles(
        allowed=allowed, on_cause=(lambda text: echo(f"graphprobe: recompiles: {text}", err=True)) if live else None
    )
    watch.open()
    with at_signal(AtSignal(known=lambda why: tell(watch.result(), f"the script was {why}"))):
        ended = script.run(program)
        if os.getpid() != process:
            sys.exit(ended.code)  # a forked child of the program, which has nothing to report
        ended = script.wait_for_threads(ended)
    watch.close()
    return watch.result(), ended.problem


def _show(
    report: RecompileReport,
    problem: str | None,
    *,
    json_to: JsonTo,
    typed: list[str],
    run: bool,
    base: Path | None = None,
) -> None:
    sys.stdout.flush()
    if json_to.replaces_text(lambda: {**msgspec.structs.asdict(report), "problem": problem}):
        return
    print_lines(recompile_lines(report, base=base))
    if problem is not None:
        echo(f"{problem}: there may be more")
    echo()
    print_end_of_recompiles(report, typed, problem=problem, run=run)


def _exit_code(report: RecompileReport, problem: str | None) -> int:
    if report.unwanted:
        return EXIT_FOUND
    return EXIT_OK if problem is None and report.complete else EXIT_UNDECIDED
