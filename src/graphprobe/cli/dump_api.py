"""The options of `graphprobe run` that dump calls of torch's API in an eager program, and what was dumped."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphprobe.cli.option_rows import spelled, take
from graphprobe.dump_plan.options import API_CONFIG, API_OPTIONS
from graphprobe.errors import UsageError
from graphprobe.report.visible import echo
from graphprobe.store.layout import CALLS

if TYPE_CHECKING:
    from graphprobe.probe.api.dump import ApiDumper

ROWS = (*API_OPTIONS, API_CONFIG)
PREFIX = "api_"
"""Of the keywords that the options come as."""


def take_api_dump(values: dict[str, Any]) -> Callable[[Path | None], ApiDumper | None] | None:
    """Takes these options out of `values`; what begins the dump, given the run's folder; None where none is asked for.

    Without a run's folder, no dump begins that was to lie in it.

    Raises:
        UsageError: a value that cannot be, or options that mean nothing without a dump.
    """
    options = take(ROWS, values, prefix=PREFIX)
    if options["data"] is None and options["config"] is None:
        if useless := spelled(ROWS, options):
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


def summarise(dumper: ApiDumper, base: Path) -> str | None:
    """What was dumped and where, on stderr, so that the program's own output stays as it is; the dump, from `base`."""
    from graphprobe.store.api_reader import manifest_in

    folder = None
    try:
        manifest = manifest_in(dumper.folder)
        count = 0 if manifest is None else manifest.calls
        folder = os.path.relpath(dumper.folder.parent, base)
        lines = [f"graphprobe: {count} calls dumped to {folder}"]
        lines += [f"graphprobe: missing: {text}" for text in (manifest.missing if manifest is not None else ())]
    except Exception as error:  # the program has ended; its exit code must not change now
        lines = [f"graphprobe: the dump cannot be read: {error}"]
    for line in lines:
        echo(line, err=True)
    return folder
