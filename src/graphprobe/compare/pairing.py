"""Walks two streams of calls side by side: pairs to be judged and calls without a partner, in order.

Values of calls without a partner that nothing recorded uses may be what the program returns. One call of compiled code
stands for many of eager code, and a fused operation for the two that it replaces: then the calls have no partners, and
what the last of them return is the same. Everything else that they return is compared where other calls use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from graphprobe.compare.align import Alignment
from graphprobe.compare.carried import unit_of
from graphprobe.compare.judge import Judge, Task
from graphprobe.compare.measures import HUGE, noise_unit
from graphprobe.compare.naming import canonical
from graphprobe.compare.outline import OUTPUT_ROLES, UNKNOWN, UNWRITTEN, Outline
from graphprobe.compare.randomness import draws
from graphprobe.compare.result import CallResult, SlotResult
from graphprobe.compare.slots import same_names
from graphprobe.store.calls import Call, CallDump, CallSlot

KEPT = 16384
"""Calls of one step that are kept from their first reading to the second: some 50 MB a side."""

NOISE = 64.0
"""Units of noise, rms of z, by which two such values may differ: between them may lie a whole compiled model."""

FAR = 0.5
"""Share of their norms by which two values differ that need not be read to know that they do."""

CASTS = frozenset("to type type_as float double half bfloat16".split())

End = tuple[Call, CallSlot, int]


class Lone(msgspec.Struct, kw_only=True):
    """A call without a partner. `side`: 1 the candidate's, 2 the reference's."""

    number: int
    rank: int
    step: int
    side: int
    call: Call
    reason: str
    place: int
    opposite: int = -1
    consumed: bool = False
    kept: bool = False
    unused: tuple[int, ...] = ()
    producers: tuple[int, ...] = ()


class StepCalls:
    """The calls of one step of a dump, which a comparison walks through twice; few are parsed only once."""

    def __init__(self, dump: CallDump, rank: int, step: int) -> None:
        self._dump, self._rank, self._step = dump, rank, step
        self._kept: list[Call] | None = None

    def first(self) -> Iterator[Call]:
        """The first time, to the end."""
        kept: list[Call] = []
        number = 0
        for number, call in enumerate(self._dump.calls(self._rank, self._step), start=1):
            if number <= KEPT:
                kept.append(call)
            elif kept:
                kept = []
            yield call
        self._kept = kept if number <= KEPT else None

    def again(self) -> Iterator[Call]:
        """The second time; nothing is kept any more."""
        kept, self._kept = self._kept, None
        return self._dump.calls(self._rank, self._step) if kept is None else iter(kept)


class Plan(msgspec.Struct):
    """How the calls of one rank and step pair up."""

    rank: int
    step: int
    outlines: tuple[Outline, Outline]
    alignment: Alignment
    strict_state: bool
    number: int = 0
    parts: int = 1
    keep_forward: bool = False
    _opposed: dict[int, int] | None = None
    _tally: tuple[Counter[int], Counter[int]] | None = None
    _paths: tuple[set[int], set[int]] = msgspec.field(default_factory=lambda: (set(), set()))
    _forward: tuple[dict[object, Call], dict[object, Call]] = msgspec.field(default_factory=lambda: ({}, {}))

    def entries(self, candidate: Iterable[Call], reference: Iterable[Call]) -> Iterator[Task | Lone]:
        """In the candidate's order of execution; a call that only the reference has comes where its gap is.

        Calls of the reference that are needed later (`moved`) are held in memory until then, and no others.
        """
        held: dict[int, Call] = {}
        others = enumerate(reference)
        at = -1
        back = self.alignment.back
        for i, mine in enumerate(candidate):
            j = self.alignment.partner[i]
            if j < 0:
                yield self._lone(1, i, mine)
                continue
            while at < j:
                at, call = next(others)
                if at == j:
                    held[at] = call
                elif back[at] < 0:
                    yield self._lone(2, at, call)
                else:
                    held[at] = call
            yield self._task(i, j, mine, held.pop(j))
        for at, call in others:
            if back[at] < 0:
                yield self._lone(2, at, call)

    def _next(self) -> int:
        self.number += 1
        return self.number - 1

    def _task(self, i: int, j: int, mine: Call, theirs: Call) -> Task:
        forward: tuple[Call | None, Call | None] = (None, None)
        if self.keep_forward:
            keys = _key(mine), _key(theirs)
            if mine.direction == "forward":
                self._forward[0][keys[0]], self._forward[1][keys[1]] = mine, theirs
            else:
                forward = self._forward[0].get(keys[0]), self._forward[1].get(keys[1])
        return Task(
            number=self._next(),
            rank=self.rank,
            step=self.step,
            rule=self.alignment.rules[i],
            candidate=mine,
            reference=theirs,
            producers=(
                tuple(self.outlines[0].producers_of(i)),
                tuple(self.outlines[1].producers_of(j)),
            ),
            places=(i, j),
            forward=forward,
            strict_state=self.strict_state,
            parts=self.parts,
        )

    def _lone(self, side: int, place: int, call: Call) -> Lone:
        outline = self.outlines[side - 1]
        opposite = self.alignment.opposite.get(place, -1) if side == 1 else -1
        if side == 2:
            if self._opposed is None:
                self._opposed = {j: i for i, j in self.alignment.opposite.items()}
            opposite = self._opposed.get(place, -1)
        return Lone(
            number=self._next(),
            rank=self.rank,
            step=self.step,
            side=side,
            call=call,
            reason=self._why(side, place, opposite),
            place=place,
            opposite=opposite if side == 1 else -1,
            consumed=bool(outline.consumed[place]),
            kept=bool(outline.outputs_kept[place]),
            unused=tuple(
                i
                for i, (used, by) in enumerate(zip(outline.used_of(place), outline.producers_of(place), strict=True))
                if not used and by != UNWRITTEN
            ),
            producers=tuple(outline.producers_of(place)),
        )

    def _why(self, side: int, place: int, opposite: int) -> str:
        mine, _theirs = self.outlines if side == 1 else self.outlines[::-1]
        other = "reference" if side == 1 else "candidate"
        if opposite >= 0:
            return f"in its place the {other} has another operation that gives the same shapes"
        if self._tally is None:
            self._tally = Counter(self.outlines[0].shape), Counter(self.outlines[1].shape)
            self._paths = set(self.outlines[0].path), set(self.outlines[1].path)
        here, there = (tally[mine.shape[place]] for tally in (self._tally if side == 1 else self._tally[::-1]))
        if there:
            return (
                f"{here} calls of this operation with these shapes, {there} in the {other}; this one fits none in order"
            )
        if mine.path[place] in self._paths[2 - side]:
            return f"the {other} calls it in this module with other shapes, elsewhere"
        return f"the {other} has no such operation with these shapes"


def _key(call: Call) -> object:
    return (call.kind, call.api, call.index, call.module if call.index < 0 else "")


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
        if same_names(task.candidate.slots, task.reference.slots):
            return
        names = [{slot.name for slot in call.slots} for call in (task.candidate, task.reference)]
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


def _producers(task: Task) -> tuple[dict[str, int], dict[str, int]]:
    """By the names of slots, for either side."""
    return (
        {slot.name: by for slot, by in zip(task.candidate.slots, task.producers[0], strict=True)},
        {slot.name: by for slot, by in zip(task.reference.slots, task.producers[1], strict=True)},
    )


def wires_of(plan: Plan, task: Task, row: CallResult) -> tuple[tuple[float, float, int, int], ...]:
    """Inputs that differ and whose producers are not each other's partners.

    Of a gradient that comes in, both may be unknown: it is the sum of what several calls gave. An argument whose
    producer is unknown on both sides is of unrecorded origin, see `_unrecorded`.
    """
    differing = [slot for slot in row.slots if (slot.level > 0 or slot.fault) and slot.role not in OUTPUT_ROLES]
    if not differing:
        return ()
    mine, theirs = _producers(task)
    found = []
    for slot in differing:
        if slot.origin in ("state", "unwritten"):
            continue
        a, b = mine.get(slot.name, UNKNOWN), theirs.get(slot.reference_name or slot.name, UNKNOWN)
        if UNWRITTEN in (a, b) or (
            a >= 0 and b >= 0 and plan.alignment.partner[a] == b and _same_result(plan, task, slot)
        ):
            continue
        if a >= 0 or b >= 0 or slot.role == "grad_output":
            unit = unit_of(slot)
            found.append((HUGE if slot.fault else slot.level * unit, slot.z * unit, a, b))
    return tuple(found)


def _same_result(plan: Plan, task: Task, slot: SlotResult) -> bool:
    """Whether a value that partners gave is the same of their results on both sides."""
    names, calls, found = (slot.name, slot.reference_name or slot.name), (task.candidate, task.reference), []
    for outline, place, call, name in zip(plan.outlines, task.places, calls, names, strict=True):
        at = next((i for i, one in enumerate(call.slots) if one.name == name), -1)
        found.append(outline.source_of(place, at) if at >= 0 else -1)
    return -1 in found or found[0] == found[1]


def fed_alone_of(plan: Plan, task: Task) -> tuple[tuple[int, int, int], ...]:
    """Inputs, different or not, that a call without a partner gave: name, and producers."""
    partner, back = plan.alignment.partner, plan.alignment.back
    ours, others = task.producers
    if not [a for a in ours if a >= 0 and partner[a] < 0] and not [b for b in others if b >= 0 and back[b] < 0]:
        return ()
    mine, theirs = _producers(task)
    found = []
    for name in mine.keys() | theirs.keys():
        a, b = mine.get(name, UNKNOWN), theirs.get(name, UNKNOWN)
        if (a >= 0 and partner[a] < 0) or (b >= 0 and back[b] < 0):
            found.append((hash(name), a, b))
    return tuple(found)
