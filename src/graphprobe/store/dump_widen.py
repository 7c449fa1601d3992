"""Values of dtypes that numpy lacks, as the next wider dtype that it has; no value changes."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class _Minifloat(NamedTuple):
    """Layout of an 8-bit float: sign, exponent, mantissa. `ieee` has infinities; `fnuz` has one NaN, at minus zero."""

    mantissa_bits: int
    bias: int
    ieee: bool = False
    fnuz: bool = False


_MINIFLOATS = {
    "float8_e4m3fn": _Minifloat(3, 7),
    "float8_e5m2": _Minifloat(2, 15, ieee=True),
    "float8_e4m3fnuz": _Minifloat(3, 8, fnuz=True),
    "float8_e5m2fnuz": _Minifloat(2, 16, fnuz=True),
}
"""OCP 8-bit Floating Point Specification 1.0 for the first two; Noune et al., 8-bit Numerical Formats for Deep Neural
Networks, 2022, for the other two."""

_PARTS_OF_FLOAT4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def widened(bits: Array, dtype: str) -> tuple[Array, str]:
    """What numpy can hold of values that it has no dtype for.

    Args:
        bits: from `bits_from_bytes`, unsigned integers.
        dtype: torch's name.

    Returns:
        The values, and in words what was done. `bfloat16` and 8-bit floats come as float32, `complex32` as complex64,
        and a packed `float4_e2m1fn_x2` as float32 with twice the last dimension, low half of a byte first. Any other
        dtype stays bytes.
    """
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32), "bfloat16 as float32, exact"
    if dtype in _MINIFLOATS or dtype == "float8_e8m0fnu":
        return _table(dtype)[bits], f"{dtype} as float32, exact"
    if dtype == "complex32":
        parts = bits.reshape(*bits.shape, 1).view(np.float16).astype(np.float32)
        return parts.view(np.complex64).reshape(bits.shape), "complex32 as complex64, exact"
    if dtype == "float4_e2m1fn_x2":
        halves = np.stack([bits & 15, bits >> 4], axis=-1)
        shape = (*bits.shape[:-1], 2 * bits.shape[-1]) if bits.ndim else (2,)
        return _table(dtype)[halves].reshape(shape), "float4_e2m1fn_x2 as float32, unpacked, low half first, exact"
    return bits, f"{dtype} as raw bytes"


@functools.cache
def _table(dtype: str) -> Array:
    """The float32 value of every bit pattern."""
    if dtype == "float8_e8m0fnu":
        values = [math.nan if code == 255 else math.ldexp(1.0, code - 127) for code in range(256)]
    elif dtype == "float4_e2m1fn_x2":
        values = [*_PARTS_OF_FLOAT4, *(-value for value in _PARTS_OF_FLOAT4)]
    else:
        values = [_value(code, _MINIFLOATS[dtype]) for code in range(256)]
    return np.array(values, dtype=np.float32)


def _value(code: int, layout: _Minifloat) -> float:
    sign = -1.0 if code & 128 else 1.0
    exponent, mantissa = (code & 127) >> layout.mantissa_bits, code & ((1 << layout.mantissa_bits) - 1)
    largest = (1 << (7 - layout.mantissa_bits)) - 1
    if layout.fnuz:
        if code == 128:
            return math.nan
    elif layout.ieee:
        if exponent == largest:
            return math.copysign(math.nan if mantissa else math.inf, sign)
    elif code & 127 == 127:
        return math.copysign(math.nan, sign)
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - layout.bias - layout.mantissa_bits)
    return sign * math.ldexp((1 << layout.mantissa_bits) + mantissa, exponent - layout.bias - layout.mantissa_bits)
