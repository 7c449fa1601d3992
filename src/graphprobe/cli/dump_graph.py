"""The options of `graphprobe run` that dump the ops of compiled graphs, and what was dumped in the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from graphprobe.dump_plan import DumpPlan, plan_from
from graphprobe.dump_plan.options import BY_NAME
from graphprobe.errors import SettingError, UsageError
from graphprobe.report.visible import echo

if TYPE_CHECKING:
    from graphprobe.backends.dumped_program import DumpedProgram

Command = TypeVar("Command", bound=Callable[..., Any])

SPELLED = {
    "dump_data": "--dump-graph",
    "dump_step": "--dump-step",
    "dump_layer": "--dump-layer",
    "dump_mode": "--dump-mode",
    "dump_path": "--dump-path",
    "dump_config_path": "--dump-config",
    "engine": "--dump-engine",
    "quant_dumpable": "--dump-quant",
    "max_bytes": "--dump-max-bytes",
    "write_through": "--dump-write-through",
}
"""Option of a dump by option of the command. `enable_dump` has none: the first and `--dump-config` stand for it."""

_METAVARS = {
    "dump_step": "STEPS",
    "dump_layer": "OPS",
    "dump_path": "DIR",
    "dump_config_path": "FILE",
    "max_bytes": "SIZE",
}
_ENABLING = ("dump_data", "dump_config_path")


def dump_options(command: Command) -> Command:
    """Adds an option for each that a dump has; their values come as keywords by the dump's own names."""
    for name, spelled in reversed(SPELLED.items()):
        row = BY_NAME[name]
        flag = row.kind == "flag"
        text = row.help[0].upper() + row.help[1:] + "."
        if name == "dump_data":
            text = "Dump what the ops of compiled graphs read and write: the values, or their statistics."
        shape = None if flag else "|".join(row.allowed) or _METAVARS[name]
        command = click.option(spelled, name, is_flag=flag, default=None, metavar=shape, help=text)(command)
    return command


def take_dump_options(arguments: dict[str, Any]) -> dict[str, Any]:
    """Takes the values of these options out of all that the command got."""
    return {name: arguments.pop(name) for name in SPELLED}


def plan_of(values: Mapping[str, object], environ: Mapping[str, str]) -> DumpPlan | None:
    """The plan by command line, JSON file and environment; None when none of them asks for a dump.

    Raises:
        SettingError: a value that cannot be taken; DumpConfigError, which is one, for the file and for conflicts.
        UsageError: options that mean nothing without a dump.
    """
    options = {name: value for name, value in values.items() if value is not None}
    given = [SPELLED[name] for name in options]
    if any(name in options for name in _ENABLING):
        options["enable_dump"] = True
    path = options.get("dump_path")
    made = _make_missing(str(path)) if path is not None and options.get("enable_dump") else []
    try:
        plan = plan_from(options=options, environ=environ, spelled={**SPELLED, "enable_dump": "--dump-graph"})
    except Exception:
        for folder in reversed(made):
            os.rmdir(folder)
        raise
    if plan.enabled:
        return plan
    if given:
        raise UsageError(
            f"{', '.join(given)}: nothing is dumped, so this has no effect",
            hint="add --dump-graph stats, --dump-graph tensor or --dump-config FILE",
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
            f"--dump-path = {path!r}: it cannot be made: {error.strerror}", hint="name a folder that can be written to"
        ) from error
    except ValueError:
        pass  # what is wrong is told when the folder is looked at
    return made


def begin(plan: DumpPlan) -> DumpedProgram:
    """Stand in for `torch.compile` from now on."""
    from graphprobe.backends.dumped_program import DumpedProgram

    program = DumpedProgram(plan)
    program.install()
    return program


def summarise(program: DumpedProgram, base: Path) -> None:
    """What was dumped and where, on stderr."""
    from graphprobe.store.dump_reader import open_dump

    for text in program.lost:
        echo(f"graphprobe: dump: missing: {text}", err=True)
    if not program.folders and not program.lost:
        echo("graphprobe: dump: nothing was dumped: the program has compiled nothing", err=True)
    for folder in program.folders:
        try:
            (found,) = open_dump(folder).folders
            manifest = found.manifest
            ops = len(list(found.ops()))
            echo(f"graphprobe: dump: {ops} ops in {os.path.relpath(folder, base)}", err=True)
            for text in () if manifest is None else manifest.missing:
                echo(f"graphprobe: dump: missing: {text}", err=True)
        except Exception as error:  # the program has ended; its exit code must not change now
            echo(f"graphprobe: dump: {folder} cannot be read: {error}", err=True)
