"""Two values of one operation against each other, in one pass over both; `docs/metrics.md` has the definitions.

The C++ core does the work where it is installed; otherwise numpy gives the same result, bit for bit, slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from graphprobe.errors import UsageError
from graphprobe.numerics import native, pair_numpy
from graphprobe.numerics.dtypes import DTYPES
from graphprobe.numerics.item_kinds import ITEM_KINDS, TABLE2, ItemKind, kind_of, table_address

CLASSES = ("finite", "nan", "positive_inf", "negative_inf")
"""The order of rows and columns of `PairStats.classes`."""

FLOOR_LARGEST = 2.0**1000

_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
_GRIDS = {"float8_e8m0fnu": (1.0, 2.0**-127), "float4_e2m1fn_x2": (0.5, 1.0)}
_SAFE = (2.0**-400, 2.0**400)

compute: Callable[..., tuple[Any, ...]] = getattr(native.core, "pair", pair_numpy.compute)
"""The pass itself, unchecked; `pair_numpy.compute` documents arguments and result."""


class SideStats(msgspec.Struct, frozen=True):
    """The finite elements of one side; everything but `finite` is None without any, and `min` is never −0."""

    finite: int
    min: float | None
    max: float | None
    mean: float | None
    l2: float | None


class PairStats(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass over a candidate and its reference found.

    Indices count elements in row-major order. Errors, ratios, products and z are those of the `finite` elements that
    are finite on both sides; the others are judged by `classes`.

    Attributes:
        count: elements; a complex number is two, its real and its imaginary part, and so is a byte of packed float4.
        bits_equal: same dtype and same bytes.
        unequal: elements of different value or class. −0 equals 0, and any NaN any other.
        classes: `classes[c][r]` elements have class c in the candidate and r in the reference, in the order `CLASSES`.
        first_mismatch: the first element whose classes differ; None if none does.
        finite: elements that are finite on both sides.
        dot, candidate_squares, reference_squares: Σcr, Σc², Σr².
        cosine: dot / √(candidate_squares · reference_squares); 1 if both are zero everywhere, 0 if one is, None if
            `finite` is 0.
        l2_error: √Σ(c − r)².
        max_abs, max_abs_index: largest |c − r| and the first element that has it (None if it is 0).
        max_relative, max_relative_index: largest |c − r| / |r| over elements with r ≠ 0.
        zero_reference: elements with r = 0 and c ≠ 0; they have no relative error and are within no bound.
        within_1_1000, within_5_1000: elements with |c − r| / |r| below 0.001 and 0.005; c = r = 0 is within.
        max_ulp: largest |c − r| in units of the last place of the coarser dtype at max(|c|, |r|); of two integer or
            boolean dtypes the largest difference.
        z_rms, z_max, z_max_index, z_above: of z = |c − r| / (u · max(|c|, |r|, smallest normal) + floor), 0 where
            c = r: root of the mean square (0 if `finite` is 0), maximum, first element that has it (None if it is 0),
            number of elements above the limit.
        candidate, reference: each side for itself, all its finite elements.
    """

    count: int
    bits_equal: bool
    unequal: int
    classes: tuple[tuple[int, int, int, int], ...]
    first_mismatch: int | None
    finite: int
    dot: float
    candidate_squares: float
    reference_squares: float
    cosine: float | None
    l2_error: float
    max_abs: float
    max_abs_index: int | None
    max_relative: float
    max_relative_index: int | None
    zero_reference: int
    within_1_1000: int
    within_5_1000: int
    max_ulp: float
    z_rms: float
    z_max: float
    z_max_index: int | None
    z_above: int
    candidate: SideStats
    reference: SideStats

    @property
    def mismatched(self) -> int:
        """Elements whose classes differ."""
        return self.count - sum(self.classes[i][i] for i in range(len(CLASSES)))


def coarser(first: str, second: str) -> str:
    """The dtype with the larger rounding errors: floats before integers, then larger eps, then the later underflow."""
    return max(first, second, key=_grid)


