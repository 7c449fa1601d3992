"""The statistics and the digest of `TensorStats` without the C++ core: the same definitions, equal digests.

For the digest, the bytes of the elements, in logical order, are cut into blocks of 8192, a block into stripes of 64, a
stripe into 16 lanes of 32 bits. Each word x of a lane becomes x ^ (x >> 15), so that sign bits reach the low ones. A
lane of a block is the sum, modulo 2**32, of the signed 16-bit halves of these, times keys that differ everywhere in the
block. The lanes of all blocks are added modulo 2**64, each block times an odd multiplier of its own. Last, the 16 sums
and the number of bytes are mixed into 64 bits. What is left over after the last whole stripe is filled up with zeros
and counts as a block of one stripe, with that stripe's keys and that block's multiplier. Sums may be formed in any
order, by any number of threads.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from graphprobe.numerics.item_kinds import ITEM_KINDS, TABLE, TABLE2, Floats, ItemKind, table_at

BLOCK_BYTES = 8192
STRIPE_BYTES = 64
LANES = 16
MASK = (1 << 64) - 1

Lanes = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]

CHUNK_BYTES = 64 * BLOCK_BYTES
"""Read at a time; memory in use is a few times eight times that."""

_BY_NUMBER = {kind.number: kind for kind in ITEM_KINDS.values()}

_Result = TypeVar("_Result")


def splitmix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea and Flood, 2014) of each element."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@functools.cache
def block_keys() -> npt.NDArray[np.int16]:
    """Keys of one block, one for each 16-bit word: odd, at least 4097 in size, and no two of the same size."""
    values = np.arange(4097, 32768, 2, dtype=np.int64)
    order = splitmix(values.astype(np.uint64))
    chosen = np.argsort(order, kind="stable")[: BLOCK_BYTES // 2]
    signs = np.where(order[chosen] & np.uint64(1), -1, 1)
    return (signs * values[chosen]).astype(np.int16)


def multipliers(first: int, count: int) -> npt.NDArray[np.uint64]:
    """The odd multipliers of blocks `first`, `first` + 1, …"""
    return splitmix(np.arange(first, first + count, dtype=np.uint64)) | np.uint64(1)


def _add(lanes: Lanes, stripes: Bytes, blocks: npt.NDArray[np.uint64], keys: npt.NDArray[np.int16]) -> None:
    """Adds blocks of equally many whole stripes, shape (blocks, bytes), to `lanes`."""
    whole = stripes.view(np.uint32)
    mixed = whole ^ (whole >> np.uint32(15))
    words = mixed.view(np.int16).reshape(len(stripes), -1, LANES, 2).astype(np.int32)
    products = words * keys.reshape(-1, LANES, 2).astype(np.int32)
    state = products.sum(axis=(1, 3), dtype=np.int32).view(np.uint32).astype(np.uint64)
    lanes += (state * blocks[:, None]).sum(axis=0, dtype=np.uint64)


def add_bytes(lanes: Lanes, data: Bytes, first_block: int) -> None:
    """Adds contiguous bytes, from the start of block `first_block` on; only the last call may end inside a block."""
    keys = block_keys()
    whole = len(data) // BLOCK_BYTES
    if whole:
        _add(lanes, data[: whole * BLOCK_BYTES].reshape(whole, -1), multipliers(first_block, whole), keys)
    rest = data[whole * BLOCK_BYTES :]
    if not len(rest):
        return
    block = multipliers(first_block + whole, 1)
    stripes = len(rest) // STRIPE_BYTES * STRIPE_BYTES
    if stripes:
        _add(lanes, rest[None, :stripes], block, keys[: stripes // 2])
    if len(rest) > stripes:
        padded = np.zeros((1, STRIPE_BYTES), dtype=np.uint8)
        padded[0, : len(rest) - stripes] = rest[stripes:]
        _add(lanes, padded, block, keys[stripes // 2 : (stripes + STRIPE_BYTES) // 2])


def finish(lanes: Lanes, total_bytes: int) -> str:
    """The digest: 16 hexadecimal digits."""
    mixed = splitmix(np.array([total_bytes], dtype=np.uint64))
    for lane in lanes:
        mixed = splitmix(mixed ^ lane)
    return f"{int(mixed[0]):016x}"


class Sums:
    """What is known of the finite elements so far; parts are merged as in `native/stats.h`."""

    def __init__(self) -> None:
        self.finite = self.nan = self.positive_inf = self.negative_inf = self.zeros = 0
        self.min, self.max = math.inf, -math.inf
        self.sum = self.sum_squares = self.deviation = 0.0

    def add(self, values: Floats, scale: float) -> None:
        """Takes in a chunk; `scale` multiplies what is summed, not `min` and `max`."""
        self.nan += int(np.isnan(values).sum())
        self.positive_inf += int((values == np.inf).sum())
        self.negative_inf += int((values == -np.inf).sum())
        self.zeros += int((values == 0).sum())
        finite = values[np.isfinite(values)]
        if not finite.size:
            return
        self.min = min(self.min, float(finite.min()))
        self.max = max(self.max, float(finite.max()))
        count = finite.size
        scaled = finite * scale
        total = float(scaled.sum())
        mean = total / count
        away = scaled - mean
        drift = float(away.sum())
        deviation = float((away * away).sum()) - drift * drift / count
        self.sum_squares += float((scaled * scaled).sum())
        if self.finite:
            gap = mean - self.sum / self.finite
            deviation += gap * gap * (self.finite / (self.finite + count)) * count
        self.deviation += deviation
        self.sum += total
        self.finite += count


def memory_at(address: int, size_bytes: int) -> npt.NDArray[np.uint8]:
    """Bytes of memory as an array, without a copy."""
    if not size_bytes:
        return np.empty(0, dtype=np.uint8)
    memory: Any = (ctypes.c_char * size_bytes).from_address(address)
    return np.frombuffer(memory, dtype=np.uint8)


def _array_at(
    address: int, kind: ItemKind, shape: tuple[int, ...], strides: tuple[int, ...] | None
) -> npt.NDArray[Any]:
    """The memory as an array of opaque items, without a copy."""
    item = np.dtype((np.void, kind.size))
    if 0 in shape:
        return np.empty(shape, dtype=item)
    if strides is None:
        items, byte_strides = math.prod(shape), None
    else:
        items = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        byte_strides = tuple(s * kind.size for s in strides)
    memory: Any = (ctypes.c_char * (items * kind.size)).from_address(address)
    return np.ndarray(shape, dtype=item, buffer=memory, strides=byte_strides)


def _chunks(array: npt.NDArray[Any], size: int) -> Iterator[npt.NDArray[np.uint8]]:
    """The bytes of the items in logical order, CHUNK_BYTES at a time."""
    items = CHUNK_BYTES // size
    flat: Any = array.reshape(-1) if array.flags.c_contiguous else array.flat
    for begin in range(0, array.size, items):
        yield np.frombuffer(np.ascontiguousarray(flat[begin : begin + items]), dtype=np.uint8)


def _modulus(re: Floats, im: Floats) -> Floats:
    """sqrt(re² + im²), scaled by a power of two against overflow; infinite if a part is, as in C99."""
    re, im = np.abs(re), np.abs(im)
    _, exponent = np.frexp(np.fmax(re, im))
    exponent = np.where(np.isfinite(np.fmax(re, im)), exponent, 0)
    first = exponent // 2 + ((exponent < 0) & (exponent % 2 != 0))  # rounds to 0, as C does
    second = exponent - first
    re2, im2 = (np.ldexp(np.ldexp(part, -first), -second) ** 2 for part in (re, im))
    found = np.ldexp(np.ldexp(np.sqrt(re2 + im2), first), second)
    return np.asarray(np.where(np.isinf(re) | np.isinf(im), np.inf, found), dtype=np.float64)


def values_of(data: npt.NDArray[np.uint8], kind: ItemKind, table: Floats | None) -> Floats:
    """Bytes of items as float64; of complex numbers the modulus."""
    if table is not None:
        found: Floats = table.reshape(256, -1)[data].reshape(-1)
        return found
    if kind.number == ITEM_KINDS["bfloat16"].number:
        return (data.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    raw = data.view(kind.codes).astype(np.float64)
    if kind.parts == 1:
        return raw
    re, im = raw[0::2], raw[1::2]
    if kind.size < 16:
        size = np.sqrt(re * re + im * im)
        return np.asarray(np.where(np.isinf(re) | np.isinf(im), np.inf, size), dtype=np.float64)
    return _modulus(re, im)


def _scaling(sums: Sums, kind: ItemKind) -> tuple[float, float]:
    """The power of two that keeps squares of float64 in range, and the one that undoes it."""
    if kind.codes != "float64" or not sums.finite:
        return 1.0, 1.0
    magnitude = max(abs(sums.min), abs(sums.max))
    if magnitude == 0 or 2.0**-450 <= magnitude <= 2.0**450:
        return 1.0, 1.0
    exponent = max(math.frexp(magnitude)[1] - 1, -1022)
    return 2.0**-exponent, 2.0**exponent


@np.errstate(all="ignore")  # NaN and Inf are what is being counted; overflowing squares are summed again, scaled
def compute(
    result_type: Callable[..., _Result],
    address: int,
    kind_number: int,
    shape: tuple[int, ...] | int,
    strides: tuple[int, ...] | None,
    threads: int,
    table_address: int,
    /,
) -> _Result:
    """As `_native.stats`; `threads` is of no use here."""
    sizes = (shape,) if isinstance(shape, int) else shape
    table = table_at(table_address) if kind_number in (TABLE, TABLE2) else None
    kind = _BY_NUMBER[kind_number]
    array = _array_at(address, kind, sizes, strides)
    sums, lanes, block = Sums(), np.zeros(LANES, dtype=np.uint64), 0
    for data in _chunks(array, kind.size):
        add_bytes(lanes, data, block)
        block += CHUNK_BYTES // BLOCK_BYTES
        sums.add(values_of(data, kind, table), 1.0)
    scale, unscale = _scaling(sums, kind)
    total = sums
    if scale != 1.0:
        total = Sums()
        for data in _chunks(array, kind.size):
            total.add(values_of(data, kind, table), scale)
    digest = finish(lanes, array.size * kind.size)
    count = array.size * (2 if kind_number == TABLE2 else 1)
    counts = (sums.nan, sums.positive_inf, sums.negative_inf, sums.zeros, digest)
    if not sums.finite:
        return result_type(count, None, None, None, None, None, *counts)
    mean = total.sum / total.finite * unscale
    std = math.sqrt(max(total.deviation, 0.0) / total.finite) * unscale
    l2 = math.sqrt(total.sum_squares) * unscale
    return result_type(count, sums.min + 0.0, sums.max + 0.0, mean, std, l2, *counts)
