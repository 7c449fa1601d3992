"""The search for the fewest units that still fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from graphprobe.reduce.prefix import narrow
from graphprobe.reduce.quickxplain import explain
from graphprobe.reduce.space import Candidate
from graphprobe.reduce.subsets import Patience, Subsets
from graphprobe.reduce.sweep import sweep
from graphprobe.reduce.window import narrow_to_window

C = TypeVar("C", bound=Candidate)

HINTS = "hints"

UNRESOLVED_CUTS = 2
"""Cuts of the prefix and the suffix that may be UNRESOLVED. With m random constraints all but 1 in (4/3)^m are."""

UNRESOLVED_SPLITS = 3
"""Splits of QuickXplain that may be UNRESOLVED: from then on it would keep too much at too many calls."""


def reduce_units(subsets: Subsets[C], *, hints: Sequence[int] = (), seed: int = 0) -> None:
    """Drop units until none can be dropped by itself.

    Suspects alone, then halves, then prefix and suffix, then QuickXplain, as long as nearly all subsets can be judged;
    then the sweep, which ends with every single unit tried.

    Args:
        subsets: whose best case is cut down.
        hints: indices of suspected units, the most suspected first. They cost two calls if they are wrong.
        seed: for the order of last tries.

    Raises:
        BudgetSpent: when the budget is spent; the best case so far is with the gate.
        Unsteady: when the failure is found to come and go.
    """
    if not (hints and subsets.fails(hints, HINTS)) and len(hints) > 1:
        subsets.fails(hints[:1], HINTS)
    try:
        subsets.allow(UNRESOLVED_CUTS)
        narrow_to_window(subsets)
        if len(subsets.best) > 1:
            ends = narrow(subsets)
            subsets.allow(UNRESOLVED_SPLITS)
            if ends < subsets.best:
                explain(subsets, ends)
    except Patience:
        pass
    subsets.allow(None)
    sweep(subsets, seed=seed)
