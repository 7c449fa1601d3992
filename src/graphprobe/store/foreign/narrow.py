"""Bits of a dtype that numpy lacks, from values that were widened for a file; the inverse of `dump_widen.widened`."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from graphprobe.errors import ArtifactNotFoundError
from graphprobe.store.dump_dtypes import STORED_DTYPES, widened

Array = np.ndarray[Any, Any]


def bits_from_values(values: Array, dtype: str) -> Array:
    """`values` in numpy's dtype of that name, or as unsigned integers of its item size where it has none.

    Args:
        values: in `dtype` itself, as unsigned integers already, or widened: float32 for bfloat16 and the 8-bit floats,
            complex64 for complex32.
        dtype: torch's name.

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
