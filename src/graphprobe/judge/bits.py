"""Which observables of a call are not, to the last bit, what they are uncompiled, and by how much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from graphprobe.engine.forked_child import doing
from graphprobe.engine.reference import array_from, dtype_of, is_noisy
from graphprobe.engine.value_file import is_stored_once
from graphprobe.engine.values import equal_bits
from graphprobe.findings import BitDifference
from graphprobe.judge.observation import Observation
from graphprobe.judge.uncompiled import Reference, Spot
from graphprobe.judge.worst import worst_exact, worst_number, worst_scalar
from graphprobe.numerics.dtypes import working_dtype
from graphprobe.numerics.pair import compare_pairs


def bit_differences(reference: Reference, got: Sequence[Observation]) -> list[BitDifference]:
    """Every output, changed input and gradient of `got` that differs from the uncompiled one, in the program's order.

    Shapes and dtypes are those of the uncompiled program, as of calls that `judging.compare` has found right.
    """
    return [found for i, call in enumerate(got) for found in _of_call(reference, i, call)]


def _of_call(reference: Reference, call: int, got: Observation) -> Iterator[BitDifference]:
    eager = reference.eager[0][call]
    if eager.raised is not None or got.raised is not None:
        return
    for part in ("outputs", "inputs", "gradients"):
        expected, mine = getattr(eager, part), getattr(got, part)
        for j in range(min(len(expected), len(mine))):
            doing(f"comparing the bits of {part}[{j}]")
            if not is_stored_once(expected, mine, j) and not equal_bits(e := expected[j], m := mine[j]):
                found = _of_value(Spot(reference, call, part, j), e, m)
                if found is not None:
                    yield found


def _of_value(spot: Spot, e: Any, m: Any) -> BitDifference | None:
    if not isinstance(e, torch.Tensor) or not isinstance(m, torch.Tensor):
        worst = worst_scalar(spot.label, e, m)
        off = worst.off if worst is not None else 0.0
        return BitDifference(**_of(spot), elements=1.0, max_ulp=0.0, max_abs=off, worst=worst)
    if e.shape != m.shape or e.dtype != m.dtype:
        return None
    expected, actual = array_from(e), array_from(m)
    pair = compare_pairs(actual, expected)
    if not pair.unequal:
        return None
    narrow = dtype_of(e).unit_roundoff if is_noisy(e) else 0.0
    held = working_dtype(actual.dtype.name).unit_roundoff if narrow else 0.0
    return BitDifference(
        **_of(spot),
        elements=pair.unequal / pair.count,
        max_ulp=pair.max_ulp * (held / narrow if narrow else 1.0),
        max_abs=pair.max_abs,
        worst=worst_number(spot.label, e, m, None, None) if narrow else worst_exact(spot.label, e, m, legitimate=None),
    )


def _of(spot: Spot) -> dict[str, Any]:
    return {"observable": spot.where, "call": spot.call, "repeats": not spot.unsteady()}
