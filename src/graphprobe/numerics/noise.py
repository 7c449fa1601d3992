"""The legitimate noise of each element: the unit in which the criterion measures an error."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from graphprobe.errors import UsageError
from graphprobe.numerics.dtypes import WorkingDtype, accumulation_roundoff

Array: TypeAlias = npt.NDArray[Any]
Float64Array: TypeAlias = npt.NDArray[np.float64]

C0 = 1 / 16
"""Share of the tensor's own magnitude that counts as noise in every element."""

CHUNK = 1 << 16
"""Elements worked on at once: temporaries stay in the cache and below a few megabytes."""

MEDIAN_SAMPLE = 1 << 18
"""Elements the median is taken of; larger tensors are sampled at a fixed stride."""

_SIGNS: Float64Array = 2 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float64) - 1
"""Eight signs for each byte."""


@dataclass(frozen=True, slots=True, eq=False)
class Noise:
    """What is known of the noise of one output, before a dtype is chosen.

    Attributes:
        sigma: float64, the shape of the reference; the response to input noise per unit roundoff, from
            `sigma_from_runs`. +Inf marks an element whose class (finite, NaN, ±Inf) depends on the noise; it is left
            out of the comparison and counted as `unstable`.
        accumulation: sqrt(K)·op(|x|) of a reduction or scan over K elements, the shape of the reference; None for
            everything else.
    """

    sigma: Float64Array
    accumulation: Float64Array | None = None


def signs(drawn: npt.NDArray[np.uint8], begin: int, end: int) -> Float64Array:
    """1 or -1 for each bit of random bytes, from bit `begin` up to `end`."""
    found = _SIGNS.take(drawn[begin // 8 : -(-end // 8)], axis=0)
    result: Float64Array = found.reshape(-1)[begin % 8 : begin % 8 + end - begin]
    return result


def flat(values: Array) -> Array:
    """`values` as one dimension, a view where its strides allow it; 0-d becomes one element."""
    return np.reshape(values, -1)


def magnitude(values: Array) -> Float64Array:
    """|values| as float64; the modulus for complex numbers."""
    result: Float64Array = np.abs(widen(values))
    return result


def widen(values: Array) -> Array:
    """`values` as float64 or complex128, unchanged if they are."""
    return np.asarray(values, dtype=np.complex128 if np.iscomplexobj(values) else np.float64)


def typical_magnitude(reference: Array) -> float:
    """min(rms, 4·median) of |reference| over its finite elements: how large the tensor's values are, outliers aside.

    Shape and dtype are free. An empty tensor, or one without a finite element, has 0. A tensor that is mostly zero
    has 0 as well (its median), so that its zeros must be hit to within the other terms of the noise. The median of
    more than `MEDIAN_SAMPLE` elements is that of an evenly strided sample.
    """
    values = flat(reference)
    if values.size == 0:
        return 0.0
    sample = magnitude(values[:: max(1, values.size // MEDIAN_SAMPLE)])
    sample = sample[np.isfinite(sample)]
    if sample.size == 0:
        return 0.0
    peak, total, count = 0.0, 0.0, 0
    for low in range(0, values.size, CHUNK):
        part = magnitude(values[low : low + CHUNK])
        part = part[np.isfinite(part)]
        top = float(part.max(initial=0.0))
        if top > peak:  # the sum is kept in units of the peak, so that no square under- or overflows
            total *= (peak / top) ** 2
            peak = top
        if peak > 0.0:
            total += float(np.sum((part / peak) ** 2))
        count += part.size
    return min(peak * math.sqrt(total / count), 4 * float(np.median(sample)))


def scale(
    reference: Array,
    noise: Noise,
    dtype: WorkingDtype,
    typical: float,
    part: slice,
    *,
    c0: float = C0,
    flush: bool = False,
) -> Float64Array:
    """The noise d of the elements `part` of the flattened reference (spec 6):

        d_i = u·max(|r_i|, smallest normal) + c0·u·min(rms(r), 4·median|r|) + sigma_i + u_acc·sqrt(K)·op(|x|)_i

    with u of `dtype`, sigma_i = u·noise.sigma_i, and u_acc of float32 or better. |r| is limited to the largest finite
    number.

    Args:
        reference: float64 or complex128, any shape.
        typical: `typical_magnitude(reference)`.
        flush: the candidate may flush subnormal numbers to zero: the smallest normal counts in full.

    Returns:
        float64, positive, +Inf where the class is unstable, NaN where the reference is; one dimension.
    """
    u = dtype.unit_roundoff
    size = np.minimum(magnitude(flat(reference)[part]), dtype.largest)
    d: Float64Array = u * np.maximum(size, dtype.smallest_normal) + c0 * u * typical
    d += u * flat(noise.sigma)[part]
    if noise.accumulation is not None:
        d += accumulation_roundoff(dtype) * flat(noise.accumulation)[part]
    if flush:
        d += dtype.smallest_normal
    return d


def sigma_from_runs(reference: Array, runs: Iterable[Array], roundoff: float) -> Float64Array:
    """RMS over `runs` of |run − reference|, divided by `roundoff`.

    Args:
        reference: r64, any shape.
        runs: the same op on inputs x·(1 + u·xi), in float64; each the shape of `reference`. Read once, in order.
        roundoff: the u of the runs.

    Returns:
        float64, the shape of the reference. +Inf where a run and the reference differ in class (finite, NaN, +Inf,
        −Inf); 0 where both are the same infinity or NaN, and where there is no run.

    Raises:
        UsageError: a run has another shape, or `roundoff` is not positive.
    """
    sigma = RunningSigma(reference, roundoff)
    for run in runs:
        sigma.add(run)
    return sigma.result()


class RunningSigma:
    """`sigma_from_runs` of runs that come one after the other, none of which is kept."""

    def __init__(self, reference: Array, roundoff: float) -> None:
        if not roundoff > 0:
            raise UsageError(f"the unit roundoff of the runs must be positive, not {roundoff!r}")
        self._reference, self._roundoff, self._count = reference, roundoff, 0
        self._total: Float64Array = np.zeros(reference.size)

    def add(self, run: Array) -> None:
        """Take in one more run."""
        if run.shape != self._reference.shape:
            raise UsageError(f"a run has shape {run.shape}, the reference {self._reference.shape}")
        values, whole = flat(run), flat(self._reference)
        for low in range(0, whole.size, CHUNK):
            part = slice(low, low + CHUNK)
            self._total[part] += _squared_steps(widen(values[part]), widen(whole[part]), self._roundoff)
        self._count += 1

    def result(self) -> Float64Array:
        """The noise of the runs so far; no more can be added."""
        if self._count:
            np.sqrt(np.divide(self._total, self._count, out=self._total), out=self._total)
        return self._total.reshape(self._reference.shape)


def _squared_steps(run: Array, whole: Array, roundoff: float) -> Float64Array:
    with np.errstate(invalid="ignore", over="ignore"):
        step: Float64Array = np.abs(run - whole) / roundoff
        if np.isfinite(step).all():
            return step * step
        same = (np.isnan(run) & np.isnan(whole)) | (run == whole)
        step = np.where(same, 0.0, np.where(np.isnan(step), np.inf, step))
        return step * step
