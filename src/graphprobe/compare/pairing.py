"""Two streams of calls, walked once side by side: tasks to be judged and calls without a partner, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from graphprobe.compare.align import Alignment
from graphprobe.compare.judge import Task
from graphprobe.compare.outline import UNWRITTEN, Outline
from graphprobe.store.calls import Call, CallDump


@dataclass(slots=True)
class Lone:
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


KEPT = 16384
"""Calls of one step that are kept from their first reading to the second: some 50 MB a side."""


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


@dataclass(slots=True)
class Plan:
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
    _paths: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))
    _forward: tuple[dict[object, Call], dict[object, Call]] = field(default_factory=lambda: ({}, {}))

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
