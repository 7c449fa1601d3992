"""Many values in one safetensors file: written whole, read by mapping it into memory."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from graphprobe.errors import ArtifactNotFoundError, SchemaError
from graphprobe.store import layout
from graphprobe.store.dump_dtypes import STORED_DTYPES, stored_from_meta
from graphprobe.store.dump_format import write_pieces
from graphprobe.store.files import open_file
from graphprobe.store.schema import UNREADABLE

Array = np.ndarray[Any, Any]

_ALIGNMENT = 64
_MAX_HEADER_BYTES = 100_000_000
"""The bound that the safetensors library has."""
_numbers = itertools.count()


class _Entry(msgspec.Struct, frozen=True):
    data_offsets: tuple[int, int]


class Value(NamedTuple):
    """Values on their way to a shard: 1-d, `items` items of `dtype`, row-major; `data` are their bytes."""

    name: str
    dtype: str
    items: int
    data: memoryview


def encode_shard(values: list[Value]) -> list[memoryview]:
    """The whole file, as pieces to write one after the other; wide dtypes first, so that each is aligned for its own.

    Raises:
        ValueError: a buffer is not of the size that its dtype and count ask for.
    """
    entries = []
    for value in values:
        stored, shape, item_bytes = stored_from_meta(value.dtype, (value.items,), value.data.nbytes)
        entries.append((item_bytes, value.name, stored, shape, value.data))
    entries.sort(key=lambda entry: -entry[0])
    header: dict[str, Any] = {}
    offset = 0
    for _, name, stored, shape, data in entries:
        header[name] = {"dtype": stored, "shape": shape, "data_offsets": (offset, offset + data.nbytes)}
        offset += data.nbytes
    start = msgspec.json.encode(header)
    start += b" " * (-(8 + len(start)) % _ALIGNMENT)
    return [memoryview(len(start).to_bytes(8, "little") + start), *(entry[-1] for entry in entries)]


def write_shard(path: Path, pieces: list[memoryview]) -> None:
    """Write a shard under a temporary name and rename it: it is there whole or not at all.

    Raises:
        OSError: as the operating system gives it; nothing of it stays.
    """
    temporary = path.with_name(f"{layout.TEMPORARY_PREFIX}{os.getpid()}-{next(_numbers)}")
    try:
        write_pieces(str(temporary), pieces)
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


class Shard:
    """One shard, its header read, its values mapped."""

    def __init__(self, path: Path) -> None:
        """Raises ArtifactNotFoundError where there is no such file, SchemaError where its header cannot be read."""
        self.path = path
        try:
            with open_file(path) as file:
                length = int.from_bytes(file.read(8), "little")
                if length > _MAX_HEADER_BYTES:
                    raise SchemaError(f"{path} is no shard of values: its header would have {length} bytes")
                header = file.read(length)
            self._mapped: Array = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise ArtifactNotFoundError(f"{path} cannot be read: {error}") from error
        try:
            entries = msgspec.json.decode(header, type=dict[str, _Entry])
        except UNREADABLE as error:
            raise SchemaError(f"{path} has no header that can be read: {error}") from error
        self._spans = {name: entry.data_offsets for name, entry in entries.items()}
        self._begin = 8 + length

    @property
    def is_whole(self) -> bool:
        """Whether the file reaches to the end of every value in it."""
        return max((last for _, last in self._spans.values()), default=0) <= self._mapped.size - self._begin

    def read(self, name: str, dtype: str, shape: tuple[int, ...] | None) -> Array:
        """The values called `name`, in numpy's dtype or as unsigned integers of the item size; 1-d without a shape.

        Raises:
            ArtifactNotFoundError: they are not there, or cut off.
        """
        span = self._spans.get(name)
        if span is None:
            raise ArtifactNotFoundError(f"{self.path} has no values called {name}")
        first, last = span
        if not 0 <= first <= last <= self._mapped.size - self._begin:
            raise ArtifactNotFoundError(f"{self.path} was cut off before the end of {name}")
        data = self._mapped[self._begin + first : self._begin + last]
        known = STORED_DTYPES.get(dtype)
        if known is None:
            return data
        items = data.view(known.numpy or f"uint{8 * known.size_bytes}")
        try:
            return items if shape is None else items.reshape(shape)
        except ValueError as error:
            raise ArtifactNotFoundError(f"{self.path}: {name} has {items.size} items, not {shape}") from error