def _grid(dtype: str) -> tuple[float, float]:
    """eps and smallest normal number; (0, 1) for integers and booleans."""
    if dtype in _GRIDS:
        return _GRIDS[dtype]
    facts = DTYPES[_PARTS.get(dtype, dtype)]
    return (0.0, 1.0) if facts.is_exact else (facts.eps, facts.smallest_normal)


def compare_pairs(
    candidate: npt.NDArray[Any],
    reference: npt.NDArray[Any],
    *,
    candidate_dtype: str | None = None,
    reference_dtype: str | None = None,
    unit_roundoff: float | None = None,
    floor: float = 0.0,
    limit: float = 4.0,
    threads: int = 1,
) -> PairStats:
    """Compares two arrays of one shape, of any dtypes of `item_kinds.ITEM_KINDS`, in float64.

    Memory-mapped arrays are read in place; what is not contiguous is copied first. Nothing else is allocated that
    grows with the size.

    Args:
        candidate, reference: row-major values. A dtype that numpy lacks comes as integers of its size.
        candidate_dtype, reference_dtype: torch's names without the prefix; None: numpy's.
        unit_roundoff: u of z, 0 to 0.5; None: half the eps of the coarser dtype, 0 for integers, so that any
            difference of integers has z = +Inf.
        floor: absolute floor of z's denominator, 0 to 2**1000.
        limit: `z_above` counts the elements with a larger z.
        threads: at most so many. It changes the time and no bit of the result.

    Raises:
        UsageError: shapes differ, a dtype that is unknown or does not fit the array, a complex side against a real
            one, a scalar out of its range, foreign byte order.
    """
    names = candidate_dtype or candidate.dtype.name, reference_dtype or reference.dtype.name
    _check_scalars(unit_roundoff, floor, limit, threads)
    if candidate.shape != reference.shape:
        raise UsageError(
            f"the candidate has shape {candidate.shape}, the reference {reference.shape}",
            hint="only values of one shape can be paired",
        )
    kinds = _checked_kind("candidate", candidate, names[0]), _checked_kind("reference", reference, names[1])
    if kinds[0].parts != kinds[1].parts or (kinds[0].number == TABLE2) != (kinds[1].number == TABLE2):
        raise UsageError(
            f"elements of {names[0]} and {names[1]} do not pair up", hint="take the real part, or unpack the values"
        )
    pair = np.ascontiguousarray(candidate), np.ascontiguousarray(reference)
    eps, smallest = _grid(coarser(*names))
    count = candidate.size * kinds[0].parts * (2 if kinds[0].number == TABLE2 else 1)
    sides: tuple[int, ...] = ()
    for array, kind in zip(pair, kinds, strict=True):
        sides += (array.ctypes.data, kind.number, table_address(kind))
    u = eps / 2 if unit_roundoff is None else float(unit_roundoff)
    scalars = (smallest, u, float(floor), float(limit))
    raw = Raw(*compute(*sides, count, threads, *scalars, 1.0, 1.0))
    scales = _scale(raw.candidate_min, raw.candidate_max), _scale(raw.reference_min, raw.reference_max)
    scaled = raw if scales == (1.0, 1.0) else Raw(*compute(*sides, count, threads, *scalars, *scales))
    return _result(count, raw, scaled, scales, eps)


def _check_scalars(unit_roundoff: float | None, floor: float, limit: float, threads: int) -> None:
    if unit_roundoff is not None and not 0 <= unit_roundoff <= 0.5:
        raise UsageError(f"unit_roundoff is {unit_roundoff}", hint="pass eps/2 of the dtype, a number from 0 to 0.5")
    if not 0 <= floor <= FLOOR_LARGEST:
        raise UsageError(f"floor is {floor}", hint="pass a number from 0 to 2**1000")
    if math.isnan(limit):
        raise UsageError("limit is NaN", hint="pass the z from which elements are counted")
    if threads < 1:
        raise UsageError(f"threads is {threads}", hint="pass 1 or more")


