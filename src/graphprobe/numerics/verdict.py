"""The four verdicts: is the candidate within the noise, worse than it, better than eager, or is there no telling."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from graphprobe.errors import UsageError
from graphprobe.numerics.divergence import MARGIN, TAIL, Divergence, Peaks, RunValues, check_shapes, divergences
from graphprobe.numerics.dtypes import WorkingDtype
from graphprobe.numerics.noise import C0, CHUNK, Array, Noise, flat, scale, sigma_from_runs, typical_magnitude, widen

Answer = Literal["ok", "candidate_worse", "candidate_better", "inconclusive"]

NARROW = 2.0**-20
"""Unit roundoff above which a dtype counts as narrow."""

FEW_ALONE = 4
"""One in so many elements may be off alone, where that is a matter of chance."""


class Thresholds(msgspec.Struct, frozen=True):
    """What is tolerated; tuned by `bench/criterion.py` on its tuning operations.

    A statistic of the candidate's z is too large where it exceeds `floor` and `factor` times the same statistic of
    the least accurate legitimate run. `gain_errors` standard errors come on top for the gain. Where zeros would pass as
    well, only the rms counts, with `factor_blind`.
    """

    floor_rms: float = 1.0
    floor_q999: float = 3.0
    floor_max: float = 4.0
    floor_gain: float = 0.4
    factor_rms: float = 4.0
    factor_q999: float = 4.0
    factor_max: float = 4.0
    factor_gain: float = 2.0
    gain_errors: float = 5.0
    factor_blind: float = 16.0
    c0: float = C0


DEFAULT = Thresholds()

LIBRARY = Thresholds(floor_rms=4.0, floor_q999=16.0, floor_max=32.0, floor_gain=4.0, c0=1.0)
"""What is tolerated in float32 and wider: libraries of elementary functions are a few roundings apart. In narrower
dtypes a result is rounded far more coarsely than such a function errs, and the tuned thresholds hold."""


def tolerated(dtype: WorkingDtype) -> Thresholds:
    """The thresholds beyond which an op is accused."""
    return LIBRARY if dtype.unit_roundoff < NARROW else DEFAULT


class Limit(msgspec.Struct, frozen=True):
    """One statistic of the candidate and what it was held against.

    Attributes:
        statistic: `rms`, `q999`, `max` or `gain`. For `max` it is the peak of the magnitude with the largest ratio.
        value: of the candidate.
        limit: the most that would be tolerated.
    """

    statistic: str
    value: float
    limit: float

    @property
    def ratio(self) -> float:
        """value / limit; above 1 is too much."""
        return self.value / self.limit if math.isfinite(self.limit) else 0.0


class Verdict(msgspec.Struct, frozen=True):
    """A verdict with its evidence.

    Attributes:
        answer: `ok`: no worse than the noise and the legitimate runs allow. `candidate_worse`: the candidate is the
            inaccurate one. `candidate_better`: the first legitimate run is. `inconclusive`: a tensor of zeros would
            have passed as well, so that passing says nothing.
        reason: one sentence, with figures.
        candidate: its divergence from the float64 reference.
        legitimate: those of the legitimate runs, in the order given.
        limits: each statistic of the candidate and what it was held against.
        excess: largest ratio of a statistic to its limit; above 1 is too much. +Inf for a wrong class.
        statistic: which one, or `class`.
        worst: index of the worst element, one number a dimension; `()` for 0-d, None if nothing was compared.
    """

    answer: Answer
    reason: str
    candidate: Divergence
    legitimate: tuple[Divergence, ...] = ()
    limits: tuple[Limit, ...] = ()
    excess: float = 0.0
    statistic: str = ""
    worst: tuple[int, ...] | None = None


def limits(run: Divergence, others: Sequence[Divergence], thresholds: Thresholds = DEFAULT) -> tuple[Limit, ...]:
    """Each statistic of `run` with its limit, given that the `others` are legitimate.

    rms, 99.9 % quantile: max(floor, factor·largest of the others). The maximum is taken by magnitude: the peak of
    `run` among elements with 4**(e−1) ≤ |r| < 4**e against the others' peaks there and one magnitude up and down, so
    that one bad element of eager excuses its like and no others. Gain: max(floor, factor·largest of the others), plus
    `gain_errors` standard errors.
    """
    t = thresholds
    found = []
    for name, floor, factor in (("rms", t.floor_rms, t.factor_rms), ("q999", t.floor_q999, t.factor_q999)):
        most = max((getattr(other, name) for other in others), default=0.0)
        found.append(Limit(name, getattr(run, name), max(floor, factor * most)))
    top = Limit("max", run.max, t.floor_max)
    for key, peak in run.peaks.items():
        like = [other.peaks.get(k, 0.0) for other in others for k in (key - 1, key, key + 1)]
        here = Limit("max", peak, max(t.floor_max, t.factor_max * max(like, default=0.0)))
        if key == next(iter(run.peaks)) or here.ratio > top.ratio:
            top = here
    found.append(top)
    most = max((abs(other.gain) for other in others), default=0.0)
    spread = max(other.gain_error for other in (run, *others))
    found.append(Limit("gain", abs(run.gain), max(t.floor_gain, t.factor_gain * most) + t.gain_errors * spread))
    return tuple(found)


def excess_of(run: Divergence, found: Sequence[Limit]) -> tuple[float, str]:
    """The largest ratio of a statistic to its limit and the statistic's name; +Inf and `class` for a wrong class."""
    if run.wrong_class:
        return math.inf, "class"
    worst = max(found, key=lambda limit: limit.ratio)
    return worst.ratio, worst.statistic


