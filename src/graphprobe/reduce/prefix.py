"""The smallest failing prefix, then the smallest failing suffix of it, each by bisection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from graphprobe.reduce.space import Candidate
from graphprobe.reduce.subsets import Subsets, cut

C = TypeVar("C", bound=Candidate)

PREFIX, SUFFIX = "prefix", "suffix"


def smallest_prefix(subsets: Subsets[C], order: Sequence[int], fixed: frozenset[int], by: str) -> int:
    """The length of a failing prefix of `order`, to which `fixed` is added, that fails no more when cut by one unit.

    All of `order` with `fixed` is known to fail and `fixed` alone not to. Where a superset of what fails may not fail,
    the prefix fails all the same but may not be the smallest. Takes log2 of the length in calls.
    """
    low, high = 0, len(order)
    while high - low > 1:
        middle = cut(subsets.units, order, low, high)
        if subsets.fails(fixed.union(order[:middle]), by):
            high = middle
        else:  # also where it could not be judged: the next cut drops less
            low = middle
    return high


def narrow(subsets: Subsets[C]) -> frozenset[int]:
    """Cut the best case down at both ends.

    Returns:
        The first and the last unit of what is left; both are needed if the failure is monotone. One unit if it fails
        by itself.
    """
    order = sorted(subsets.best)
    order = order[: smallest_prefix(subsets, order, frozenset(), PREFIX)]
    last = frozenset(order[-1:])
    if len(order) == 1 or subsets.fails(last, SUFFIX):
        return last
    backwards = order[-2::-1]
    backwards = backwards[: smallest_prefix(subsets, backwards, last, SUFFIX)]
    return last | {backwards[-1]}
