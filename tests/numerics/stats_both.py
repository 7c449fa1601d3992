"""Statistics from either implementation, and what it means that two of them agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from graphprobe.numerics import native, stats_numpy
from graphprobe.numerics.item_kinds import KINDS, table_address
from graphprobe.records import TensorStats

needs_native = pytest.mark.skipif(native.core is None, reason=f"native core {native.missing}")

IMPLEMENTATIONS = [pytest.param("native", marks=needs_native), "fallback"]
INSTRUCTION_SETS = ["baseline", "avx2", "avx512", "avx512_vnni"]

EXACT = ("count", "min", "max", "nan", "positive_inf", "negative_inf", "zeros", "digest")
NARROW = ("float32", "float16", "bfloat16")


def computer(implementation: str) -> Callable[..., TensorStats]:
    return stats_numpy.compute if implementation == "fallback" else native.core.stats  # type: ignore[union-attr]


def stats_by(
    implementation: str,
    raw: npt.NDArray[Any],
    dtype: str,
    *,
    shape: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
    threads: int = 1,
) -> TensorStats:
    """Statistics of the bytes of `raw` as items of `dtype`."""
    kind = KINDS[dtype]
    shape = (raw.nbytes // kind.size,) if shape is None else shape
    compute = computer(implementation)
    return compute(TensorStats, raw.ctypes.data, kind.number, shape, strides, threads, table_address(kind))


@contextmanager
def instruction_set(name: str) -> Iterator[None]:
    assert native.core is not None
    before = native.core.instruction_set()
    if not native.core.set_instruction_set(name):
        pytest.skip(f"this processor lacks {name}")
    try:
        yield
    finally:
        assert native.core.set_instruction_set(before)


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