def judge(
    candidate: RunValues,
    reference: Array,
    noise: Noise,
    legitimate: Sequence[RunValues] = (),
    *,
    thresholds: Thresholds = DEFAULT,
    flush: bool = False,
    brief: bool = False,
) -> Verdict:
    """Judges floating-point or complex values in units of the legitimate noise of each element.

    The shapes must agree; whoever calls compares those, dtypes and strides before. The dtypes of candidate and
    legitimate runs may differ: each is measured in its own noise.

    Args:
        candidate: the values under suspicion.
        reference: r64, the op in float64 on the captured inputs.
        noise: of each element of the reference.
        legitimate: runs known to be right: eager first, eager on the decomposed graph.
        flush: the candidate may flush subnormals to zero.
        brief: what is plainly `ok` is said to be so by a few sums, several times as fast: of its evidence there are
            `compared`, `rms`, `gain` and `max` of the candidate then, and nothing else.

    Edge cases: an empty tensor is `ok`. 0-d is one element. A NaN or infinity that the reference has not is
    forgiven where a legitimate run has the same; where only the legitimate run has one, the candidate is better.
    Complex numbers are compared by modulus, because the rounding errors of a complex product are small against its
    modulus, not against each part. −0 equals +0.

    Raises:
        UsageError: shapes differ, or a dtype is one that is compared exactly.
    """
    for run in (candidate, *legitimate):
        if run.dtype.is_exact:
            raise UsageError(f"dtype {run.dtype.name} is compared exactly", hint="use exact.judge_exact")
    if brief and (seen := _plainly_ok([candidate, *legitimate], reference, noise, thresholds, flush)) is not None:
        return Verdict("ok", f"largest z is {seen.max:.3g}", seen)
    zeros = RunValues(np.broadcast_to(np.zeros((), candidate.values.dtype), reference.shape), candidate.dtype)
    runs = [candidate, *legitimate, zeros]
    measured = divergences(reference, noise, runs, forgiving=range(1, len(runs) - 1), c0=thresholds.c0, flush=flush)
    mine, others, blank = measured[0], tuple(measured[1:-1]), measured[-1]
    held = limits(mine, others, thresholds)
    excess, statistic = excess_of(mine, held)
    worst = None
    if mine.worst is not None:
        worst = tuple(int(i) for i in np.unravel_index(mine.worst, reference.shape))
    answer, reason = _answer(mine, others, blank, held, thresholds)
    return Verdict(answer, reason, mine, others, held, excess, statistic, worst)


