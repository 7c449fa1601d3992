"""The program's own part of a record: functions, classes and modules, with the text that defines them."""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import sys
import types
from collections.abc import Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from graphprobe.internals.aot_backends import aot_arguments, aot_autograd
from graphprobe.internals.dynamo.frame_failures import REGION, marked_function
from graphprobe.internals.operators.registrations import kernels_named
from graphprobe.program_text.encoding import Encoder
from graphprobe.program_text.libraries import RebuildCall, import_of, made_class, named_tuple, vars_of
from graphprobe.program_text.loading import code_objects, find_class, first_line
from graphprobe.program_text.sources import (
    NotRecordable,
    SourceFile,
    _Module,
    all_codes,
    defining_names,
    global_names,
    imported_modules,
    is_own,
    lines_of,
    read_when_defined,
    statements_about,
    top_level,
    tree_of,
)

LIBRARIES = ("torch", "builtins", "functools", "numpy", "operator", "_operator")

_METAS = (type(__import__("enum").Enum),)


Place = tuple[_Module, str, ast.stmt]
"""Where a value comes from: a module of the program, the name there, the statement that binds it."""


class TextProgram:
    """Records what an `Encoder` meets of functions, classes and modules, and what their definitions need.

    Modules are told by their globals; a function whose globals are no module's gets one of that name.

    Attributes:
        statements: by module and name, those that make a value and add to it, for records of the kind `stated`.
        folders: where modules lie that are imported and not installed, by name.
    """

    told_alone = False
    """Whether the text runs by itself, and once: without the helper `INSTANCE`, with names that annotations read."""
    in_place = False
    """Whether `loading` runs the text: modules keep their names and lines, and what cannot be told is a placeholder."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._modules: dict[int, _Module] = {}
        self._names: set[str] = set()
        self.statements: dict[tuple[str, str], list[ast.stmt]] = {}
        self.folders: dict[str, str] = {}
        self._places: dict[int, Place] = {}

    @property
    def modules(self) -> list[_Module]:
        """The program's own modules, in the order in which they were met."""
        return [module for module in self._modules.values() if module.own]

    def module_named(self, name: str) -> _Module:
        """One of all modules."""
        return next(module for module in self._modules.values() if module.name == name)

    def stated(self, value: Any, entry: dict[str, Any], path: str) -> dict[str, Any] | None:
        """A value by the statement that has made it, as what decorates a `def` does, and by those that add to it."""
        place = self._places.get(id(value)) or self._place(value)
        if place is None:
            return None
        module, name, node = place
        assert module.source is not None
        entry |= {"kind": "stated", "module": module.name, "qualname": name}
        statements = [node, *statements_about(module.source.tree, name, node, value)]
        self.statements[module.name, name] = statements
        for code in code_objects(module.source.code):
            if any(code.co_firstlineno in lines_of(s) for s in statements):
                self._uses(code, module)
        names = {used for statement in statements for used in self._read_by(statement)}
        self._need(module, (names - {name}) & set(module.namespace))
        return entry

    def describe(self, value: Any, entry: dict[str, Any], path: str) -> dict[str, Any] | None:
        """The record of a function, class, module, backend of AOTAutograd and the like; None for everything else."""
        kind = type(value)  # `isinstance` would ask the object
        made = _made_by_torch(value) if kind is FunctionType else None
        if made is not None:
            return self._encoder.call(made, entry, path)
        if issubclass(kind, ModuleType):
            return self._module_value(value)
        if kind is types.CellType:
            return self._cell(value, entry, path)
        if not issubclass(kind, type | FunctionType):
            if not _from_a_library(value):
                return None
            if (arguments := aot_arguments(value)) is not None:
                return self._encoder.call(RebuildCall(aot_autograd(), (), arguments), entry, path)
        place = import_of(value)
        if place is not None:
            return {"kind": "import", "module": place[0], "qualname": place[1]}
        if kind is FunctionType:
            return self._function_value(value, entry, path)
        if issubclass(kind, type):
            return self._class(value, entry, path)
        return None

    def _place(self, value: Any) -> Place | None:
        """The place of the `def` whose decorator has made a value."""
        if type(value) is not FunctionType and not hasattr(type(value), "cache_info"):
            return None
        inner = [inspect.unwrap(value)]
        for cell in (value.__closure__ or ()) if type(value) is FunctionType else ():
            try:
                inner.append(cell.cell_contents)
            except ValueError:  # nothing has been put there yet
                continue
        for function in inner:
            if type(function) is FunctionType and function is not value:
                module = self._module_of(function.__globals__)
                if module.own and (place := self._decorated(module, function.__name__, value)) is not None:
                    return place
        return None

    def _decorated(self, module: _Module, name: str, value: Any) -> Place | None:
        if module.namespace.get(name) is not value:
            return None
        statement = top_level(tree_of(module)).get(name)
        return (
            (module, name, statement) if isinstance(statement, ast.FunctionDef) and statement.decorator_list else None
        )

    def _need(self, module: _Module, names: set[str]) -> None:
        needed = sorted(names & set(module.namespace) - {"__builtins__"}) if module.own else []
        for name in needed:
            value = module.namespace[name]
            plain = type(value) is FunctionType and value.__qualname__ == name and "__wrapped__" not in vars(value)
            if not plain and not issubclass(type(value), type | ModuleType):
                place = self._decorated(module, name, value)
                if place is not None:
                    self._places[id(value)] = place
        for name in needed:
            if name not in module.values:
                module.values[name] = None  # so that a cycle ends here
                module.values[name] = self._encoder.encode(module.namespace[name], f"{module.name}.{name}")

    def _function(
        self, code: CodeType, namespace: dict[str, Any], cells: Mapping[str, Any], entry: dict[str, Any], path: str
    ) -> dict[str, Any]:
        module = self._module_of(namespace)
        if not module.own and not self.in_place:
            raise NotRecordable(f"it was made inside of {module.name}.{code.co_qualname}")
        source = self._source(module, code.co_filename)
        entry |= {
            "kind": "function" if module.own else "inner",
            "module": module.name,
            "qualname": code.co_qualname,
            "line": code.co_firstlineno,
            "at": source.place_of(code),
            "free": list(cells),
            "closure": [],
            "defaults": [],
            "kwdefaults": {},
        }
        self._uses(code, module)
        entry["closure"] = [self._encoder.encode(cell, f"{path}.{name}") for name, cell in cells.items()]
        if module.own:
            kind: Any = None  # that of a method
            for i, part in enumerate(code.co_qualname.split(".")[:-1]):
                kind = vars_of(kind).get(part) if i and issubclass(type(kind), type) else module.namespace.get(part)
            if issubclass(type(kind), type):
                self._encoder.encode(kind, f"{path}.class")
            self._need(module, self._read_by(self.node_of(entry), decorated=False) & set(namespace))
        return entry

    def _read_by(self, node: ast.AST, *, decorated: bool = True) -> set[str]:
        found = defining_names(node, decorated=decorated)
        self._names |= {
            part.attr for part in read_when_defined(node, decorated=decorated) if isinstance(part, ast.Attribute)
        }
        if self.told_alone:
            notes = [getattr(n, "annotation", None) or getattr(n, "returns", None) for n in ast.walk(node)]
            found |= {n.id for note in notes if note is not None for n in ast.walk(note) if isinstance(n, ast.Name)}
        return found

    def node_of(self, record: Mapping[str, Any]) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef:
        """The text of a function or class."""
        module = self.module_named(record["module"])
        assert module.source is not None
        if record["kind"] == "class":
            found_class = find_class(module.source.tree, record["qualname"])
            assert found_class is not None
            return found_class
        name = record["qualname"].rpartition(".")[2]
        found: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda] = [
            node
            for node in ast.walk(module.source.tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            and getattr(node, "name", "<lambda>") == name
            and first_line(node) == record["line"]
        ]
        found.sort(key=lambda node: (node.lineno, node.col_offset))
        if record["at"] >= len(found):
            raise NotRecordable(f"{module.source.file} does not define {record['qualname']} where it was loaded")
        return found[int(record["at"])]

    def complete(self) -> None:
        """Follows attributes of the program's modules until nothing is added."""
        while True:
            before = len(self._encoder.objects), len(self._names)
            for module in list(self._modules.values()):
                if module.whole and module.own:
                    self._need(module, {name for name in self._names if name in module.namespace})
            if (len(self._encoder.objects), len(self._names)) == before:
                return

    def _function_value(self, function: FunctionType, entry: dict[str, Any], path: str) -> dict[str, Any]:
        marked = marked_function(function)
        if marked is not None:
            marks, inner, settings = marked
            return self._encoder.call(RebuildCall(marks, (inner,), settings), entry, path)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        self._function(function.__code__, function.__globals__, cells, entry, path)
        entry["defaults"] = self._encoder.encode_all(function.__defaults__ or (), f"{path}.defaults")
        entry["kwdefaults"] = self._encoder.encode_names(function.__kwdefaults__ or {}, f"{path}.defaults")
        if state := {name: value for name, value in vars(function).items() if not name.startswith(REGION)}:
            entry["state"] = self._encoder.encode_names(state, path)
        return entry

    def _uses(self, code: CodeType, module: _Module) -> None:
        names = {name for c in all_codes(code) for name in c.co_names}
        self._names |= names
        self._need(module, global_names(code))
        self._imports(code, module)
        for kernel in kernels_named(names):  # called as `torch.ops.NAMESPACE.NAME`
            self._need(self._module_of(kernel.__globals__), {kernel.__name__})

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
        functions = [f for f in map(plain_function, vars(kind).values()) if f is not None]
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
        entry |= {"kind": "class", "module": module.name, "qualname": kind.__qualname__}
        entry |= {"closure": {}, "attributes": {}}
        self._names |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
        bare = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not hasattr(builtins, n.id)}
        self._need(module, bare & set(known))
        for function in functions:
            if function.__qualname__.startswith(kind.__qualname__ + "."):
                self._imports(function.__code__, module)
        entry["closure"] = self._encoder.encode_names(closure, path)
        entry["attributes"] = self._encoder.encode_names(_attributes(kind, node), path)
        for base in kind.__bases__:
            self._encoder.encode(base, f"{path}.__bases__")
        return entry

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
        elif module.source.file != file:
            raise NotRecordable(f"{module.name} has code of two files, {module.source.file} and {file}")
        return module.source


def _made_by_torch(function: FunctionType) -> RebuildCall | None:
    """The call of torch that made a function, where all that it was given is kept, as by `vmap`."""
    name, _, inner = function.__code__.co_qualname.partition(".<locals>.")
    maker = function.__globals__.get(name)
    if (
        not inner
        or not str(function.__globals__.get("__name__")).startswith("torch.")
        or type(maker) is not FunctionType
    ):
        return None
    try:
        given = {
            n: c.cell_contents for n, c in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        }
    except ValueError:  # nothing has been put there yet
        return None
    parameters = inspect.signature(inspect.unwrap(maker)).parameters
    needed = {n for n, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD}
    return RebuildCall(maker, (), given) if needed <= set(given) <= set(parameters) else None


def _from_a_library(value: Any) -> bool:
    """Whether its class is one whose attributes can be read without running the program's code."""
    return type(value).__module__.partition(".")[0] in LIBRARIES and not issubclass(type(value), torch.nn.Module)


def plain_function(value: Any) -> FunctionType | None:
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
    for name in defining_names(node) - set(known) - set(cells):
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
