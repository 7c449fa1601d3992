"""`graphprobe explain`: graphs, graph breaks with their remedy, and what was not compiled."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphprobe.cli.ending import AtSignal, at_signal
from graphprobe.cli.option_rows import exit_code, filtered, only_function_option
from graphprobe.cli.output import JSON_HELP, JSON_METAVAR, STDOUT, JsonTo, new_file
from graphprobe.cli.target import (
    TargetCommand,
    call_from_file,
    callable_of,
    check_backend,
    compiled_with,
    is_run,
    program_of,
    program_options,
    words_of,
)
from graphprobe.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED, UsageError
from graphprobe.report.visible import echo
from graphprobe.store import layout

if TYPE_CHECKING:
    from graphprobe.analysis.breaks import BreakReport
    from graphprobe.probe.script import ScriptTarget


@click.command(cls=TargetCommand, reads=lambda word: is_run(word) or callable_of(word) is not None)
@click.option("--json", "json_path", metavar=JSON_METAVAR, help=JSON_HELP)
@click.option("--force", is_flag=True, help="Overwrite the file of --json.")
@click.option("--backend", metavar="NAME", help="Compile with this backend. Default: as the script says, or eager.")
@click.option(
    "--dynamic/--no-dynamic", default=None, help="As dynamic=… of torch.compile. Default: as the script says."
)
@only_function_option
@program_options
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[TARGET [ARGS]...]")
@click.pass_context
def command(
    ctx: click.Context,
    json_path: str | None,
    force: bool,
    backend: str | None,
    dynamic: bool | None,
    only_function: tuple[str, ...],
    module: str | None,
    code: str | None,
    words: tuple[str, ...],
) -> None:
    """Show which graphs torch.compile makes of a program, what breaks them, and what to write instead.

    TARGET is a script, which runs with its own arguments, or a run folder of `graphprobe run`. It may also be
    FILE.py:CALLABLE, a function without arguments that returns (fn, args) or (fn, args, kwargs). Options stand before
    a script. TARGET defaults to the newest run in torch_compile_debug.

    \b
    Examples:
      graphprobe explain train.py --epochs 1
      graphprobe explain --backend eager train.py
      graphprobe explain torch_compile_debug --json
      graphprobe explain model.py:make

    Exit codes: 0 nothing breaks, 1 there are graph breaks or functions not compiled, 2 wrong usage, 125 undecided.
    """
    named = module is not None or code is not None
    if not named and not words and os.path.isdir(layout.ROOT):
        words = (layout.ROOT,)
    if not named and not (words and words[0]):
        raise UsageError("nothing to explain", hint="graphprobe explain SCRIPT [ARGS], or RUN, or FILE.py:CALLABLE")
    out = None if json_path == STDOUT else new_file("--json", json_path, b'"not_observed"', force=force)
    json_to = JsonTo(json_path, out)
    target = "" if named else words[0]
    if not named and is_run(target):
        if backend is not None or dynamic is not None or only_function:
            raise UsageError("--backend, --dynamic and --only-function: a run has been compiled already")
        _refuse(target, words[1:])
        ctx.exit(_run(target, json_to))
    if backend is not None:
        check_backend(backend)
    name = callable_of(target)
    if name is not None:
        _refuse(target, words[1:])
    elif not named and not os.path.exists(target):
        raise UsageError(
            f"no script and no run at {target!r} (looked in {os.getcwd()})",
            hint="name a Python file, a run folder, or FILE.py:CALLABLE",
        )
    with filtered(only_function) as only:
        if name is not None:
            ended = _function(target, name, backend, dynamic, json_to)
        else:
            program, typed = program_of(module, code, words), words_of(module, code, words)
            ended = _program(program, typed, backend, dynamic, json_to)
    ctx.exit(exit_code(only, ended))


def _refuse(target: str, arguments: tuple[str, ...]) -> None:
    if arguments:
        raise UsageError(f"{target} takes no arguments, and got {' '.join(arguments)!r}")


def _run(target: str, json_to: JsonTo) -> int:
    from graphprobe.analysis.breaks import report_from_run
    from graphprobe.store.reader import Run

    report, notes = report_from_run(Run.open(target))
    follow = {"whole": ("recompiles", target), "undecided": ("logs", target), "breaks": ("report", target)}
    _show(target, report, notes, json_to, follow)
    if report.found:
        return EXIT_FOUND
    return EXIT_UNDECIDED if notes else EXIT_OK


def _function(target: str, name: str, backend: str | None, dynamic: bool | None, json_to: JsonTo) -> int:
    base = Path.cwd()
    fn, args, kwargs = call_from_file(target.rpartition(":")[0], name)
    from graphprobe.backends.explain import explain

    found = explain(fn, inner=backend or "eager", dynamic=dynamic)(*args, **kwargs)
    _show(target, found.report, found.notes, json_to, _again([target]), base=base)
    if found.report.found:
        return EXIT_FOUND
    return EXIT_UNDECIDED if found.notes or not found.graphs else EXIT_OK


def _program(
    program: ScriptTarget, typed: list[str], backend: str | None, dynamic: bool | None, json_to: JsonTo
) -> int:
    from graphprobe.backends.explain import ProgramWatch
    from graphprobe.probe import script
    from graphprobe.report.explanation import print_found

    script.check(program)
    base = Path.cwd()  # the script may go elsewhere
    target = program.name
    watch = ProgramWatch(None if json_to.printed else lambda row: print_found(row, base))

    def known(why: str) -> None:
        _show(target, *watch.report(), json_to, _again(typed), base=base, ended=f"the script was {why}")

    watch.start()
    try:
        with at_signal(AtSignal(known=known)), compiled_with(backend, dynamic):
            ended = script.run(program)
    finally:
        watch.stop()
    problem = ended.problem
    report, notes = watch.report()
    if not (report.graphs or report.breaks or report.uncompiled) and problem is None:
        raise UsageError(
            f"{target} compiled nothing: Dynamo was given no function with tensors",
            hint="does it call what torch.compile returned? is TORCH_COMPILE_DISABLE set?",
        )
    _show(target, report, notes, json_to, _again(typed), base=base, ended=problem)
    if report.found:
        return EXIT_FOUND
    return EXIT_UNDECIDED if problem is not None or notes else EXIT_OK


def _again(typed: list[str]) -> dict[str, tuple[str, ...]]:
    """What follows each verdict on a program or a function, as it was typed."""
    return {"whole": ("diagnose", *typed), "undecided": ("diagnose", *typed), "breaks": ("explain", *typed)}


def _show(
    target: str,
    report: BreakReport,
    notes: list[str],
    json_to: JsonTo,
    follow: Mapping[str, tuple[str, ...]],
    *,
    base: Path | None = None,
    ended: str | None = None,
) -> None:
    if json_to.replaces_text(lambda: {"target": target, "ended": ended, "not_observed": notes, **report.to_json()}):
        return
    from graphprobe.report.explanation import print_end, print_report

    print_report(report, notes=notes, base=base)
    if ended is not None:
        echo(f"{target}: {ended}")
    if json_to.file is not None:
        echo(f"Wrote {json_to.file}")
    echo()
    commands = {verdict: ["graphprobe", *words] for verdict, words in follow.items()}
    reasons = [*filter(None, (ended, *notes)), *([] if report.graphs else ["no graph was compiled"]), ""]
    print_end(report, follow=commands, undecided=reasons[0], base=base)
