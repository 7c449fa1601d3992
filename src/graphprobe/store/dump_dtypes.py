"""How the values of each dtype lie in a safetensors file, and what numpy calls them."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

RAW = "U8"
"""What a dtype that safetensors lacks is stored as: its bytes, with the item size as one more dimension."""


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
    "bool": StoredDtype(1, "BOOL", "bool"),
    "uint8": StoredDtype(1, "U8", "uint8"),
    "uint16": StoredDtype(2, "U16", "uint16"),
    "uint32": StoredDtype(4, "U32", "uint32"),
    "uint64": StoredDtype(8, "U64", "uint64"),
    "int8": StoredDtype(1, "I8", "int8"),
    "int16": StoredDtype(2, "I16", "int16"),
    "int32": StoredDtype(4, "I32", "int32"),
    "int64": StoredDtype(8, "I64", "int64"),
    "float16": StoredDtype(2, "F16", "float16"),
    "float32": StoredDtype(4, "F32", "float32"),
    "float64": StoredDtype(8, "F64", "float64"),
    "bfloat16": StoredDtype(2, "BF16"),
    "float8_e4m3fn": StoredDtype(1, "F8_E4M3"),
    "float8_e5m2": StoredDtype(1, "F8_E5M2"),
    "float8_e4m3fnuz": StoredDtype(1),
    "float8_e5m2fnuz": StoredDtype(1),
    "float8_e8m0fnu": StoredDtype(1),
    "float4_e2m1fn_x2": StoredDtype(1),
    "complex32": StoredDtype(4),
    "complex64": StoredDtype(8, None, "complex64"),
    "complex128": StoredDtype(16, None, "complex128"),
}
"""By torch's name without the prefix. A dtype that is not here is stored as raw bytes, too."""


def count_from_shape(shape: tuple[int, ...]) -> int:
    """Number of elements; 1 for a 0-d tensor."""
    return math.prod(shape)


def size_from_meta(dtype: str, shape: tuple[int, ...]) -> int | None:
    """Bytes of the values, None for a dtype that is not in the table."""
    known = STORED_DTYPES.get(dtype)
    return None if known is None else known.size_bytes * count_from_shape(shape)


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
