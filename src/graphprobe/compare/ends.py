"""What calls without a partner give and nothing recorded uses: it may be what the program returns.

One call of compiled code stands for many of eager code, and a fused operation for the two that it replaces: then the
calls have no partners, and what the last of them give is the same. Everything else that they give is used by other
calls, where it is compared.
"""

from __future__ import annotations

from graphprobe.compare.judge import Judge, Task
from graphprobe.compare.measures import noise_unit
from graphprobe.compare.naming import canonical
from graphprobe.compare.outline import OUTPUT_ROLES, UNWRITTEN
from graphprobe.compare.pairing import Lone
from graphprobe.compare.randomness import draws
from graphprobe.store.calls import Call, CallSlot

NOISE = 64.0
"""Units of noise, rms of z, by which two such values may differ: between them may lie a whole compiled model."""

FAR = 0.5
"""Share of their norms by which two values differ that need not be read to know that they do."""

CASTS = frozenset("to type type_as float double half bfloat16".split())

End = tuple[Call, CallSlot, int]


class Ends:
    """Collects what the calls without a partner give; `loose` says which of it the other side has not."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._casts: set[int] = set()
        self._given: dict[tuple[int, int, tuple[int, ...]], tuple[list[End], list[End]]] = {}
        self._ends: list[tuple[int, End]] = []

    def add(self, lone: Lone) -> None:
        """Note what a call without a partner gives, and what of it nobody uses. `zeros` and its like compute nothing:
        modules call them once, when they are used for the first time."""
        if canonical(lone.call.api) in CASTS:
            self._casts.add(lone.number)
        slots = lone.call.slots
        fresh = not draws(lone.call) and all(slot.meta is None or slot.role in OUTPUT_ROLES for slot in slots)
        for place, slot in enumerate(slots):
            if slot.role not in OUTPUT_ROLES or slot.meta is None or lone.producers[place] == UNWRITTEN:
                continue
            end = (lone.call, slot, lone.number)
            self._give(end, lone.side, lone.rank, lone.step)
            if place in lone.unused and not lone.kept and not fresh:
                self._ends.append((lone.side, end))

    def add_pair(self, task: Task) -> None:
        """Note what only one side of a pair gives: compiled code gives the gradients of all parameters at once."""
        names = [{slot.name for slot in call.slots} for call in (task.candidate, task.reference)]
        if names[0] == names[1]:
            return
        for side, call in ((1, task.candidate), (2, task.reference)):
            for slot in call.slots:
                if slot.role in OUTPUT_ROLES and slot.meta is not None and slot.name not in names[2 - side]:
                    self._give((call, slot, task.number), side, task.rank, task.step)

    def _give(self, end: End, side: int, rank: int, step: int) -> None:
        assert end[1].meta is not None
        self._given.setdefault((rank, step, end[1].meta.shape), ([], []))[side - 1].append(end)

    def loose(self, *, mixed: bool) -> frozenset[int]:
        """Numbers of the rows of calls that give something of which the other side's calls without a partner have no
        equal.

        `mixed`: the runs differ in precision, so that one of them converts where the other has nothing to convert.
        """
        found: set[int] = set()
        for side, (call, slot, number) in self._ends:
            assert slot.meta is not None
            if number in found or (mixed and number in self._casts):
                continue
            others = self._given[(call.rank, call.step, slot.meta.shape)][2 - side]
            if not any(self._same((call, slot), other[:2], side) for other in reversed(others)):
                found.add(number)
        return frozenset(found)

    def _same(self, end: tuple[Call, CallSlot], other: tuple[Call, CallSlot], side: int) -> bool:
        a, b = end[1], other[1]
        assert a.meta is not None and b.meta is not None
        norms = [one.stats.l2 for one in (a, b) if one.stats is not None and one.stats.l2 is not None]
        if len(norms) == 2 and abs(norms[0] - norms[1]) > FAR * max(norms):
            return False
        measured = self._judge.distance(end, other) if side == 1 else self._judge.distance(other, end)
        if measured.basis == "none" or measured.mismatched:
            return False
        return measured.level <= NOISE if noise_unit(a.meta.dtype, b.meta.dtype) else not measured.unequal
