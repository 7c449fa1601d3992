"""The compact outline of a sequence of calls: what pairing needs, in a few numbers a call."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from graphprobe.compare.naming import canonical
from graphprobe.store.calls import Call, CallSlot

OUTPUT_ROLES = ("output", "grad_input", "grad_parameter")
"""What a call gives; the other roles are what it gets."""

KIND_OF_KIND = {"api": "op", "node": "op", "value": "op", "kernel": "op", "module": "module", "optimizer": "optimizer"}
"""An operation is one whether it was recorded as an API call or as a node of a graph."""


def role_of(call: Call, slot: CallSlot) -> str:
    """The role of a slot; the gradient of a parameter, which a backward gives, is what a step of an optimizer gets."""
    return "grad_output" if call.kind == "optimizer" and slot.role == "grad_parameter" else slot.role


Shapes = tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class Outline:
    """One line of numbers for each call of one rank and step.

    Attributes:
        exact: hash of kind, api, index, direction and module.
        strong: hash of what was called, direction, module and the shapes of all tensors.
        shape: the same without the module.
        path: hash of what was called, direction and module.
        api: hash of the api's own name.
        gap: hash of direction and the shapes of what it gives.
        producers: for each slot of each call, the position of the call that gave this value, -1 for none; `first` has
            where a call's slots begin.
        outputs_kept: whether the call gives back, bit for bit, something it got.
        consumed: whether a later call of the outline got what it gave.
        fed: how many calls got something that an earlier one gave.
    """

    exact: array[int] = field(default_factory=lambda: array("q"))
    strong: array[int] = field(default_factory=lambda: array("q"))
    shape: array[int] = field(default_factory=lambda: array("q"))
    path: array[int] = field(default_factory=lambda: array("q"))
    api: array[int] = field(default_factory=lambda: array("q"))
    gap: array[int] = field(default_factory=lambda: array("q"))
    first: array[int] = field(default_factory=lambda: array("q", [0]))
    producers: array[int] = field(default_factory=lambda: array("i"))
    outputs_kept: bytearray = field(default_factory=bytearray)
    consumed: bytearray = field(default_factory=bytearray)
    fed: int = 0

    def __len__(self) -> int:
        return len(self.exact)

    def producers_of(self, number: int) -> array[int]:
        """The producers of a call's slots, in order."""
        return self.producers[self.first[number] : self.first[number + 1]]


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
    result = Outline()
    last: dict[int, int] = {}
    for number, call in enumerate(calls):
        optimizer = call.kind == "optimizer"  # see `role_of`
        fed = 0
        inputs: set[int] = set()
        outputs: list[int] = []
        shapes: list[tuple[int, ...]] = []
        given: list[tuple[int, ...]] = []
        for slot in call.slots:
            role = slot.role
            gives = role in OUTPUT_ROLES and not (optimizer and role == "grad_parameter")
            if slot.meta is not None:
                shapes.append(slot.meta.shape)
                if gives:
                    given.append(slot.meta.shape)
            print_ = fingerprint(slot)
            producer = -1
            if print_ is not None:
                key = hash(print_)
                if gives:
                    outputs.append(key)
                else:
                    producer = last.get(key, -1)
                    inputs.add(key)
                    if producer >= 0:
                        result.consumed[producer] = fed = 1
            result.producers.append(producer)
        result.fed += fed
        for key in outputs:
            last[key] = number
        _add_names(result, call, tuple(shapes), tuple(given))
        result.first.append(len(result.producers))
        result.outputs_kept.append(1 if outputs and inputs.issuperset(outputs) else 0)
        result.consumed.append(0)
    return result


def _add_names(result: Outline, call: Call, shapes: Shapes, given: Shapes) -> None:
    what, path, api = _names(call.kind, call.api, call.direction, call.module)
    result.exact.append(hash((call.kind, call.api, call.index, call.direction, call.module)))
    result.strong.append(hash((path, shapes)))
    result.shape.append(hash((what, shapes)))
    result.path.append(path)
    result.api.append(api)
    result.gap.append(hash((call.direction, given)))


@functools.lru_cache(maxsize=4096)
def _names(kind: str, api: str, direction: str, module: str) -> tuple[int, int, int]:
    """Hashes: of what was called and its direction, of that with the module, of the api's own name."""
    what = (KIND_OF_KIND[kind], canonical(api), direction)
    return hash(what), hash((*what, module)), hash((kind, api))
