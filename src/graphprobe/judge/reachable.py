"""The modules that a function works with: itself, what it is bound to, closes over, partially applies, or finds in its
globals."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

from torch.nn import Module

DEPTH = 4
"""How many steps from the function: into a container, an object's attributes, or another function."""

FOREIGN = ("torch", "builtins", "functools", "numpy", "graphprobe")
"""Packages whose functions and objects hold none of the program's modules."""


def reachable_modules(*roots: Any) -> list[Module]:
    """Every module that the roots lead to, but for parts of others: each once, in the order in which they are found.

    Of objects that are no modules the attributes are looked at, of functions their closure, defaults and those globals
    that their code names.
    """
    found: dict[int, Module] = {}
    seen: set[int] = set()
    edge: list[Any] = list(roots)
    for _ in range(DEPTH + 1):
        following: list[Any] = []
        for value in edge:
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, Module):
                found.setdefault(id(value), value)
            following += _leads(value)
        edge = following
    parts = {id(part) for module in found.values() for part in module.modules() if part is not module}
    return [module for key, module in found.items() if key not in parts]


def _leads(value: Any) -> Iterator[Any]:
    if isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, types.FunctionType):
        if not _is_foreign(value.__module__):
            yield from _of_function(value)
    elif isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from value
    elif not isinstance(value, (type, types.ModuleType)) and not _is_foreign(type(value).__module__):
        # Of a user's module too: it may hold others in plain lists, where `Module.modules` does not see them.
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            yield from attributes.values()


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        yield wrapped
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]


def _names(code: types.CodeType) -> Iterator[str]:
    """Names that the code, and code within it, may look up as globals."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_foreign(module: str | None) -> bool:
    return (module or "").partition(".")[0] in FOREIGN
