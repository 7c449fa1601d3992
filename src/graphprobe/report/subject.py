"""What is at a path, of all that graphprobe writes or reads, by what is in it and not by its name alone; its page."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from graphprobe.analysis.timing import FORMAT as PROFILE_FORMAT
from graphprobe.compare.open import open_dump
from graphprobe.compare.result_file import ROWS, SUMMARY
from graphprobe.errors import RunNotFoundError, UsageError
from graphprobe.store import dump_reader, layout
from graphprobe.store.diagnosis_file import FINDING, dossiers_in, is_diagnosis, result_in
from graphprobe.store.files import open_file, read_file
from graphprobe.store.reader import Run, finds_one
from graphprobe.store.schema import UNREADABLE
from graphprobe.store.watch_file import is_drift

if TYPE_CHECKING:
    from graphprobe.report.html.page import Report

Kind = Literal["run", "diagnosis", "graph-dump", "dump", "comparison", "profile", "drift"]

SUBJECTS: dict[Kind, str] = {
    "run": "a run",
    "diagnosis": "a diagnosis",
    "graph-dump": "a dump of compiled graphs",
    "dump": "a dump of calls",
    "comparison": "a comparison",
    "profile": "a profile of compile time",
    "drift": "two trainings held against each other",
}
"""In words."""

MARKS = (b"<title>graphprobe",)
"""What every page has."""

EXPECTED = (
    "a run folder, the JSON or the folder of a diagnosis, the folder or the comparison.json of graphprobe compare, "
    "a dump (graphprobe's, msprobe's or ptdbg's), or the JSON of graphprobe profile or drift"
)


def kind_of(path: Path) -> Kind:
    """What lies at `path`.

    Raises:
        RunNotFoundError: nothing does.
        UsageError: something does that is none of `SUBJECTS`; the message says what was expected.
        SchemaError: a newer graphprobe wrote it.
    """
    if not path.exists():
        raise RunNotFoundError(f"{path} does not exist", hint=f"expected {EXPECTED}")
    if path.is_file():
        return _kind_of_file(path)
    if (path / SUMMARY).is_file() or (path / ROWS).is_file():
        return "comparison"
    run = None
    with contextlib.suppress(RunNotFoundError):
        run = Run.open(path)
    if run is not None and run.has_events:
        return "run"
    if (dump := _dump_at(path)) is not None:
        return dump
    if result_in(path) is not None or dossiers_in(path):
        return "diagnosis"
    if run is None:
        raise _nothing(path)
    return "run"


def page_of(source: Path, *, source_roots: Sequence[Path] = ()) -> Report:
    """The page of whatever `source` is; only what that needs is imported.

    Args:
        source_roots: see `sources.Sources`.

    Raises:
        RunNotFoundError: nothing is there.
        UsageError: something is there, and no page can be made of it.
        SchemaError: it was written by a newer graphprobe.
    """
    kind = kind_of(source)
    if kind == "run":
        from graphprobe.report.html.sections_run import report_from
    elif kind == "diagnosis":
        from graphprobe.report.html.sections_diagnosis import report_from
    elif kind == "profile":
        from graphprobe.report.profile_document import report_from
    elif kind == "drift":
        from graphprobe.report.drifted import report_from
    elif kind == "comparison":
        from graphprobe.report.html.sections_comparison import report_from
    else:
        from graphprobe.report.html.sections_dump import report_from
    return report_from(source, source_roots=source_roots)


def write_page_to(target: Path, page: Report, *, named: str) -> None:
    """Write the page; what was at `target` stays until it is whole. Raises UsageError if it cannot be written."""
    from graphprobe.report.html.page import write_page

    temporary = target.with_name(f"{layout.TEMPORARY_PREFIX}{os.getpid()}-{target.name}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            write_page(page, file)
        temporary.replace(target)
    except OSError as error:
        raise UsageError(f"{named}: it cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _kind_of_file(path: Path) -> Kind:
    if path.name == FINDING:
        return "diagnosis"
    if path.name in (SUMMARY, ROWS):
        return "comparison"
    try:
        with open_file(path) as file:
            if f'"{PROFILE_FORMAT}"'.encode() in file.read(512):
                return "profile"
        document = msgspec.json.decode(read_file(path)) if path.suffix == ".json" else {}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UNREADABLE as error:
        raise UsageError(f"{path} is no JSON: {error}", hint=f"expected {EXPECTED}") from error
    if is_diagnosis(document):
        return "diagnosis"
    if is_drift(document):
        return "drift"
    if not isinstance(document, dict):
        raise _nothing(path)
    if {"outcome", "candidate", "reference"} <= document.keys():
        return "comparison"
    if (dump := _dump_at(path)) is not None:
        return dump
    raise _nothing(path)


def _dump_at(path: Path) -> Kind | None:
    if dump_reader.is_op_file(path) if path.is_file() else finds_one(dump_reader.open_dump, path):
        return "graph-dump"
    try:
        return "graph-dump" if open_dump(path).format == "graphprobe-graph" else "dump"
    except (UsageError, OSError):
        if path.suffix == ".pkl":
            raise  # it says why no pickle is opened
        return None


def _nothing(path: Path) -> UsageError:
    return UsageError(f"{path} is nothing that graphprobe reads", hint=f"expected {EXPECTED}")
