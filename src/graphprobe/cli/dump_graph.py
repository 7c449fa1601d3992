"""The options of `graphprobe run` that dump the ops of compiled graphs, and what was dumped in the end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from graphprobe.cli import dump_api
from graphprobe.dump_plan import DumpPlan, plan_from
from graphprobe.dump_plan.options import OPTIONS
from graphprobe.errors import SettingError, UsageError
from graphprobe.report.visible import echo
from graphprobe.store.layout import GRAPHS

if TYPE_CHECKING:
    from graphprobe.backends.wrap import DumpedProgram

ROWS = sorted(OPTIONS, key=lambda row: row.name != "dump_data")
"""As the help has them: first `--dump-graph`, which makes the others count."""

SPELLED = {row.name: row.spelled for row in ROWS if row.spelled} | {"enable_dump": ROWS[0].spelled}
"""Option of the command by option of a dump."""

PREFIX = "dump_"
"""Of the keywords that the options come as."""

_ENABLING = ("dump_data", "dump_config_path", "dump_debug")

_BY_ENVIRONMENT = ("enable_dump", "dump_config_path")


def share(values: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Hands on what `--steps` and `--dump-to` say: to the dump of graphs where that is the one; the steps to both."""
    asked = any(values[f"{PREFIX}{name}"] is not None for name in _ENABLING)
    calls = any(values[f"{dump_api.PREFIX}{name}"] is not None for name in ("data", "config"))
    if not asked and (calls or not any(environ.get(row.env) for row in ROWS if row.name in _BY_ENVIRONMENT)):
        return
    for name, mine in (("steps", "dump_step"), ("path", "dump_path")):
        theirs = f"{dump_api.PREFIX}{name}"
        if not calls or name == "steps":
            values[f"{PREFIX}{mine}"] = values[theirs]
        if not calls:
            values[theirs] = None


def plan_of(values: Mapping[str, object], environ: Mapping[str, str]) -> DumpPlan | None:
    """The plan by command line, JSON file and environment; None when none of them asks for a dump.

    Raises:
        SettingError: a value that cannot be taken; DumpConfigError, which is one, for the file and for conflicts.
        UsageError: options that mean nothing without a dump.
    """
    options = {name: value for name, value in values.items() if value is not None}
    if any(name in options for name in _ENABLING):
        options["enable_dump"] = True
    path = options.get("dump_path")
    made = _make_missing(str(path)) if path is not None and options.get("enable_dump") else []
    try:
        plan = plan_from(options=options, environ=environ, spelled=SPELLED, in_run=True)
    except Exception:
        for folder in reversed(made):
            os.rmdir(folder)
        raise
    if plan.enabled:
        return plan
    if options:
        raise UsageError(
            f"{', '.join(SPELLED[name] for name in options)}: nothing is dumped, so this has no effect",
            hint="add --dump-graph stats, --dump-graph tensor, --overflow or --dump-config FILE",
        )
    for text in plan.warnings:
        echo(f"graphprobe: {text}", err=True)
    return None


def _make_missing(path: str) -> list[str]:
    """Make the folder that is asked for by hand; the folders that were made for it, the outermost first."""
    missing: list[str] = []
    folder = os.path.abspath(path)
    while not os.path.lexists(folder):
        missing.insert(0, folder)
        folder = os.path.dirname(folder)
    made: list[str] = []
    try:
        for one in missing:
            os.mkdir(one)
            made.append(one)
    except OSError as error:
        for one in reversed(made):
            os.rmdir(one)
        raise SettingError(
            f"{SPELLED['dump_path']} = {path!r}: it cannot be made: {error.strerror}",
            hint="name a folder that can be written to",
        ) from error
    except ValueError:
        pass  # what is wrong is told when the folder is looked at
    return made


def begin(plan: DumpPlan, run: Path | None) -> DumpedProgram | None:
    """Stand in for `torch.compile` from now on.

    Args:
        run: the folder of the run, in which the dump lies if nobody says where to; without one, no such dump begins.
    """
    from graphprobe.backends.wrap import DumpedProgram

    if not plan.path:
        if run is None:
            return None
        plan = msgspec.structs.replace(plan, path=os.path.abspath(run / GRAPHS))
    program = DumpedProgram(plan)
    program.install()
    return program


def summarise(program: DumpedProgram, base: Path) -> str | None:
    """What was dumped and where, on stderr; the dump, from `base`, where it has an overflow."""
    from graphprobe.report.document import counted
    from graphprobe.store.dump_reader import open_dump

    shown = None

    for text in program.lost:
        echo(f"graphprobe: dump: missing: {text}", err=True)
    if not program.folders and not program.lost:
        echo("graphprobe: dump: nothing was dumped: the program has compiled nothing", err=True)
    for folder in program.folders:
        try:
            (found,) = open_dump(folder).folders
            manifest = found.manifest
            ops = len(list(found.ops()))
            shown = os.path.relpath(folder.parents[1] if folder.parents[1].name == GRAPHS else folder, base)
            echo(f"graphprobe: dump: {counted(ops, 'op')} in {shown}", err=True)
            for text in () if manifest is None else manifest.missing:
                echo(f"graphprobe: dump: missing: {text}", err=True)
        except Exception as error:  # the program has ended; its exit code must not change now
            echo(f"graphprobe: dump: {folder} cannot be read: {error}", err=True)
    for text in program.overflow:
        echo(f"graphprobe: overflow: {text}", err=True)
    return shown if program.overflow else None
