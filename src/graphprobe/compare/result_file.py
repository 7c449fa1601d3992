"""Reads what `compare --out` wrote, and keeps judged rows in a temporary file, so that memory does not grow."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from graphprobe.compare.result import COMPARISON_SCHEMA, CallResult, Summary
from graphprobe.errors import ArtifactNotFoundError, SchemaError
from graphprobe.store.files import open_file, read_file
from graphprobe.store.schema import UNREADABLE, check_version

SUMMARY, ROWS = "comparison.json", "rows.jsonl"

_AGAIN = "write it again with `graphprobe compare A B --out FOLDER`"

READ_ROWS = 64
"""Rows that are read together."""


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
    """Raises as `read_summary` where the summary is of another schema, or no JSON; there may be none."""
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
    check_version(document.get("schema") if isinstance(document, dict) else None, COMPARISON_SCHEMA, path=file)
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


class Spool:
    """Rows by their numbers, which ascend from 0; the file goes with `close`."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(buffering=1 << 16, prefix="graphprobe-compare-")  # noqa: SIM115 (it lives on)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(CallResult)
        self._ends = array("q", [0])

    def append(self, row: CallResult) -> None:
        """The next row, by its number."""
        data = self._encoder.encode(row)
        self._file.write(data)
        self._ends.append(self._ends[-1] + len(data))

    def rows(self) -> Iterator[CallResult]:
        """All rows; others may be read meanwhile."""
        number, total = 0, len(self._ends) - 1
        while number < total:
            last = min(number + READ_ROWS, total)
            begin = self._ends[number]
            data = memoryview(self._read(begin, self._ends[last]))
            for one in range(number, last):
                yield self._decoder.decode(data[self._ends[one] - begin : self._ends[one + 1] - begin])
            number = last

    def row(self, number: int) -> CallResult:
        """One row."""
        return self._decoder.decode(self._read(self._ends[number], self._ends[number + 1]))

    def close(self) -> None:
        """Drop the rows."""
        self._file.close()

    def _read(self, begin: int, end: int) -> bytes:
        self._file.seek(begin)
        return self._file.read(end - begin)
