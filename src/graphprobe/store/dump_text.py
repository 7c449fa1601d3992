"""Arrays as text that gives every value back: numpy's own text with a header, or one element a row as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

Array = np.ndarray[Any, Any]

_CHUNK = 65536
_DIGITS = {2: 5, 4: 9, 8: 17}
"""Decimal digits that tell the numbers of a binary float of so many bytes apart (IEEE 754, 5.12.2)."""


def write_text(file: BinaryIO, array: Array, *, dtype: str, note: str = "") -> None:
    """`# dtype`, `# shape` and `# note` lines, then the values: one row of the last dimension a line.

    `numpy.loadtxt(path, dtype=...).reshape(shape)` gives the values back. Complex numbers are `(1+2j)`, booleans 0 and
    1. A structured array becomes a line of its columns and one tab-separated line a row.
    """
    header = [f"# dtype: {dtype}", f"# shape: {' '.join(map(str, array.shape))}".rstrip()]
    if note:
        header.append(f"# note: {note}")
    file.write(("\n".join(header) + "\n").encode())
    if array.dtype.names:
        for row in _rows(array):
            file.write(("\t".join(map(_one_line, row)) + "\n").encode())
    elif array.size:
        rows = array.reshape(-1, array.shape[-1] if array.ndim > 1 else 1)
        np.savetxt(file, rows, fmt=_format(array.dtype), newline="\n")


def write_csv(file: BinaryIO, array: Array) -> None:
    """One element a row: its index in each dimension (`i0`, `i1`, …), then `value`, or `real` and `imag`.

    A structured array keeps its columns.
    """
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    if array.dtype.names:
        writer.writerows(_rows(array))
        text.detach()
        return
    is_complex = array.dtype.kind == "c"
    writer.writerow([*(f"i{dim}" for dim in range(array.ndim)), *(("real", "imag") if is_complex else ("value",))])
    value_format = _format(array.dtype)
    flat = array.reshape(-1)
    for begin in range(0, flat.size, _CHUNK):
        part = flat[begin : begin + _CHUNK]
        indices = np.unravel_index(np.arange(begin, begin + part.size), array.shape) if array.ndim else ()
        columns: list[list[Any]] = [index.tolist() for index in indices]
        for piece in (part.real, part.imag) if is_complex else (part,):
            columns.append([value_format % value for value in piece.tolist()])
        writer.writerows(zip(*columns, strict=True))
    text.detach()


def _format(dtype: np.dtype[Any]) -> str:
    """A printf format that loses nothing; for a complex dtype, that of its parts."""
    if dtype.kind in "biu":
        return "%d"
    if dtype.kind in "fc":
        size_bytes = dtype.itemsize // (2 if dtype.kind == "c" else 1)
        return f"%.{_DIGITS.get(size_bytes, 21)}g"
    return "%s"


def _rows(array: Array) -> Iterator[tuple[str, ...]]:
    """The names of the columns, then each row; what is not filled is empty."""
    yield tuple(array.dtype.names or ())
    for row in array.tolist():
        yield tuple("" if item != item else str(item) for item in row)


def _one_line(text: str) -> str:
    return text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
