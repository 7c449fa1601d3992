"""Large values in a file that the processes of a diagnosis share: each content once, mapped if read."""

from __future__ import annotations

import copy
import ctypes
import fcntl
import itertools
import json
import logging
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Self, TypeVar, overload

import numpy as np
import torch

from graphprobe.engine import replay
from graphprobe.engine.values import CapturedValues, buffer_of, capture, from_bytes, to_bytes, window
from graphprobe.internals.quiet import quiet

log = logging.getLogger(__name__)

T = TypeVar("T")

LARGE = 1 << 16
"""Bytes from which on a storage goes into the file; a smaller one is kept in memory."""

PAGE = mmap.ALLOCATIONGRANULARITY
"""Where a mapping may begin."""

MAP_FAILED = ctypes.c_void_p(-1).value
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

MADV_DONTNEED = 4
"""Of `madvise`."""

SAMPLE = 64
"""Bytes at the beginning, in the middle and at the end that contents have to share before they are compared."""


_open: weakref.WeakValueDictionary[str, ValueFile] = weakref.WeakValueDictionary()
"""By their keys, which are the same in every process."""

_unnamed = itertools.count()


class ValueFile:
    """Storages, one after the other, each at a multiple of the size of a page.

    Processes that were forked after it was made write to the same file and read what the others have written. It has no
    name, so that nothing is left of it, however they end: it is there as long as this object, or a value restored from
    it, where temporary files are (`TMPDIR`). A process that was not forked takes `descriptor` and `key` of the first.
    """

    def __init__(self, *, descriptor: int | None = None, key: str = "") -> None:
        self._file: IO[bytes]
        if descriptor is not None:
            self._file = os.fdopen(descriptor, "r+b")
        else:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self.descriptor = self._file.fileno()
        self._known: dict[tuple[int, bytes], list[int]] = {}
        self._mapped: dict[int, tuple[int, int]] = {}  # place and size, by address
        self.key = key or f"{next(_unnamed)}"
        _open[self.key] = self

    @property
    def size(self) -> int:
        """Of the file, in bytes."""
        return os.fstat(self._file.fileno()).st_size

    def put(self, flat: torch.Tensor) -> dict[str, int | str] | None:
        """Where the bytes of a flat tensor on the CPU lie from now on; None if they stay in memory."""
        if flat.numel() < LARGE:
            return None
        place = self._place(flat)
        return None if place is None else {"file": self.key, "at": place}

    def _place(self, flat: torch.Tensor) -> int | None:
        data = buffer_of(flat)
        key = (len(data), b"".join(bytes(data[at : at + SAMPLE]) for at in _samples(len(data))))
        for place in self._known.get(key, ()):
            if torch.equal(self.mapped(place, len(data)), flat):
                return place
        try:
            place = self._append(data)
        except OSError as error:  # the disk is full, say
            log.info("a value is kept in memory: %s", error)
            return None
        self._known.setdefault(key, []).append(place)
        return place

    def learn(self, records: bytes) -> None:
        """Take note of what another process has written, so that it is not written again."""
        for entry in json.loads(records)["storages"].values():
            place, size = entry.get("at"), entry["size_bytes"]
            if place is None:
                continue
            number = self._file.fileno()
            key = (size, b"".join(os.pread(number, SAMPLE, place + at) for at in _samples(size)))
            places = self._known.setdefault(key, [])
            if place not in places:
                places.append(place)

    def mapped(self, place: int, size: int) -> torch.Tensor:
        """Bytes as a tensor: pages that are read are those of the file; what is written stays in this tensor."""
        # Python's own mapping would keep a descriptor open for each tensor.
        address = LIBC.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, self._file.fileno(), place)
        if address in (None, MAP_FAILED):
            raise OSError(ctypes.get_errno(), "a temporary file could not be mapped")
        pages = (ctypes.c_ubyte * size).from_address(address)
        self._mapped[address] = place, size
        weakref.finalize(pages, _unmap, self._mapped, address).atexit = False
        return torch.frombuffer(pages, dtype=torch.uint8)

    def copy(self, flat: torch.Tensor) -> torch.Tensor:
        """A copy of flat bytes: of many bytes on the CPU as pages of the file, which other copies of them share."""
        place = self._place(flat) if flat.numel() >= LARGE and flat.device.type == "cpu" else None
        return flat.clone() if place is None else self.mapped(place, flat.numel())

    def again(self, flat: torch.Tensor) -> torch.Tensor:
        """A copy of flat bytes; of a copy of this file's, that nobody has written to, without looking at them."""
        place, size = self._mapped.get(flat.data_ptr(), (0, -1))
        return self.mapped(place, size) if size == flat.numel() else flat.clone()

    def release(self, *values: object) -> None:
        """Let go of the memory of copies that nobody has written to: looked at again, they are read from the file.

        Of tensors, and of arrays that begin where such a copy does; what has other memory is left alone.
        """
        for value in values:
            address = value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else 0
            address = value.ctypes.data if isinstance(value, np.ndarray) else address
            if address in self._mapped:
                LIBC.madvise(address, self._mapped[address][1], MADV_DONTNEED)

    def moved(self, captured: CapturedValues) -> CapturedValues:
        """The same snapshot, its memory pages of the file."""
        with quiet():
            for name, flat in captured.tensors.items():
                captured.tensors[name] = self.copy(flat)
        return captured

    def _append(self, data: memoryview) -> int:
        number = self._file.fileno()
        fcntl.lockf(number, fcntl.LOCK_EX)  # of processes; a step runs in one thread
        try:
            place = -(-self.size // PAGE) * PAGE
            done = 0
            while done < len(data):
                done += os.pwrite(number, data[done:], place + done)
            return place
        finally:
            fcntl.lockf(number, fcntl.LOCK_UN)


def _unmap(mapped: dict[int, tuple[int, int]], address: int) -> None:
    LIBC.munmap(address, mapped.pop(address)[1])


def _samples(size: int) -> tuple[int, int, int]:
    return 0, size // 2, size - SAMPLE


def stored(values: Sequence[object], file: ValueFile | None) -> tuple[bytes, bytes]:
    """A snapshot of values as `to_bytes` gives it, less the storages that the file has taken."""
    return to_bytes(capture(values, rng=False, put=None if file is None else file.put))


def restored(safetensors: bytes, records: bytes) -> list[Sequence[Any]]:
    """The inverse of `stored`, of values that are lists of leaves: what is in a file is loaded when it is looked at."""
    captured = from_bytes(safetensors, records)
    doc = captured.doc
    if all("at" not in entry for entry in doc["storages"].values()):
        return captured.restore()
    with quiet():
        small = {name: captured.tensors[name].to(doc["storages"][name]["device"]) for name in captured.tensors}
        return [Restored([_item(record, small, doc) for record in value["items"]]) for value in doc["values"]]


def _item(record: Mapping[str, Any], small: Mapping[str, torch.Tensor], doc: Mapping[str, Any]) -> Any:
    name = record.get("storage")
    if name is None or name in small:
        return replay.restore(record, small, doc)
    entry = doc["storages"][name]
    begin, end = window(record["storage_offset"], record["shape"], record["stride"], _size_of(record["dtype"]))
    begin = entry["first_byte"] + (begin - entry["first_byte"]) // PAGE * PAGE
    place = entry["at"] + begin - entry["first_byte"]
    return InFile(_open[entry["file"]], place, max(end - begin, 1), begin, entry["device"], record)


def _size_of(dtype: str) -> int:
    found: torch.dtype = getattr(torch, dtype)
    return found.itemsize


@dataclass(frozen=True)
class InFile:
    """A tensor whose storage is in a file: the record says which part of it.

    Attributes:
        file, place: the file, and where the bytes that the tensor covers lie in it.
        size: how many these are.
        first_byte: of them, within the tensor's storage.
        device: where the tensor was.
        record: as in the documents of `engine.values`.
    """

    file: ValueFile
    place: int
    size: int
    first_byte: int
    device: str
    record: Mapping[str, Any] = field(hash=False)

    def load(self) -> Any:
        """The tensor, with strides as it was captured, in memory that goes with it."""
        with quiet():
            flat = self.file.mapped(self.place, self.size).to(self.device)
            name = self.record["storage"]
            return replay.restore(self.record, {name: flat}, {"storages": {name: {"first_byte": self.first_byte}}})


class Loaded(Sequence[T]):
    """Values that `load` makes of items, each whenever it is looked at."""

    def __init__(self, items: Sequence[Any], load: Callable[[Any], T]) -> None:
        self._items, self._load = items, load

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: int | slice) -> T | Self:
        if not isinstance(index, slice):
            return self._load(self._items[index])
        part = copy.copy(self)
        part._items = self._items[index]
        return part


class Restored(Loaded[Any]):
    """Values of one record. Small ones are there; large ones are loaded."""

    def __init__(self, items: Sequence[Any]) -> None:
        super().__init__(items, lambda item: item.load() if isinstance(item, InFile) else item)

    def place(self, index: int) -> InFile | None:
        """Where the value at a position is to be found, if it is in a file."""
        item = self._items[index]
        return item if isinstance(item, InFile) else None


def is_stored_once(a: Sequence[Any], b: Sequence[Any], index: int) -> bool:
    """Whether the values at a position are the same tensor at the same place of a file, and so equal, bit for bit."""
    if not isinstance(a, Restored) or not isinstance(b, Restored):
        return False
    return a.place(index) is not None and a.place(index) == b.place(index)
