"""Walks from a user's function to all objects of the user's that it can read and write; no code of the user runs."""

from __future__ import annotations

import argparse
import collections
import contextlib
import decimal
import fractions
import functools
import hashlib
import itertools
import operator
import os
import random
import sys
import sysconfig
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import Module
from torch.optim import Optimizer

from graphprobe.internals.tensors import tree_leaves

MOST_BYTES = 64 << 20
"""Bytes of tensors that one snapshot copies; what is larger is described."""

BIG, LONG = 256, 1_000
"""Entries of a container that have labels of their own; characters of a text that are kept."""

BY_DYNAMO = (
    "_dynamo",
    "_torchdynamo",
    "_compiled_call_impl",
    "_is_torch_compile",
    "__compiled_fn",
    "__resume_at",
    "___",
    "_abc_impl",
)
"""Names that begin so are no effect of the program: the compiler adds them, or Python does."""

PYTHON, NUMPY, TORCH = (f"random generator of {name}" for name in ("Python", "numpy", "torch"))

OPEN = object()
"""In place of a leaf: the value is an object or a container, or something that can be called."""

_LIBRARY = ("torch", "torchgen", "functorch", "numpy", "graphprobe", "graphprobe_pytest")
_FOLDERS = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
_PACKAGES = tuple(os.sep + name + os.sep for name in ("site-packages", "dist-packages"))
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)
_BASES: dict[type, Any] = {int: int.__int__, float: float.__float__, complex: complex.__complex__, str: str.__str__}
_SAID = (range, itertools.count, decimal.Decimal, fractions.Fraction, torch.layout, torch.memory_format)
_EMPTY: tuple[Any, ...] = ([], (), {}, {}.values(), {}.items(), set(), "", deque(), range(0))
_ITERATORS = tuple(type(iter(empty)) for empty in _EMPTY)
_ENTRIES: dict[type, Any] = {kind: vars(kind)["__iter__"] for kind in (list, tuple, deque, set, frozenset)}
_WRAPPERS = (staticmethod, classmethod, functools.cached_property, type(functools.lru_cache(len)))
_KEPT = (types.GetSetDescriptorType, types.MemberDescriptorType)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_CODE = (*_FUNCTIONS, types.MethodType, functools.partial, property, *_WRAPPERS)
CONTAINERS = (dict, *_ENTRIES)

# What the interpreter keeps of a class, whatever the class or its metaclass says.
bases_of: Callable[[type], tuple[type, ...]] = vars(type)["__mro__"].__get__
names_in: Callable[[type], Mapping[str, Any]] = vars(type)["__dict__"].__get__
module_of: Callable[[type], Any] = vars(type)["__module__"].__get__
qualname_of: Callable[[type], str] = vars(type)["__qualname__"].__get__

MOST_LABELS = 10_000
"""Values that have labels in one snapshot, and as many that only digests see."""

DEPTH = 4
"""Steps from a variable: into a container, or into an object's attributes."""

_LIKE_OWN = (types.SimpleNamespace, argparse.Namespace, collections.UserDict, collections.UserList)
_OF_EVERY_MODULE = frozenset(vars(Module()))
_HOOKS = sorted(name for name in _OF_EVERY_MODULE if name.endswith("_hooks"))
_NOTHING = object()


def whose(module: Any) -> Literal["user", "package", "library"]:
    """Who wrote a module: the user, another package that is installed, or torch, numpy or Python."""
    if not isinstance(module, str) or module == "__main__":
        return "user"
    top = module.partition(".")[0]
    found = sys.modules.get(module) or sys.modules.get(top)
    file = vars(found).get("__file__") if isinstance(found, types.ModuleType) else None
    if top in _LIBRARY or (file is None and top in sys.stdlib_module_names):
        return "library"
    path = os.path.realpath(file) if isinstance(file, str) else ""
    if any(folder in path for folder in _PACKAGES):
        return "package"
    return "library" if path.startswith(_FOLDERS) else "user"


def leaf_of(value: Any) -> Any:
    """What stands for a value that is not opened: itself, a tensor, or a description `<…>`; else `OPEN`."""
    kind = type(value)
    if kind in _PLAIN:
        return _held(value)
    if issubclass(kind, torch.Tensor):
        return value
    if issubclass(kind, (np.ndarray, np.generic)):
        return _from_numpy(value)
    if issubclass(kind, Enum):
        return f"<{name_of(kind)}.{attributes_of(value).get('_name_')}>"
    for base, exact in _BASES.items():
        if issubclass(kind, base):
            return _held(exact(value))
    if kind in _SAID:
        return f"<{value!r}>"
    return _state_of(value)


