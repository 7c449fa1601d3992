"""The compact outline of a sequence of calls: what pairing needs, in a few numbers a call."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Iterable, Iterator

import msgspec

from graphprobe.compare.naming import canonical
from graphprobe.compare.randomness import gives_alias, is_half_written, is_overwritten, is_undefined
from graphprobe.store.calls import Call, CallSlot

OUTPUT_ROLES = ("output", "grad_input", "grad_parameter")
"""What a call gives; the other roles are what it gets."""

KIND_OF_KIND = {"api": "op", "node": "op", "value": "op", "kernel": "op", "module": "module", "optimizer": "optimizer"}
"""An operation is one whether it was recorded as an API call or as a node of a graph."""


UNKNOWN, UNWRITTEN = -1, -2
"""In place of a producer: none is known; or the value is memory that nobody has written to yet."""


def role_of(call: Call, slot: CallSlot) -> str:
    """The role of a slot; the gradient of a parameter, which a backward gives, is what a step of an optimizer gets."""
    return "grad_output" if call.kind == "optimizer" and slot.role == "grad_parameter" else slot.role


class Outline(msgspec.Struct):
    """One line of numbers for each call of one rank and step.

    Attributes:
        exact: hash of kind, api, index, direction and module.
        strong: hash of what was called, direction, module and the shapes of all tensors.
        shape: the same without the module.
        path: hash of what was called, direction and module.
        api: hash of the api's own name.
        steps: whether it is the step of an optimizer.
        gap: hash of direction and the shapes of what it gives.
        producers: for each slot of each call, the position of the call that gave this value, or `UNKNOWN` or
            `UNWRITTEN`; `first` has where a call's slots begin. What a module gives was given by a call inside it, if
            that was recorded.
        sources: for each slot of each call, as which of its results, from 0, that call gave the value; -1 unless known.
        outputs_kept: whether the call gives back, bit for bit, something it got.
        used: for each slot of each call, whether a later call of the outline got the value that it gave, or gave the
            same value again. A gradient of what another call gave counts as used: autograd adds it to others.
        consumed: whether a later call got anything that the call gave.
        fed: how many calls got something that an earlier one gave.
    """

    exact: array[int] = msgspec.field(default_factory=lambda: array("q"))
    strong: array[int] = msgspec.field(default_factory=lambda: array("q"))
    shape: array[int] = msgspec.field(default_factory=lambda: array("q"))
    path: array[int] = msgspec.field(default_factory=lambda: array("q"))
    api: array[int] = msgspec.field(default_factory=lambda: array("q"))
    gap: array[int] = msgspec.field(default_factory=lambda: array("q"))
    steps: bytearray = msgspec.field(default_factory=bytearray)
    first: array[int] = msgspec.field(default_factory=lambda: array("q", [0]))
    producers: array[int] = msgspec.field(default_factory=lambda: array("i"))
    sources: array[int] = msgspec.field(default_factory=lambda: array("i"))
    used: bytearray = msgspec.field(default_factory=bytearray)
    outputs_kept: bytearray = msgspec.field(default_factory=bytearray)
    consumed: bytearray = msgspec.field(default_factory=bytearray)
    fed: int = 0

    def __len__(self) -> int:
        return len(self.exact)

    def producers_of(self, number: int) -> array[int]:
        """The producers of a call's slots, in order."""
        return self.producers[self.first[number] : self.first[number + 1]]

    def source_of(self, number: int, slot: int) -> int:
        """As which of its results a call gave the value of a slot of the call of this number."""
        return self.sources[self.first[number] + slot]

    def used_of(self, number: int) -> bytearray:
        """Whether each of a call's slots was used, in order."""
        return self.used[self.first[number] : self.first[number + 1]]


def fingerprint(slot: CallSlot) -> object:
    """Something that is equal for equal values and hardly ever for others; None where the dump has too little."""
    if slot.digest:
        return (slot.digest_kind, slot.digest)
    stats = slot.stats
    if stats is None or stats.count < 2 or (stats.l2 is None and stats.mean is None):
        return None
    if stats.min == stats.max:
        return None  # a constant: zeros are everywhere
    return (stats.count, stats.min, stats.max, stats.mean, stats.l2)


def outline_from_calls(calls: Iterable[Call]) -> Outline:
    """Reads the calls once. Memory: about 60 bytes a call, 4 a slot, and 100 for each distinct value."""
    sketch = _Sketch()
    for call in calls:
        sketch.add(call)
    for place in sketch.stale.places():
        sketch.result.producers[place] = UNWRITTEN
    return sketch.result


class _Stale:
    """Values that come from nowhere, or out of memory that nobody has written to, and that are overwritten before any
    call reads them. They are what the memory happened to hold: of a storage that the program has enlarged, say, or of
    a buffer of which a collective fills the rest."""

    def __init__(self) -> None:
        self.at: dict[int, list[int] | None] = {}
        self._spent: set[int] = set()

    def meet(self, key: int, place: int, lives: bool, spent: bool) -> None:
        """A slot has a value that was met before, or that no call has given before, or one that read memory which
        nobody has written to.

        Args:
            lives: it was read there, or computed, or the program holds it.
            spent: it is overwritten there.
        """
        if spent:
            self._spent.add(key)
        if lives:
            self.at[key] = None
        elif (at := self.at.setdefault(key, [])) is not None:
            at.append(place)

    def places(self) -> Iterator[int]:
        """The slots that have such values."""
        for key in self._spent:
            yield from self.at[key] or ()


