"""`stats.csv`: one row a tensor, appended as the program runs, read back however it ended."""

from __future__ import annotations

import ast
import csv
import io
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from graphprobe.errors import ArtifactNotFoundError, SchemaError
from graphprobe.numerics.number_text import numbers_text
from graphprobe.records import TensorMeta, TensorStats
from graphprobe.store.dump_records import STAT_FIELDS, OpInfo, Slot, StatName
from graphprobe.store.files import read_file

COLUMNS: tuple[str, ...] = (
    "Op Type",
    "Op Name",
    "Task ID",
    "Stream ID",
    "Timestamp",
    "Input/Output",
    "Slot",
    "Data Type",
    "Format",
    "Shape",
    *STAT_FIELDS,
    "Source",
    "Engine",
    "Digest",
)
HEADER = (",".join(COLUMNS) + "\r\n").encode()

_COUNTS = frozenset({"Nan", "Negative Inf", "Positive Inf"})
_LINE_ENDS = str.maketrans({"\r": "\\r", "\n": "\\n"})


class StatsRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `stats` has the columns that are filled: counts as integers, the others as floats."""

    op_type: str
    op_name: str
    task_id: int
    stream_id: int
    time_us: int
    side: str
    slot: str
    dtype: str
    format: str
    shape: tuple[int, ...]
    stats: dict[str, int | float]
    source: str
    engine: str
    digest: str


Columns = tuple[str | None, ...]
"""Of each column of statistics the field of `TensorStats` that fills it; None where it stays empty."""


def columns_of(wanted: Collection[StatName]) -> Columns:
    """The columns when only those of these names are filled."""
    return tuple(field if name in wanted else None for name, field in STAT_FIELDS.items())


class RowForm(NamedTuple):
    """What the rows of a slot have in common: before the execution, between it and the numbers, and after them."""

    before: bytes
    middle: bytes
    after: bytes

    @classmethod
    def of(cls, op: OpInfo, slot: Slot) -> RowForm:
        """The form of a slot.

        A line end inside a name becomes `\\r` or `\\n` in letters: a row is always one line, so that a torn one shows.
        """
        meta = slot.meta
        return cls(
            _fields(op.op_type, op.op_name),
            _fields(slot.side, slot.name, meta.dtype, format_from_meta(meta), meta.shape),
            _fields(op.source, op.engine),
        )


def encode_rows(
    execution: bytes, forms: tuple[RowForm, ...], stats: tuple[TensorStats, ...], columns: Columns
) -> bytes:
    """Rows with their line ends, one for each of the statistics; a float in as many digits as it takes to get it back.

    Args:
        execution: number, stream and time, with commas between them.
        forms: one for each of the statistics.
    """
    rows = []
    for form, one in zip(forms, stats, strict=True):
        numbers = numbers_text([None if name is None else getattr(one, name) for name in columns])
        before, middle, after = form
        rows.append(
            b"%b,%b,%b,%b,%b,%b\r\n" % (before, execution, middle, numbers.encode(), after, one.digest.encode())
        )
    return b"".join(rows)


def format_from_meta(meta: TensorMeta) -> str:
    """How the tensor lies in memory: `ND` row-major, `NHWC` and `NDHWC` channels last, else `strided`."""
    sizes, strides = meta.shape, meta.strides
    if len(strides) != len(sizes) or 0 in sizes or _is_dense(sizes, strides, range(len(sizes))):
        return "ND"
    if len(sizes) in (4, 5) and _is_dense(sizes, strides, (0, *range(2, len(sizes)), 1)):
        return "NHWC" if len(sizes) == 4 else "NDHWC"
    return "strided"


def read_stats(path: Path, problems: list[str]) -> Iterator[StatsRow]:
    """The rows of a `stats.csv`; what cannot be read is skipped and told in `problems`.

    Raises:
        ArtifactNotFoundError: there is no such file, or it cannot be read.
        SchemaError: its first line is not the header of these statistics.
    """
    try:
        data = read_file(path)
    except OSError as error:
        raise ArtifactNotFoundError(f"{path} cannot be read: {error.strerror}") from error
    whole, _, torn = data.rpartition(b"\r\n")
    if torn:
        problems.append(f"{path}: the last line is cut off, as by a killed process or a full disk")
    if not whole and HEADER.startswith(data):
        return
    lines = whole.split(b"\r\n")
    if lines[0] + b"\r\n" != HEADER:
        raise SchemaError(f"{path} is no {path.name} of an op dump: its first line is {lines[0][:80]!r}")
    for number, line in enumerate(lines[1:], start=2):
        try:
            yield _decode_row(line.decode("utf-8"))
        except (ValueError, SyntaxError, csv.Error) as error:
            problems.append(f"{path} line {number} is no row: {error}")


def _decode_row(line: str) -> StatsRow:
    fields = next(csv.reader(io.StringIO(line, newline=""), strict=True))
    row = dict(zip(COLUMNS, fields, strict=True))
    shape = ast.literal_eval(row["Shape"])
    if not isinstance(shape, tuple):
        raise ValueError(f"shape {row['Shape']!r}")
    stats: dict[str, Any] = {
        name: int(row[name]) if name in _COUNTS else float(row[name]) for name in STAT_FIELDS if row[name]
    }
    return StatsRow(
        op_type=row["Op Type"],
        op_name=row["Op Name"],
        task_id=int(row["Task ID"]),
        stream_id=int(row["Stream ID"]),
        time_us=int(row["Timestamp"]),
        side=row["Input/Output"],
        slot=row["Slot"],
        dtype=row["Data Type"],
        format=row["Format"],
        shape=shape,
        stats=stats,
        source=row["Source"],
        engine=row["Engine"],
        digest=row["Digest"],
    )


def _fields(*values: object) -> bytes:
    """Fields as RFC 4180 wants them, with commas between them."""
    return ",".join(map(_field, values)).encode("utf-8", "backslashreplace")


def _field(value: object) -> str:
    text = str(value)
    if not text.isprintable():
        text = text.translate(_LINE_ENDS)
    return '"' + text.replace('"', '""') + '"' if "," in text or '"' in text else text


def _is_dense(sizes: tuple[int, ...], strides: tuple[int, ...], order: Collection[int]) -> bool:
    """Whether the dimensions, outermost first in `order`, lie without gaps; one of size 1 lies anywhere."""
    expected = 1
    for dim in reversed(tuple(order)):
        if sizes[dim] != 1 and strides[dim] != expected:
            return False
        expected *= sizes[dim]
    return True
