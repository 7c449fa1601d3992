"""Subsets of a space before the gate: built once, remembered, with the smallest failing one at hand."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Generic, TypeVar

from graphprobe.reduce.gate import Gate
from graphprobe.reduce.outcome import OracleVerdict
from graphprobe.reduce.space import Candidate, Space, Unit

C = TypeVar("C", bound=Candidate)


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
