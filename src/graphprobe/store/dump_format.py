"""One op of a dump in one safetensors file, and its rows of `stats.csv`, readable however the program ended."""

from __future__ import annotations

import ast
import csv
import io
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from graphprobe.errors import ArtifactNotFoundError, SchemaError
from graphprobe.records import STATISTICS, TensorMeta, TensorStats
from graphprobe.store.calls import WrittenSlot
from graphprobe.store.dump_dtypes import Array, bits_from_bytes, size_from_meta, stored_from_meta
from graphprobe.store.dump_records import DUMP_SCHEMA, Data, DumpRecord, OpInfo, Place
from graphprobe.store.files import open_file, read_or_refuse
from graphprobe.store.schema import UNREADABLE, check_version, json_from_value

RECORD_KEY = "graphprobe.record"
SCHEMA_KEY = "graphprobe.dump_schema"

_ALIGNMENT = 64
_MAX_HEADER_BYTES = 100_000_000
"""The bound that the safetensors library has."""

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
    *STATISTICS,
    "Source",
    "Engine",
    "Digest",
)
HEADER = (",".join(COLUMNS) + "\r\n").encode()

_COUNTS = {name for name, field in STATISTICS.items() if getattr(TensorStats(0), field) == 0}
_LINE_ENDS = str.maketrans({"\r": "\\r", "\n": "\\n"})

Columns = tuple[str | None, ...]
"""Of each column of statistics the field of `TensorStats` that fills it; None where it stays empty."""

_VALUE_OVERHEAD_BYTES = 512
"""What a value without data, or one of unknown size, is taken for in a queue."""


def encode_op(record: DumpRecord, text: bytes, buffers: Sequence[memoryview | None]) -> list[memoryview]:
    """The whole file of `record` as pieces to write one after the other; the values are the buffers themselves.

    `text` is `record` as JSON. `buffers` go with the tensors of `record.slots`, which come first; None has no values.

    Raises:
        ValueError: a name is there twice, or a buffer is not of the size that its dtype and shape ask for.
    """
    if len({slot.name for slot in record.slots} | {"__metadata__"}) <= len(record.slots):
        raise ValueError(f"two slots of one name: {[slot.name for slot in record.slots]}")
    pairs = zip(record.slots, buffers, strict=False)
    values = [
        (s.name, s.meta.dtype, s.meta.shape, data) for s, data in pairs if data is not None and s.meta is not None
    ]
    return encode_tensors(values, {SCHEMA_KEY: str(DUMP_SCHEMA), RECORD_KEY: text.decode()})


def encode_tensors(
    values: Sequence[tuple[str, str, tuple[int, ...], memoryview]], metadata: dict[str, str] | None = None
) -> list[memoryview]:
    """A safetensors file of values, each with its name, dtype and shape, as pieces to write one after the other.

    Items of wide dtypes come first and the header ends on a multiple of 64 bytes, so that every tensor is aligned for
    its dtype.

    Raises:
        ValueError: a buffer is not of the size that its dtype and shape ask for.
    """
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    entries = []
    for name, dtype, shape, data in values:
        stored, stored_shape, item_bytes = stored_from_meta(dtype, shape, data.nbytes)
        entries.append((item_bytes, name, stored, stored_shape, data))
    entries.sort(key=lambda entry: -entry[0])
    offset = 0
    for _, name, stored, stored_shape, data in entries:
        header[name] = {"dtype": stored, "shape": stored_shape, "data_offsets": (offset, offset + data.nbytes)}
        offset += data.nbytes
    start = msgspec.json.encode(header)
    start += b" " * (-(8 + len(start)) % _ALIGNMENT)
    return [memoryview(len(start).to_bytes(8, "little") + start), *(entry[-1] for entry in entries)]


class _Entry(msgspec.Struct, frozen=True):
    data_offsets: tuple[int, int]


