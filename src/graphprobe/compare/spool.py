"""Judged rows on their way to the reports, in a temporary file, so that memory does not grow with them."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator
from typing import IO

import msgspec

from graphprobe.compare.result import CallResult

READ_ROWS = 64
"""Rows that are read together."""


class Spool:
    """Rows by their numbers, which ascend from 0; the file goes with `close`."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="graphprobe-compare-")  # noqa: SIM115 (it lives on)
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
