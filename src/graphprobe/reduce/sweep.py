"""Drops what can be dropped, chunk by chunk and then unit by unit, where failures are not monotone."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import TypeVar

from graphprobe.reduce.outcome import OracleVerdict
from graphprobe.reduce.space import Candidate
from graphprobe.reduce.subsets import Subsets

C = TypeVar("C", bound=Candidate)

SWEEP, SINGLES, COMPANY = "sweep", "singles", "company"

CHUNKS = 48
"""The first pass tries this many chunks. With m random constraints between units, a chunk of less than 1/m of them goes
more often than not, and what goes takes its constraints along."""

PAIRS = 8
"""Units that cannot be dropped alone are tried in pairs up to this number of them."""


def sweep(subsets: Subsets[C], *, seed: int = 0) -> None:
    """Drop chunks of the best case, from the end, until no unit of it can be dropped by itself.

    A chunk whose loss makes the failure disappear holds something needed, which is found by bisection. A chunk whose
    loss cannot be judged is left for the next pass: most often something that needs it was still there. A pass that
    gained much is repeated, else the chunks are halved. At the end every single unit has been tried on the case as it
    is then, and those that could not be judged have been tried together.
    """
    size = max(1, len(subsets.best) // CHUNKS)
    needed: set[int] = set()
    while size > 1:
        before = len(subsets.best)
        _pass(subsets, size, needed)
        after = len(subsets.best)
        if before - after < before // 3:
            size //= 2
        size = min(size, max(1, after // 2))
    while _singles(subsets, needed) or _singles(subsets, set()) or _company(subsets, seed):
        pass


def _pass(subsets: Subsets[C], size: int, needed: set[int]) -> None:
    """Try to drop each chunk once, from the end; units found to be needed are added to `needed` and not tried.

    Chunks grow by a quarter as long as they can be dropped.
    """
    todo = sorted(subsets.best - needed)
    step = size
    while todo:
        chunk = todo[-step:]
        del todo[-step:]
        verdict = subsets.drop(chunk, SWEEP)
        step = step + step // 4 + 1 if verdict is OracleVerdict.FAILS else size
        if verdict is OracleVerdict.PASSES:
            todo += _bisect(subsets, chunk, needed)


def _bisect(subsets: Subsets[C], chunk: list[int], needed: set[int]) -> list[int]:
    """Find the last needed unit of a chunk that holds one, and drop those after it. Those before it are returned."""
    low, high = 0, len(chunk)
    while high - low > 1:
        middle = (low + high) // 2
        verdict = subsets.drop(chunk[middle:high], SWEEP)
        if verdict is OracleVerdict.FAILS:
            high = middle
        elif verdict is OracleVerdict.PASSES:
            low = middle
        else:
            return chunk[:low]
    needed.add(chunk[low])
    return chunk[:low]


def _singles(subsets: Subsets[C], skip: set[int]) -> bool:
    """Drop units one by one, from the end, until a whole pass drops none. Whether any was dropped."""
    dropped = False
    while _drop_any(subsets, ([unit] for unit in sorted(subsets.best - skip, reverse=True)), SINGLES):
        dropped = True
    return dropped


def _company(subsets: Subsets[C], seed: int) -> bool:
    """Drop together units that cannot be judged alone, such as two that need each other. Whether any was dropped."""
    stuck = [u for u in sorted(subsets.best) if subsets.drop([u], COMPANY) is OracleVerdict.UNRESOLVED]
    return len(stuck) > 1 and _drop_any(subsets, _groups(stuck, seed), COMPANY)


def _groups(stuck: list[int], seed: int) -> Iterator[list[int]]:
    yield stuck
    if len(stuck) <= PAIRS:
        yield from map(list, combinations(stuck, 2))
        return
    shuffled = stuck[:]
    random.Random(seed).shuffle(shuffled)
    for order in (stuck, shuffled):
        for start in range(0, len(order), len(order) // 4):
            yield order[start : start + len(order) // 4]


def _drop_any(subsets: Subsets[C], groups: Iterable[list[int]], by: str) -> bool:
    """Try to drop each group of what is still there. Whether any was dropped."""
    dropped = False
    for group in groups:
        here = [unit for unit in group if unit in subsets.best]
        if here and subsets.drop(here, by) is OracleVerdict.FAILS:
            dropped = True
    return dropped
