"""The options of `graphprobe run` that dump calls of torch's API or ops of compiled graphs, and what was dumped."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from graphprobe.cli.shared_options import spelled, take
from graphprobe.dump_plan import DumpPlan, plan_from
from graphprobe.dump_plan.options import API_CONFIG, API_OPTIONS, OPTIONS
from graphprobe.errors import SettingError, UsageError
from graphprobe.report.visible import echo
from graphprobe.store.layout import CALLS, GRAPHS

if TYPE_CHECKING:
    from graphprobe.backends.wrap import DumpedProgram
    from graphprobe.probe.api.dump import ApiDumper

CALL_ROWS = (*API_OPTIONS, API_CONFIG)
GRAPH_ROWS = sorted(OPTIONS, key=lambda row: row.name != "dump_data")
"""As the help has them: first `--dump-graph`, which makes the others count."""

CALL_PREFIX, GRAPH_PREFIX = "api_", "dump_"
"""Of the keywords that the options come as."""

SPELLED = {row.name: row.spelled for row in GRAPH_ROWS if row.spelled} | {"enable_dump": GRAPH_ROWS[0].spelled}
"""Option of the command by option of a dump."""

_ENABLING = ("dump_data", "dump_config_path", "dump_debug")

_BY_ENVIRONMENT = ("enable_dump", "dump_config_path")


def take_api_dump(values: dict[str, Any]) -> Callable[[Path | None], ApiDumper | None] | None:
    """Takes these options out of `values`; what begins the dump, given the run's folder; None where none is asked for.

    Without a run's folder, no dump begins that was to lie in it.

    Raises:
        UsageError: a value that cannot be, or options that mean nothing without a dump.
    """
    options = take(CALL_ROWS, values, prefix=CALL_PREFIX)
    if options["data"] is None and options["config"] is None:
        if useless := spelled(CALL_ROWS, options):
            raise UsageError(
                f"{', '.join(useless)}: no calls are dumped, so this has no effect", hint="add --dump or --dump-graph"
            )
        return None
    from graphprobe.probe.api.dump import dump
    from graphprobe.probe.api.plan import arguments_from_file

    path = options.pop("path")
    options["apis"] = options["apis"] and options["apis"].split(",")
    if path is None and options["config"] is not None:
        path = arguments_from_file(options["config"]).get("path")
    dump(path or CALLS, **options)  # every mistake is found now, before a folder is made

    def begin(folder: Path | None) -> ApiDumper | None:
        if path is None and folder is None:
            return None
        wanted = Path(path) if path is not None else Path(folder or "", CALLS)
        for attempt in itertools.count(2):
            try:
                dumper = dump(wanted, **options)
                dumper.start()
                return dumper
            except UsageError as error:
                taken = error.__cause__
                if not isinstance(taken, FileExistsError) or Path(str(taken.filename)).parent.name != wanted.name:
                    raise
            # Of another process: each has a folder of its own.
            wanted = wanted.with_name(f"{Path(path or CALLS).name}-{attempt}")
        raise AssertionError("unreachable")

    return begin


def tell_of_calls(dumper: ApiDumper, base: Path) -> str | None:
    """What was dumped and where, on stderr, so that the program's own output stays as it is; the dump, from `base`."""
    from graphprobe.store.calls import ApiManifest
    from graphprobe.store.reader import manifest_of_dump

    folder = None
    try:
        manifest = manifest_of_dump(dumper.folder, ApiManifest)
        folder = os.path.relpath(dumper.folder.parent, base)
        lines = [f"graphprobe: {0 if manifest is None else manifest.calls} calls dumped to {folder}"]
        lines += [f"graphprobe: missing: {text}" for text in (manifest.missing if manifest is not None else ())]
    except Exception as error:  # the program has ended; its exit code must not change now
        lines = [f"graphprobe: the dump cannot be read: {error}"]
    for line in lines:
        echo(line, err=True)
    return folder


def share(values: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Hands on what `--steps` and `--dump-to` say: to the dump of graphs where that is the one; the steps to both."""
    asked = any(values[f"{GRAPH_PREFIX}{name}"] is not None for name in _ENABLING)
    calls = any(values[f"{CALL_PREFIX}{name}"] is not None for name in ("data", "config"))
    if not asked and (calls or not any(environ.get(row.env) for row in GRAPH_ROWS if row.name in _BY_ENVIRONMENT)):
        return
    for name, mine in (("steps", "dump_step"), ("path", "dump_path")):
        theirs = f"{CALL_PREFIX}{name}"
        if not calls or name == "steps":
            values[f"{GRAPH_PREFIX}{mine}"] = values[theirs]
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
    with ExitStack() as undo:
        if path is not None and options.get("enable_dump"):
            _make_missing(str(path), undo)
        plan = plan_from(options=options, environ=environ, spelled=SPELLED, in_run=True)
        undo.pop_all()
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


def _make_missing(path: str, undo: ExitStack) -> None:
    """Make the folder that is asked for by hand, with those around it; `undo` removes what was made."""
    folder = Path(os.path.abspath(path))
    try:
        for one in (one for one in (*reversed(folder.parents), folder) if not os.path.lexists(one)):
            one.mkdir()
            undo.callback(one.rmdir)
    except OSError as error:
        raise SettingError(
            f"{SPELLED['dump_path']} = {path!r}: it cannot be made: {error.strerror}",
            hint="name a folder that can be written to",
        ) from error
    except ValueError:
        pass  # what is wrong is told when the folder is looked at


def begin_graph_dump(plan: DumpPlan, run: Path | None) -> DumpedProgram | None:
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


def tell_of_graphs(program: DumpedProgram, base: Path) -> str | None:
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
