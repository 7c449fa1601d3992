"""Numbers without torch: dtype facts, the noise of each element, distances in units of it, and the four verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphprobe.faces import loaded_on_use

if TYPE_CHECKING:
    from graphprobe.numerics import native
    from graphprobe.numerics.divergence import RunValues
    from graphprobe.numerics.item_kinds import ITEM_KINDS, TABLES
    from graphprobe.numerics.pair import PairStats
    from graphprobe.numerics.stats import stats_from_array, stats_from_memory
    from graphprobe.numerics.verdict import DEFAULT, LIBRARY, Verdict, judge, tolerated

__all__ = [
    "DEFAULT",
    "ITEM_KINDS",
    "LIBRARY",
    "TABLES",
    "PairStats",
    "RunValues",
    "Verdict",
    "judge",
    "native",
    "stats_from_array",
    "stats_from_memory",
    "tolerated",
]

__getattr__ = loaded_on_use(__name__)
