"""The compact outline of a sequence of calls: what pairing needs, in a few numbers a call."""

from __future__ import annotations

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
        _add_names(result, call)
        inputs: set[int] = set()
        outputs: list[int] = []
        for slot in call.slots:
            print_ = fingerprint(slot)
            key = hash(print_) if print_ is not None else None
            producer = -1
            if role_of(call, slot) in OUTPUT_ROLES:
                if key is not None:
                    outputs.append(key)
            elif key is not None:
                producer = last.get(key, -1)
                inputs.add(key)
                if producer >= 0:
                    result.consumed[producer] = 1
            result.producers.append(producer)
        for key in outputs:
            last[key] = number
        result.first.append(len(result.producers))
        result.outputs_kept.append(1 if outputs and inputs.issuperset(outputs) else 0)
        result.consumed.append(0)
    return result


def _add_names(result: Outline, call: Call) -> None:
    what = (KIND_OF_KIND[call.kind], canonical(call.api), call.direction)
    shapes = tuple(slot.meta.shape for slot in call.slots if slot.meta is not None)
    given = tuple(s.meta.shape for s in call.slots if s.meta is not None and role_of(call, s) in OUTPUT_ROLES)
    result.exact.append(hash((call.kind, call.api, call.index, call.direction, call.module)))
    result.strong.append(hash((*what, call.module, shapes)))
    result.shape.append(hash((*what, shapes)))
    result.path.append(hash((*what, call.module)))
    result.api.append(hash((call.kind, call.api)))
    result.gap.append(hash((call.direction, given)))
