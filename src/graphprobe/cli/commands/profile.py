"""`graphprobe profile`: where compile time goes."""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphprobe.analysis.timing import compare_profiles, read_profile
from graphprobe.cli.ending import AtSignal, at_signal, exit_as
from graphprobe.cli.shared_options import JsonTo, count_option, filtered, json_option, new_file, only_function_option
from graphprobe.cli.target import TargetCommand, TypedTarget
from graphprobe.errors import UsageError
from graphprobe.report import profile_document as view
from graphprobe.report.terminal import print_lines
from graphprobe.report.visible import echo

if TYPE_CHECKING:
    from graphprobe.probe.profile import profile
    from graphprobe.probe.script import Ended

PROFILE_MARK, TRACE_MARK = b'"graphprobe-profile"', b'"otherData":{"graphprobe"'
"""What is near the beginning of every profile, and near the end of every trace."""


def _is_profile(word: str) -> bool:
    return word.endswith(".json")


@click.command(
    cls=TargetCommand, takes="SCRIPT [ARGS]... | PROFILE.json [PROFILE.json]", reads=_is_profile, reads_json=True
)
@click.option("-o", "--out", metavar="FILE", help="File for the profile. Default: profile-PROGRAM.json.")
@click.option("--trace", "trace_path", metavar="FILE", help="Also write a Chrome trace, for ui.perfetto.dev.")
@count_option("--top", 1, 10, "Length of the tables.")
@click.option("--force", is_flag=True, help="Overwrite files.")
@json_option
@click.option("-q", "--quiet", is_flag=True, help="Of a program that is run: print nothing.")
@only_function_option
def command(
    out: str | None,
    trace_path: str | None,
    top: int,
    force: bool,
    json_to: JsonTo,
    quiet: bool,
    only_function: tuple[str, ...],
    target: TypedTarget,
) -> None:
    """Show where compile time goes, by phase and by pass, slowest first.

    SCRIPT runs as `python` would run it, with its own arguments and its own exit code. Its profile is written to a
    file, with a summary on the standard error. Given one PROFILE.json, the command shows it. Given two, it shows what
    changed from the first to the second. Caches stay as they are. The profile says what they held.

    \b
    Examples:
      graphprobe profile train.py --epochs 1
      graphprobe profile -o before.json --trace before-trace.json -m my_package.train
      graphprobe profile before.json
      graphprobe profile before.json after.json
    """
    trace = None if trace_path is None else new_file("--trace", trace_path, TRACE_MARK, force=force)
    if _is_profile(target.first):
        if out is not None:
            raise UsageError(f"--out {out}: {target.first} is a profile that is read, nothing is run")
        _read(target.words, trace, top, json_to)
        return
    if json_to:
        raise UsageError("--json goes with profiles that are read", hint="graphprobe profile PROFILE.json --json")
    if not target.typed:
        raise UsageError("nothing to profile", hint="graphprobe profile SCRIPT, -m MODULE, -c CODE, or PROFILE.json")
    program = target.program()
    name = "code" if program.kind == "code" else Path(program.target).stem
    file = new_file("--out", out or f"profile-{name}.json", PROFILE_MARK, force=force)
    from graphprobe.probe import script
    from graphprobe.probe.profile import profile

    # What ends processes, loaded ahead: an import at a signal could wait for a lock.
    importlib.import_module("graphprobe.engine.forked_child")
    script.check(program)
    named = "-c" if program.kind == "code" else program.target
    running = profile(program=" ".join([named, *program.arguments]))
    running.start()
    ended: list[Ended] = []
    # Registered first, this comes last: what the program's threads compile until then is part of it.
    finish = atexit.register(partial(_finish, running, ended, file, trace, top, quiet, Path.cwd()))
    with filtered(only_function), at_signal(AtSignal(known=lambda _: finish()), stays=True):
        ended.append(script.run(program))
    raise exit_as(ended[0])


def _finish(
    running: profile, ended: list[Ended], file: Path, trace: Path | None, top: int, quiet: bool, base: Path
) -> None:
    """`base`: where the user is; the program may have gone elsewhere."""
    if running.forked:
        return
    wrote = []
    try:
        running.stop(exit_code=ended[0].code if ended else None, error=ended[0].error if ended else None)
        if not quiet:
            running.report(top=top, file=sys.stderr)
        wrote.append(running.save(file, force=True))
        if trace is not None:
            wrote.append(running.save_trace(trace, force=True))
    except Exception as error:  # the program has ended; its exit code must not change now
        echo(f"graphprobe: the profile could not be written: {type(error).__name__}: {error}", err=True)
    if not quiet and wrote:
        echo(f"graphprobe: wrote {', '.join(str(path) for path in wrote)}", err=True)
        view.print_end(running.result, os.path.relpath(wrote[0], base), file=sys.stderr)


def _read(words: tuple[str, ...], trace: Path | None, top: int, json_to: JsonTo) -> None:
    from graphprobe.export.chrome_trace import export_profile

    if len(words) > 2:
        raise UsageError(f"profile shows one profile or compares two, not {len(words)}: {' '.join(words)}")
    profiles = [read_profile(word) for word in words]
    if trace is not None:
        if len(profiles) != 1:
            raise UsageError("--trace goes with one profile, not with two")
        export_profile(profiles[0], trace)
    if len(profiles) == 1:
        if not json_to.replaces_text(lambda: view.document_from(profiles[0])):
            view.print_profile(profiles[0], top=top)
            echo()
            view.print_end(profiles[0], words[0])
    else:
        diff = compare_profiles(*profiles)
        if not json_to.replaces_text(lambda: diff):
            print_lines(view.diff_lines(diff, *words, top=top))
            echo()
            view.print_end_of_diff(diff, words[1])