def off_alone(
    candidate: Array,
    reference: Array,
    runs: Sequence[Array],
    dtype: WorkingDtype,
    roundoff: float,
    thresholds: Thresholds = DEFAULT,
) -> Array | None:
    """Where the candidate is off as a run is by chance; None if no run is like that.

    `floor(x)` of an x that is a whole number but for its roundings jumps in any run, in some elements in no other one.
    So each run is held against the noise that the others show, as the candidate is against that of all: one of them
    is beyond it in as many elements, and half as far.

    Args:
        candidate, reference, runs: as for `judge`; the runs are those that the noise is taken from.
        roundoff: see `sigma_from_runs`; the noise is in units of the dtype's own.

    Returns:
        bool, the shape of the reference.
    """
    typical = typical_magnitude(reference)

    def beyond(run: Array, others: Sequence[Array]) -> Array:
        noise = Noise(sigma_from_runs(reference, others, roundoff))
        unit = scale(reference, noise, dtype, typical, slice(None), c0=thresholds.c0, flush=True)
        with np.errstate(invalid="ignore"):
            step = np.abs(widen(flat(run)) - widen(flat(reference)))
        return np.where(np.isfinite(step) & (step > thresholds.floor_max * unit), step, 0.0)

    mine = beyond(candidate, runs)
    count, far = np.count_nonzero(mine), mine.max(initial=0.0)
    if not count or FEW_ALONE * count > mine.size:
        return None
    for i in range(len(runs)):
        its = beyond(runs[i], [run for j, run in enumerate(runs) if j != i])
        if np.count_nonzero(its) >= count and 2 * its.max() >= far:
            return np.asarray(mine.reshape(reference.shape) > 0)
    return None


def _plainly_ok(
    runs: Sequence[RunValues], reference: Array, noise: Noise, thresholds: Thresholds, flush: bool
) -> Divergence | None:
    """The candidate's divergence, if no statistic of it, or of the first legitimate run, is too large, and zeros would
    not pass; None where that takes a closer look."""
    t, dtype, total = thresholds, runs[0].dtype, reference.size
    check_shapes(reference, noise, runs)
    if total == 0 or any(run.dtype != dtype for run in runs):
        return None
    exact, values, typical = flat(reference), [flat(run.values) for run in runs], typical_magnitude(reference)
    squares, products, tops = np.zeros((3, len(runs)))
    weights, above, peaks = 0.0, np.zeros(len(runs)), [Peaks() for _ in runs]
    with np.errstate(invalid="ignore", over="ignore"):
        for low in range(0, total, CHUNK):
            part = slice(low, low + CHUNK)
            r = widen(exact[part])
            d, size = scale(reference, noise, dtype, typical, part, c0=t.c0, flush=flush), np.abs(r)
            if not (d.min() > 0 and size.max() + MARGIN * d.max() < dtype.largest):
                return None  # classes count, or noise has no bound
            along = r / d
            weights += float(np.vdot(along, along).real)
            for i, value in enumerate(values):
                step = (value[part] - r) / d
                z = np.abs(step)
                top = float(z.max())
                if not top < math.inf:
                    return None
                squares[i] += np.dot(z, z)
                products[i] += np.vdot(along, step).real
                tops[i] = max(tops[i], top)
                if top > min(t.floor_q999, t.floor_max / t.factor_max):
                    above[i] += np.count_nonzero(z > t.floor_q999)
                    peaks[i].add(z, size, t.floor_max / t.factor_max)
    rms, gain = np.sqrt(squares / total), products / max(math.sqrt(total * weights), sys.float_info.min)
    if above.max() >= max(1, math.ceil(total * TAIL)):  # then the quantile is not below its floor
        return None
    mine, *others = (
        Divergence(compared=total, rms=float(rms[i]), max=float(tops[i]), gain=float(gain[i]), peaks=peaks[i].by_key())
        for i in range(len(runs))
    )
    held = [limits(mine, others, t), *(limits(eager, [mine], t) for eager in others[:1])]
    zeros_pass = math.sqrt(weights / total) <= max(t.floor_rms, t.factor_rms * max(rms[1:], default=0.0))
    return None if zeros_pass or any(limit.ratio > 1 for each in held for limit in each) else mine


