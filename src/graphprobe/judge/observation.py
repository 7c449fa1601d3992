"""Observes one call as its user can, in one way for every rung, proof and case."""

from __future__ import annotations

import contextlib
import functools
import json
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec
import numpy as np
import torch
from torch.nn import Module
from torch.optim import Optimizer

from graphprobe.engine.value_file import ValueFile, restored, stored
from graphprobe.engine.values import why_not
from graphprobe.errors import Raised, raised_from
from graphprobe.internals.quiet import is_fake, quiet
from graphprobe.internals.tensors import structure_of, tree_leaves
from graphprobe.judge.effect_walk import attributes_of, names_of_code, variables_of
from graphprobe.judge.effects import from_record, to_record

MOST_VALUES = 10_000
"""Values inside of objects that are looked at."""

PLAIN = (bool, int, float, complex, str, torch.device, torch.dtype, torch.SymInt, torch.SymFloat, torch.SymBool)
_OF_EVERY_MODULE = frozenset(vars(Module()))
CLOSED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, Module)
"""Their names are compared, and nothing inside of them: of modules the state is, apart."""

DEPTH = 4
"""How many steps from the function: into a container, an object's attributes, or another function."""

FOREIGN = ("torch", "builtins", "functools", "numpy", "graphprobe")
"""Packages whose functions and objects hold none of the program's modules."""


def contents_of(result: Any) -> list[Any]:
    """The leaves of `result` in torch's order, each object replaced by the name of its type; then what is inside.

    Inside are tensors wherever they are kept, and numbers and texts in attributes whose names do not begin with `_`,
    attributes in the order of their names. A tensor of a subclass is an object with one plain tensor in it, or with
    those that it names in `__tensor_flatten__`; a sparse one has its dense values in it. An object that is found
    again is a name only.
    """
    edge: deque[tuple[Any, bool]] = deque()
    seen: dict[int, Any] = {}
    leaves = [_leaf(leaf, edge, seen) for leaf in tree_leaves(result)]
    while edge and len(leaves) < MOST_VALUES:
        inside, public = edge.popleft()
        for value in tree_leaves(inside):
            shown = _leaf(value, edge, seen)
            if public or isinstance(shown, torch.Tensor):
                leaves.append(shown)
    return leaves


def kept_in(arguments: Any, holders: Iterable[Module | Optimizer]) -> list[Any]:
    """What objects among the arguments hold, the state of optimizers, and what a user's modules hold.

    Of modules these are no parameters, buffers and modules.
    """
    found = contents_of(arguments)[len(tree_leaves(arguments)) :]
    for module in holders:
        if isinstance(module, Optimizer):
            found += tree_leaves(list(module.state.values()))
            continue
        for part in module.modules():
            if type(part).__module__.partition(".")[0] == "torch":
                continue
            own = {name: value for name, value in vars(part).items() if name not in _OF_EVERY_MODULE}
            found += contents_of([own.pop(name) for name in sorted(own) if not name.startswith("_")])
            found += [value for value in contents_of(list(own.values())) if isinstance(value, torch.Tensor)]
    return found