class Shard:
    """One safetensors file, its header read, its values mapped; `metadata` is what the header says of the file."""

    def __init__(self, path: Path) -> None:
        """Raises ArtifactNotFoundError where it cannot be read, SchemaError where its header is none, or cut off."""
        self.path = path
        try:
            with open_file(path) as file:
                size_bytes = os.fstat(file.fileno()).st_size
                length = int.from_bytes(file.read(8), "little")
                if not 2 <= length <= min(_MAX_HEADER_BYTES, size_bytes - 8):
                    raise SchemaError(f"{path} is no safetensors file, or one that was cut off ({size_bytes} bytes)")
                header = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
            self.metadata = msgspec.json.decode(header.pop("__metadata__", b"{}"), type=dict[str, str])
            entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in header.items()}
            self._values: Array = np.memmap(path, dtype=np.uint8, mode="r")[8 + length :]
        except OSError as error:
            raise ArtifactNotFoundError(f"{path} cannot be read: {error.strerror}") from error
        except UNREADABLE as error:
            raise SchemaError(f"{path} has no header that can be read: {error}") from error
        self.spans = {name: entry.data_offsets for name, entry in entries.items()}

    @property
    def is_whole(self) -> bool:
        """Whether the file reaches to the end of every value in it."""
        return all(0 <= first <= last <= self._values.size for first, last in self.spans.values())

    def raw(self, name: str) -> Array:
        """The bytes called `name`: uint8, 1-d. Raises ArtifactNotFoundError: they are not there, or cut off."""
        span = self.spans.get(name)
        if span is None:
            raise ArtifactNotFoundError(f"{self.path} has no values called {name}")
        if not 0 <= span[0] <= span[1] <= self._values.size:
            raise ArtifactNotFoundError(f"{self.path} was cut off before the end of {name}")
        return self._values[span[0] : span[1]]

    def read(self, name: str, dtype: str, shape: tuple[int, ...] | None) -> Array:
        """The values called `name`, in numpy's dtype or as unsigned integers of the item size; 1-d without a shape.

        Raises:
            ArtifactNotFoundError: they are not there, or cut off.
        """
        data = self.raw(name)
        try:
            return bits_from_bytes(data, dtype, (-1,) if shape is None else shape)
        except ValueError as error:
            raise ArtifactNotFoundError(f"{self.path}: {name} has {data.nbytes} bytes, not {shape}") from error


class OpFile(Shard):
    """The file of one op, checked against its record."""

    def __init__(self, path: Path) -> None:
        """Raises as `Shard` does, and SchemaError where it is of another schema, cut off, or no file of a dump."""
        super().__init__(path)
        if SCHEMA_KEY not in self.metadata or RECORD_KEY not in self.metadata:
            raise SchemaError(f"{path} is a safetensors file, but not of an op dump: its metadata lacks {RECORD_KEY}")
        if not self.is_whole:
            raise SchemaError(f"{path} has no header that can be read: it was cut off, and values are missing")
        try:
            check_version(int(self.metadata[SCHEMA_KEY]), DUMP_SCHEMA, path=path, what="dump ")
            self.record = msgspec.json.decode(self.metadata[RECORD_KEY], type=DumpRecord)
            slots = {slot.name: slot for slot in self.record.slots}
            for name, (begin, end) in self.spans.items():
                meta = slots[name].meta if name in slots and slots[name].value else None
                if meta is None:
                    raise SchemaError(f"{path}: its record tells of no values of {name}")
                stored_from_meta(meta.dtype, meta.shape, end - begin)
        except (ValueError, *UNREADABLE) as error:
            raise SchemaError(f"{path} has no header that can be read: {error}") from error


class StatsRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row, with the fields in the order of `COLUMNS`.

    `stats` has the columns that are filled: counts as integers, the others as floats.
    """

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


def columns_of(wanted: Collection[str]) -> Columns:
    """The columns when only those of these names are filled."""
    return tuple(field if name in wanted else None for name, field in STATISTICS.items())


class RowForm(NamedTuple):
    """What the rows of a slot have in common: before the execution, between it and the numbers, and after them."""

    before: bytes
    middle: bytes
    after: bytes

    @classmethod
    def of(cls, op: OpInfo, slot: WrittenSlot) -> RowForm:
        """The form of the slot of a tensor.

        A line end inside a name becomes `\\r` or `\\n` in letters: a row is always one line, so that a torn one shows.
        """
        meta = slot.meta
        assert meta is not None
        return cls(
            _fields(op.op_type, op.op_name),
            _fields(slot.role, slot.name, meta.dtype, format_from_meta(meta), meta.shape),
            _fields(op.source, op.engine),
        )


def encode_rows(
    execution: bytes, forms: tuple[RowForm, ...], stats: tuple[TensorStats, ...], columns: Columns
) -> bytes:
    """Rows with their line ends, a form for each of the statistics; floats in as many digits as read back the same.

    `execution`: number, stream and time, with commas between them.
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
    data = read_or_refuse(path, ArtifactNotFoundError)
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
        name: int(row[name]) if name in _COUNTS else float(row[name]) for name in STATISTICS if row[name]
    }
    values: list[Any] = [*fields[:2], *map(int, fields[2:5]), *fields[5:9], shape, stats, *fields[-3:]]
    return StatsRow(**dict(zip(StatsRow.__struct_fields__, values, strict=True)))


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


class OpForm:
    """An op, and what lies in its slots, for as long as dtypes, shapes and strides stay as they are.

    Attributes:
        slots, notes: see `DumpRecord`; without anything about stored values.
        tensors: the slots of tensors, which come first.
        size_bytes: what an execution without values takes in a queue.
    """

    __slots__ = ("_head", "_rows", "_tail", "notes", "op", "size_bytes", "slots", "tensors")

    def __init__(self, op: OpInfo, slots: Sequence[WrittenSlot], notes: Sequence[str] = ()) -> None:
        self.op = op
        self.slots = tuple(slots)
        self.tensors = tuple(slot for slot in slots if slot.meta is not None)
        self.notes = tuple(notes)
        self.size_bytes = _VALUE_OVERHEAD_BYTES * len(self.tensors)
        self._head = b""
        self._tail = b""
        self._rows: tuple[RowForm, ...] = ()

    def encode(
        self,
        seq: int,
        time_us: int,
        stream_id: int,
        place_and_file: bytes,
        stats: tuple[TensorStats, ...],
        columns: Columns,
    ) -> tuple[bytes, bytes]:
        """An execution with statistics only: its line in the index, as `DumpRecord` encodes, and its rows."""
        if not self._head:
            members = json_from_value(_Tail(self.slots, self.notes))[1:-1]
            self._tail = (b"," + members if members else b"") + b"}\n"
            self._rows = tuple(RowForm.of(self.op, slot) for slot in self.tensors)
            self._head = json_from_value(self.op)
        line = b'{"seq":%d,"time_us":%d,"op":%b%b%b%b' % (
            seq,
            time_us,
            self._head,
            place_and_file,
            b',"stream_id":%d' % stream_id if stream_id else b"",
            self._tail,
        )
        return line, encode_rows(b"%d,%d,%d" % (seq, stream_id, time_us), self._rows, stats, columns)

    def queued_bytes(self, data: Sequence[Data | None]) -> int:
        """What an execution with the values of each tensor takes in a queue."""
        return sum(_queued_bytes(one, slot.meta) for one, slot in zip(data, self.tensors, strict=True))


def _queued_bytes(data: Data | None, meta: TensorMeta | None) -> int:
    if data is None or meta is None:
        return _VALUE_OVERHEAD_BYTES
    if not callable(data):
        return data.nbytes if isinstance(data, np.ndarray | memoryview) else len(data)
    return size_from_meta(meta.dtype, meta.shape) or _VALUE_OVERHEAD_BYTES


class _Tail(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last fields of `DumpRecord`, in its order."""

    slots: tuple[WrittenSlot, ...] = ()
    notes: tuple[str, ...] = ()


def encode_place(place: Place, file: str) -> bytes:
    """The place and the file of a `DumpRecord`, as they stand in its JSON after the op."""
    return b',"place":' + json_from_value(place) + b',"file":' + json_from_value(file)


def numbers_text(numbers: Iterable[float | int | None]) -> str:
    """`repr` of each, with commas between them, which reads back as the same numbers; None is empty."""
    return ",".join(["" if value is None else repr(value) for value in numbers])
