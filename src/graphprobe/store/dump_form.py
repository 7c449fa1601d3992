"""What the executions of an op have in common, encoded once: only numbers are new in the next one's line and rows."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from graphprobe.records import TensorMeta, TensorStats
from graphprobe.store.dump_dtypes import size_from_meta
from graphprobe.store.dump_records import Argument, Data, OpInfo, Place, Slot
from graphprobe.store.dump_stats import Columns, RowForm, encode_rows
from graphprobe.store.schema import json_from_value

_VALUE_OVERHEAD_BYTES = 512
"""What a value without data, or one of unknown size, is taken for in a queue."""


class OpForm:
    """An op, and what lies in its slots, for as long as dtypes, shapes and strides stay as they are.

    Attributes:
        op: what ran.
        slots: without anything about stored values.
        arguments, notes: see `DumpRecord`.
    """

    __slots__ = ("_head", "_rows", "_tail", "arguments", "notes", "op", "slots")

    def __init__(
        self, op: OpInfo, slots: Sequence[Slot], arguments: Sequence[Argument] = (), notes: Sequence[str] = ()
    ) -> None:
        self.op = op
        self.slots = tuple(slots)
        self.arguments = tuple(arguments)
        self.notes = tuple(notes)
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
            self._tail = _members(_Tail(self.slots, self.arguments, self.notes)) + b"}\n"
            self._rows = tuple(RowForm.of(self.op, slot) for slot in self.slots)
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

    def queued_bytes(self, data: Sequence[Data | None] = ()) -> int:
        """What an execution takes in a queue; `data` is that of each slot, or none."""
        if not data:
            return _VALUE_OVERHEAD_BYTES * len(self.slots)
        return sum(_queued_bytes(one, slot.meta) for one, slot in zip(data, self.slots, strict=True))

    def rows(self, seq: int, time_us: int, stream_id: int, stats: tuple[TensorStats, ...], columns: Columns) -> bytes:
        """The rows alone, one for each slot."""
        return self.encode(seq, time_us, stream_id, b"", stats, columns)[1]


def _queued_bytes(data: Data | None, meta: TensorMeta) -> int:
    if data is None:
        return _VALUE_OVERHEAD_BYTES
    if not callable(data):
        return data.nbytes if isinstance(data, np.ndarray | memoryview) else len(data)
    return size_from_meta(meta.dtype, meta.shape) or _VALUE_OVERHEAD_BYTES


class _Tail(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last fields of `DumpRecord`, in its order."""

    slots: tuple[Slot, ...] = ()
    arguments: tuple[Argument, ...] = ()
    notes: tuple[str, ...] = ()


def encode_place(place: Place, file: str) -> bytes:
    """The place and the file of a `DumpRecord`, as they stand in its JSON after the op."""
    return b',"place":' + json_from_value(place) + b',"file":' + json_from_value(file)


def _members(struct: msgspec.Struct) -> bytes:
    """The members of a JSON object, each behind a comma."""
    text = json_from_value(struct)[1:-1]
    return b"," + text if text else b""
