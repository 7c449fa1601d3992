"""The worst element of two values that differ: both numbers, how far they are apart, and how far they may be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from graphprobe.engine.reference import array_from, dtype_of
from graphprobe.findings import Worst
from graphprobe.numerics.noise import Array, Noise, scale, typical_magnitude, widen
from graphprobe.numerics.verdict import tolerated

LABELS = {"outputs": "output {}", "inputs": "input {} after the call", "gradients": "gradient {}"}
OWN = 4.0
"""How many times the uncompiled program's own error the compiled one may have."""


def label_of(part: str, position: int, call: int, calls: int) -> str:
    """`output 0`, `gradient 1`, `input 0 after the call`; with the number of the call if there are several."""
    return LABELS[part].format(position) + (f" of call {call}" if calls > 1 else "")


def tells(worst: Worst) -> bool:
    """Whether an element is off by more than is allowed; an infinity is not where the size of its values is allowed."""
    allowed = worst.legitimate
    if not allowed:
        return True
    if math.isfinite(worst.off):
        return worst.wrong > 0 or worst.off > allowed
    expected = worst.expected if isinstance(worst.expected, int | float) else math.nan
    return not math.isfinite(expected) or expected == 0 or allowed < abs(expected)


def worst_scalar(label: str, expected: Any, actual: Any) -> Worst | None:
    """Of two numbers of Python that differ; None for anything else."""
    if not all(isinstance(value, bool | int | float) for value in (expected, actual)):
        return None
    return Worst(label=label, expected=expected, actual=actual, off=abs(float(actual) - float(expected)))


def worst_exact(label: str, expected: torch.Tensor, actual: torch.Tensor, *, legitimate: float | None = 0.0) -> Worst:
    """Of two tensors of whole numbers or truth values of one shape, which differ."""
    e, a = array_from(expected), array_from(actual)
    wrong = np.asarray(e != a)
    apart = np.abs(a.astype(np.float64) - e.astype(np.float64))
    return _worst(label, e, a, wrong, np.where(wrong, apart, -1.0), legitimate)


def worst_number(
    label: str, expected: torch.Tensor, actual: torch.Tensor, wide: Array | None, sigma: Array | None
) -> Worst:
    """Of two tensors of floating-point or complex numbers of one shape, which differ.

    Args:
        wide: the same in float64; None if there is none.
        sigma: how far legitimate runs scatter, by element, in the unit of the values; None if that is not known.
    """
    e, a = widen(array_from(expected)), widen(array_from(actual))
    centre = e if wide is None else wide
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.asarray(np.abs(a - e))
        apart[(a == e) | (np.isnan(a) & np.isnan(e))] = 0.0
        own = np.nan_to_num(np.abs(e - centre), posinf=0.0)
    other_class = ~np.isfinite(apart) & ~_alike(a, centre)
    if sigma is None:
        wrong = other_class if other_class.any() else apart > 0
        return _worst(label, e, a, wrong, _order(apart, other_class), None)
    facts = dtype_of(expected)
    held = tolerated(facts)
    noise = Noise(np.nan_to_num(sigma / facts.unit_roundoff, posinf=0.0))
    d = scale(centre, noise, facts, typical_magnitude(centre), slice(None), c0=held.c0, flush=True)
    unit = np.nan_to_num(d, posinf=0.0).reshape(np.shape(e))
    # What may decide, the widest bound first: where all elements are a little off, none exceeds the widest one.
    for factor in sorted({held.floor_max, held.floor_q999, held.floor_rms, held.floor_gain}, reverse=True):
        allowed = factor * unit + OWN * own
        wrong = other_class | (np.isfinite(apart) & (apart > allowed))
        if wrong.any():
            break
    return _worst(label, e, a, wrong, np.where(wrong | ~wrong.any(), _order(apart, other_class), -1.0), allowed)


def _alike(a: Array, b: Array) -> Array:
    """Where both are NaN, or the same infinity."""
    return np.asarray((np.isnan(a) & np.isnan(b)) | (np.isinf(a) & (a == b)))


def _order(apart: Array, first: Array) -> Array:
    """The larger, the worse."""
    return np.where(first, np.inf, np.nan_to_num(apart, posinf=0.0))


def _worst(label: str, e: Array, a: Array, wrong: Array, order: Array, allowed: Array | float | None) -> Worst:
    at = int(np.argmax(order))
    index = np.unravel_index(at, np.shape(e))
    expected, actual = e[index].item(), a[index].item()
    limit = float(allowed[index] if isinstance(allowed, np.ndarray) else allowed) if allowed is not None else None
    return Worst(
        label=label,
        index=tuple(int(i) for i in index),
        expected=_plain(expected),
        actual=_plain(actual),
        off=float(abs(int(actual) - int(expected) if isinstance(actual, int) else actual - expected)),
        legitimate=limit,
        wrong=int(np.count_nonzero(wrong)),
        of=int(np.size(e)),
    )


def _plain(value: Any) -> bool | int | float | str:
    """A number as JSON can hold it."""
    if isinstance(value, complex):
        return value.real if value.imag == 0 else f"{value:.4g}"
    return value if isinstance(value, bool | int) else float(value)
