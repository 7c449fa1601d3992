"""What is exported: a run, a dump, a comparison or a profile, told apart by what lies there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from graphprobe.analysis.timing_records import FORMAT as PROFILE_FORMAT
from graphprobe.compare.open import open_dump
from graphprobe.compare.result import SCHEMA, CallResult
from graphprobe.errors import RunNotFoundError, SchemaError, UsageError
from graphprobe.store.dump_reader import is_op_file
from graphprobe.store.files import open_file, read_file
from graphprobe.store.graph_calls import is_graph_dump
from graphprobe.store.reader import Run
from graphprobe.store.schema import UNREADABLE

Kind = Literal["run", "graph-dump", "dump", "comparison", "profile"]

KINDS: dict[Kind, str] = {
    "run": "a run",
    "graph-dump": "a dump of compiled graphs",
    "dump": "a dump of calls",
    "comparison": "a comparison",
    "profile": "a profile of compile time",
}
"""In words."""

COMPARISON, ROWS = "comparison.json", "rows.jsonl"
EXPECTED = (
    "a run folder, a dump (graphprobe's, msprobe's or ptdbg's), the folder that graphprobe compare --out wrote, or the "
    ".json file of graphprobe profile"
)


def kind_of(path: Path) -> Kind:
    """What lies at `path`.

    Raises:
        RunNotFoundError: nothing.
        UsageError: something that cannot be exported.
    """
    if not path.exists():
        raise RunNotFoundError(f"{path} does not exist", hint=f"expected {EXPECTED}")
    if path.is_file():
        return _kind_of_file(path)
    if (path / COMPARISON).is_file() or (path / ROWS).is_file():
        return "comparison"
    if is_graph_dump(path):
        return "graph-dump"
    try:
        return "graph-dump" if open_dump(path).format == "graphprobe-graph" else "dump"
    except UsageError:
        pass  # no dump; what follows says what is expected of a run
    try:
        Run.open(path)
    except RunNotFoundError as error:
        raise UsageError(f"{path} is nothing that can be exported", hint=f"expected {EXPECTED}") from error
    return "run"


def _kind_of_file(path: Path) -> Kind:
    if path.name in (COMPARISON, ROWS):
        return "comparison"
    with open_file(path) as file:
        if f'"{PROFILE_FORMAT}"'.encode() in file.read(512):
            return "profile"
    if is_op_file(path):
        return "graph-dump"
    return "graph-dump" if open_dump(path).format == "graphprobe-graph" else "dump"


def rows_of(path: Path) -> Iterator[CallResult]:
    """The rows of a comparison, read one by one.

    Raises:
        UsageError: the folder has no `rows.jsonl`.
        SchemaError: a line is no row, or the comparison is of a newer graphprobe.
    """
    folder = path if path.is_dir() else path.parent
    rows = folder / ROWS
    if not rows.is_file():
        raise UsageError(
            f"{folder} has no {ROWS}, where a comparison keeps its pairs",
            hint="write it with graphprobe compare --out DIR",
        )
    summary = folder / COMPARISON
    if summary.is_file():
        try:
            document = msgspec.json.decode(read_file(summary))
        except UNREADABLE as error:
            raise SchemaError(f"{summary} is no JSON: {error}") from error
        version = document.get("schema") if isinstance(document, dict) else None
        if not isinstance(version, int) or version > SCHEMA:
            raise SchemaError(f"{summary} has schema {version}; this graphprobe reads up to {SCHEMA}")
    decoder = msgspec.json.Decoder(CallResult)
    with open_file(rows) as file:
        for number, line in enumerate(file, start=1):
            try:
                yield decoder.decode(line)
            except UNREADABLE as error:
                raise SchemaError(f"{rows} line {number} is no row of a comparison: {error}") from error
