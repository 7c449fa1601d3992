"""`graphprobe explain`: graphs, graph breaks with their remedy, and what was not compiled."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphprobe.analysis.breaks import BreakReport, report_from_run
from graphprobe.cli.ending import AtSignal, at_signal
from graphprobe.cli.shared_options import JSON_HELP, JSON_METAVAR, JsonTo, exit_code, filtered, only_function_option
from graphprobe.cli.target import (
    TargetCommand,
    TypedTarget,
    call_from_file,
    callable_of,
    check_backend,
    compiled_with,
    is_run,
)
from graphprobe.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED, UsageError
from graphprobe.report.explanation import print_end, print_found, print_report
from graphprobe.report.visible import echo
from graphprobe.store import layout
from graphprobe.store.reader import Run

if TYPE_CHECKING:
    from graphprobe.probe.script import ScriptTarget


@click.command(
    cls=TargetCommand, takes="[TARGET [ARGS]...]", reads=lambda word: is_run(word) or callable_of(word) is not None
)
@click.option("--json", "json_path", metavar=JSON_METAVAR, help=JSON_HELP)
@click.option("--force", is_flag=True, help="Overwrite the file of --json.")
@click.option("--backend", metavar="NAME", help="Compile with this backend. Default: as the script says, or eager.")
@click.option(
    "--dynamic/--no-dynamic", default=None, help="As dynamic=… of torch.compile. Default: as the script says."
)
@only_function_option
def command(
    json_path: str | None,
    force: bool,
    backend: str | None,
    dynamic: bool | None,
    only_function: tuple[str, ...],
    target: TypedTarget,
) -> int:
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
    if not target.typed and os.path.isdir(layout.ROOT):
        target = TypedTarget((), (layout.ROOT,))
    word = target.first
    if not target.named and not word:
        raise UsageError("nothing to explain", hint="graphprobe explain SCRIPT [ARGS], or RUN, or FILE.py:CALLABLE")
    json_to = JsonTo(json_path, b'"not_observed"', force=force)
    if is_run(word):
        if backend is not None or dynamic is not None or only_function:
            raise UsageError("--backend, --dynamic and --only-function: a run has been compiled already")
        target.refuse_arguments()
        return _run(word, json_to)
    check_backend(backend)
    name = callable_of(word)
    if name is not None:
        target.refuse_arguments()
    elif not target.named and not os.path.exists(word):
        raise UsageError(
            f"no script and no run at {word!r} (looked in {os.getcwd()})",
            hint="name a Python file, a run folder, or FILE.py:CALLABLE",
        )
    with filtered(only_function) as only:
        if name is not None:
            ended = _function(word, name, backend, dynamic, json_to)
        else:
            ended = _program(target.program(), target.typed, backend, dynamic, json_to)
    return exit_code(only, ended)


def _run(target: str, json_to: JsonTo) -> int:
    report, notes = report_from_run(Run.open(target))
    follow = {"whole": ("recompiles", target), "undecided": ("logs", target), "breaks": ("report", target)}
    _show(target, report, notes, json_to, follow)
    return _exit_code(report, undecided=bool(notes))


def _function(target: str, name: str, backend: str | None, dynamic: bool | None, json_to: JsonTo) -> int:
    base = Path.cwd()
    fn, args, kwargs = call_from_file(target.rpartition(":")[0], name)
    from graphprobe.backends.explain import explain

    found = explain(fn, inner=backend or "eager", dynamic=dynamic)(*args, **kwargs)
    _show(target, found.report, found.notes, json_to, _again([target]), base=base)
    return _exit_code(found.report, undecided=bool(found.notes) or not found.graphs)


def _program(
    program: ScriptTarget, typed: list[str], backend: str | None, dynamic: bool | None, json_to: JsonTo
) -> int:
    from graphprobe.backends.explain import ProgramWatch
    from graphprobe.probe import script

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
    return _exit_code(report, undecided=problem is not None or bool(notes))


def _exit_code(report: BreakReport, *, undecided: bool) -> int:
    return EXIT_FOUND if report.found else EXIT_UNDECIDED if undecided else EXIT_OK


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
    print_report(report, notes=notes, base=base)
    if ended is not None:
        echo(f"{target}: {ended}")
    if json_to.file is not None:
        echo(f"Wrote {json_to.file}")
    echo()
    commands = {verdict: ["graphprobe", *words] for verdict, words in follow.items()}
    reasons = [*filter(None, (ended, *notes)), *([] if report.graphs else ["no graph was compiled"]), ""]
    print_end(report, follow=commands, undecided=reasons[0], base=base)
