"""Verdicts without a float64 reference: integers and booleans, and indices that stand for values."""

from __future__ import annotations

import math

import numpy as np

from graphprobe.errors import UsageError
from graphprobe.numerics.divergence import Divergence, classes_of
from graphprobe.numerics.dtypes import WorkingDtype
from graphprobe.numerics.noise import Array, Noise, flat, magnitude, scale, typical_magnitude
from graphprobe.numerics.verdict import DEFAULT, Limit, Thresholds, Verdict


def judge_exact(candidate: Array, reference: Array) -> Verdict:
    """Integers and booleans: equal everywhere, or `candidate_worse`.

    Args:
        candidate, reference: integer or boolean arrays of one shape; the reference is eager's result.

    Returns:
        a verdict whose `candidate.max` is the largest absolute difference, `wrong_finite` the number of elements
        that differ and `worst` the first of the largest.

    Raises:
        UsageError: shapes differ, or a dtype is not exact.
    """
    for values in (candidate, reference):
        if values.dtype.kind not in "iub":
            raise UsageError(f"dtype {values.dtype} is judged by noise", hint="use verdict.judge")
    if candidate.shape != reference.shape:
        raise UsageError(f"the candidate has shape {candidate.shape}, the reference {reference.shape}")
    wrong = int(np.sum(candidate != reference))
    if not wrong:
        return Verdict("ok", f"all {candidate.size} elements equal", Divergence(compared=candidate.size))
    a, b = flat(candidate), flat(reference)
    gap = np.where(a > b, a, b).astype(np.float64) - np.where(a > b, b, a).astype(np.float64)
    gap = np.where(a == b, -1.0, gap)
    worst = int(np.argmax(gap))
    index = tuple(int(i) for i in np.unravel_index(worst, reference.shape))
    found = Divergence(compared=candidate.size, max=max(float(gap[worst]), 0.0), worst=worst, wrong_finite=wrong)
    reason = f"{wrong} of {candidate.size} elements differ, first {a[worst]} for {b[worst]} at {list(index)}"
    return Verdict("candidate_worse", reason, found, excess=math.inf, statistic="exact", worst=index)


def judge_indices(
    candidate: Array,
    expected: Array,
    values: Array,
    dtype: WorkingDtype,
    *,
    axis: int = -1,
    distinct: bool = False,
    noise: Noise | None = None,
    thresholds: Thresholds = DEFAULT,
) -> Verdict:
    """Judges the indices that argmax, topk or sort gave by the values they point at.

    z = |v[candidate] − v[expected]| / (d[candidate] + d[expected]), so that an index counts only where the margin
    between the two values exceeds their noise: among ties, each is right.

    Args:
        candidate, expected: integer arrays of one shape, with the dimensions of `values`, as `np.take_along_axis`
            takes them (argmax: keep the dimension).
        values: what was searched or sorted, float64, or integers: those have no noise.
        dtype: the working dtype of `values`.
        axis: the dimension that the indices count along.
        distinct: the indices of one row must differ, as those of topk and sort do.
        noise: of `values`; None: one rounding, sigma = u·|v|.

    Returns:
        `ok` or `candidate_worse`; `wrong_finite` counts indices out of range, and those that repeat in their row.
        A NaN stands for another NaN, an infinity for one of its sign.

    Raises:
        UsageError: the shapes do not fit.
    """
    if candidate.shape != expected.shape or candidate.ndim != values.ndim:
        raise UsageError(f"indices {candidate.shape} and {expected.shape} do not fit values {values.shape}")
    if candidate.size == 0:
        return Verdict("ok", "nothing to compare", Divergence())
    size = values.shape[axis]
    bad = (candidate < 0) | (candidate >= size)
    if distinct:
        bad |= _repeats(candidate, axis)
    z = np.where(bad, np.inf, _margins(np.clip(candidate, 0, size - 1), expected, values, dtype, axis, noise))
    worst = int(np.argmax(flat(z)))
    top = float(flat(z)[worst])
    index = tuple(int(i) for i in np.unravel_index(worst, z.shape))
    limit = Limit("max", top, thresholds.floor_max)
    found = Divergence(compared=z.size, max=top, worst=worst, wrong_finite=int(bad.sum()))
    moved = int(np.sum(candidate != expected))
    if top > limit.limit:
        what = f"index {flat(candidate)[worst]} for {flat(expected)[worst]} at {list(index)}, {moved} moved"
        return Verdict("candidate_worse", what, found, (), (limit,), top / limit.limit, "indices", index)
    return Verdict("ok", f"{moved} of {z.size} indices moved, all within noise", found, (), (limit,), limit.ratio)


def _repeats(indices: Array, axis: int) -> Array:
    """Which of them stand in their row a second time."""
    order = np.argsort(indices, axis=axis, kind="stable")
    ranked = np.take_along_axis(indices, order, axis)
    again = np.zeros(indices.shape, bool)
    np.put_along_axis(again, order, np.diff(ranked, axis=axis, prepend=-1) == 0, axis)
    return again


def _margins(
    candidate: Array, expected: Array, values: Array, dtype: WorkingDtype, axis: int, noise: Noise | None
) -> Array:
    """How far the values lie apart that two indices point at, in units of their noise."""
    mine = np.take_along_axis(values, candidate, axis)
    theirs = np.take_along_axis(values, expected, axis)
    if dtype.is_exact:
        return np.where(mine == theirs, 0.0, np.inf)
    known = noise if noise is not None else Noise(np.nan_to_num(magnitude(values), posinf=0.0))
    d = scale(values, known, dtype, typical_magnitude(values), slice(None), c0=0.0).reshape(values.shape)
    width = np.take_along_axis(d, candidate, axis) + np.take_along_axis(d, expected, axis)
    with np.errstate(invalid="ignore"):
        z = np.where(classes_of(mine) == classes_of(theirs), np.abs(mine - theirs) / width, np.inf)
    return np.where((mine == theirs) | (np.isnan(mine) & np.isnan(theirs)), 0.0, z)
