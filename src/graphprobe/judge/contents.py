"""What a call returned, as values that can be compared: the leaves, and what is inside those that are objects."""

from __future__ import annotations

import contextlib
import types
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch.nn import Module

from graphprobe.engine.values import why_not
from graphprobe.internals.quiet import is_fake, quiet
from graphprobe.internals.tensors.trees import tree_leaves

MOST = 10_000
"""Values inside of objects that are looked at."""

PLAIN = (bool, int, float, complex, str, torch.device, torch.dtype, torch.SymInt, torch.SymFloat, torch.SymBool)
_OF_EVERY_MODULE = frozenset(vars(Module()))
CLOSED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, Module)
"""Their names are compared, and nothing inside of them: of modules the state is, apart."""


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
    while edge and len(leaves) < MOST:
        inside, public = edge.popleft()
        for value in tree_leaves(inside):
            shown = _leaf(value, edge, seen)
            if public or isinstance(shown, torch.Tensor):
                leaves.append(shown)
    return leaves


def kept_in(arguments: Any, modules: Iterable[Module]) -> list[Any]:
    """What objects among the arguments hold, and what a user's modules hold besides parameters, buffers and modules."""
    found = contents_of(arguments)[len(tree_leaves(arguments)) :]
    for module in modules:
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
    """What stands for a leaf; what is inside of it is left at the edge."""
    if value is None or (isinstance(value, PLAIN) and not isinstance(value, Enum)):
        return value
    if isinstance(value, torch.Tensor) and why_not(value) is None:
        return value
    name = f"{type(value).__module__}.{type(value).__qualname__}"
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
    attributes = dict(getattr(value, "__dict__", None) or {})
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                attributes.setdefault(name, getattr(value, name))
    for name in sorted(attributes):
        yield attributes[name], not name.startswith("_")
