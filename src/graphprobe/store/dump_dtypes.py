"""How values of each dtype are kept in safetensors and numpy; dtypes that numpy lacks are widened without loss."""

from __future__ import annotations

import functools
import math
from typing import Any

import msgspec
import numpy as np

from graphprobe.errors import ArtifactNotFoundError
from graphprobe.numerics.item_kinds import ITEM_KINDS, TABLES

RAW = "U8"
"""What a dtype that safetensors lacks is stored as: its bytes, with the item size as one more dimension."""

Array = np.ndarray[Any, Any]

_STORED = dict(
    pair.split(":")
    for pair in "bool:BOOL uint8:U8 uint16:U16 uint32:U32 uint64:U64 int8:I8 int16:I16 int32:I32 int64:I64 float16:F16 "
    "float32:F32 float64:F64 bfloat16:BF16 float8_e4m3fn:F8_E4M3 float8_e5m2:F8_E5M2".split()
)
"""Names in safetensors."""
_OF_NUMPY = ("bool", "complex64", "complex128")
"""Dtypes that numpy has, though statistics read their items as others."""


class StoredDtype(msgspec.Struct, frozen=True):
    """One dtype on disk.

    Attributes:
        size_bytes: of one item; of a packed dtype, of one byte.
        stored: name in safetensors; None when it has none that every supported release of that package reads.
        numpy: name in numpy; None when it has none.
    """

    size_bytes: int
    stored: str | None = None
    numpy: str | None = None


STORED_DTYPES: dict[str, StoredDtype] = {
    name: StoredDtype(kind.size, _STORED.get(name), name if kind.codes == name or name in _OF_NUMPY else None)
    for name, kind in ITEM_KINDS.items()
}
"""By torch's name without the prefix. A dtype that is not here is stored as raw bytes, too."""


def size_from_meta(dtype: str, shape: tuple[int, ...]) -> int | None:
    """Bytes of the values, None for a dtype that is not in the table."""
    known = STORED_DTYPES.get(dtype)
    return None if known is None else known.size_bytes * math.prod(shape)


def stored_from_meta(dtype: str, shape: tuple[int, ...], size_bytes: int) -> tuple[str, tuple[int, ...], int]:
    """How `size_bytes` of values are stored: name in safetensors, shape there, and bytes of an item.

    Raises:
        ValueError: so many bytes are not the values of that dtype and shape.
    """
    expected = size_from_meta(dtype, shape)
    if expected is not None and expected != size_bytes:
        raise ValueError(f"{size_bytes} bytes were handed in for {dtype}{list(shape)}, which takes {expected}")
    known = STORED_DTYPES.get(dtype)
    if known is None:
        return RAW, (size_bytes,), 1
    if known.stored is None:
        return RAW, (*shape, known.size_bytes), known.size_bytes
    return known.stored, shape, known.size_bytes


def bits_from_bytes(data: np.ndarray[Any, Any], dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """`data` (uint8, 1-d) in numpy's dtype of that name; as unsigned integers of the item size where it has none.

    An item of 4 bytes is `uint32`, and so on; a dtype that is not in the table stays 1-d bytes.
    """
    known = STORED_DTYPES.get(dtype)
    if known is None:
        return data
    return data.view(known.numpy or f"uint{8 * known.size_bytes}").reshape(shape)


def widened(bits: Array, dtype: str) -> tuple[Array, str]:
    """What numpy can hold of values from `bits_from_bytes`, and in words what was done; empty where nothing was.

    `bfloat16` and 8-bit floats come as float32, `complex32` as complex64, and a packed `float4_e2m1fn_x2` as float32
    with twice the last dimension, low half of a byte first. Any other dtype stays bytes.
    """
    known = STORED_DTYPES.get(dtype)
    if known is not None and known.numpy is not None:
        return bits, ""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32), "bfloat16 as float32, exact"
    if dtype == "complex32":
        parts = bits.reshape(*bits.shape, 1).view(np.float16).astype(np.float32)
        return parts.view(np.complex64).reshape(bits.shape), "complex32 as complex64, exact"
    if dtype not in TABLES:
        return bits, f"{dtype} as raw bytes"
    found = TABLES[dtype].astype(np.float32).reshape(256, -1)[bits]
    if found.shape[-1] == 1:
        return found[..., 0], f"{dtype} as float32, exact"
    shape = (*bits.shape[:-1], 2 * bits.shape[-1]) if bits.ndim else (2,)
    return found.reshape(shape), f"{dtype} as float32, unpacked, low half first, exact"


def bits_from_values(values: Array, dtype: str) -> Array:
    """`values` in numpy's dtype of that name, or as unsigned integers of its item size where it has none.

    They may be in `dtype` itself, unsigned integers already, or widened: float32 for bfloat16 and the 8-bit floats,
    complex64 for complex32.

    Raises:
        ArtifactNotFoundError: a value cannot have been of that dtype, or the dtype is unknown.
    """
    known = STORED_DTYPES.get(dtype)
    if known is None or (known.numpy is None and values.dtype.kind not in "fcu"):
        raise ArtifactNotFoundError(f"values of dtype {dtype} lie as {values.dtype} in the file")
    if known.numpy is not None:
        if values.dtype.name != known.numpy:
            raise ArtifactNotFoundError(
                f"values of dtype {dtype} lie as {values.dtype} in the file",
                hint="the file and the line that describes it do not belong together",
            )
        return values
    if values.dtype == np.dtype(f"uint{8 * known.size_bytes}"):
        return values
    if dtype == "bfloat16":
        wide = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        _refuse(wide & 0xFFFF, dtype)
        return (wide >> 16).astype(np.uint16)
    if dtype == "complex32":
        parts = np.ascontiguousarray(values, dtype=np.complex64).reshape(*values.shape, 1).view(np.float32)
        return parts.astype(np.float16).view(np.uint32).reshape(values.shape)
    keys, codes = _codes(dtype)
    wide = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    found = np.minimum(np.searchsorted(keys, wide), len(keys) - 1)
    nan = np.isnan(wide.view(np.float32)) & np.isnan(keys.view(np.float32)).any()
    _refuse((keys[found] != wide) & ~nan, dtype)
    result: Array = (
        np.where(nan, codes[np.isnan(keys.view(np.float32))][:1], codes[found]) if nan.any() else codes[found]
    )
    return result


def _refuse(odd: Array, dtype: str) -> None:
    if odd.any():
        raise ArtifactNotFoundError(
            f"the file has values that {dtype} cannot hold",
            hint="the file and the line that describes it do not belong together",
        )


@functools.cache
def _codes(dtype: str) -> tuple[Array, Array]:
    """Bit patterns of the widened values, ascending, and the code of each."""
    codes = np.arange(256, dtype=np.uint8)
    keys = widened(codes, dtype)[0].view(np.uint32)
    order = np.argsort(keys, kind="stable")
    return keys[order], codes[order]
