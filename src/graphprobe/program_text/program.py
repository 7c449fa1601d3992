"""The program's own part of a record: functions, classes and modules, with the text that defines them."""

from __future__ import annotations

import ast
import builtins
import contextlib
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from graphprobe.internals.dynamo.frame_failures import REGION, marked_function
from graphprobe.program_text.encoding import Encoded, Encoder
from graphprobe.program_text.libraries import RebuildCall, import_of, made_class, named_tuple
from graphprobe.program_text.sources import (
    NotRecordable,
    SourceFile,
    attribute_names,
    global_names,
    imported_modules,
    is_own,
    names_in_class,
    names_when_defined,
)
from graphprobe.store.frame_record import SOURCE, ModuleRecord

LIBRARIES = ("torch", "builtins", "functools", "numpy", "operator", "_operator")

_METAS = (type(__import__("enum").Enum),)


@dataclass
class _Module:
    """A module as it is collected: `namespace` is its live globals."""

    name: str
    namespace: Mapping[str, Any]
    own: bool
    source: SourceFile | None = None
    path: str | None = None
    """Of the text, in the record's folder."""
    values: dict[str, Encoded] = field(default_factory=dict)
    whole: bool = False
    """Whether the module itself is a value, so that any attribute of it may be read."""


class CodeRecorder:
    """Records what an `Encoder` meets of functions, classes and modules.

    Modules are told by their globals; a function whose globals are no module's gets one of that name.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._modules: dict[int, _Module] = {}
        self._names: set[str] = set()

    def stated(self, value: Any, entry: dict[str, Any], path: str) -> dict[str, Any] | None:
        """The record of a value that is told by a statement of its module; None: by what it holds."""
        return None

    def describe(self, value: Any, entry: dict[str, Any], path: str) -> dict[str, Any] | None:
        """The record of a function, class, module and the like; None for everything else."""
        kind = type(value)  # `isinstance` would ask the object
        if issubclass(kind, ModuleType):
            return self._module_value(value)
        if kind is types.CellType:
            return self._cell(value, entry, path)
        if not issubclass(kind, type | FunctionType) and not _from_a_library(value):
            return None
        place = import_of(value)
        if place is not None:
            return {"kind": "import", "module": place[0], "qualname": place[1]}
        if kind is FunctionType:
            return self._function_value(value, entry, path)
        if issubclass(kind, type):
            return self._class(value, entry, path)
        return None

    def frame_function(self, code: CodeType, namespace: dict[str, Any], closure: tuple[Any, ...]) -> Encoded:
        """The function that a frame runs, of which only the code is known."""
        entry = self._encoder.record(code)
        cells = dict(zip(code.co_freevars, closure, strict=True))
        entry.update(self._function(code, namespace, cells, entry, "function"))
        return self._encoder.ref(code)

    def complete(self) -> list[ModuleRecord]:
        """Follows attributes of the program's modules until nothing is added; then the modules."""
        while True:
            before = len(self._encoder.objects), len(self._names)
            for module in list(self._modules.values()):
                if module.whole and module.own:
                    self._need(module, {name for name in self._names if name in module.namespace})
            if (len(self._encoder.objects), len(self._names)) == before:
                return self._records()

    def texts(self) -> dict[str, str]:
        """The texts to write, by the path in the record's folder."""
        return {m.path: m.source.text() for m in self._modules.values() if m.source is not None and m.path is not None}

    def _function_value(self, function: FunctionType, entry: dict[str, Any], path: str) -> dict[str, Any]:
        marked = marked_function(function)
        if marked is not None:
            marks, inner, settings = marked
            return self._encoder.call(RebuildCall(marks, (inner,), settings), entry, path)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        self._function(function.__code__, function.__globals__, cells, entry, path)
        entry["name"], entry["reported_module"] = function.__name__, function.__module__
        entry["defaults"] = self._encoder.encode_all(function.__defaults__ or (), f"{path}.defaults")
        entry["kwdefaults"] = self._encoder.encode_names(function.__kwdefaults__ or {}, f"{path}.defaults")
        if state := {name: value for name, value in vars(function).items() if not name.startswith(REGION)}:
            entry["state"] = self._encoder.encode_names(state, path)
        return entry

    def _function(
        self, code: CodeType, namespace: dict[str, Any], cells: Mapping[str, Any], entry: dict[str, Any], path: str
    ) -> dict[str, Any]:
        module = self._module_of(namespace)
        source = self._source(module, code.co_filename)
        entry |= {
            "kind": "function",
            "module": module.name,
            "name": code.co_name,
            "qualname": code.co_qualname,
            "reported_module": str(namespace.get("__name__", module.name)),
            "line": code.co_firstlineno,
            "at": source.place_of(code),
            "free": list(cells),
            "closure": [],
            "defaults": [],
            "kwdefaults": {},
        }
        self._uses(code, module)
        entry["closure"] = [self._encoder.encode(cell, f"{path}.{name}") for name, cell in cells.items()]
        return entry

    def _uses(self, code: CodeType, module: _Module) -> None:
        self._names |= attribute_names(code)
        self._need(module, global_names(code))
        self._imports(code, module)

    def _imports(self, code: CodeType, module: _Module) -> None:
        for name in imported_modules(code, module.namespace):
            if is_own(name):
                self._whole(sys.modules[name])

    def _cell(self, cell: types.CellType, entry: dict[str, Any], path: str) -> dict[str, Any]:
        entry["kind"] = "cell"
        with contextlib.suppress(ValueError):  # nothing has been put there yet
            entry["value"] = self._encoder.encode(cell.cell_contents, path)
        return entry

    def _class(self, kind: type, entry: dict[str, Any], path: str) -> dict[str, Any]:
        fields = kind.__dict__.get("_fields")
        functions = [f for f in map(_plain_function, vars(kind).values()) if f is not None]
        written = any(f.__code__.co_filename[:1] != "<" and f.__module__ == kind.__module__ for f in functions)
        if kind.__bases__ == (tuple,) and isinstance(fields, tuple) and not written:
            return self._encoder.call(named_tuple(kind), entry, path)
        here = [f for f in functions if f.__globals__.get("__name__") == kind.__module__]
        live = sys.modules.get(kind.__module__)
        module = self._module_of(here[0].__globals__ if here else vars(live) if live is not None else {})
        files = [f.__code__.co_filename for f in here if f.__globals__ is module.namespace]
        file = next(
            (name for name in files if name[:1] != "<"),
            str(module.namespace.get("__file__") or next(iter(files), kind)),
        )
        source = self._source(module, file)
        known = module.namespace
        try:
            node = source.class_node(kind.__qualname__)
            closure = _closure_of(kind, functions, node, known)
        except NotRecordable:
            if type(kind) is not type:
                raise
            return self._encoder.call(made_class(kind), entry, path)
        when_defined = self._called_when_defined(set(names_when_defined(node)) & set(known), known)
        entry |= {"kind": "class", "module": module.name, "qualname": kind.__qualname__, "needs": sorted(when_defined)}
        entry |= {"closure": {}, "attributes": {}}
        self._names |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
        self._need(module, names_in_class(node) & set(known))
        for function in functions:
            if function.__qualname__.startswith(kind.__qualname__ + "."):
                self._imports(function.__code__, module)
        entry["closure"] = self._encoder.encode_names(closure, path)
        entry["attributes"] = self._encoder.encode_names(_attributes(kind, node), path)
        for base in kind.__bases__:
            self._encoder.encode(base, f"{path}.__bases__")
        return entry

    def _called_when_defined(self, names: set[str], known: Mapping[str, Any]) -> set[str]:
        """The names, and the globals of functions among them, which may be decorators."""
        found, todo = set(names), list(names)
        while todo:
            value = known[todo.pop()]
            if type(value) is FunctionType and value.__globals__ is known:
                new = (global_names(value.__code__) & set(known)) - found
                found |= new
                todo += new
        return found

    def _module_value(self, module: ModuleType) -> dict[str, Any]:
        name = module.__name__
        if is_own(name):
            return {"kind": "module", "name": self._whole(module)}
        if sys.modules.get(name) is module:
            return {"kind": "module", "name": name}
        place = import_of(module)
        if place is None:
            raise NotRecordable("a module that is not among those imported")
        return {"kind": "import", "module": place[0], "qualname": place[1]}

    def _whole(self, module: ModuleType) -> str:
        """Have a module of the program at hand as a value; its name in the record."""
        collected = self._module_of(vars(module))
        collected.whole = True
        return collected.name

    def _module_of(self, namespace: Mapping[str, Any]) -> _Module:
        if id(namespace) not in self._modules:
            name = str(namespace.get("__name__") or "recorded")
            live = sys.modules.get(name)
            own = is_own(name) or live is None or vars(live) is not namespace
            taken = {module.name for module in self._modules.values()}
            while name in taken:
                name += "_"
            self._modules[id(namespace)] = _Module(name, namespace, own)
        return self._modules[id(namespace)]

    def _source(self, module: _Module, file: str) -> SourceFile:
        if module.source is None:
            module.source = SourceFile(file, module.namespace)
            stem = PurePath(file).stem if module.name == "__main__" else module.name
            name = "".join(c if c.isalnum() or c in "._-" else "_" for c in stem) or "source"
            while any(other.path == f"{SOURCE}/{name}.py" for other in self._modules.values()):
                name += "_"
            module.path = f"{SOURCE}/{name}.py"
        elif module.source.file != file:
            raise NotRecordable(f"{module.name} has code of two files, {module.source.file} and {file}")
        return module.source

    def _need(self, module: _Module, names: set[str]) -> None:
        if not module.own:
            return
        for name in sorted(names):
            if name in module.namespace and name not in module.values and name != "__builtins__":
                module.values[name] = None  # so that a cycle ends here
                module.values[name] = self._encoder.encode(module.namespace[name], f"{module.name}.{name}")

    def _records(self) -> list[ModuleRecord]:
        return [
            ModuleRecord(
                name=module.name,
                own=module.own,
                file=module.source.file if module.source else _text(module.namespace.get("__file__")),
                package=_text(module.namespace.get("__package__")),
                source=module.path,
                values=module.values,
            )
            for module in self._modules.values()
        ]


