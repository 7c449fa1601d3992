"""`graphprobe run`: a program, observed."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from graphprobe.cli import dumps
from graphprobe.cli.ending import exit_as
from graphprobe.cli.shared_options import options_from, take
from graphprobe.cli.target import TargetCommand, TypedTarget
from graphprobe.errors import UsageError, lacks_room
from graphprobe.records import Manifest
from graphprobe.report.run_document import summary_lines
from graphprobe.report.terminal import command_line
from graphprobe.report.visible import echo
from graphprobe.settings import TABLE
from graphprobe.store.layout import MANIFEST
from graphprobe.store.reader import Run

if TYPE_CHECKING:
    from graphprobe.backends.wrap import DumpedProgram
    from graphprobe.probe.api.dump import ApiDumper
    from graphprobe.probe.script import Ended

Begun = TypeVar("Begun")


@click.command(cls=TargetCommand, takes="[PROGRAM]...")
@options_from(TABLE)
@options_from(dumps.CALL_ROWS, prefix=dumps.CALL_PREFIX, choices=True)
@options_from(dumps.GRAPH_ROWS, prefix=dumps.GRAPH_PREFIX, shared=[row.spelled for row in dumps.CALL_ROWS])
@click.option("-q", "--quiet", is_flag=True, help="No summary at the end.")
def command(quiet: bool, target: TypedTarget, **values: Any) -> None:
    """Run a program and collect every stage of its compilations.

    The program runs as `python` would run it. Its own arguments stand behind its name. It ends with its own exit code,
    even if the disk is full or read-only. Then graphprobe says before and after that nothing was collected.

    \b
    Examples:
      graphprobe run train.py --epochs 1
      graphprobe run --save-inputs --graph-dump py -m my_package.train
      graphprobe run --dump-graph stats --steps 0 train.py
      graphprobe run --overflow train.py
      graphprobe run --dump stats --level mix --steps 0 train.py
      torchrun --nproc-per-node 2 -m graphprobe run train.py

    With TORCHDYNAMO_REPRO_AFTER=dynamo or aot in the environment, the first graph that fails is reduced.
    """
    from graphprobe.probe import active, script

    program = target.program()
    # Every mistake in options or script is found here, before a folder is made or a line of the program runs.
    settings = active.resolved(take(TABLE, values))
    dumps.share(values, os.environ)
    begin_calls = dumps.take_api_dump(values)
    script.check(program)
    lacking: list[str] = []
    dump_options = take(dumps.GRAPH_ROWS, values, prefix=dumps.GRAPH_PREFIX)
    plan = _if_room(lambda: dumps.plan_of(dump_options, os.environ), lacking)
    enable = partial(active.enable_with, settings, companion=_reducer())
    folder = _if_room(enable, lacking, or_right=settings.out_dir is None)
    dumped = None if plan is None else dumps.begin_graph_dump(plan, folder)
    # At exit, the interpreter first waits for the program's threads; what they compile is still part of the run.
    # Registered before the program starts, this comes after everything that the program registers.
    ended: list[script.Ended] = []
    try:
        base = Path.cwd()
    except OSError:  # it is gone
        base = Path("/") if folder is None else folder.parent
    try:
        calls = None if begin_calls is None else _if_room(lambda: begin_calls(folder), lacking)
    except UsageError:
        _remove(folder)
        raise
    atexit.register(_finish, folder, base, quiet, ended, dumped, calls, lacking)
    ended.append(script.run(program))
    raise exit_as(ended[0])


def _remove(folder: Path | None) -> None:
    """Take back the folder of a run in which nothing ran."""
    from graphprobe.probe import active

    active.close("failed", None)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # others are there
            folder.parent.rmdir()


def _if_room(begin: Callable[[], Begun], lacking: list[str], *, or_right: bool = False) -> Begun | None:
    """What `begin` returns; None where the disk is full or read-only, which is said now, and added to `lacking`.

    `or_right`: also where nobody may write, for nobody has named the place. The program runs all the same: what a
    machine lacks must not cost a run that may have waited for hours.
    """
    try:
        return begin()
    except UsageError as error:
        if not (lacks_room(error.__cause__) or (or_right and isinstance(error.__cause__, PermissionError))):
            raise
        lacking.append(str(error))
        echo(f"graphprobe: warning: {error}; the program runs without it", err=True)
        return None


def _reducer() -> Callable[[], Callable[[], None]]:
    """Reduces the first graph that fails, where TORCHDYNAMO_REPRO_AFTER or the program asks torch for that."""
    from graphprobe.cli.commands.reduce import say, show
    from graphprobe.diagnose.reduction.watch_script import ScriptWatch
    from graphprobe.diagnose.reduction.watched import asked_by

    asked_by(os.environ)
    watch = ScriptWatch(on_note=say, on_reduction=lambda result: show(result, err=True))

    def start() -> Callable[[], None]:
        watch.install()
        return watch.remove

    return start


def _finish(
    folder: Path | None,
    base: Path,
    quiet: bool,
    ended: list[Ended],
    dumped: DumpedProgram | None,
    calls: ApiDumper | None,
    lacking: list[str],
) -> None:
    """`base`: where the user is, who is told of paths from there; the program may have gone elsewhere."""
    from graphprobe.probe import active

    error = ended[0].error if ended else None
    if calls is not None:
        calls.close(error)
    session = active.session()
    active.close("failed" if error is not None else "finished", error)
    # A forked child ends here too, with nothing of its own to say.
    if not quiet and not (session is not None and session.writer.forked):
        overflow = None if dumped is None else dumps.tell_of_graphs(dumped, base)
        folder_of_calls = None if calls is None else dumps.tell_of_calls(calls, base)
        for text in lacking:
            echo(f"graphprobe: missing: {text}", err=True)
        if folder is not None:
            _summarise(folder, base, None if session is None else session.writer.manifest, folder_of_calls, overflow)


def _summarise(folder: Path, base: Path, manifest: Manifest | None, calls: str | None, overflow: str | None) -> None:
    """What was collected and where, on stderr, so that the program's own output stays as it is.

    `manifest` is what the file should hold; where that cannot be written any more, this is the only place to say it.
    `calls` is the dump of calls: what was collected, where the program compiles nothing.
    `overflow` is the dump of an overflow.
    """
    see = ["report", overflow] if overflow else ["ls", os.path.relpath(folder, base)]
    try:
        run = Run.open(folder)
        stale = manifest is not None and run.manifest.ended_ns is None
        run.manifest = manifest or run.manifest
        eager = calls is not None and run.manifest.models == 0
        lines = summary_lines(run, base, eager=eager)
        see = ["report", calls] if eager and calls is not None else see
        if stale:
            lines.append(f"graphprobe: missing: the last state of {run.tool_dir / MANIFEST}, which cannot be written")
    except Exception as error:  # the program has ended; its exit code must not change now
        lines = [f"graphprobe: the run in {folder} cannot be read: {error}"]
    for line in lines:
        echo(line, err=True)
    if os.environ.get("RANK"):
        return
    echo(f"graphprobe: next: {command_line(['graphprobe', *see])}", err=True)
