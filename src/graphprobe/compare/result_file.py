"""Reads what `graphprobe compare --out` wrote: `comparison.json`, and the calls in `rows.jsonl`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from graphprobe.compare.result import SCHEMA, CallResult, Summary
from graphprobe.errors import ArtifactNotFoundError, SchemaError
from graphprobe.store.files import open_file, read_file
from graphprobe.store.schema import UNREADABLE

SUMMARY, ROWS = "comparison.json", "rows.jsonl"

_AGAIN = "write it again with `graphprobe compare A B --out FOLDER`"


def read_summary(path: Path) -> Summary:
    """The summary of a folder, of its `comparison.json`, or of what its `rows.jsonl` belongs to.

    Raises:
        ArtifactNotFoundError: there is no `comparison.json`, or it cannot be read.
        SchemaError: it is none, or of a newer graphprobe.
    """
    file, document = _document(path)
    try:
        return msgspec.convert(document, Summary)
    except UNREADABLE as error:
        raise SchemaError(f"{file} is no comparison: {error}", hint=_AGAIN) from error


def check_schema(path: Path) -> None:
    """Raises as `read_summary` where the summary is of a newer graphprobe, or no JSON; there may be none."""
    if rows_file(path).with_name(SUMMARY).is_file():
        _document(path)


def _document(path: Path) -> tuple[Path, object]:
    file = path if path.is_file() and path.name != ROWS else rows_file(path).with_name(SUMMARY)
    try:
        document = msgspec.json.decode(read_file(file))
    except OSError as error:
        raise ArtifactNotFoundError(f"{file} cannot be read: {error.strerror}", hint=_AGAIN) from error
    except UNREADABLE as error:
        raise SchemaError(f"{file} is no JSON: {error}", hint=_AGAIN) from error
    version = document.get("schema") if isinstance(document, dict) else None
    if version not in range(1, SCHEMA + 1):
        raise SchemaError(
            f"{file} is of schema {version!r}; this graphprobe reads up to {SCHEMA}",
            hint="compare again, or use the graphprobe that wrote it",
        )
    return file, document


def rows_file(path: Path) -> Path:
    """Where the rows of a comparison lie; `path` is its folder, or a file in it."""
    return (path if path.is_dir() else path.parent) / ROWS


def read_rows(path: Path) -> Iterator[CallResult]:
    """The rows of a comparison, read one by one; `path` as for `rows_file`.

    Raises:
        ArtifactNotFoundError: there is no `rows.jsonl`, or it cannot be read.
        SchemaError: a line is no row.
    """
    file = rows_file(path)
    decoder = msgspec.json.Decoder(CallResult)
    try:
        with open_file(file) as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    yield decoder.decode(line)
                except UNREADABLE as error:
                    text = f"{file} line {number} is no row of a comparison: {error}"
                    raise SchemaError(text, hint=_AGAIN) from error
    except FileNotFoundError as error:
        text = f"{file.parent} has no {ROWS}, where a comparison keeps its calls"
        raise ArtifactNotFoundError(text, hint=_AGAIN) from error
    except OSError as error:
        raise ArtifactNotFoundError(f"{file} cannot be read: {error.strerror}", hint=_AGAIN) from error
