"""What the user of a program can observe of one call: taken in one way, for every rung, proof and case."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from graphprobe.engine.value_file import ValueFile, restored, stored
from graphprobe.errors import Raised, raised_from
from graphprobe.internals.tensors.trees import structure_of, tree_leaves
from graphprobe.judge.contents import contents_of, kept_in, plain_parts
from graphprobe.judge.effects import from_record, to_record


class ObservationRecord(msgspec.Struct):
    """One call as bytes.

    Attributes:
        raised: the exception that ended it.
        values: `[outputs, inputs after the call, gradients]`, see `engine.value_file.stored`; None where it raised.
        structure: the containers of what it returned, as text.
        effects: what its function can reach besides, before and after the call (`judge.effects`).
    """

    raised: Raised | None = None
    values: tuple[bytes, bytes] | None = None
    structure: str = ""
    effects: tuple[tuple[bytes, bytes], tuple[bytes, bytes]] | None = None


@dataclass(frozen=True)
class Observation:
    """One call, readable. Large values are loaded when they are looked at: let go of one before the next.

    Attributes:
        raised: the exception that ended it.
        outputs: the leaves of what it returned; then what is inside those that are objects (`contents_of`), in memory
            of its own.
        inputs: tensor arguments, parameters and buffers as the call left them; then what other objects among the
            arguments, and modules, hold (`kept_in`), in memory of its own.
        gradients: of the same, None where there is none; empty when no backward ran.
        shared: pairs (i, j), i < j: values i and j of (outputs, then inputs) share memory.
        structure: the containers of what it returned, as text; empty where unknown.
        effects: by label, what its function can reach besides, before and after the call; None where not looked at.
    """

    raised: Raised | None
    outputs: Sequence[Any] = field(default_factory=list)
    inputs: Sequence[Any] = field(default_factory=list)
    gradients: Sequence[Any] = field(default_factory=list)
    shared: frozenset[tuple[int, int]] = frozenset()
    structure: str = ""
    effects: tuple[dict[str, Any], dict[str, Any]] | None = None


def read(record: ObservationRecord) -> Observation:
    """The values of a record, restored."""
    if record.values is None:
        return Observation(record.raised)
    outputs, inputs, gradients = restored(*record.values)
    effects = None
    if record.effects is not None:
        before, after = record.effects
        effects = from_record(before), from_record(after)
    shared = _shared(json.loads(record.values[1]))
    return Observation(record.raised, outputs, inputs, gradients, shared, record.structure, effects)


def failed(error: BaseException) -> ObservationRecord:
    """The record of a call that an exception has ended."""
    return ObservationRecord(raised=raised_from(error))


def observe(
    result: Any,
    call: tuple[Sequence[Any], Mapping[str, Any]],
    inputs: Sequence[torch.Tensor],
    modules: Sequence[torch.nn.Module],
    gradients: Sequence[torch.Tensor | None],
    effects: tuple[dict[str, Any], dict[str, Any]] | None = None,
    file: ValueFile | None = None,
) -> ObservationRecord:
    """The record of a call that has returned.

    Args:
        result: what it returned.
        call: its arguments, `(args, kwargs)`, as it left them.
        inputs: the tensors among them, parameters and buffers.
        modules: those whose state belongs to the program.
        gradients: of the `inputs`; empty where no backward ran.
        effects: snapshots before and after the call.
        file: takes the large values.
    """
    leaves, own = contents_of(result), len(tree_leaves(result))
    leaves = [_detached(leaf) for leaf in leaves[:own]] + [_alone(leaf) for leaf in leaves[own:]]
    after = [part.detach() for tensor in inputs for part in plain_parts(tensor)]
    # Other values that objects hold are side effects, with names of their own.
    after += [_alone(value) for value in kept_in(call, modules) if isinstance(value, (torch.Tensor, float))]
    derived = [part for g in gradients for part in ([None] if g is None else plain_parts(g))]
    return ObservationRecord(
        values=stored([leaves, after, derived], file),
        structure=structure_of(result),
        effects=None if effects is None else (to_record(effects[0]), to_record(effects[1])),
    )


def _shared(doc: dict[str, Any]) -> frozenset[tuple[int, int]]:
    outputs, inputs, _ = (record["items"] for record in doc["values"])
    groups: dict[str, list[int]] = {}
    for i, record in enumerate([*outputs, *inputs]):
        if record.get("storage"):
            groups.setdefault(record["storage"], []).append(i)
    return frozenset((i, j) for group in groups.values() for i in group for j in group if i < j)


def _alone(value: Any) -> Any:
    """Of a tensor inside of an object the values count, not how they lie in memory, nor whose memory that is.

    A float there may be what `item()` gave, and is judged as a tensor.
    """
    if type(value) is float:
        return torch.tensor(value, dtype=torch.float64)
    return value.detach().clone(memory_format=torch.contiguous_format) if isinstance(value, torch.Tensor) else value


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value
