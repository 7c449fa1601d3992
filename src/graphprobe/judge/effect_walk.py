"""The walk from a user's function to everything of the user's that it can read and write. No code of the user runs."""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import types
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

from torch.nn import Module

from graphprobe.judge.effect_values import (
    BY_DYNAMO,
    CONTAINERS,
    OPEN,
    attributes_of,
    bases_of,
    entries_of,
    is_code,
    is_descriptor,
    is_generator,
    leaf_of,
    module_of,
    name_of,
    names_in,
    qualname_of,
    whose,
)

MOST = 10_000
"""Values that have labels in one snapshot, and as many that only digests see."""

DEPTH = 4
"""Steps from a variable: into a container, or into an object's attributes."""

_LIKE_OWN = (types.SimpleNamespace, argparse.Namespace, collections.UserDict, collections.UserList)
_OF_EVERY_MODULE = frozenset(vars(Module()))
_HOOKS = sorted(name for name in _OF_EVERY_MODULE if name.endswith("_hooks"))
_NOTHING = object()


class Walk:
    """Goes from variables into what they hold, the near ones first.

    Attributes:
        values: label → leaf (`leaf_of`), or what describes it; tensors are the program's own.
        elsewhere: ids of tensors that are observed elsewhere.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.elsewhere: set[int] = set()
        self._edge: deque[Callable[[], None]] = deque()
        self._seen: dict[int, tuple[Any, str]] = {}  # kept alive, so that no other object gets its number
        self._taken: dict[tuple[int, str], Any] = {}
        self._owners: dict[Any, str] = {}
        self._spare = MOST

    def go_on(self) -> None:
        """Open what has been found, and what comes to light there."""
        while self._edge:
            with contextlib.suppress(Exception):
                self._edge.popleft()()

    def variable(self, label: str, value: Any, depth: int) -> None:
        """Show a variable; of functions and classes, which are no data, what they lead to."""
        if is_code(type(value)):
            with contextlib.suppress(Exception):
                self._follow(label, value, depth)
        elif not issubclass(type(value), types.ModuleType):
            self.show(label or "self", value, depth)

    def show(self, label: str, value: Any, depth: int, *, shut: bool = False) -> None:
        """Put a value under its label; what is inside is left at the edge.

        Args:
            shut: an object of an installed package holds it, so that others of such packages are not opened.
        """
        if len(self.values) >= MOST:
            return
        with contextlib.suppress(Exception):
            leaf = leaf_of(value)
            if leaf is not OPEN:
                self.values[f"generator {label}" if is_generator(leaf) and leaf is not value else label] = leaf
            elif is_code(type(value)):
                self.values[label] = f"<{name_of(value)}>"
                self._follow(label, value, depth)
            else:
                self._object(label, value, depth, shut)

    def _object(self, label: str, value: Any, depth: int, shut: bool) -> None:
        kind = type(value)
        if not issubclass(kind, (tuple, frozenset)):  # which object it is means nothing where it never changes
            if id(value) in self._seen:
                self.values[label] = f"<{name_of(kind)}, also {self._seen[id(value)][1]}>"
                return
            self._seen[id(value)] = (value, label)
        text, entries = name_of(kind), list[tuple[str, Any]]()
        if issubclass(kind, CONTAINERS):
            text, entries, looked_at = entries_of(value, self._spare)
            self._spare -= looked_at
        self.values[label] = f"<{text}>"
        if depth < DEPTH:
            self._edge.append(functools.partial(self._inside, label, value, entries, depth, shut))

    def _inside(self, label: str, value: Any, entries: list[tuple[str, Any]], depth: int, shut: bool) -> None:
        for name, entry in entries:
            self.show(label + name, entry, depth + 1, shut=shut)
        kind, names = type(value), attributes_of(value)
        owner = "user" if kind in _LIKE_OWN else self._owner(module_of(kind))
        if owner == "user":
            self._class(kind, depth)
        if issubclass(kind, Module):
            names = self._of_module(label, names, kind, depth, owner)
        elif owner == "library" or (owner == "package" and shut):
            return
        for name in sorted(names):
            if not name.startswith(BY_DYNAMO) and (owner == "user" or not name.startswith("_")):
                self.show(f"{label}.{name}", names[name], depth + 1, shut=owner != "user")

    def _of_module(self, label: str, names: dict[str, Any], kind: Any, depth: int, owner: str) -> dict[str, Any]:
        """The attributes of a module that are plain Python; its hooks are followed, and its parts come next."""
        for kept in ("_parameters", "_buffers"):
            self.elsewhere.update(map(id, dict.values(names.get(kept) or {})))
        for hooks in _HOOKS:
            for hook in dict.values(names.get(hooks) or {}):
                self.variable(f"{label} hook", hook, depth)
        for name, part in dict.items(names.get("_modules") or {}):
            if part is not None and id(part) not in self._seen:
                self._seen[id(part)] = (part, f"{label}.{name}")
                self._edge.append(functools.partial(self._inside, f"{label}.{name}", part, [], depth, True))
        if owner == "library":  # what a hook has added
            known = _OF_EVERY_MODULE.union(getattr(kind, "__constants__", ()))
        else:
            known = _OF_EVERY_MODULE - {"training"}
        return {name: value for name, value in names.items() if name not in known}

    def _follow(self, label: str, code: Any, depth: int) -> None:
        """Go to the functions and objects behind something that can be called."""
        kind = type(code)
        if kind is types.FunctionType:
            self._edge.append(functools.partial(self._function, code, depth))
        elif kind in (types.MethodType, types.BuiltinFunctionType):
            if code.__self__ is not None:
                self.variable(f"{label}.__self__" if label else "", code.__self__, depth)
            if kind is types.MethodType:
                self._part(label, code.__func__, depth)
        elif kind is functools.partial:
            self._part(label, code.func, depth)
            for name, value in (*enumerate(code.args), *code.keywords.items()):
                self.variable(f"{label or 'partial'} argument {name}", value, depth)
        elif kind is property:
            for part in (code.fget, code.fset, code.fdel):
                self._part(label, part, depth)
        elif issubclass(kind, type):
            self._class(code, depth)
        else:
            self._part(label, code.func if kind is functools.cached_property else code.__wrapped__, depth)

    def _part(self, label: str, part: Any, depth: int) -> None:
        if part is not None:
            self.variable(label, part, depth)

    def _function(self, function: types.FunctionType, depth: int) -> None:
        if self._is_taken(function, ""):
            return
        short = _tail(function.__qualname__)
        self._part(f"{short}.__wrapped__", function.__dict__.get("__wrapped__"), depth)
        if self._owner(function.__globals__.get("__name__")) != "user":
            return
        for holder, label, value in self._variables(function):
            name = label.rpartition(" ")[2].rpartition(".")[2]
            if not name.startswith(BY_DYNAMO) and not self._is_taken(holder, name):
                self.variable(self._free(label, short), value, depth)
        for name, value in function.__dict__.items():
            if not name.startswith((*BY_DYNAMO, "__")):
                self.show(f"{short}.{name}", value, depth)

    def _variables(self, function: types.FunctionType) -> Iterator[tuple[Any, str, Any]]:
        """What the code of a function finds: who holds it, its label, and the value."""
        code, known = function.__code__, function.__globals__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # not filled yet
                yield cell, f"closure {name}", cell.cell_contents
        defaults = function.__defaults__ or ()
        named = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        for name, value in (*zip(named, defaults, strict=True), *(function.__kwdefaults__ or {}).items()):
            yield function, f"default {name}", value
        names = dict.fromkeys(_names_of(code))
        for name in names:
            value = dict.get(known, name, _NOTHING)
            if value is _NOTHING:
                continue
            yield known, f"global {name}", value
            if type(value) is types.ModuleType and self._owner(vars(value).get("__name__")) == "user":
                for inner in [inner for inner in names if inner in vars(value)]:
                    yield vars(value), f"global {name}.{inner}", vars(value)[inner]

    def _class(self, kind: type, depth: int) -> None:
        """Show the attributes of a class and of its bases; follow their methods."""
        for base in bases_of(kind):
            if self._owner(module_of(base)) != "user" or self._is_taken(base, ""):
                continue
            short = _tail(qualname_of(base))
            for name, value in sorted(names_in(base).items()):
                label = f"class {short}.{name}"
                if is_code(type(value)):
                    self.variable(label, value, depth)
                elif not (name.startswith((*BY_DYNAMO, "__")) or issubclass(base, Enum) or is_descriptor(type(value))):
                    self.show(self._free(label, str(module_of(base))), value, depth)

    def _free(self, label: str, holder: str) -> str:
        """The label, or one with the holder's name where another variable has it."""
        found, number = label, 1
        while found in self.values:
            found, number = f"{label} of {holder}" + (f" #{number}" if number > 1 else ""), number + 1
        return found

    def _is_taken(self, holder: Any, name: str) -> bool:
        """Whether a function, a class or one of its variables has been gone to; from now on it has."""
        if (id(holder), name) in self._taken:
            return True
        self._taken[id(holder), name] = holder
        return False

    def _owner(self, module: Any) -> str:
        if module not in self._owners:
            self._owners[module] = whose(module)
        return self._owners[module]


def _names_of(code: types.CodeType) -> Iterator[str]:
    """Names that the code, and code within it, may look up in globals, or in what it finds there."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_of(constant)


def _tail(qualname: str) -> str:
    return qualname.rpartition("<locals>.")[2]