def plain_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensor itself, or the plain ones that one of a subclass, or of another layout than strided, stands for."""
    if why_not(tensor) is None:
        return [tensor]
    with quiet():
        found = _plain(tensor)
        return [part for inner in found for part in plain_parts(inner)] if isinstance(found, list) else [found]


def _leaf(value: Any, edge: deque[tuple[Any, bool]], seen: dict[int, Any]) -> Any:
    """What stands for a leaf; what is inside of it is left at the edge.

    A number of numpy's is an array without dimensions: compiled, torch makes these of it, as its documentation says.
    """
    if value is None or (isinstance(value, PLAIN) and not isinstance(value, (Enum, np.generic))):
        return value
    if isinstance(value, torch.Tensor) and why_not(value) is None:
        return value
    kind = np.ndarray if isinstance(value, np.generic) else type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, Enum):
        return f"{name}.{value.name}"
    if isinstance(value, CLOSED):
        return f"{name} {getattr(value, '__qualname__', '')}".rstrip()
    if id(value) not in seen:
        seen[id(value)] = value  # kept alive, so that no other object gets its number
        edge.extend(_inside(value))
    return name


def _plain(tensor: torch.Tensor) -> Any:
    """What a tensor that is no view of plain memory holds: plain tensors, or nothing where it has no data."""
    if hasattr(tensor, "__tensor_flatten__"):
        held = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        return [value for value in held if isinstance(value, torch.Tensor)]  # a DTensor names its mesh, too
    if is_fake(tensor):
        return []
    if tensor.is_nested:
        return list(tensor.unbind())
    if tensor.is_quantized:
        return [tensor.int_repr(), tensor.dequantize()]
    if tensor.layout is not torch.strided:
        return tensor.to_dense()
    return tensor.as_subclass(torch.Tensor)


def _inside(value: Any) -> Iterator[tuple[Any, bool]]:
    """The parts of an object, and whether numbers and texts among them count."""
    if isinstance(value, torch.Tensor):
        yield plain_parts(value), True
        return
    if isinstance(value, (np.ndarray, np.generic)):
        with contextlib.suppress(TypeError):  # of texts and objects
            yield torch.from_numpy(np.array(value)), True
        return
    # Other containers are opened by their attributes: to go through them might do something.
    if isinstance(value, dict):
        yield list(dict.values(value)), True
    elif isinstance(value, (list, tuple, deque)):
        yield [*value], True
    elif isinstance(value, (set, frozenset)):
        yield len(value), True
    attributes = attributes_of(value)
    for name in sorted(attributes):
        yield attributes[name], not name.startswith("_")


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
    holders: Sequence[Module | Optimizer],
    gradients: Sequence[torch.Tensor | None],
    effects: tuple[dict[str, Any], dict[str, Any]] | None = None,
    file: ValueFile | None = None,
) -> ObservationRecord:
    """The record of a call that has returned.

    Args:
        result: what it returned.
        call: its arguments, `(args, kwargs)`, as it left them.
        inputs: the tensors among them, parameters and buffers.
        holders: the modules and optimizers whose state belongs to the program.
        gradients: of the `inputs`; empty where no backward ran.
        effects: snapshots before and after the call.
        file: takes the large values.
    """
    leaves, own = contents_of(result), len(tree_leaves(result))
    shown = [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves[:own]]
    leaves = shown + [_alone(leaf) for leaf in leaves[own:]]
    parts = [part for tensor in inputs for part in plain_parts(tensor)]
    with quiet():  # a float64 run would widen them
        after = [part.detach() for part in parts]
    # Other values that objects hold are side effects, with names of their own.
    after += [_alone(value) for value in kept_in(call, holders) if isinstance(value, (torch.Tensor, float))]
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


def reachable_modules(*roots: Any) -> list[Module]:
    """Every module that the roots lead to, but for parts of others: each once, in the order in which they are found."""
    found = [value for value in reachable(*roots) if isinstance(value, Module)]
    parts = {id(part) for module in found for part in module.modules() if part is not module}
    return [module for module in found if id(module) not in parts]


def reads_gradients(reached: Iterable[Any]) -> bool:
    """Whether gradients that were left before are read by what can be reached: an optimizer, or a function's code."""
    codes = (value.__code__ for value in reached if isinstance(value, types.FunctionType))
    return any(isinstance(value, Optimizer) for value in reached) or any(
        name == "grad" or name.startswith("clip_grad") for code in codes for name in names_of_code(code)
    )


def reachable(*roots: Any) -> list[Any]:
    """The modules, optimizers and functions that the roots lead to: each once, in the order in which they are found.

    Of other objects the attributes are looked at, of functions their closure, defaults and those globals that their
    code names.
    """
    found: dict[int, Any] = {}
    seen: set[int] = set()
    edge: list[Any] = list(roots)
    for _ in range(DEPTH + 1):
        following: list[Any] = []
        for value in edge:
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, (Module, Optimizer, types.FunctionType)):
                found.setdefault(id(value), value)
            following += _leads(value)
        edge = following
    return list(found.values())


def _leads(value: Any) -> Iterator[Any]:
    if isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, types.FunctionType):
        if not _is_foreign(value.__module__):
            yield from (variable for _, variable in variables_of(value))
            yield getattr(value, "__wrapped__", None)
    elif isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from value
    elif not isinstance(value, (type, types.ModuleType)) and not _is_foreign(type(value).__module__):
        # Of a user's module too: it may hold others in plain lists, where `Module.modules` does not see them.
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            yield from attributes.values()


def _is_foreign(module: str | None) -> bool:
    return (module or "").partition(".")[0] in FOREIGN