def _checked_kind(side: str, array: npt.NDArray[Any], dtype: str) -> ItemKind:
    """How to read the array, complex numbers as their parts."""
    kind = kind_of(dtype)
    if array.dtype.itemsize != kind.size:
        raise UsageError(
            f"the {side} has items of {array.dtype.itemsize} bytes, {dtype} has {kind.size}",
            hint="pass the array's own dtype, or integers of the dtype's size",
        )
    if not array.dtype.isnative:
        raise UsageError(
            f"byte order of the {side}'s dtype {array.dtype} is not the machine's", hint="convert with astype"
        )
    if dtype in _PARTS:
        part = ITEM_KINDS[_PARTS[dtype]]
        return ItemKind(part.number, part.size, part.codes, parts=2)
    return kind


class Raw(msgspec.Struct, frozen=True):
    """The result of `compute`, field by field; -1 is no index, and without finite elements min is +Inf, max −Inf."""

    bits_equal: bool
    unequal: int
    classes: tuple[int, ...]
    first_mismatch: int
    dot: float
    candidate_squares: float
    reference_squares: float
    error_squares: float
    max_abs: float
    max_abs_index: int
    max_relative: float
    max_relative_index: int
    zero_reference: int
    within_1_1000: int
    within_5_1000: int
    max_halves: float
    z_squares: float
    z_max: float
    z_max_index: int
    z_above: int
    candidate_min: float
    candidate_max: float
    candidate_sum: float
    candidate_all_squares: float
    reference_min: float
    reference_max: float
    reference_sum: float
    reference_all_squares: float


def _scale(low: float, high: float) -> float:
    """The power of two that keeps squares and products within range; 1 unless the values are extreme."""
    if low > high:
        return 1.0
    magnitude = max(abs(low), abs(high))
    if magnitude == 0 or _SAFE[0] <= magnitude <= _SAFE[1]:
        return 1.0
    return 2.0 ** -max(math.frexp(magnitude)[1] - 1, -1022)


def _result(count: int, raw: Raw, scaled: Raw, scales: tuple[float, float], eps: float) -> PairStats:
    classes = tuple(tuple(raw.classes[4 * row : 4 * row + 4]) for row in range(4))
    finite = classes[0][0]
    mine, theirs = scaled.candidate_squares, scaled.reference_squares
    norms = math.sqrt(mine) * math.sqrt(theirs)
    if not finite:
        cosine = None
    elif norms == 0:
        cosine = 1.0 if mine == theirs else 0.0
    else:
        cosine = min(max(scaled.dot / norms, -1.0), 1.0)
    a, b = scales
    return PairStats(
        count=count,
        bits_equal=raw.bits_equal,
        unequal=raw.unequal,
        classes=classes,  # type: ignore[arg-type]
        first_mismatch=_index(raw.first_mismatch),
        finite=finite,
        dot=scaled.dot / a / b,
        candidate_squares=mine / a / a,
        reference_squares=theirs / b / b,
        cosine=cosine,
        l2_error=math.sqrt(scaled.error_squares) / min(a, b),
        max_abs=raw.max_abs,
        max_abs_index=_index(raw.max_abs_index),
        max_relative=raw.max_relative,
        max_relative_index=_index(raw.max_relative_index),
        zero_reference=raw.zero_reference,
        within_1_1000=raw.within_1_1000,
        within_5_1000=raw.within_5_1000,
        max_ulp=raw.max_halves * (0.5 / eps) if eps else raw.max_abs,
        z_rms=math.sqrt(raw.z_squares / finite) if finite else 0.0,
        z_max=raw.z_max,
        z_max_index=_index(raw.z_max_index),
        z_above=raw.z_above,
        candidate=_side(
            sum(classes[0]), raw.candidate_min, raw.candidate_max, scaled.candidate_sum, scaled.candidate_all_squares, a
        ),
        reference=_side(
            sum(row[0] for row in classes),
            raw.reference_min,
            raw.reference_max,
            scaled.reference_sum,
            scaled.reference_all_squares,
            b,
        ),
    )


def _index(found: int) -> int | None:
    return None if found < 0 else found


def _side(finite: int, low: float, high: float, total: float, squares: float, scale: float) -> SideStats:
    if not finite:
        return SideStats(0, None, None, None, None)
    return SideStats(finite, low + 0.0, high + 0.0, total / finite / scale, math.sqrt(squares) / scale)
