"""What the executions of an op have in common, encoded once: only numbers are new in the next one's line and rows."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from graphprobe.records import TensorStats
from graphprobe.store.dump_records import Argument, OpInfo, Place, Slot
from graphprobe.store.dump_stats import RowForm, RowNumbers
from graphprobe.store.schema import _json_from_value as json_from_value


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

    def line(self, seq: int, time_us: int, stream_id: int, place_and_file: bytes) -> bytes:
        """The line of the index for an execution with statistics only: as `DumpRecord` encodes, and a line end."""
        if not self._head:
            self._tail = _members(_Tail(self.slots, self.arguments, self.notes)) + b"}\n"
            self._head = json_from_value(self.op)
        stream = b',"stream_id":%d' % stream_id if stream_id else b""
        return b'{"seq":%d,"time_us":%d,"op":%b%b%b%b' % (
            seq,
            time_us,
            self._head,
            place_and_file,
            stream,
            self._tail,
        )

    def rows(self, seq: int, time_us: int, stream_id: int, stats: Sequence[TensorStats], numbers: RowNumbers) -> bytes:
        """The rows of `stats.csv` for an execution, one for each slot."""
        forms = self._rows or tuple(RowForm(self.op, slot) for slot in self.slots)
        self._rows = forms
        execution = f"{seq},{stream_id},{time_us}"
        found = [form.text(execution, one, numbers) for form, one in zip(forms, stats, strict=True)]
        return "".join(found).encode("utf-8", "backslashreplace")


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
