"""QuickXplain: the units that a failure needs, by divide and conquer.

The algorithm is that of U. Junker, QUICKXPLAIN: Preferred Explanations and Relaxations for Over-Constrained Problems,
AAAI 2004. It takes about 2k log2(n/k) calls for k needed units of n, where the failure is monotone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from graphprobe.reduce.space import Candidate
from graphprobe.reduce.subsets import Subsets, cut

C = TypeVar("C", bound=Candidate)

NAME = "quickxplain"


def explain(subsets: Subsets[C], fixed: frozenset[int]) -> frozenset[int]:
    """A smallest set of units of the best case that, with `fixed`, fails; minimal if the failure is monotone.

    Where it is not, the set may not fail; the best case is then what the search came by.

    Args:
        subsets: whose best case is explained.
        fixed: units known to be needed.
    """
    order = sorted(subsets.best - fixed)
    needed = fixed.union(_needed(subsets, fixed, True, order) if order else ())
    subsets.fails(needed, NAME)
    return needed


def _needed(subsets: Subsets[C], fixed: frozenset[int], grown: bool, order: Sequence[int]) -> list[int]:
    """The units of `order` that are needed on top of `fixed`; `grown` says that `fixed` is new and was not asked."""
    if grown and subsets.fails(fixed, NAME):
        return []
    if len(order) == 1:
        return list(order)
    middle = cut(subsets.units, order, 0, len(order))
    first, second = order[:middle], order[middle:]
    late = _needed(subsets, fixed.union(first), True, second)
    early = _needed(subsets, fixed.union(late), bool(late), first)
    return [*early, *late]
