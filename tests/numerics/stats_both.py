"""Statistics from either implementation, and what it means that two of them agree."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from graphprobe.numerics import native, stats_numpy
from graphprobe.numerics.item_kinds import ITEM_KINDS, table_address
from graphprobe.records import TensorStats

needs_native = pytest.mark.skipif(native.core is None, reason=f"native core {native.missing}")


def _runs_here(name: str) -> bool:
    """Whether this processor has the instructions. What was in use stays in use."""
    if native.core is None:
        return False
    before = native.core.instruction_set()
    found: bool = native.core.set_instruction_set(name)
    return found and bool(native.core.set_instruction_set(before))


def _case(name: str) -> Any:
    reason = f"native core {native.missing}" if native.core is None else f"this processor lacks {name}"
    return pytest.param(name, marks=pytest.mark.skipif(not _runs_here(name), reason=reason))


INSTRUCTION_SETS = [_case(name) for name in (native.core.instruction_sets() if native.core else ["baseline"])]
"""Every one that the core has loops for."""

IMPLEMENTATIONS = [*INSTRUCTION_SETS, "fallback"]

EXACT = ("count", "min", "max", "nan", "positive_inf", "negative_inf", "zeros", "digest")
NARROW = ("float32", "float16", "bfloat16")


@contextmanager
def instruction_set(name: str) -> Iterator[None]:
    assert native.core is not None
    before = native.core.instruction_set()
    assert native.core.set_instruction_set(name), f"this processor lacks {name}"
    try:
        yield
    finally:
        assert native.core.set_instruction_set(before)


def stats_by(
    implementation: str,
    raw: npt.NDArray[Any],
    dtype: str,
    *,
    shape: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
    threads: int = 1,
) -> TensorStats:
    """Statistics of the bytes of `raw` as items of `dtype`, by the fallback or the loops of an instruction set."""
    kind = ITEM_KINDS[dtype]
    shape = (raw.nbytes // kind.size,) if shape is None else shape
    given = (TensorStats, raw.ctypes.data, kind.number, shape, strides, threads, table_address(kind))
    if implementation == "fallback":
        return stats_numpy.compute(*given)
    with instruction_set(implementation):
        return native.core.stats(*given)  # type: ignore[union-attr]


def tolerance(dtype: str) -> float:
    """As docs/metrics.md states it."""
    return 2.0**-20 if dtype in NARROW else 1e-12


def assert_agree(a: TensorStats, b: TensorStats, dtype: str) -> None:
    for field in EXACT:
        assert getattr(a, field) == getattr(b, field), field
    if b.l2 is None:
        assert a.mean is a.std is a.l2 is None
        return
    assert a.mean is not None and a.std is not None and a.l2 is not None and b.mean is not None and b.std is not None
    finite = b.count - b.nan - b.positive_inf - b.negative_inf
    rms = b.l2 / math.sqrt(finite)
    close(a.l2, b.l2, tolerance(dtype) * b.l2)
    close(a.mean, b.mean, tolerance(dtype) * rms)
    close(a.std, b.std, 8 * tolerance(dtype) * b.std + 1e-15 * rms)


def close(a: float, b: float, limit: float) -> None:
    if math.isinf(b) or math.isinf(limit):
        assert math.isinf(a) == math.isinf(b)
    else:
        assert abs(a - b) <= limit + 5e-324


def random_bytes(size: int, seed: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def as_dtype(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    """Of float32, in a dtype that numpy has, or cut off to the bits of bfloat16."""
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):
        return values.astype(dtype)
