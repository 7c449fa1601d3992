"""The search for the fewest units that still fail, by several strategies over one gate.

Bisection finds a fault at one place; each question is half the size of the one before. A prefix, and then a suffix of
it, are found by bisection, too. A sweep drops chunk by chunk and then unit by unit, where failures are not monotone.
QuickXplain divides and conquers (U. Junker, QUICKXPLAIN: Preferred Explanations and Relaxations for Over-Constrained
Problems, AAAI 2004): about 2k log2(n/k) calls for k needed units of n, where the failure is monotone.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations
from typing import Generic, TypeVar

from graphprobe.reduce.gate import Gate
from graphprobe.reduce.outcome import OracleVerdict
from graphprobe.reduce.space import Candidate, Space, Unit

C = TypeVar("C", bound=Candidate)

PREFIX, SUFFIX = "prefix", "suffix"

NAME = "quickxplain"

SWEEP, SINGLES, COMPANY = "sweep", "singles", "company"

CHUNKS = 48
"""The first pass tries this many chunks. With m random constraints between units, a chunk of less than 1/m of them goes
more often than not, and what goes takes its constraints along."""

PAIRS = 8
"""Units that cannot be dropped alone are tried in pairs up to this number of them."""

WINDOW = "halves"

UNTESTED = 2
"""Halves in a row that were taken because the other one passes, before one of them is asked about itself."""

HINTS = "hints"

UNRESOLVED_CUTS = 2
"""Cuts of the prefix and the suffix that may be UNRESOLVED. With m random constraints all but 1 in (4/3)^m are."""

UNRESOLVED_SPLITS = 3
"""Splits of QuickXplain that may be UNRESOLVED: from then on it would keep too much at too many calls."""


class Patience(Exception):
    """Too many subsets could not be judged: what assumes that most can be is given up."""


class Subsets(Generic[C]):
    """What the search asks. The search drops units of `best` until none can be dropped.

    Attributes:
        best: the units of the simplest failing case; all units at the start, where the whole is known to fail.
        units: of the space.
    """

    def __init__(self, space: Space[C], gate: Gate[C]) -> None:
        self.units = space.units
        self.best = frozenset(range(len(self.units)))
        self._case = gate.best
        self._space = space
        self._gate = gate
        self._known: dict[int, OracleVerdict] = {}
        self._left: int | None = None

    @property
    def current(self) -> bool:
        """Whether `best` is the best case, and not what a shrink has made simpler since."""
        return self._gate.best is self._case

    def verdict(self, keep: Collection[int], by: str) -> OracleVerdict:
        """On the case with just these units; UNRESOLVED if it cannot be built.

        Raises:
            Patience: if it is UNRESOLVED once more than `allow` admits.
            BudgetSpent: before a call that the budget does not allow.
        """
        chosen = frozenset(keep)
        mask = _mask(chosen, len(self.units))
        verdict = self._known.get(mask)
        if verdict is None:
            verdict = self._known[mask] = self._judge(chosen, by)
        else:
            stats = self._gate.stats(by)
            stats.proposed += 1
            stats.known += 1
        if verdict is OracleVerdict.UNRESOLVED and self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise Patience
        return verdict

    def fails(self, keep: Collection[int], by: str) -> bool:
        """Whether the case with just these units fails in the wanted way."""
        return self.verdict(keep, by) is OracleVerdict.FAILS

    def drop(self, units: Collection[int], by: str) -> OracleVerdict:
        """On the best without these units. FAILS only if the rest is the best from now on; it may fail and be no
        simpler, and is UNRESOLVED then.
        """
        rest = self.best.difference(units)
        verdict = self.verdict(rest, by)
        if verdict is OracleVerdict.FAILS and self.best != rest:
            return OracleVerdict.UNRESOLVED
        return verdict

    def forget(self) -> None:
        """All verdicts but failures are to be asked for anew, where the gate has forgotten them."""
        self._known = {mask: verdict for mask, verdict in self._known.items() if verdict is OracleVerdict.FAILS}

    def allow(self, unresolved: int | None) -> None:
        """How many more subsets may be UNRESOLVED before `Patience` is raised; None for any number."""
        self._left = unresolved

    def _judge(self, keep: frozenset[int], by: str) -> OracleVerdict:
        case = self._space.candidate(keep)
        if case is None:
            stats = self._gate.stats(by)
            stats.proposed += 1
            stats.unbuildable += 1
            return OracleVerdict.UNRESOLVED
        before = self._gate.best
        verdict = self._gate.judge(case, by)
        if self._gate.best is not before:
            self.best, self._case = keep, case
        return verdict


def cut(units: Sequence[Unit], order: Sequence[int], low: int, high: int) -> int:
    """Where to cut `order[low:high]` in two: near the middle by weight, where the outermost group changes.

    Cuts within the middle quarter, by number of units, are taken for equally good; of these, the one is chosen that
    leaves most groups whole.

    Args:
        units: of the space.
        order: indices into `units`.
        low: start of the part that is cut.
        high: its end; at least `low + 2`.

    Returns:
        A position strictly between the two.
    """
    weights = [units[index].weight for index in order[low:high]]
    half = sum(weights) / 2
    spread = (high - low) // 8
    before = 0
    sums = []
    for weight in weights[:-1]:
        before += weight
        sums.append(before)
    middle = min(range(len(sums)), key=lambda k: abs(sums[k] - half))

    def cost(k: int) -> tuple[int, float]:
        left, right = units[order[low + k]].path, units[order[low + k + 1]].path
        common = 0
        for a, b in zip(left, right, strict=False):
            if a != b:
                break
            common += 1
        return common if left or right else 0, abs(sums[k] - half)

    window = range(max(0, middle - spread), min(len(sums), middle + spread + 1))
    return low + 1 + min(window, key=cost)


def _mask(keep: frozenset[int], count: int) -> int:
    bits = bytearray(count // 8 + 1)
    for index in keep:
        bits[index >> 3] |= 1 << (index & 7)
    return int.from_bytes(bits, "little")


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
