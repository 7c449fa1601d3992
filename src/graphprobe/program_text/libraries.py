"""Values of torch, numpy and the standard library: by import path, or as the call that makes them."""

from __future__ import annotations

import collections
import copyreg
import enum
import functools
import importlib
import operator as python_operator
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from graphprobe.internals.operators.operators import operator_of
from graphprobe.program_text.sources import NotRecordable, is_own

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
class RebuildCall:
    """What makes a value anew: a call, then attributes, `state`, items and pairs put into its result.

    The function and its arguments may be such calls themselves.
    """

    function: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    state: Any = None
    items: tuple[Any, ...] = ()
    pairs: tuple[tuple[Any, Any], ...] = ()


def import_of(value: Any) -> tuple[str, str] | None:
    """`(module, name in it)` where the value is found in any process; None where there is no such place."""
    for kind, prefix in ((torch.dtype, "torch."), (torch.layout, "torch."), (torch.memory_format, "torch.")):
        if type(value) is kind:
            return "torch", str(value).removeprefix(prefix)
    if value is ... or value is NotImplemented:
        return "builtins", repr(value)
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
    places = [(place, short) for place in SEARCHED if _found(place, short) is value]
    named = [("types", key) for key, held in vars(types).items() if held is value and not key.startswith("_")]
    return next(iter([*places, *named]), None)


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


def call_of(value: Any) -> RebuildCall | None:
    """How a value is made again that is no object of the program's classes; None for those."""
    kind = type(value)
    maker = _MAKERS.get(kind)
    if maker is not None:
        return maker(value)
    if issubclass(kind, enum.Enum):
        name = value.name
        return RebuildCall(getattr, (kind, name)) if name in kind.__members__ else RebuildCall(kind, (value.value,))
    if kind is python_operator.itemgetter or kind is python_operator.attrgetter:
        return _reduced(value)
    top = kind.__module__.partition(".")[0]
    if kind.__flags__ & (1 << 9) and not _is_library(kind.__module__):
        return None
    if _is_library(kind.__module__) and top not in ("builtins", "collections", "types", "_thread", "_io", "socket"):
        return _reduced(value)
    return None


def _method(value: Any) -> RebuildCall:
    name, owner = value.__func__.__name__, value.__self__
    if issubclass(type(owner), type):  # a method of the class, or of one that it inherits from
        held = next((vars_of(base)[name] for base in owner.__mro__ if name in vars_of(base)), None)
        plain = type(held) is classmethod and held.__func__ is value.__func__
    else:
        plain = vars_of(type(owner)).get(name) is value.__func__
    return RebuildCall(getattr, (owner, name)) if plain else RebuildCall(types.MethodType, (value.__func__, owner))


def _cached(value: Any) -> RebuildCall:
    settings = value.cache_parameters()
    return RebuildCall(RebuildCall(functools.lru_cache, (settings["maxsize"], settings["typed"])), (value.__wrapped__,))


def _attribute(value: Any) -> RebuildCall | None:
    """A function of C that belongs to an object, or to a class."""
    owner = value.__objclass__ if hasattr(value, "__objclass__") else value.__self__
    return None if isinstance(owner, ModuleType | None) else RebuildCall(getattr, (owner, value.__name__))


def named_tuple(kind: Any) -> RebuildCall:
    """How a class of `collections.namedtuple` is made again."""
    defaults = {"defaults": list(kind._field_defaults.values())} if kind._field_defaults else {}
    return RebuildCall(collections.namedtuple, (kind.__name__, list(kind._fields)), defaults, _place(kind))


def made_class(kind: type) -> RebuildCall:
    """A class from what it holds, for one that no statement says all of."""
    hidden = ("__dict__", "__weakref__", "__module__", "__qualname__", "__doc__", "__annotations__")
    members = {n: v for n, v in vars(kind).items() if n not in hidden and type(v) is not types.MemberDescriptorType}
    return RebuildCall(type, (kind.__name__, kind.__bases__, members), attributes=_place(kind))


def meta_tensor(value: torch.Tensor) -> RebuildCall:
    """A tensor on the meta device, from its form."""
    if isinstance(value, torch.nn.Parameter):
        return RebuildCall(torch.nn.Parameter, (meta_tensor(value.data), value.requires_grad))
    given = {"dtype": value.dtype, "device": "meta", "requires_grad": value.requires_grad}
    return RebuildCall(torch.empty_strided, (tuple(value.shape), value.stride()), given)


def _place(kind: type) -> dict[str, str]:
    return {"__module__": kind.__module__, "__qualname__": kind.__qualname__}


_MAKERS: dict[type, Callable[[Any], RebuildCall | None]] = {
    bytearray: lambda value: RebuildCall(bytearray, (bytes(value),)),
    slice: lambda value: RebuildCall(slice, (value.start, value.stop, value.step)),
    range: lambda value: RebuildCall(range, (value.start, value.stop, value.step)),
    torch.device: lambda value: RebuildCall(torch.device, (str(value),)),
    torch.Size: lambda value: RebuildCall(torch.Size, (list(value),)),
    property: lambda value: RebuildCall(property, (value.fget, value.fset, value.fdel)),
    staticmethod: lambda value: RebuildCall(staticmethod, (value.__func__,)),
    classmethod: lambda value: RebuildCall(classmethod, (value.__func__,)),
    types.MappingProxyType: lambda value: RebuildCall(types.MappingProxyType, (dict(value),)),
    types.MethodType: _method,
    functools.partial: lambda value: RebuildCall(
        functools.partial, (value.func, *value.args), dict(value.keywords), state=value.__dict__ or None
    ),
    functools._lru_cache_wrapper: _cached,
    **dict.fromkeys((types.BuiltinFunctionType, types.MethodWrapperType, types.MethodDescriptorType), _attribute),
    **dict.fromkeys((types.WrapperDescriptorType, types.ClassMethodDescriptorType), _attribute),
}


def _is_library(module: str) -> bool:
    top = module.partition(".")[0]
    return top != "__main__" and (top in sys.stdlib_module_names or top in MADE_AGAIN)


def _reduced(value: Any) -> RebuildCall:
    """What the pickle protocol says of it, written as JSON; pickle itself is not used."""
    try:
        maker = copyreg.dispatch_table.get(type(value))
        parts: Any = maker(value) if maker is not None else value.__reduce_ex__(4)
    except Exception as error:
        raise NotRecordable(f"it cannot be taken apart: {error}") from error
    if isinstance(parts, str):
        holder = type(value).__module__
        return (
            RebuildCall(importlib.import_module, (holder,))
            if parts == holder
            else RebuildCall(getattr, (sys.modules[holder], parts))
        )
    function, args, state, items, pairs = (*parts, None, None, None)[:5]
    if not isinstance(args, tuple) or (
        state is not None and isinstance(state, tuple) and not hasattr(value, "__setstate__")
    ):
        raise NotRecordable("its state is more than attributes")
    return RebuildCall(function, args, {}, {}, state, tuple(items or ()), tuple(pairs or ()))
