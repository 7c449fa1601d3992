"""Classes of floating-point values: finite, NaN, +Inf, −Inf, and which of them a reference allows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from graphprobe.numerics.dtypes import WorkingDtype
from graphprobe.numerics.noise import Array, Float64Array

FINITE, NAN, PLUS_INF, MINUS_INF = 1, 2, 4, 8
"""Bits, so that a set of classes is a number."""

ANY_INF = PLUS_INF | MINUS_INF

MARGIN = 4.0
"""Noises between the reference and the overflow boundary within which infinite and finite are both right."""

Classes = npt.NDArray[np.uint8]


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
