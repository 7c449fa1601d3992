"""Values of torch, numpy and the standard library: by import path, or as the call that makes them."""

from __future__ import annotations

import copyreg
import functools
import importlib
import operator as python_operator
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from graphprobe.internals.operators import operator_of
from graphprobe.probe.frames.sources import NotRecordable, is_own

SEARCHED = (
    "builtins",
    "torch",
    "torch.nn.functional",
    "torch.special",
    "torch.linalg",
    "torch.fft",
    "math",
    "operator",
)
"""Where a C function is looked for that does not say where it lies."""
MADE_AGAIN = ("numpy",)
"""Packages, beside the standard library, whose `__reduce__` is trusted to have no effect."""


@dataclass(frozen=True)
class Call:
    """What makes a value anew: a call, then `state`, items and pairs put into its result."""

    function: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    state: Any = None
    items: tuple[Any, ...] = ()
    pairs: tuple[tuple[Any, Any], ...] = ()


def import_of(value: Any) -> tuple[str, str] | None:
    """`(module, name in it)` where the value is found in any process; None where there is no such place."""
    for kind, prefix in ((torch.dtype, "torch."), (torch.layout, "torch."), (torch.memory_format, "torch.")):
        if type(value) is kind:
            return "torch", str(value).removeprefix(prefix)
    operator = operator_of(value)
    if operator is not None and operator.namespace != "higher_order":
        return "torch", ".".join(filter(None, ["ops", operator.namespace, operator.name, operator.overload]))
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    module = getattr(value, "__module__", None)
    if not isinstance(name, str):
        return None
    if isinstance(module, str) and not is_own(module) and _found(module, name) is value:
        return module, name
    short = name.rpartition(".")[2]
    return next(((place, short) for place in SEARCHED if _found(place, short) is value), None)


def _found(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        if part == "<locals>" or found is None:
            return None
        found = getattr(found, part, None) if not isinstance(found, type) else vars_of(found).get(part)
        if isinstance(found, staticmethod):
            found = found.__func__
    return found


def vars_of(kind: type) -> dict[str, Any]:
    """Attributes of a class and its parents, as they lie there."""
    return {name: value for owner in reversed(kind.__mro__) for name, value in vars(owner).items()}


def call_of(value: Any) -> Call | None:
    """How a library's value is made again; None for values of the program's classes."""
    kind = type(value)
    if kind is torch.device:
        return Call(torch.device, (str(value),))
    if kind is torch.Size:
        return Call(torch.Size, (list(value),))
    if kind is functools.partial:
        state = value.__dict__ or None
        return Call(functools.partial, (value.func, *value.args), dict(value.keywords), state=state)
    if kind is property:
        return Call(property, (value.fget, value.fset, value.fdel))
    if kind in (staticmethod, classmethod):
        return Call(kind, (value.__func__,))
    if kind is types.MappingProxyType:
        return Call(types.MappingProxyType, (dict(value),))
    if kind is python_operator.itemgetter or kind is python_operator.attrgetter:
        return _reduced(value)
    top = kind.__module__.partition(".")[0]
    if kind.__flags__ & (1 << 9) and not _is_library(kind.__module__):
        return None
    if _is_library(kind.__module__) and top not in ("builtins", "collections", "types", "_thread", "_io", "socket"):
        return _reduced(value)
    return None


def _is_library(module: str) -> bool:
    top = module.partition(".")[0]
    return top != "__main__" and (top in sys.stdlib_module_names or top in MADE_AGAIN)


def _reduced(value: Any) -> Call:
    """What the pickle protocol says of it, written as JSON; pickle itself is not used."""
    try:
        maker = copyreg.dispatch_table.get(type(value))
        parts: Any = maker(value) if maker is not None else value.__reduce_ex__(4)
    except Exception as error:
        raise NotRecordable(f"it cannot be taken apart: {error}") from error
    if isinstance(parts, str):
        holder = type(value).__module__
        return (
            Call(importlib.import_module, (holder,)) if parts == holder else Call(getattr, (sys.modules[holder], parts))
        )
    function, args, state, items, pairs = (*parts, None, None, None)[:5]
    if not isinstance(args, tuple) or (
        state is not None and isinstance(state, tuple) and not hasattr(value, "__setstate__")
    ):
        raise NotRecordable("its state is more than attributes")
    return Call(function, args, {}, state, tuple(items or ()), tuple(pairs or ()))