def _state_of(value: Any) -> Any:
    """Of what is moved on by use: where it stands, in short."""
    kind = type(value)
    if kind in (bytes, bytearray):
        return f"<{kind.__name__} of {len(value)}, {_digest(value)}>"
    if kind in _ITERATORS:
        return f"<{kind.__name__}, {operator.length_hint(value)} left>"
    if kind is types.GeneratorType:
        return f"<generator at line {value.gi_frame.f_lineno}>" if value.gi_frame else "<generator, finished>"
    if issubclass(kind, torch.Generator):
        return f"<torch.Generator {_digest(value.get_state().numpy())}>"
    if issubclass(kind, np.random.Generator):
        return f"<numpy.random.Generator {_digest(value.bit_generator.state)}>"
    if issubclass(kind, np.random.RandomState):
        return f"<numpy.random.RandomState {_digest(value.get_state(legacy=False))}>"
    if issubclass(kind, random.Random):
        return f"<random.Random {_digest(random.Random.getstate(value))}>"
    return OPEN


def is_generator(leaf: Any) -> bool:
    """Whether a leaf stands for a random generator."""
    return type(leaf) is str and leaf.startswith(("<torch.Generator ", "<numpy.random.", "<random.Random "))


def global_generators() -> Iterator[tuple[str, str]]:
    """Python's generator, numpy's, and torch's for each device in use."""
    with contextlib.suppress(Exception):
        yield PYTHON, f"<random.Random {_digest(random.getstate())}>"
        yield NUMPY, f"<numpy.random.RandomState {_digest(np.random.get_state(legacy=False))}>"
        yield TORCH, f"<torch.Generator {_digest(torch.get_rng_state().numpy())}>"
        in_use: Callable[[], bool] = torch.cuda.is_initialized
        for i in range(torch.cuda.device_count() if in_use() else 0):
            yield f"{TORCH} on cuda:{i}", f"<torch.Generator {_digest(torch.cuda.get_rng_state(i).numpy())}>"


def entries_of(value: Any, spare: int) -> tuple[str, list[tuple[str, Any]], int]:
    """A container in words, its entries under their labels, and how many others were looked at.

    The words hold the keys in their order, of a set the elements in that of their texts; of entries that get no label
    a digest, to which tensors and numbers with a point contribute their type only.

    Args:
        spare: how many entries beyond `BIG` are looked at, at most.
    """
    kind, names = type(value), list[str]()
    if issubclass(kind, dict):
        pairs = _pairs(value)
        entries = [entry for _, entry in pairs]
        names = _numbered(_key(key) for key, _ in pairs[: BIG + spare])
    else:
        entries = [*next(each for base, each in _ENTRIES.items() if issubclass(kind, base))(value)]
    text, others = f"{name_of(kind)} of {len(entries)}", entries[BIG:][-spare:] if spare > 0 else []
    if issubclass(kind, (set, frozenset)):
        names = sorted(map(_key, entries)) if len(entries) <= BIG + spare else []
        entries = []
    if names:
        listed = ", ".join(names)
        text += f": {listed}" if len(listed) <= LONG else f": {listed[:LONG]}… {_digest(listed)}"
    if others and entries:
        text += f", {_digest(*map(_roughly, others))}"
    labels = names[:BIG] if issubclass(kind, dict) else map(str, range(min(BIG, len(entries))))
    return text, [(f"[{label}]", entry) for label, entry in zip(labels, entries, strict=False)], len(others)


def attributes_of(value: Any) -> dict[str, Any]:
    """What an object keeps in its dictionary and slots, whatever its class makes of asking for it."""
    found: dict[str, Any] = {}
    for base in bases_of(type(value)):
        names = names_in(base)
        kept = names.get("__dict__")
        if isinstance(kept, _KEPT):
            found.update(kept.__get__(value))
        slots = names.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else [*slots]:
            if type(slot := names.get(name)) is types.MemberDescriptorType:
                with contextlib.suppress(AttributeError):  # never set
                    found.setdefault(name, slot.__get__(value))
    return found


def is_code(kind: type) -> bool:
    """Whether objects of a class are what runs, or classes themselves, and no data."""
    return kind in _CODE or issubclass(kind, type)


def name_of(value: Any) -> str:
    """A class, with its module unless that is Python's, or a function, as text."""
    if issubclass(type(value), type):
        module = module_of(value)
        return qualname_of(value) if module in ("builtins", "collections") else f"{module}.{qualname_of(value)}"
    inner = value.__func__ if type(value) is types.MethodType else value
    return f"function {inner.__qualname__}" if type(inner) in _FUNCTIONS else name_of(type(value))