class _Sketch:
    """An outline in the making. Values are known by the hashes of their fingerprints.

    Attributes:
        last: of each value, the call that gave it last, which slot, which of its results, and the module of that call.
        unwritten: values that memory had before anybody wrote to it.
        held: of a forward call, the names of the gradients of what the program holds.
        around: of a slot, those of the modules that give the same value to the outside.
        stale: values that are overwritten before anybody reads them.
    """

    def __init__(self) -> None:
        self.result = Outline()
        self.last: dict[int, tuple[int, int, int, str]] = {}
        self.unwritten: set[int] = set()
        self.held: dict[object, frozenset[str]] = {}
        self.around: dict[int, list[int]] = {}
        self.stale = _Stale()

    def add(self, call: Call) -> None:
        """The next call."""
        result, number, fed = self.result, len(self.result.exact), 0
        undefined, leaves, optimizer = is_undefined(call), self._leaves(call), call.kind == "optimizer"
        last, met, producers, used = self.last, self.stale.at, result.producers, result.used
        inputs: set[int] = set()
        outputs: list[tuple[int, int]] = []
        shapes: list[tuple[int, ...]] = []
        given: list[tuple[int, ...]] = []
        passes, garbled, kept = gives_alias(call), False, True
        for place, slot in enumerate(call.slots, start=len(producers)):
            role, meta, producer, source = slot.role, slot.meta, UNKNOWN, -1
            gives = role in OUTPUT_ROLES and not (optimizer and role == "grad_parameter")  # see `role_of`
            if meta is not None:
                shapes.append(meta.shape)
                if gives:
                    given.append(meta.shape)
                    producer = UNWRITTEN if undefined or is_half_written(call.api, slot.name) else UNKNOWN
            print_ = (slot.digest_kind, slot.digest) if slot.digest else fingerprint(slot)
            if print_ is not None:
                key = hash(print_)
                if gives and producer == UNKNOWN and not (garbled or passes or call.kind == "module"):
                    self.unwritten.discard(key)  # the memory of a value that was freed may be got back with it
                elif producer == UNWRITTEN or self.unwritten:
                    producer = self._or_unwritten(key, slot, producer)
                if gives:
                    outputs.append((key, place))
                else:
                    inputs.add(key)
                    spent = is_overwritten(call.api, slot.name)
                    garbled = garbled or (producer == UNWRITTEN and not spent)
                    known = key in last
                    if not known or key in met:
                        self.stale.meet(key, place, bool(slot.held) or not (passes or spent), spent)
                    if known and producer != UNWRITTEN:
                        (producer, source), fed = self._take(key), 1
            producers.append(producer)
            result.sources.append(source)
            used.append(leaves is not None and role == "grad_input" and slot.name not in leaves)
        result.fed += fed
        for key, place in outputs:
            if key in met or (garbled and key not in last):
                self.stale.meet(key, place, not (passes or garbled), spent=False)
            self._give(key, (place, place - outputs[0][1]), call, number)
            kept = kept and key in inputs
        _add_names(result, call, tuple(shapes), tuple(given))
        result.first.append(len(producers))
        result.outputs_kept.append(kept and bool(outputs))
        result.consumed.append(0)

    def _leaves(self, call: Call) -> frozenset[str] | None:
        """Of a backward, the gradients of what the program holds, as its forward told."""
        if call.direction == "backward":
            return self.held.get((call.kind, call.api, call.index))
        if any(slot.held is not None for slot in call.slots):
            names = frozenset(f"grad_{slot.name}" for slot in call.slots if slot.held)
            self.held[(call.kind, call.api, call.index)] = names
        return None

    def _or_unwritten(self, key: int, slot: CallSlot, producer: int) -> int:
        """The producer, or `UNWRITTEN` where the value is that of memory that nobody has written to."""
        if key in self.unwritten:
            return UNWRITTEN
        if producer == UNWRITTEN and not is_constant(slot):
            self.unwritten.add(key)
        return producer

    def _take(self, key: int) -> tuple[int, int]:
        """A call gets the value: who gave it, and as which of its results."""
        producer, place, source, _ = self.last[key]
        self.result.consumed[producer] = 1
        self._use(place)
        return producer, source

    def _give(self, key: int, at: tuple[int, int], call: Call, number: int) -> None:
        """A call gives the value, be it again, in a slot that is the n-th of its results."""
        place, source = at
        if key in self.last:
            _, before, _, module = self.last[key]
            self._use(before)
            if call.kind == "module" and _inside(module, call.module):
                self.around.setdefault(before, []).append(place)
                return
        self.last[key] = number, place, source, call.module

    def _use(self, place: int) -> None:
        for each in (place, *self.around.get(place, ())):
            self.result.used[each] = 1


def is_constant(slot: CallSlot) -> bool:
    """Zeros are everywhere: that memory held them says nothing of others."""
    return slot.stats is None or slot.stats.min == slot.stats.max


def _inside(path: str, module: str) -> bool:
    return not module or path == module or path.startswith(f"{module}.")


def _add_names(result: Outline, call: Call, shapes: tuple[object, ...], given: tuple[object, ...]) -> None:
    what, path, api = _names(call.kind, call.api, call.direction, call.module)
    result.exact.append(hash((call.kind, call.api, call.index, call.direction, call.module)))
    result.strong.append(hash((path, shapes)))
    result.shape.append(hash((what, shapes)))
    result.path.append(path)
    result.steps.append(call.kind == "optimizer")
    result.api.append(api)
    result.gap.append(hash((call.direction, given)))


@functools.lru_cache(maxsize=4096)
def _names(kind: str, api: str, direction: str, module: str) -> tuple[int, int, int]:
    """Hashes: of what was called and its direction, of that with the module, of the api's own name."""
    what = (KIND_OF_KIND[kind], canonical(api), direction)
    return hash(what), hash((*what, module)), hash((kind, api))
