"""One op in one safetensors file: its header, written without a copy of the values, and read with checks."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from graphprobe.errors import ArtifactNotFoundError, SchemaError
from graphprobe.store.dump_dtypes import stored_from_meta
from graphprobe.store.dump_records import DUMP_SCHEMA, DumpRecord, Slot
from graphprobe.store.files import open_file
from graphprobe.store.schema import UNREADABLE

RECORD_KEY = "graphprobe.record"
SCHEMA_KEY = "graphprobe.dump_schema"

_ALIGNMENT = 64
_MAX_HEADER_BYTES = 100_000_000
"""The bound that the safetensors library has."""
_MAX_BUFFERS = 512
"""Buffers per system call; Linux takes 1024."""


class ByteSpan(msgspec.Struct, frozen=True):
    """Where the values of a slot lie in the file, in bytes from its start."""

    begin: int
    end: int


class OpFile(msgspec.Struct, frozen=True):
    """The header of an op's file. `spans` has the slots whose values are there."""

    path: Path
    record: DumpRecord
    spans: dict[str, ByteSpan]


def encode_op(record: DumpRecord, text: bytes, buffers: Sequence[memoryview | None]) -> list[memoryview]:
    """The whole file of `record` as pieces to write one after the other; the values are the buffers themselves.

    `text` is `record` as JSON. `buffers` go with `record.slots`; None is a slot without values. Items of wide dtypes
    come first and the header ends on a multiple of 64 bytes, so that every tensor is aligned for its dtype.

    Raises:
        ValueError: a name is there twice, or a buffer is not of the size that its dtype and shape ask for.
    """
    header: dict[str, Any] = {"__metadata__": {SCHEMA_KEY: str(DUMP_SCHEMA), RECORD_KEY: text.decode()}}
    if len({slot.name for slot in record.slots} | {"__metadata__"}) <= len(record.slots):
        raise ValueError(f"two slots of one name: {[slot.name for slot in record.slots]}")
    entries = []
    for slot, buffer in zip(record.slots, buffers, strict=True):
        if buffer is not None:
            stored, shape, item_bytes = stored_from_meta(slot.meta.dtype, slot.meta.shape, buffer.nbytes)
            entries.append((item_bytes, slot.name, stored, shape, buffer))
    entries.sort(key=lambda entry: -entry[0])
    offset = 0
    for _, name, stored, shape, buffer in entries:
        header[name] = {"dtype": stored, "shape": shape, "data_offsets": (offset, offset + buffer.nbytes)}
        offset += buffer.nbytes
    start = msgspec.json.encode(header)
    start += b" " * (-(8 + len(start)) % _ALIGNMENT)
    return [memoryview(len(start).to_bytes(8, "little") + start), *(entry[-1] for entry in entries)]


def write_pieces(path: str, pieces: Sequence[memoryview]) -> None:
    """Write a file that must not exist yet, in as few system calls as it takes; pieces are 1-d bytes.

    Raises:
        OSError: what was written until then stays.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        pending = deque(piece for piece in pieces if piece.nbytes)
        while pending:
            written = os.writev(descriptor, list(islice(pending, _MAX_BUFFERS)))
            while pending and written >= len(pending[0]):
                written -= len(pending.popleft())
            if written:
                pending[0] = pending[0][written:]
    finally:
        os.close(descriptor)


def read_op_file(path: Path) -> OpFile:
    """The header of an op's file, checked against its size.

    Raises:
        ArtifactNotFoundError: there is no such file, or it cannot be read.
        SchemaError: it is cut off, of a newer schema, or no file of a dump.
    """
    try:
        with open_file(path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(_MAX_HEADER_BYTES, size_bytes - 8):
                raise SchemaError(f"{path} is no safetensors file, or one that was cut off ({size_bytes} bytes)")
            text = file.read(length)
    except OSError as error:
        raise ArtifactNotFoundError(f"{path} cannot be read: {error.strerror}") from error
    try:
        header = msgspec.json.decode(text, type=dict[str, dict[str, Any]])
        metadata = header.pop("__metadata__", {})
        if SCHEMA_KEY not in metadata or RECORD_KEY not in metadata:
            raise SchemaError(f"{path} is a safetensors file, but not of an op dump: its metadata lacks {RECORD_KEY}")
        version = int(metadata[SCHEMA_KEY])
        if version > DUMP_SCHEMA:
            raise SchemaError(
                f"{path} has dump schema {version}; this graphprobe reads up to {DUMP_SCHEMA}",
                hint="upgrade graphprobe: pip install --upgrade graphprobe",
            )
        record = msgspec.json.decode(metadata[RECORD_KEY], type=DumpRecord)
        begin = 8 + length
        spans = {name: _span(entry["data_offsets"], begin, size_bytes) for name, entry in header.items()}
    except (KeyError, ValueError, TypeError, *UNREADABLE) as error:
        raise SchemaError(f"{path} has no header that can be read: {error}") from error
    slots = {slot.name: slot for slot in record.slots}
    for name, span in spans.items():
        if name not in slots or slots[name].size_bytes != span.end - span.begin:
            raise SchemaError(f"{path}: the values of {name} are not those that its record tells of")
        try:
            stored_from_meta(slots[name].meta.dtype, slots[name].meta.shape, span.end - span.begin)
        except ValueError as error:
            raise SchemaError(f"{path}: the values of {name} do not fit: {error}") from error
    return OpFile(path, record, spans)


def read_bytes(file: OpFile, slot: Slot) -> np.ndarray[Any, Any]:
    """The stored bytes of a slot: uint8, 1-d. Raises ArtifactNotFoundError when the file holds none of it."""
    span = file.spans.get(slot.name)
    if span is None:
        why = slot.missing or "only its statistics were kept"
        raise ArtifactNotFoundError(f"{file.path} has no values of {slot.name}: {why}")
    try:
        data = np.fromfile(file.path, dtype=np.uint8, count=span.end - span.begin, offset=span.begin)
    except OSError as error:
        raise ArtifactNotFoundError(f"{file.path} cannot be read: {error.strerror}") from error
    if data.nbytes != span.end - span.begin:
        raise SchemaError(f"{file.path} was cut off while it was read")
    return data


def _span(offsets: Sequence[int], begin: int, size_bytes: int) -> ByteSpan:
    first, last = offsets
    if not 0 <= first <= last <= size_bytes - begin:
        raise ValueError(f"it was cut off: {size_bytes - begin} bytes of values, {last} expected")
    return ByteSpan(begin + first, begin + last)
