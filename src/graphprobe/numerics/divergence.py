"""How far several runs of one op are from its float64 reference, in units of the legitimate noise."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from graphprobe.errors import UsageError
from graphprobe.numerics.dtypes import WorkingDtype
from graphprobe.numerics.noise import C0, CHUNK, Array, Float64Array, Noise, flat, scale, typical_magnitude, widen

FINITE, NAN, PLUS_INF, MINUS_INF = 1, 2, 4, 8
"""Bits, so that a set of classes is a number."""

ANY_INF = PLUS_INF | MINUS_INF

MARGIN = 4.0
"""Noises between the reference and the overflow boundary within which infinite and finite are both right."""

Classes = npt.NDArray[np.uint8]

KEY_OFFSET = 600
"""Makes the key of every magnitude of float64 positive: half an exponent of -1073 to 1024."""

ZERO = -2000
"""Key of the peak where the reference is zero; no magnitude of float64 has it."""

DISTINCT_SAMPLE = 4096
"""Elements in which the share of distinct references is counted."""

TAIL = 1e-3
"""Share of the elements that may lie above the quantile."""


def classes_of(values: Array) -> Classes:
    """The class of each element, one bit each, in the shape of `values`.

    A complex number is infinite if either part is (as in C99, whatever the other part is), without a sign: it has
    both infinite bits. It is NaN if a part is NaN and none is infinite.
    """
    if np.iscomplexobj(values):
        infinite = np.isinf(values.real) | np.isinf(values.imag)
        result = np.where(infinite, ANY_INF, np.where(np.isnan(values), NAN, FINITE))
    else:
        result = np.full(values.shape, FINITE)
        result[np.isnan(values)] = NAN
        result[values == np.inf] = PLUS_INF
        result[values == -np.inf] = MINUS_INF
    return result.astype(np.uint8)


def allowed_classes(reference: Array, noise: Float64Array, dtype: WorkingDtype) -> Classes:
    """The classes that a result of `dtype` may have where the float64 reference is `reference`.

    Finite references ask for finite results, except beyond the largest finite number of `dtype`: there an infinity
    of the right sign is right, and within `MARGIN` noises of the boundary both are. A dtype without infinities may
    saturate or give NaN instead. Infinite and NaN references ask for the same.

    Args:
        reference: float64 or complex128, one dimension.
        noise: d of each element; NaN and +Inf count as no noise.
    """
    allowed = classes_of(reference)
    finite = allowed == FINITE
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(reference)
        slack = MARGIN * np.where(np.isfinite(noise), noise, 0.0)
        may = finite & (size + slack > dtype.largest)
        must = finite & (size - slack > dtype.largest)
    if dtype.kind == "complex":
        infinity = np.full(reference.shape, ANY_INF, np.uint8)
    else:
        infinity = np.where(reference > 0, PLUS_INF, MINUS_INF).astype(np.uint8)
    allowed = np.where(may, allowed | infinity, allowed)
    allowed = np.where(must, infinity, allowed)
    if not dtype.has_inf:
        no_room = may | ((allowed & ANY_INF) != 0)
        allowed = np.where(no_room, allowed | FINITE | NAN, allowed)
    return allowed.astype(np.uint8)


class Divergence(msgspec.Struct, frozen=True):
    """One run against the reference, z = |y − r| / d.

    Attributes:
        compared: elements with a z: finite in the run and in the reference, with a stable class.
        rms, q999, max: of z; 0 where nothing was compared. `q999` is the largest z that at least 0.1 % of the
            elements (and no fewer than one) reach, so for fewer than 2000 elements it is the maximum.
        gain: the part of rms(z) that runs along the reference: Σ ρ·s / sqrt(n·Σ ρ²) with s = (y − r)/d and ρ = r/d.
            Independent roundings cancel in it, a wrong factor or divisor adds up.
        gain_error: its standard error, from the spread of the products and the number of distinct references: equal
            elements are rounded equally, so that they count once.
        peaks: the largest z by magnitude of the reference, where it is above 1: key e for 4**(e−1) ≤ |r| < 4**e, and
            `ZERO` for r = 0. An element is compared with what eager does to elements like it.
        worst: flat index of the largest z, or of the first element of a wrong class; None if there is neither.
        wrong_nan, wrong_inf, wrong_finite: elements whose class the reference does not allow, by what the run has.
        shared: those of them where a legitimate run has the same class.
        unstable: elements left out because their class depends on the noise.
        beyond_rounding: elements whose error is more than the rounding of the exact result to the dtype, half an ulp.
    """

    compared: int = 0
    rms: float = 0.0
    q999: float = 0.0
    max: float = 0.0
    gain: float = 0.0
    gain_error: float = 0.0
    peaks: dict[int, float] = {}
    worst: int | None = None
    wrong_nan: int = 0
    wrong_inf: int = 0
    wrong_finite: int = 0
    shared: int = 0
    unstable: int = 0
    beyond_rounding: int = 0

    @property
    def wrong_class(self) -> int:
        """Elements of a class that neither the reference nor a legitimate run has."""
        return self.wrong_nan + self.wrong_inf + self.wrong_finite - self.shared


@dataclass(frozen=True, slots=True, eq=False)
class RunValues:
    """Values that some way of running an op gave, and the dtype it gave them in.

    Attributes:
        values: any float or complex dtype of numpy, the shape of the reference. Values of dtypes that numpy lacks
            (bfloat16, float8) come widened, exactly.
        dtype: the working dtype they had before they were widened.
    """

    values: Array
    dtype: WorkingDtype


class Peaks:
    """The largest z by magnitude of the reference: of |r|, see `Divergence.peaks`."""

    def __init__(self) -> None:
        self._found: Float64Array = np.zeros(2 * KEY_OFFSET)

    def add(self, z: Float64Array, size: Float64Array, least: float) -> None:
        """Take in the z above `least`; `size` is |r|."""
        high = z > least
        if not high.any():
            return
        exponents = np.frexp(size[high])[1]
        keys = np.where(size[high] == 0, 0, -(-exponents // 2) + KEY_OFFSET)
        np.maximum.at(self._found, keys, z[high])

    def by_key(self) -> dict[int, float]:
        """As a divergence has them."""
        found = self._found
        return {int(key) - KEY_OFFSET if key else ZERO: float(found[key]) for key in np.flatnonzero(found)}


@dataclass(slots=True)
class _Tally:
    """Running totals of one run, chunk by chunk."""

    keep: int
    distinct: float = 1.0
    compared: int = 0
    products: float = 0.0
    products_squared: float = 0.0
    weights: float = 0.0
    peaks: Peaks = field(default_factory=Peaks)
    peak: float = 0.0
    squares: float = 0.0
    worst: int | None = None
    first_wrong: int | None = None
    wrong: dict[str, int] = field(default_factory=lambda: {"nan": 0, "inf": 0, "finite": 0, "shared": 0})
    unstable: int = 0
    beyond_rounding: int = 0
    top: Float64Array = field(default_factory=lambda: np.empty(0))

    def add_gain(self, signed: Float64Array, weight: Float64Array) -> None:
        """The signed z along the reference and |r|/d of the elements of a chunk that are compared."""
        self.products += float(np.sum(signed * weight))
        self.products_squared += float(np.sum((signed * weight) ** 2))
        self.weights += float(np.sum(weight**2))

    def add_z(self, z: Float64Array, low: int) -> None:
        """The z of one chunk that starts at `low`; NaN where an element is left out."""
        without = np.isnan(z)
        good = z[~without] if without.any() else z
        if good.size == 0:
            return
        self.compared += good.size
        peak = float(good.max())
        if peak > self.peak or self.worst is None:
            self.worst = low + int(np.nanargmax(z))
        if peak > self.peak:
            self.squares *= (self.peak / peak) ** 2
            self.peak = peak
        if self.peak > 0 and math.isfinite(self.peak):
            self.squares += float(np.sum((good / self.peak) ** 2))
        if self.top.size >= self.keep:
            good = good[good > self.top.min()]
        self.top = np.concatenate([self.top, good])
        if self.top.size > self.keep:
            self.top = np.partition(self.top, self.top.size - self.keep)[-self.keep :]

    def add_classes(self, found: Classes, allowed: Classes, legitimate: Classes, low: int) -> None:
        """Counts the elements of a chunk whose class is not allowed."""
        wrong = (found & allowed) == 0
        if not wrong.any():
            return
        forgiven = wrong & ((found & legitimate) != 0)
        self.wrong["nan"] += int(np.sum(wrong & (found == NAN)))
        self.wrong["finite"] += int(np.sum(wrong & (found == FINITE)))
        self.wrong["inf"] += int(np.sum(wrong & (found != NAN) & (found != FINITE)))
        self.wrong["shared"] += int(np.sum(forgiven))
        blamed = wrong & ~forgiven
        if self.first_wrong is None and blamed.any():
            self.first_wrong = low + int(np.argmax(blamed))

    def finish(self) -> Divergence:
        """The totals as a result."""
        rank = min(self.top.size, max(1, math.ceil(self.compared * TAIL)))
        infinite = math.isinf(self.peak)
        rms = math.inf if infinite else self.peak * math.sqrt(self.squares / self.compared) if self.compared else 0.0
        along = math.sqrt(self.compared * self.weights)
        usable = 0 < along < math.inf and math.isfinite(self.products) and math.isfinite(self.products_squared)
        return Divergence(
            gain=self.products / along if usable else 0.0,
            gain_error=math.sqrt(self.products_squared / self.distinct) / along if usable else 0.0,
            peaks=self.peaks.by_key(),
            compared=self.compared,
            rms=rms,
            q999=float(np.sort(self.top)[-rank]) if self.top.size else 0.0,
            max=self.peak,
            worst=self.worst if self.first_wrong is None else self.first_wrong,
            wrong_nan=self.wrong["nan"],
            wrong_inf=self.wrong["inf"],
            wrong_finite=self.wrong["finite"],
            shared=self.wrong["shared"],
            unstable=self.unstable,
            beyond_rounding=self.beyond_rounding,
        )


def divergences(
    reference: Array,
    noise: Noise,
    runs: Sequence[RunValues],
    *,
    forgiving: Collection[int] = (),
    c0: float = C0,
    flush: bool = False,
) -> list[Divergence]:
    """The divergence of each run from `reference`.

    Works through chunks of `CHUNK` elements, so that beyond the arguments it needs a few megabytes, and 0.1 % of the
    tensor for the quantile.

    Args:
        reference: r64: float64 or complex128, any shape; 0-d counts as one element; empty gives zeros everywhere.
        noise: of the same shape.
        runs: each of the same shape. Each is measured in the noise of its own dtype.
        forgiving: positions of legitimate runs. Where one of them has a class that the reference does not allow, the
            first run is forgiven the same class in the same element.
        c0: see `noise.scale`.
        flush: subnormal results may be zero.

    Returns:
        one `Divergence` a run, in order. A finite reference beyond the dtype's largest number is taken as that
        number. Where r is 0 and every term of the noise too (float64 without subnormals, say), z is 0 or +Inf.

    Raises:
        UsageError: shapes differ.
    """
    check_shapes(reference, noise, runs)
    total = int(np.prod(reference.shape))
    typical = typical_magnitude(reference)
    exact = flat(reference)
    sample = exact[:: max(1, total // DISTINCT_SAMPLE)]
    distinct = np.unique(sample).size / max(1, sample.size)
    tallies = [_Tally(max(1, math.ceil(total * TAIL)), distinct or 1.0) for _ in runs]
    values = [flat(run.values) for run in runs]
    by_dtype = {run.dtype.name: run.dtype for run in runs}
    for low in range(0, total, CHUNK):
        part = slice(low, min(low + CHUNK, total))
        r = widen(exact[part])
        found = [classes_of(value[part]) for value in values]
        nothing = np.zeros(r.shape, np.uint8)
        legitimate = np.bitwise_or.reduce([nothing, *(found[i] for i in forgiving)])
        for dtype in by_dtype.values():
            d = scale(reference, noise, dtype, typical, part, c0=c0, flush=flush)
            allowed = allowed_classes(r, d, dtype)
            unstable = np.isinf(d) & (classes_of(r) == FINITE) | np.isinf(flat(noise.sigma)[part])
            for run, value, tally, kind in zip(runs, values, tallies, found, strict=True):
                if run.dtype.name != dtype.name:
                    continue
                tally.unstable += int(unstable.sum())
                others = legitimate if run is runs[0] else nothing
                tally.add_classes(np.where(unstable, allowed, kind), allowed, others, low)
                _measure(widen(value[part]), r, d, (kind == FINITE) & ~unstable, dtype, tally, low)
    return [tally.finish() for tally in tallies]


def check_shapes(reference: Array, noise: Noise, runs: Sequence[RunValues]) -> None:
    """Raise UsageError unless all have the shape of the reference."""
    for run in runs:
        if run.values.shape != reference.shape:
            raise UsageError(f"a run has shape {run.values.shape}, the reference {reference.shape}")
    if noise.sigma.shape != reference.shape:
        raise UsageError(f"the noise has shape {noise.sigma.shape}, the reference {reference.shape}")


def _measure(
    y: Array, r: Array, d: Float64Array, usable: npt.NDArray[np.bool_], dtype: WorkingDtype, tally: _Tally, low: int
) -> None:
    """Adds the z of one chunk of one run to its tally."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        size = np.abs(r)
        limited = np.where(size > dtype.largest, r * (dtype.largest / size), r)
        error = np.abs(y - limited)
        z = np.where(error == 0, 0.0, error / d)
        z = np.where(usable & np.isfinite(r), z, np.nan)
        half_ulp = dtype.unit_roundoff * np.maximum(size, dtype.smallest_normal)
        tally.beyond_rounding += int(np.sum((error > half_ulp) & ~np.isnan(z)))
        tally.add_z(z, low)
        tally.peaks.add(z, size, 1.0)
        sure = ~np.isnan(z) & (d > 0) & (size <= dtype.largest)
        along = np.real(np.conj(r) * (y - r))[sure] / np.where(size == 0, 1.0, size)[sure]
        tally.add_gain(along / d[sure], size[sure] / d[sure])