def form_of(tensor: torch.Tensor) -> str:
    """A tensor in words: dtype and shape."""
    kind = "tensor" if type(tensor) in (torch.Tensor, torch.nn.Parameter) else name_of(type(tensor))
    return f"<{kind} {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}>"


def _held(value: Any) -> Any:
    if isinstance(value, str) and len(value) > LONG:
        return f"<str of {len(value)}, {_digest(value)}: {value[:80]}…>"
    if type(value) is int and value.bit_length() > 1024:
        return f"<int of {value.bit_length()} bits, {_digest(hex(value))}>"
    return value


def _from_numpy(value: Any) -> Any:
    """An array as a tensor, so that a number and an array without dimensions are the same, as they are to Dynamo."""
    if value.dtype.kind in "biufc" and value.nbytes <= MOST_BYTES:
        with contextlib.suppress(TypeError):
            return torch.from_numpy(np.array(value))
    return f"<numpy {value.dtype}{list(value.shape)}>"


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    """Keys and values of a dict, in the order that it keeps itself, if it does and its keys are plain."""
    pairs = [*dict.items(value)]
    if issubclass(type(value), OrderedDict) and all(type(key) in _PLAIN for key, _ in pairs):
        pairs = [(key, dict.__getitem__(value, key)) for key in collections.OrderedDict.__iter__(value)]
    return [(key, entry) for key, entry in pairs if type(key) is not str or not key.startswith(BY_DYNAMO)]


def _key(key: Any) -> str:
    """A key, or an element of a set, as text."""
    if type(key) is tuple:
        return f"({', '.join(map(_key, key))})"
    leaf = f"<{name_of(key)}>" if is_code(type(key)) else leaf_of(key)
    if isinstance(leaf, torch.Tensor):
        return form_of(leaf)
    return f"<{name_of(type(key))}>" if leaf is OPEN else repr(leaf)


def _numbered(names: Iterable[str]) -> list[str]:
    """The same texts, each once: several keys may have one text."""
    counts: dict[str, int] = {}
    found = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        found.append(name if counts[name] == 1 else f"{name} #{counts[name]}")
    return found


def _roughly(value: Any) -> str:
    leaf = leaf_of(value) if type(value) in _PLAIN else None
    return repr(leaf) if type(leaf) in (bool, int, str) else name_of(type(value))


def _digest(*parts: Any) -> str:
    found = hashlib.blake2b(digest_size=6)
    for part in parts:
        if isinstance(part, dict):
            found.update(_digest(*itertools.chain(*part.items())).encode())
        elif isinstance(part, np.ndarray):
            found.update(part.tobytes())
        else:
            found.update(part if isinstance(part, (bytes, bytearray)) else repr(part).encode())
        found.update(b"\0")
    return found.hexdigest()


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
        self._spare = MOST_LABELS

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
        if len(self.values) >= MOST_LABELS:
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
        if issubclass(kind, Optimizer):
            names = {name: names[name] for name in ("param_groups", "state")} if owner == "library" else names
            self.elsewhere.update(id(leaf) for leaf in tree_leaves([value.param_groups, list(value.state.values())]))
        elif issubclass(kind, Module):
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
        names = dict.fromkeys(names_of_code(code))
        for name in names:
            value = dict.get(known, name, _NOTHING)
            if value is _NOTHING:
                continue
            yield known, f"global {name}", value
            if type(value) is types.ModuleType and self._owner(vars(value).get("__name__")) == "user":
                for inner in [inner for inner in names if inner in vars(value)]:
                    yield vars(value), f"global {name}.{inner}", vars(value)[inner]

    def _class(self, kind: type, depth: int) -> None:
        """Show the attributes of a class, of its bases and its metaclass; follow their methods."""
        for base in (*bases_of(kind), *bases_of(type(kind))):
            if self._owner(module_of(base)) != "user" or self._is_taken(base, ""):
                continue
            short = _tail(qualname_of(base))
            for name, value in sorted(names_in(base).items()):
                label = f"class {short}.{name}"
                if is_code(type(value)):
                    self.variable(label, value, depth)
                    continue
                computes = any("__get__" in names_in(owner) for owner in bases_of(type(value)))  # a descriptor
                if not (name.startswith((*BY_DYNAMO, "__")) or issubclass(base, Enum) or computes):
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


def names_of_code(code: types.CodeType) -> Iterator[str]:
    """Names that the code, and code within it, may look up in globals, or in what it finds there."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_of_code(constant)


def variables_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables that a function finds outside of it, and its defaults."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not filled yet
            yield name, cell.cell_contents
    for name in dict.fromkeys(names_of_code(code)):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    defaults = function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _tail(qualname: str) -> str:
    return qualname.rpartition("<locals>.")[2]
