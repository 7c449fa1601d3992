"""How much of a sum has cancelled: the noise of its terms stays, so that what is left has more noise than it looks.

With terms of rms t, K of them, a sum is of the size √K·t unless they cancel. Where it is C times smaller, an error of
one unit of the terms is one of C units of the result: the bias of a convolution before a batch norm has a gradient
that is nothing but rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphprobe.compare.naming import canonical
from graphprobe.compare.result import SlotResult

ADDING = frozenset("add sub add_ sub_ rsub".split())
SUMMING = frozenset("sum mean nansum nanmean".split())
PRODUCTS = frozenset("linear matmul mm bmm".split())
_TOLD = ADDING | SUMMING | PRODUCTS


def cancelled(api: str, backward: bool, slot: SlotResult, slots: Sequence[SlotResult]) -> float:
    """C ≥ 1 of one result, from the rms of what the call got; 1 where the dump has too little to tell.

    Told are: sums and differences of two tensors, sums and means over dimensions, matrix products, and gradients of
    one dimension (biases, weights of norms), which add up K = elements of the gradient they come from, a result.
    """
    if backward:
        if slot.candidate is None or len(slot.candidate.shape or ()) != 1:
            return 1.0
        sources = [s for s in slots if s.role == "grad_output"]
        mine = _least(slot)
        if not sources or mine is None:
            return 1.0
        terms = _size(sources[0]) / max(1, _size(slot))
        return _factor(math.sqrt(max(1.0, terms)) * _most(sources[0]), mine)
    name = canonical(api)
    if name not in _TOLD:
        return 1.0
    mine, size = _least(slot), _size(slot)
    if mine is None:
        return 1.0
    inputs = [s for s in slots if s.role in ("input", "parameter") and s.candidate is not None and s.candidate.dtype]
    if not inputs:
        return 1.0
    if name in ADDING:
        return _factor(max(_most(s) for s in inputs), mine)
    if name in SUMMING:
        terms = max(1.0, _size(inputs[0]) / max(1, size))
        scale = 1 / math.sqrt(terms) if name.endswith("mean") else math.sqrt(terms)
        return _factor(scale * _most(inputs[0]), mine)
    if name in PRODUCTS and len(inputs) >= 2:
        shape = inputs[0].candidate.shape if inputs[0].candidate is not None else None
        terms = shape[-1] if shape else 1
        return _factor(math.sqrt(max(1, terms)) * _most(inputs[0]) * _most(inputs[1]), mine)
    return 1.0


def _factor(expected: float, found: float) -> float:
    if not math.isfinite(expected) or expected <= found:
        return 1.0
    return min(expected / found, 1e12) if found > 0 else 1e12


def _size(slot: SlotResult) -> int:
    side = slot.candidate or slot.reference
    return math.prod(side.shape) if side is not None and side.shape is not None else 1


def _rms(slot: SlotResult) -> list[float]:
    """Of the sides that tell it."""
    return [
        side.l2 / math.sqrt(max(1, math.prod(side.shape)))
        for side in (slot.candidate, slot.reference)
        if side is not None and side.l2 is not None and side.shape is not None
    ]


def _most(slot: SlotResult) -> float:
    return max(_rms(slot), default=0.0)


def _least(slot: SlotResult) -> float | None:
    return min(_rms(slot), default=None)
