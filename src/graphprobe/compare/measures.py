"""The distance of two values or two rows of statistics, in units of the noise of the coarser dtype."""

from __future__ import annotations

import functools
import math

import msgspec
import numpy as np

from graphprobe.compare.result import Basis
from graphprobe.numerics.dtypes import DTYPES, EXTREME
from graphprobe.numerics.noise import C0
from graphprobe.numerics.pair import compare_pairs
from graphprobe.records import TensorStats
from graphprobe.store.dump_dtypes import STORED_DTYPES, Array, widened
from graphprobe.store.foreign.checked import summary_from_stats

SAMPLE = 4096
"""Elements of which the typical magnitude is taken."""

UNKNOWN = 2.0**-4
"""u of a float that the criterion has no facts about: 4-bit and scale formats."""

HUGE = 1e30
"""Stands for an error without measure: JSON has no infinity."""

SOURCE_COSINE = 0.99
SOURCE_ABSOLUTE = 0.001
"""The source's own limits."""

ROUNDED = 4.0
"""Units by which a statistic of values that were only rounded may differ."""


class Measures(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """What was measured between two tensors; see `result.SlotResult`.

    Attributes:
        unequal: elements that differ, or statistics.
        mismatched: elements, or counts, of another class: NaN, Inf, finite.
        candidate_worse: of a class mismatch, whether the candidate has more of what is no number.
        rounding: the largest error is no more than rounding once to the coarser dtype explains.
        worst: flat index of the element that `z` or the class mismatch is of.
    """

    basis: Basis
    level: float = 0.0
    z: float = 0.0
    ulp: float | None = None
    cosine: float | None = None
    max_abs: float | None = None
    max_relative: float | None = None
    within_1_1000: float | None = None
    within_5_1000: float | None = None
    unequal: int = 0
    mismatched: int = 0
    candidate_worse: bool = True
    rounding: bool = True
    worst: int | None = None
    reason: str = ""

    @property
    def accuracy(self) -> str:
        """The source's rule, where there are values."""
        if self.cosine is None or self.max_abs is None:
            return ""
        return "No" if self.cosine < SOURCE_COSINE or self.max_abs > SOURCE_ABSOLUTE else "Yes"


EQUAL = Measures(basis="digest", cosine=1.0, max_abs=0.0, max_relative=0.0, within_1_1000=1.0, within_5_1000=1.0)
"""Of equal digests."""


@functools.cache
def noise_unit(candidate: str, reference: str) -> float:
    """u of the coarser dtype; 0 where both are exact."""
    return max(_roundoff(candidate), _roundoff(reference))


def _roundoff(dtype: str) -> float:
    facts = DTYPES.get(dtype)
    return facts.unit_roundoff if facts is not None else UNKNOWN


@functools.cache
def rounding_limit(candidate: str, reference: str) -> float:
    """Units in the last place of the coarser dtype by which two roundings of one number can differ."""
    fine, coarse = sorted((_roundoff(candidate), _roundoff(reference)))
    return 0.5 * (1 + fine / coarse) if coarse and fine < coarse else 0.0


def readable(values: Array, dtype: str) -> Array:
    """The values as numpy can show them: bits of a dtype that it lacks become the next wider one."""
    known = STORED_DTYPES.get(dtype)
    if known is not None and known.numpy is None and known.size_bytes == values.dtype.itemsize:
        return widened(values, dtype)[0]
    return values


def text_from(values: Array, dtype: str) -> str:
    """The values as text, the middle of large tensors left out."""
    edge = 4 if values.ndim < 3 else 2
    with np.printoptions(threshold=64, edgeitems=edge, linewidth=110, precision=8):
        return str(readable(values, dtype))


def typical_of_sample(values: Array, dtype: str) -> float:
    """min(rms, 4·median) of the magnitudes of an evenly strided sample of finite elements; 0 without any.

    The median is that of the elements that are not zero: the backward of a ReLU has set half of them to zero, which
    tells nothing about the others.
    """
    line = np.reshape(values, -1)
    sample = readable(np.ascontiguousarray(line[:: max(1, line.size // SAMPLE)]), dtype)
    with np.errstate(invalid="ignore"):  # a signalling NaN, e.g. in memory that nobody wrote
        size = np.abs(sample.astype(np.complex128 if np.iscomplexobj(sample) else np.float64))
    size = size[np.isfinite(size)]
    if not size.size:
        return 0.0
    some = size[size > 0]
    return float(min(math.sqrt(float(np.mean(size * size))), 4 * float(np.median(some)))) if some.size else 0.0


def measure_values(
    candidate: Array,
    reference: Array,
    dtypes: tuple[str, str],
    *,
    sampled: bool = False,
    ends: tuple[TensorStats, TensorStats] | None = None,
) -> Measures:
    """One pass over both.

    z = |c − r| / (u·max(|c|, |r|, smallest normal) + c0·u·min(rms, 4·median|r|)), u of the coarser dtype (spec 6,
    without the response to input noise, which nobody has measured here).

    Args:
        candidate, reference: of one shape, or one length if sampled; dtypes that numpy lacks as bits.
        dtypes: torch's names, the candidate's first.
        ends: statistics of both, from which it is known without reading whether elements stand for the largest
            number of their dtype, as masks do; such an element is one infinity.
    """
    u = noise_unit(*dtypes)
    stored = _stored(candidate, dtypes[0]), _stored(reference, dtypes[1])
    if ends is not None and all(map(at_limit, ends, stored)):
        (candidate, lies_in), (reference, other) = map(_limits_as_inf, (candidate, reference), stored)
        stored = lies_in, other
    floor = C0 * u * typical_of_sample(reference, stored[1])
    pair = compare_pairs(
        candidate,
        reference,
        candidate_dtype=stored[0],
        reference_dtype=stored[1],
        unit_roundoff=u,
        floor=min(floor, 2.0**1000),
    )
    mine = sum(pair.classes[row][0] for row in (1, 2, 3))
    theirs = sum(pair.classes[0][1:])
    worst = pair.first_mismatch if pair.mismatched else pair.z_max_index
    own = noise_unit(*stored)
    ulp = pair.max_ulp * (own / u) if u and own else pair.max_ulp
    return Measures(
        basis="sample" if sampled else "values",
        level=min(pair.z_rms, HUGE),
        z=min(pair.z_max, HUGE),
        ulp=ulp,
        cosine=pair.cosine,
        max_abs=min(pair.max_abs, HUGE),
        max_relative=min(pair.max_relative, HUGE),
        within_1_1000=pair.within_1_1000 / pair.count if pair.count else 1.0,
        within_5_1000=pair.within_5_1000 / pair.count if pair.count else 1.0,
        unequal=pair.unequal,
        mismatched=pair.mismatched,
        candidate_worse=mine >= theirs,
        rounding=not pair.mismatched and ulp <= rounding_limit(*dtypes),
        worst=worst,
    )


def at_limit(stats: TensorStats, dtype: str) -> bool:
    """Whether elements stand for the largest number of their dtype, of either sign."""
    low, high, limit = stats.min, stats.max, _limit_of(dtype)
    return (low is not None and abs(low) >= limit) or (high is not None and abs(high) >= limit)


@functools.cache
def _limit_of(dtype: str) -> float:
    """From where on elements do; NaN, which nothing reaches, of dtypes that have no such numbers."""
    facts = DTYPES.get(dtype)
    return math.nan if facts is None or facts.is_exact or not facts.largest else EXTREME * facts.largest


def _limits_as_inf(values: Array, dtype: str) -> tuple[Array, str]:
    """The values, and the dtype that they lie in."""
    wide = np.array(readable(values, dtype))
    wide[np.abs(wide) >= EXTREME * DTYPES[dtype].largest] *= np.inf
    return wide, str(wide.dtype.name)


def _stored(values: Array, dtype: str) -> str:
    """The dtype the values lie in: a format that widens bfloat16 to float32 still names the former."""
    known = STORED_DTYPES.get(dtype)
    if known is not None and known.size_bytes == values.dtype.itemsize:
        return dtype
    return str(values.dtype.name)


def measure_statistics(
    candidate: TensorStats,
    reference: TensorStats,
    known: frozenset[str],
    dtypes: tuple[str, str],
    *,
    reduction: float = 0.0,
) -> Measures:
    """Two rows of statistics; each difference in units of what rounding does to that statistic.

    With u of the coarser dtype, n elements, rms = l2/√n of the larger side, and errors e_i = u·x_i·ξ_i of the elements:

    * max, min: one element, so u·|value| + c0·u·rms.
    * mean: the mean of n errors: u·rms·(1/√n + c0); 1/√n if they are independent, c0 is the share that is not. The
      mean itself does not enter, so that one near zero explodes nothing.
    * l2: Σ x_i e_i / l2, so u·l2·(1/√n + c0).
    * std: as l2, with std·√n in its place, and no finer than the mean.

    Counts of NaN and Inf must agree; where one side has none of them, statistics are compared as of all elements, as
    torch's own reductions give them. Integers and booleans are exact, except for statistics that another tool has
    rounded to float32.

    Args:
        candidate, reference: of tensors of one shape.
        known: fields that both have.
        dtypes: torch's names, the candidate's first.
        reduction: u of the dtype in which one of the two was computed; 0 if both come from one exact way. The result
            was rounded to it once, u·|value|, after a sum in float32: 2⁻²³·rms of a mean, which torch sums in pairs;
            2⁻²⁴·l2·n/1024 of an l2, which it sums in order (1400·2⁻²⁴ at 4 million elements, torch 2.13 on a CPU). A
            mean or l2 that is not finite where maximum and minimum are has overflowed on the way, and says nothing.
    """
    if at_limit(candidate, dtypes[0]) and at_limit(reference, dtypes[1]):
        return Measures(basis="statistics", reason="masked with the largest number of the dtype, which hides all else")
    if "nan" not in known:
        candidate, reference = _of_all_elements(candidate), _of_all_elements(reference)
    top, worst_name, unequal, rounded = _differences(candidate, reference, known, dtypes, reduction)
    wrong, worse = _other_classes(candidate, reference, known)
    reason = ""
    if top:
        reason = f"{worst_name} {getattr(candidate, worst_name):.6g} for {getattr(reference, worst_name):.6g}"
    return Measures(
        basis="statistics",
        level=top,
        z=top,
        unequal=unequal + wrong,
        mismatched=wrong,
        candidate_worse=worse >= 0,
        rounding=rounded and not wrong,
        reason=reason,
    )


def _differences(
    candidate: TensorStats, reference: TensorStats, known: frozenset[str], dtypes: tuple[str, str], reduction: float
) -> tuple[float, str, int, bool]:
    """The largest difference in units of rounding, of which statistic; how many differ; whether all may be rounding.

    `least` is u, or that of float32 where the dtypes are exact; `share`: of an error of one element in that of a sum;
    `own`: what torch's own reduction adds to a mean, l2 or standard deviation.
    """
    top, worst_name, unequal, rounded = 0.0, "", 0, True
    u, count, smallest = noise_unit(*dtypes), max(1, reference.count), _smallest_normal(*dtypes)
    rms = max(_rms(candidate, known), _rms(reference, known))
    least, share = u or 2.0**-24, 1 / math.sqrt(count) + C0
    for name in ("max", "min", "mean", "l2", "std"):
        a, b = getattr(candidate, name), getattr(reference, name)
        if a == b or a is None or b is None or name not in known or (a != a and b != b):
            continue
        extreme, own = name in ("max", "min"), 0.0
        if reduction and not extreme and _overflowed(a, b, candidate, reference, known):
            continue
        error = abs(a - b)
        if not error < math.inf:
            unequal += 1
            top, worst_name, rounded = HUGE, name, False
            continue
        size, other = abs(a), abs(b)
        size = other if other > size else size
        normal = smallest if smallest > size else size
        if extreme:
            rounded = rounded and error <= 1.0001 * u * normal
            unit, allowed = least * normal + C0 * u * rms, 2.0**-23 * size if reduction else 0.0
        else:
            if reduction:
                summed = 2.0**-23 * rms if name == "mean" else 2.0**-24 * size * count / 1024
                own = reduction * size + summed
            allowed = ROUNDED * own
            if name == "mean":
                unit = least * max(rms, smallest) * share if u else least * size
            else:
                unit = least * normal * (share if u else 1.0)
                unit = max(unit, least * rms * share) if name == "std" else unit
        unit = unit + 2.0**-23 * size + own  # what another tool wrote as float32 has that rounding on top
        unequal += error > allowed
        z = min(error / unit, HUGE) if unit else HUGE
        if z > top:
            top, worst_name = z, name
        rounded = rounded and z <= ROUNDED
    return top, worst_name, unequal, rounded


def _other_classes(candidate: TensorStats, reference: TensorStats, known: frozenset[str]) -> tuple[int, int]:
    """By how much the counts of NaN and infinities differ, and how many more the candidate has."""
    wrong = worse = 0
    for name in ("nan", "positive_inf", "negative_inf"):
        mine, theirs = getattr(candidate, name), getattr(reference, name)
        if mine != theirs and name in known:
            wrong, worse = wrong + abs(mine - theirs), worse + mine - theirs
    return wrong, worse


@functools.cache
def _smallest_normal(candidate: str, reference: str) -> float:
    facts = (DTYPES.get(name) for name in (candidate, reference))
    return max((one.smallest_normal for one in facts if one is not None), default=0.0)


def _of_all_elements(stats: TensorStats) -> TensorStats:
    high, low, mean, norm = summary_from_stats(stats)
    return msgspec.structs.replace(stats, max=high, min=low, mean=mean, l2=norm)


def _overflowed(a: float, b: float, candidate: TensorStats, reference: TensorStats, known: frozenset[str]) -> bool:
    """Whether just one of two reductions is no number, and no element is the reason."""
    if math.isfinite(a) == math.isfinite(b) or not {"max", "min"} <= known:
        return False
    return all(v is not None and math.isfinite(v) for s in (candidate, reference) for v in (s.max, s.min))


def _rms(stats: TensorStats, known: frozenset[str]) -> float:
    if "l2" in known and stats.l2 is not None and math.isfinite(stats.l2):
        return stats.l2 / math.sqrt(max(1, stats.count))
    ends = [abs(v) for v in (stats.min, stats.max, stats.mean) if v is not None and math.isfinite(v)]
    return max(ends, default=0.0) / 2