def _answer(
    mine: Divergence,
    others: tuple[Divergence, ...],
    blank: Divergence,
    held: Sequence[Limit],
    thresholds: Thresholds,
) -> tuple[Answer, str]:
    excess, statistic = excess_of(mine, held)
    if statistic == "class":
        counts = {"NaN": mine.wrong_nan, "infinite": mine.wrong_inf, "finite": mine.wrong_finite}
        which = [f"{n} {'element is' if n == 1 else 'elements are'} {what}" for what, n in counts.items() if n]
        text = f"{' and '.join(which)} where the reference is something else"
        return "candidate_worse", text + (f", {mine.shared} of them as eager" if mine.shared else "")
    blind = bool(blank.compared) and excess_of(blank, limits(blank, others, thresholds))[0] <= 1
    if excess > 1 and mine.beyond_rounding and not (blind and _alike(held, thresholds)):
        worst = max(held, key=lambda limit: limit.ratio)
        return "candidate_worse", f"{statistic} of z is {worst.value:.3g}, the limit {worst.limit:.3g}"
    if others:
        eager = others[0]
        if eager.wrong_class > mine.shared:
            return "candidate_better", f"eager has {eager.wrong_class} elements of a wrong class"
        against = limits(eager, [mine], thresholds)
        worst = max(against, key=lambda limit: limit.ratio)
        if worst.ratio > 1 and eager.beyond_rounding and not (blind and _alike(against, thresholds)):
            return (
                "candidate_better",
                f"{worst.statistic} of eager's z is {worst.value:.3g}, its limit {worst.limit:.3g}",
            )
    if mine.beyond_rounding and blind:
        return "inconclusive", "zeros would have passed as well: the noise is as large as the values"
    return "ok", f"largest z is {mine.max:.3g}" if mine.compared else "nothing to compare"


def _alike(held: Sequence[Limit], thresholds: Thresholds) -> bool:
    """Whether two runs are the same but for noise, as far as values can tell that are nothing but noise.

    Single elements of noise differ by any factor, so that only the rms says something.
    """
    return held[0].ratio * thresholds.factor_rms <= thresholds.factor_blind


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
    a, b = flat(candidate), flat(reference)
    gap = np.where(a > b, a, b).astype(np.float64) - np.where(a > b, b, a).astype(np.float64)
    return _all_equal(candidate, reference, flat(candidate != reference), gap)


def judge_unrounded(candidate: RunValues, reference: Array) -> Verdict:
    """Floating-point numbers that nothing has rounded: equal everywhere, or `candidate_worse`; as `judge_exact`.

    NaN equals NaN, -0 equals +0, and what is below the smallest normal number of its dtype equals zero.

    Args:
        candidate: the values under suspicion.
        reference: of its shape, in its dtype or a wider one.
    """
    least = candidate.dtype.smallest_normal
    a, b = (np.where(np.abs(v) < least, 0.0, v) for v in (candidate.values, reference))
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.nan_to_num(np.abs(a.astype(np.float64) - b.astype(np.float64)), nan=np.inf)
    return _all_equal(candidate.values, reference, flat((a != b) & ~(np.isnan(a) & np.isnan(b))), flat(gap))


def _all_equal(candidate: Array, reference: Array, differs: Array, gap: Array) -> Verdict:
    wrong = int(np.sum(differs))
    if not wrong:
        return Verdict("ok", f"all {candidate.size} elements equal", Divergence(compared=candidate.size))
    worst = int(np.argmax(np.where(differs, gap, -1.0)))
    index = tuple(int(i) for i in np.unravel_index(worst, reference.shape))
    found = Divergence(compared=candidate.size, max=max(float(gap[worst]), 0.0), worst=worst, wrong_finite=wrong)
    got, want = flat(candidate)[worst], flat(reference)[worst]
    reason = f"{wrong} of {candidate.size} elements differ, first {got} for {want} at {list(index)}"
    return Verdict("candidate_worse", reason, found, excess=math.inf, statistic="exact", worst=index)
