"""The four statistics of the other tools and ours: theirs are of all elements, ours of the finite ones and counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from graphprobe.records import TensorStats


class TorchSummary(NamedTuple):
    """Of all elements, as torch computes them: a NaN makes each of them NaN. None is unknown."""

    max: float | None
    min: float | None
    mean: float | None
    l2: float | None


def summary_from_stats(stats: TensorStats | None) -> TorchSummary:
    """What torch's own reductions give for a tensor of these statistics."""
    if stats is None:
        return TorchSummary(None, None, None, None)
    if stats.nan:
        return TorchSummary(math.nan, math.nan, math.nan, math.nan)
    high = math.inf if stats.positive_inf else stats.max
    low = -math.inf if stats.negative_inf else stats.min
    mean, norm = stats.mean, stats.l2
    if stats.positive_inf or stats.negative_inf:
        both = stats.positive_inf and stats.negative_inf
        mean, norm = (math.nan if both else math.inf if stats.positive_inf else -math.inf), math.inf
    # Without a finite element, all are infinite, and of one sign if only one of both is known.
    return TorchSummary(low if high is None else high, high if low is None else low, mean, norm)


def stats_from_known(count: int, known: Mapping[str, float]) -> TensorStats | None:
    """Statistics of which only some fields are known, as the tool wrote them, NaN and Inf included."""
    if not known:
        return None
    low, high, mean, norm = (known.get(name) for name in ("min", "max", "mean", "l2"))
    return TensorStats(count=count, min=low, max=high, mean=mean, l2=norm)
