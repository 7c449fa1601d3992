"""The options of `graphprobe run` that dump calls of torch's API in an eager program, and what was dumped."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from graphprobe.errors import UsageError
from graphprobe.report.visible import echo

if TYPE_CHECKING:
    from graphprobe.probe.api.dump import ApiDumper

Command = TypeVar("Command", bound=Callable[..., Any])

FOLDER = "api_dump"
"""Where a dump goes when nobody says: a folder of this name in that of the run."""

_SPELLED = {
    "api_data": "--dump",
    "api_level": "--level",
    "api_steps": "--steps",
    "api_apis": "--apis",
    "api_path": "--dump-to",
    "api_config": "--api-config",
}


def api_options(command: Command) -> Command:
    """Adds the options; their values come as keywords that begin with `api_`."""
    for option in reversed(
        (
            click.option(
                "--dump",
                "api_data",
                type=click.Choice(["stats", "tensor"]),
                help="Dump every call of torch's API, uncompiled.",
            ),
            click.option(
                "--level",
                "api_level",
                type=click.Choice(["api", "module", "mix"]),
                help="What counts as a call. Default: api.",
            ),
            click.option("--steps", "api_steps", metavar="STEPS", help="Training steps to dump, e.g. 0|3-5|10."),
            click.option("--apis", "api_apis", metavar="NAMES", help="Names or globs of APIs, separated by commas."),
            click.option(
                "--dump-to", "api_path", metavar="DIR", help="Folder of that dump. Default: in the run's own."
            ),
            click.option("--api-config", "api_config", metavar="FILE", help='JSON file: {"api_dump": {...}}.'),
        )
    ):
        command = option(command)
    return command


def take_api_dump(values: dict[str, Any]) -> Callable[[Path | None], ApiDumper | None] | None:
    """Takes these options out of `values`; what begins the dump, given the run's folder; None where none is asked for.

    Without a run's folder, no dump begins that was to lie in it.

    Raises:
        UsageError: a value that cannot be, or options that mean nothing without a dump.
    """
    given = {name: values.pop(name) for name in _SPELLED}
    data, config = given["api_data"], given["api_config"]
    if data is None and config is None:
        useless = [_SPELLED[name] for name, value in given.items() if value is not None]
        if useless:
            raise UsageError(
                f"{', '.join(useless)}: no calls are dumped, so this has no effect", hint="add --dump stats or tensor"
            )
        return None
    from graphprobe.probe.api.dump import dump
    from graphprobe.probe.api.plan import arguments_from_file

    apis = given["api_apis"]
    options: dict[str, Any] = {
        "data": data,
        "level": given["api_level"],
        "steps": given["api_steps"],
        "apis": None if apis is None else apis.split(","),
        "config": config,
    }
    path = given["api_path"]
    if path is None and config is not None:
        path = arguments_from_file(config).get("path")
    dump(path or FOLDER, **options)  # every mistake is found now, before a folder is made

    def begin(folder: Path | None) -> ApiDumper | None:
        if path is None and folder is None:
            return None
        wanted = Path(path) if path is not None else Path(folder or "", FOLDER)
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
            wanted = wanted.with_name(f"{Path(path or FOLDER).name}-{attempt}")
        raise AssertionError("unreachable")

    return begin


def summarise(dumper: ApiDumper, base: Path) -> None:
    """What was dumped and where, on stderr, so that the program's own output stays as it is."""
    from graphprobe.store.api_reader import manifest_in

    try:
        manifest = manifest_in(dumper.folder)
        count = 0 if manifest is None else manifest.calls
        lines = [f"graphprobe: {count} calls dumped to {os.path.relpath(dumper.folder.parent, base)}"]
        lines += [f"graphprobe: missing: {text}" for text in (manifest.missing if manifest is not None else ())]
    except Exception as error:  # the program has ended; its exit code must not change now
        lines = [f"graphprobe: the dump cannot be read: {error}"]
    for line in lines:
        echo(line, err=True)