def _from_a_library(value: Any) -> bool:
    """Whether its class is one whose attributes can be read without running the program's code."""
    return type(value).__module__.partition(".")[0] in LIBRARIES and not issubclass(type(value), torch.nn.Module)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _plain_function(value: Any) -> FunctionType | None:
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    return value if isinstance(value, FunctionType) else None


def _closure_of(
    kind: type, functions: list[FunctionType], node: ast.ClassDef, known: Mapping[str, Any]
) -> dict[str, Any]:
    """What a class inside of a function takes from there."""
    if "<locals>" not in kind.__qualname__:
        return {}
    cells = {}
    for function in functions:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name != "__class__":
                cells[name] = cell.cell_contents
    bases = {base.__name__: base for base in kind.__bases__}
    for name in set(names_when_defined(node)) - set(known) - set(cells):
        if name in bases:
            cells[name] = bases[name]
        elif not hasattr(builtins, name) and name not in vars(kind):
            raise NotRecordable(f"{kind.__qualname__} takes {name} from the function around it")
    return cells


def _attributes(kind: type, node: ast.ClassDef) -> dict[str, Any]:
    """What lies in the class, which the program may have changed since, and functions that it has put there."""
    found = {}
    own = {n.name for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    for name, value in vars(kind).items():
        if name.startswith("__") or name.startswith("_abc_") or isinstance(kind, _METAS):
            continue
        if isinstance(value, FunctionType):
            if name not in own and value.__code__.co_filename[:1] != "<":
                found[name] = value
        elif not hasattr(type(value), "__get__") and not issubclass(type(value), type):
            found[name] = value
    return found
