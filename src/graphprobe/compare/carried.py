"""Finds weights and buffers that changed without a recorded call.

They differ from the step of an optimizer, a copy of them, or the last call that took them. The other side, which has no
such change, shows where.
"""

from __future__ import annotations

import math
from collections import defaultdict

import msgspec

from graphprobe.compare.judge import Task
from graphprobe.compare.measures import HUGE, noise_unit
from graphprobe.compare.outline import OUTPUT_ROLES, UNKNOWN, UNWRITTEN, fingerprint
from graphprobe.compare.result import CallResult, SlotResult
from graphprobe.store.calls import CallSlot

GRADIENT_NOISE = 64.0
"""Times u and the rms of the largest gradient of a step, by which the gradient of a parameter may be off."""

ADDED = 4.0
"""Times the largest difference of what backward calls gave, by which their sum may be off."""


class Stray(msgspec.Struct, frozen=True, gc=False):
    """An input that on one side is what a call gave, and on the other side is not.

    Attributes:
        value: hash of what both sides got.
        name: of the argument, and of the parameter where it is known.
        level: how far the two are apart, in the measure of `Mark.level`.
        side: which got what was given: 1 the candidate, 2 the reference.
        place: the position in the same step of the call that gave it; −1 for a call before that.
        number: the number of that one's row; else −1.
        kept: no call gave it; the call of that row got it.
    """

    value: int
    name: str
    level: float
    side: int
    place: int = -1
    number: int = -1
    kept: bool = False


class _Given:
    """What the optimizers of one rank gave in a step: names by fingerprints on either side, and of each name the
    elements on either side and the row."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.names: tuple[dict[object, str], dict[object, str]] = ({}, {})
        self.elements: dict[str, list[int]] = {}
        self.rows: dict[str, int] = {}

    def add(self, task: Task) -> None:
        for side, call in enumerate((task.candidate, task.reference)):
            for slot in call.slots:
                mark = fingerprint(slot)
                if slot.role in OUTPUT_ROLES and slot.meta is not None and mark is not None:
                    self.names[side][mark] = slot.name
                    self.elements.setdefault(slot.name, [0, 0])[side] = math.prod(slot.meta.shape)
                    self.rows[slot.name] = task.number


class _StateSeen:
    """What calls of one rank got of the state of modules: each value with that of the other side, and the row."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.before: tuple[dict[object, tuple[object, int]], dict[object, tuple[object, int]]] = ({}, {})
        self.here: tuple[dict[object, tuple[object, int]], dict[object, tuple[object, int]]] = ({}, {})

    def enter(self, step: int) -> None:
        """Another step: what was got in the one before it stays known."""
        self.before = self.here if step == self.step + 1 else ({}, {})
        self.here, self.step = ({}, {}), step

    def add(self, marks: tuple[object, object], number: int) -> None:
        """Note what a call got on the two sides."""
        self.here[0][marks[0]] = marks[1], number
        self.here[1][marks[1]] = marks[0], number

    def unlike(self, marks: tuple[object, object]) -> tuple[int, int] | None:
        """The side whose value has stayed, 1 or 2, and the row that got it with another value on the other side."""
        for side, mine, theirs in ((1, marks[0], marks[1]), (2, marks[1], marks[0])):
            before = self.here[side - 1].get(mine) or self.before[side - 1].get(mine)
            if before is not None and before[0] != theirs:
                return side, before[1]
        return None


class _Gradients:
    """What the backward calls of a step gave of gradients that have the shape of a parameter: the largest, and by how
    much they are apart at most."""

    def __init__(self) -> None:
        self.step, self.largest, self.far = -1, 0.0, 0.0
        self.shapes: set[object] = set()

    def excess(self, task: Task, row: CallResult) -> tuple[float, float]:
        """See `Mark.gradient` and `Mark.explained`; notes the gradients that a backward returns."""
        if task.step != self.step:
            self.step, self.largest, self.far = task.step, 0.0, 0.0
        if row.direction == "backward":
            for slot in row.slots:
                if slot.role in OUTPUT_ROLES and slot.reference is not None and slot.reference.shape in self.shapes:
                    self.largest = max(self.largest, rms_of(slot))
                    self.far = max(self.far, distance_of(slot) if slot.level else 0.0)
        found = -1.0, ADDED * self.far
        if row.direction == "backward" or not self.largest or task.candidate.kind == "module":
            return found
        for slot in row.slots:
            if slot.role not in ("grad_output", "input") or slot.origin not in ("unrecorded", "computed"):
                continue
            if not slot.level or slot.reference is None or slot.reference.shape not in self.shapes:
                continue
            mine, theirs = slots_of(task, slot)
            if mine is None or theirs is None or (_producer(task, 0, mine) >= 0 and _producer(task, 1, theirs) >= 0):
                continue
            limit = max(GRADIENT_NOISE * unit_of(slot) * self.largest, ADDED * self.far)
            found = max(found, (distance_of(slot) / limit, limit) if limit else found)
        return found


