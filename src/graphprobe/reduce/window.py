"""One fault in one place: halves of the case, and halves of these, so that questions get cheap fast."""

from __future__ import annotations

from typing import TypeVar

from graphprobe.reduce.space import Candidate
from graphprobe.reduce.subsets import Subsets, cut

C = TypeVar("C", bound=Candidate)

WINDOW = "halves"

UNTESTED = 2
"""Halves in a row that were taken because the other one passes, before one of them is asked about itself."""


def narrow_to_window(subsets: Subsets[C]) -> None:
    """Narrow the best case down to a run of its units, as long as one half of it fails without the other.

    The first half is asked about. If it passes, the second is taken to fail, as it does where a single place is at
    fault, and that is tested a little later: the best case is always one that was seen to fail. Takes about log2 of the
    number of units in calls, on pieces of which each has half the units of the one before; two or three calls are lost
    where the failure needs units from both halves.
    """
    order = sorted(subsets.best)
    low, high = 0, len(order)
    untested, allowed = 0, UNTESTED
    while True:
        if untested and (untested >= allowed or high - low == 1):
            if not subsets.fails(order[low:high], WINDOW):
                return
            untested, allowed = 0, allowed * 2
        if high - low == 1:
            return
        middle = cut(subsets.units, order, low, high)
        if subsets.fails(order[low:middle], WINDOW):
            high, untested = middle, 0
        else:
            low = middle
            untested += 1
