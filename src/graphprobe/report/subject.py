"""What lies at a path, of all that graphprobe writes or reads: told by what is in it, not by its name alone."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from graphprobe.analysis.timing import FORMAT as PROFILE_FORMAT
from graphprobe.compare.open import open_dump
from graphprobe.compare.result_file import ROWS, SUMMARY
from graphprobe.errors import RunNotFoundError, UsageError
from graphprobe.store.diagnosis_file import FINDING, dossiers_in, is_diagnosis, result_in
from graphprobe.store.dump_reader import is_op_file
from graphprobe.store.files import open_file, read_file
from graphprobe.store.graph_calls import is_graph_dump
from graphprobe.store.reader import Run
from graphprobe.store.schema import UNREADABLE

Kind = Literal["run", "diagnosis", "graph-dump", "dump", "comparison", "profile"]

SUBJECTS: dict[Kind, str] = {
    "run": "a run",
    "diagnosis": "a diagnosis",
    "graph-dump": "a dump of compiled graphs",
    "dump": "a dump of calls",
    "comparison": "a comparison",
    "profile": "a profile of compile time",
}
"""In words."""

EXPECTED = (
    "a run folder, the JSON or the folder of a diagnosis, the folder or the comparison.json of graphprobe compare, "
    "a dump (graphprobe's, msprobe's or ptdbg's), or the JSON of graphprobe profile"
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
    run = _run_at(path)
    if run is not None and run.has_events:
        return "run"
    if (dump := _dump_at(path)) is not None:
        return dump
    if result_in(path) is not None or dossiers_in(path):
        return "diagnosis"
    if run is None:
        raise _nothing(path)
    return "run"


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
    if not isinstance(document, dict):
        raise _nothing(path)
    if {"outcome", "candidate", "reference"} <= document.keys():
        return "comparison"
    if (dump := _dump_at(path)) is not None:
        return dump
    raise _nothing(path)


def _run_at(folder: Path) -> Run | None:
    try:
        return Run.open(folder)
    except RunNotFoundError:
        return None


def _dump_at(path: Path) -> Kind | None:
    if is_op_file(path) if path.is_file() else is_graph_dump(path):
        return "graph-dump"
    try:
        return "graph-dump" if open_dump(path).format == "graphprobe-graph" else "dump"
    except (UsageError, OSError):
        if path.suffix == ".pkl":
            raise  # it says why no pickle is opened
        return None


def _nothing(path: Path) -> UsageError:
    return UsageError(f"{path} is nothing that graphprobe reads", hint=f"expected {EXPECTED}")