class Carried:
    """What the last steps of optimizers gave, and the last calls got, of each rank."""

    def __init__(self) -> None:
        self._given: dict[int, _Given] = {}
        self._kept: dict[int, _StateSeen] = {}
        self._gradients: defaultdict[int, _Gradients] = defaultdict(_Gradients)

    def gradient(self, task: Task, row: CallResult) -> tuple[float, float]:
        """See `Mark.gradient` and `Mark.explained`."""
        return self._gradients[task.rank].excess(task, row)

    def add(self, task: Task) -> None:
        """Note what a step of an optimizer gives."""
        if task.rank not in self._given or self._given[task.rank].step != task.step:
            self._given[task.rank] = _Given(task.step)
        self._given[task.rank].add(task)

    def strays(self, task: Task, row: CallResult) -> tuple[Stray, ...]:
        """Inputs of a pair that are, on one side alone, what a call of this step or the optimizer's last step gave, or
        what calls of this step or the last one got."""
        kept = self._kept.get(task.rank) or self._kept.setdefault(task.rank, _StateSeen(task.step))
        if kept.step != task.step:
            kept.enter(task.step)
        found = self._strays(task, row)
        for slot in row.slots:
            if slot.origin == "state" and slot.role not in OUTPUT_ROLES:
                if slot.reference is not None and (gradients := self._gradients.get(task.rank)) is not None:
                    gradients.shapes.add(slot.reference.shape)
                mine, theirs = slots_of(task, slot)
                marks = fingerprint(mine) if mine else None, fingerprint(theirs) if theirs else None
                if None not in marks:  # a constant, without a digest, says nothing of what is the same
                    kept.add(marks, row.number)
        return tuple(found)

    def _strays(self, task: Task, row: CallResult) -> list[Stray]:
        found: list[Stray] = []
        shards = task.candidate.has_shard and task.candidate.rank != task.reference.rank
        for slot in row.slots:
            shard = shards and slot.basis == "part"  # differs by design; not so what changed it on one side alone
            if not (slot.level or shard) or slot.origin not in ("state", "unrecorded") or slot.role in OUTPUT_ROLES:
                continue
            mine, theirs = slots_of(task, slot)
            if mine is not None and theirs is not None and mine.meta is not None:
                stray = self._stray(task, (mine, theirs), HUGE if shard else unit_of(slot) * slot.level)
                found.extend([] if stray is None else [stray])
        return found

    def _stray(self, task: Task, slots: tuple[CallSlot, CallSlot], level: float) -> Stray | None:
        made = _producer(task, 0, slots[0]), _producer(task, 1, slots[1])
        marks = fingerprint(slots[0]), fingerprint(slots[1])
        if UNWRITTEN in made or None in marks:
            return None
        value, name = hash(marks), slots[0].name
        if (made[0] >= 0) != (made[1] >= 0):
            return Stray(value, name, level, 1 if made[0] >= 0 else 2, place=max(made))
        given = self._given.get(task.rank)
        if given is None or slots[0].meta is None:
            return self._unlike(task, marks, value, name, level)
        names = [names.get(mark) for names, mark in zip(given.names, marks, strict=True)]
        parameter = names[0] or names[1]
        size = math.prod(slots[0].meta.shape)
        if parameter is None:
            return self._unlike(task, marks, value, name, level)
        if all(names) or given.elements[parameter] != [size, size]:
            return None
        name = f"{name} ({parameter.removeprefix('output.')})"
        return Stray(value, name, level, 1 if names[0] else 2, number=given.rows[parameter])

    def _unlike(self, task: Task, marks: tuple[object, object], value: int, name: str, level: float) -> Stray | None:
        """State that no step of an optimizer gave to either side, and that has stayed what it was on one of them."""
        unlike = self._kept[task.rank].unlike(marks)
        return None if unlike is None else Stray(value, name, level, unlike[0], number=unlike[1], kept=True)


def _producer(task: Task, side: int, slot: CallSlot) -> int:
    """The position of the call that gave a value of the candidate, 0, or of the reference, 1."""
    slots = task.reference.slots if side else task.candidate.slots
    return next((by for one, by in zip(slots, task.producers[side], strict=True) if one is slot), UNKNOWN)


def slots_of(task: Task, slot: SlotResult) -> tuple[CallSlot | None, CallSlot | None]:
    """What a result is of: the slot of the candidate's call and of the reference's; None for one that is not there."""
    mine = next((one for one in task.candidate.slots if one.name == slot.name), None)
    other = slot.reference_name or slot.name
    return mine, next((one for one in task.reference.slots if one.name == other), None)


def unit_of(slot: SlotResult) -> float:
    """The larger u of the two sides; 0 where one has none."""
    a, b = slot.candidate, slot.reference
    return noise_unit(a.dtype, b.dtype) if a is not None and b is not None and a.dtype and b.dtype else 0.0


def rms_of(slot: SlotResult) -> float:
    """The root of the mean square of the reference, as far as the dump tells."""
    side = slot.reference
    count = math.prod(side.shape) if side is not None and side.shape is not None else 0
    return side.l2 / math.sqrt(count) if side is not None and side.l2 is not None and count else 0.0


def distance_of(slot: SlotResult) -> float:
    """How far two tensors are apart: the largest element, or the largest of what statistics show."""
    if slot.max_abs is not None:
        return slot.max_abs
    a, b = slot.candidate, slot.reference
    if a is None or b is None:
        return math.inf
    pairs = ((a.min, b.min), (a.max, b.max), (a.mean, b.mean))
    gaps = [abs(x - y) for x, y in pairs if x is not None and y is not None]
    return max([*gaps, abs(rms_of(slot) - rms_of(msgspec.structs.replace(slot, reference=a)))], default=math.inf)
