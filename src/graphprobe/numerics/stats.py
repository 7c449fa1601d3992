"""Statistics and digest of a tensor in one pass over its memory; `docs/metrics.md` has the definitions.

The C++ core does the work where it is installed; otherwise numpy gives equal results, slower (`native`, `stats_numpy`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from graphprobe.errors import UsageError
from graphprobe.numerics import native, stats_numpy
from graphprobe.numerics.item_kinds import kind_of, table_address
from graphprobe.records import TensorStats

compute: Callable[..., TensorStats] = stats_numpy.compute if native.core is None else native.core.stats
"""`compute(TensorStats, address, kind number, shape or count, strides or None, threads, table address)`; unchecked."""


def stats_from_memory(
    address: int, dtype: str, shape: Sequence[int], strides: Sequence[int] | None = None, *, threads: int = 1
) -> TensorStats:
    """Statistics of the items that lie at `address`.

    Args:
        address: of the first element, in bytes. The memory is read, so it must stay as it is during the call.
        dtype: torch's name without the prefix, e.g. `bfloat16`; a key of `item_kinds.ITEM_KINDS`.
        shape: sizes; `()` for one element. Items of `float4_e2m1fn_x2` are bytes of two elements.
        strides: in items, not negative, 0 allowed; None for contiguous memory.
        threads: at most so many, for more than 128 KiB. It changes the time and no bit of the result.

    Raises:
        UsageError: an unknown dtype, sizes or strides that are negative or do not match, no thread.
    """
    kind = kind_of(dtype)
    sizes = tuple(int(n) for n in shape)
    steps = None if strides is None else tuple(int(s) for s in strides)
    if any(n < 0 for n in sizes):
        raise UsageError(f"shape {sizes} has a negative size", hint="pass the sizes of the tensor")
    if steps is not None and (len(steps) != len(sizes) or any(s < 0 for s in steps)):
        raise UsageError(
            f"strides {steps} for shape {sizes}", hint="one stride per dimension, counted in items, 0 or more"
        )
    if threads < 1:
        raise UsageError(f"threads is {threads}", hint="pass 1 or more")
    return compute(TensorStats, address, kind.number, sizes, steps, threads, table_address(kind))


def stats_from_array(array: npt.NDArray[Any], *, threads: int = 1) -> TensorStats:
    """Statistics of a numpy array of any layout; byte order must be the machine's.

    Raises:
        UsageError: a dtype that torch has no name for, e.g. `longdouble`, strings, `>f4`.
    """
    if not array.dtype.isnative:
        raise UsageError(f"byte order of dtype {array.dtype} is not the machine's", hint="convert with astype")
    if not array.flags.aligned or any(s < 0 or s % array.itemsize for s in array.strides):
        array = np.ascontiguousarray(array)
    strides = None if array.flags.c_contiguous else tuple(s // array.itemsize for s in array.strides)
    return stats_from_memory(array.ctypes.data, array.dtype.name, array.shape, strides, threads=threads)
