"""The digest of `TensorStats` without the C++ core: equal bits to `native/digest.cpp` and `native/kernels.cpp`.

The bytes of the elements, in logical order, are cut into blocks of 8192, a block into stripes of 64, a stripe into 16
lanes of 32 bits. Each word x of a lane becomes x ^ (x >> 15), so that sign bits reach the low ones. A lane of a block
is the sum, modulo 2**32, of the signed 16-bit halves of these, times keys that differ everywhere in the block. The
lanes of all blocks are added modulo 2**64, each block times an odd multiplier of its own. Last, the 16 sums and the
number of bytes are mixed into 64 bits. What is left over after the last whole stripe is filled up with zeros and
counts as a block of one stripe, with that stripe's keys and that block's multiplier. Sums may be formed in any order,
by any number of threads.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

BLOCK_BYTES = 8192
STRIPE_BYTES = 64
LANES = 16
MASK = (1 << 64) - 1

Lanes = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]


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
