"""`graphprobe watch`: a long run, observed step by step, and the first step that goes wrong looked into."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphprobe.cli.ending import AtSignal, at_signal, exit_as
from graphprobe.cli.shared_options import JsonTo, count_option, json_option, look_option
from graphprobe.cli.target import TargetCommand, TypedTarget, is_run
from graphprobe.errors import UsageError, lacks_room
from graphprobe.report.terminal import command_line
from graphprobe.report.visible import echo
from graphprobe.report.watched import print_watched, watched_document
from graphprobe.store import layout
from graphprobe.store.reader import Run

if TYPE_CHECKING:
    from graphprobe.probe.script import Ended
    from graphprobe.watch.watcher import Watching


@click.command(cls=TargetCommand, takes="SCRIPT [ARGS]... | RUN", reads=is_run)
@click.option(
    "--on",
    metavar="TRIGGERS",
    default="nan,exception,signal",
    show_default=True,
    help="What to look into. spike=X: a loss of more than X times the median.",
)
@count_option("--every", 1, 50, "Observe each parameter in one of so many steps.")
@count_option("--keep", 0, 0, "Keep so many sleeping copies of the program, one each --every steps, to go back to.")
@count_option("--shadow", 0, 0, "Make one in so many calls of each compiled function uncompiled as well, and judge it.")
@look_option
@click.option("-o", "--out", "out_dir", metavar="DIR", help="Folder for the run. Default: torch_compile_debug.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but what the program prints.")
@json_option
def command(quiet: bool, json_to: JsonTo, target: TypedTarget, **options: Any) -> None:
    """Watch a long run, and find what makes the first NaN, spike or crash.

    SCRIPT runs as `python` would run it, with its own arguments and its own exit code. Loss and gradients are looked at
    before each step of an optimizer. When they are not finite, the step's compiled calls run again in child processes,
    uncompiled and as compiled. The answer names the first operation, your line, the module, and whether the uncompiled
    program does it, too. RUN is the folder of a watched run: the command shows its answer and its last steps.

    \b
    Examples:
      graphprobe watch train.py --epochs 10
      graphprobe watch --on nan,spike=10 train.py
      graphprobe watch torch_compile_debug
    """
    if is_run(target.first):
        if len(target.words) > 1:
            raise UsageError(f"watch shows one run, not {len(target.words)}: {' '.join(target.words)}")
        run = Run.open(target.first)
        if not json_to.replaces_text(lambda: watched_document(run)):
            print_watched(run, base=Path.cwd())
        return
    if json_to:
        raise UsageError("--json goes with a run that is read", hint="graphprobe watch RUN --json")
    program = target.program()
    from graphprobe.probe import script
    from graphprobe.watch.watcher import watch

    script.check(program)
    watched = watch(**options, quiet=quiet)
    base = Path.cwd()
    try:
        watched.start()
    except UsageError as error:
        if not lacks_room(error.__cause__):
            raise
        echo(f"graphprobe: warning: {error}; the program runs unwatched", err=True)
        raise exit_as(script.run(program)) from None
    crash = _crash_file(watched.folder)
    ended: list[Ended] = []
    # Registered first, this comes last, behind what the program has left to atexit.
    finish = atexit.register(_finish, watched, ended, crash, base, quiet)
    with at_signal(AtSignal(known=lambda _: finish(watched, ended, crash, base, quiet)), stays=True):
        ended.append(script.run(program))
        if ended[0].interrupted:
            watched.ended_by(KeyboardInterrupt(ended[0].error))
        elif ended[0].error is not None and sys.last_value is not None:
            watched.ended_by(sys.last_value)
    raise exit_as(ended[0])


def _crash_file(run: Path) -> Any:
    """The file that takes the stack where a fatal signal ends the process; None where the program sees to that."""
    if faulthandler.is_enabled():
        return None
    with contextlib.suppress(OSError):
        file = open(run / layout.TOOL / layout.CRASH, "w", encoding="utf-8")  # noqa: SIM115  # open as long as we run
        faulthandler.enable(file, all_threads=False)
        return file
    return None


def _finish(watched: Watching, ended: list[Ended], crash: Any, base: Path, quiet: bool) -> None:
    """`base`: where the user is; the program may have gone elsewhere."""
    if watched.ended:
        return
    watched.stop(why=ended[0].error if ended else None)
    if watched.forked:
        return
    if crash is not None and not os.path.getsize(crash.name):
        with contextlib.suppress(OSError):
            os.unlink(crash.name)
    if not quiet:
        folder = os.path.relpath(watched.folder, base)
        well = "" if watched.answer is not None else ", and no trigger came"
        echo(f"graphprobe: {watched.step} steps watched{well}: {folder}", err=True)
        echo(f"graphprobe: next: {command_line(['graphprobe', 'watch', folder])}", err=True)
