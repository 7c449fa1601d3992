"""Values, functions and classes anew from a record. The part between the marks is copied into each `replay.py`."""

from __future__ import annotations

# <rebuild>
import __future__

import ast
import collections
import functools
import importlib
import math
import struct
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from graphprobe.engine.replay import Undecided

FUTURE_FLAGS = functools.reduce(
    lambda a, b: a | b, (getattr(__future__, n).compiler_flag for n in __future__.all_feature_names)
)
BASES: dict[str, Any] = {
    **{kind.__name__: kind for kind in (object, dict, list, set, collections.OrderedDict, collections.defaultdict)},
    **{kind.__name__: kind for kind in (tuple, str, bytes, int, float, frozenset, BaseException, collections.deque)},
}
"""What an object may be made of at bottom; each makes an empty one, or one with its content."""
LITERALS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "complex": complex}
MAIN = "__main__"

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class InProgress(Exception):
    """The object is being made; whoever wants it can have it later."""


class Placeholder:
    """Stands where a value could not be recorded."""

    def __init__(self, type: str, reason: str) -> None:
        self.type, self.reason = type, reason

    def __repr__(self) -> str:
        return f"<not recorded: {self.type}, {self.reason}>"


def code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a file and of everything defined in it, in the order of the text."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from code_objects(constant)


def find_code(file: types.CodeType, qualname: str, line: int, at: int) -> types.CodeType | None:
    """The function of that name: at its line the `at`-th, else, where the text was edited, the nearest one."""
    alike = [code for code in code_objects(file) if code.co_qualname == qualname]
    there = [code for code in alike if code.co_firstlineno == line]
    if there:
        return there[at] if at < len(there) else None
    return min(alike, key=lambda code: abs(code.co_firstlineno - line), default=None)


def find_class(tree: ast.AST, qualname: str) -> ast.ClassDef | None:
    """The last class of that name."""
    found: list[ast.AST] = [tree]
    for part in qualname.split("."):
        if part != "<locals>":
            found = [n for parent in found for n in definitions(parent) if getattr(n, "name", None) == part]
    classes = [node for node in found if isinstance(node, ast.ClassDef)]
    return classes[-1] if classes else None


def definitions(parent: ast.AST) -> Iterator[ast.AST]:
    """Functions and classes that stand directly in a scope, also inside of its `if`, `try` and the like."""
    for child in ast.iter_child_nodes(parent):
        if isinstance(child, SCOPES):
            yield child
        else:
            yield from definitions(child)


def same(a: Any, b: Any) -> bool:
    """Whether a class attribute is as it was recorded; where that cannot be said, it is set again."""
    if isinstance(a, float) and math.isnan(a):
        return False
    return a is b or (type(a) in (bool, int, str, bytes, float) and bool(a == b))


class Rebuilder:
    """Makes what a record describes.

    Args:
        doc: `record.json`.
        tensors: the tensors, in the order of the record.
        folder: of the record, for the texts.
    """

    def __init__(self, doc: Mapping[str, Any], tensors: list[Any], folder: Path) -> None:
        self.doc, self.tensors, self.folder = doc, tensors, folder
        self.built: dict[int, Any] = {}
        self.building: set[int] = set()
        self.modules: dict[str, Any] = {module["name"]: module for module in doc["modules"]}
        self.live: dict[str, types.ModuleType] = {}
        self.sources: dict[str, tuple[ast.Module, types.CodeType, str]] = {}
        self.set_up: set[tuple[str, str]] = set()
        self.later: list[Callable[[], object]] = []

    def install(self) -> None:
        """Puts the program's modules where imports find them, with their globals."""
        for name, module in self.modules.items():
            if module["own"]:
                made = self.live[name] = types.ModuleType(name)
                made.__file__ = str(self.folder / module["source"]) if module["source"] else module["file"]
                made.__package__ = module["package"]
                vars(made)["__builtins__"] = __builtins__
                sys.modules[name] = made
        for name in sorted(self.live):
            holder, _, leaf = name.rpartition(".")
            while holder:
                if holder not in sys.modules:
                    self.live[holder] = sys.modules[holder] = package = types.ModuleType(holder)
                    package.__path__ = []
                elif holder in self.live and not hasattr(self.live[holder], "__path__"):
                    self.live[holder].__path__ = []
                setattr(sys.modules[holder], leaf, sys.modules[name])
                name = holder
                holder, _, leaf = name.rpartition(".")
        for name, module in self.modules.items():
            for key in module["values"]:
                self.set_global(name, key)

    def set_global(self, module: str, key: str) -> None:
        """One global, once; a class of the text may need it before the others."""
        if (module, key) not in self.set_up:
            value = self.value(self.modules[module]["values"][key])
            self.set_up.add((module, key))
            vars(self.module(module))[key] = value

    def module(self, name: str) -> types.ModuleType:
        if name in self.live:
            return self.live[name]
        try:
            return importlib.import_module(name)
        except Exception as error:
            raise Undecided(f"the module {name} cannot be imported: {error}") from error

    def source(self, module: str) -> tuple[ast.Module, types.CodeType, str]:
        """Syntax tree, code and path of a module's text."""
        if module not in self.sources:
            path = self.folder / self.modules[module]["source"]
            try:
                text = path.read_text("utf-8")
                code = compile(text, str(path), "exec", dont_inherit=True)
            except (OSError, SyntaxError) as error:
                raise Undecided(f"{path} cannot be used: {error}") from error
            self.sources[module] = ast.parse(text), code, str(path)
        return self.sources[module]

    def value(self, value: Any) -> Any:
        """A value of the record: plain, or a reference to an object."""
        return self.object_at(value["ref"]) if isinstance(value, dict) else value

    def values(self, values: Sequence[Any]) -> list[Any]:
        return [self.value(value) for value in values]

    def object_at(self, number: int) -> Any:
        if number not in self.built:
            record = self.doc["objects"][number]
            made = getattr(self, f"make_{record['kind']}")(record, number)
            self.built.setdefault(number, made)  # by now a cycle may have led here, and made it
        return self.built[number]

    def fill(self, step: Callable[[], object]) -> None:
        """Now, or when the class that stands in the way is there."""
        try:
            step()
        except InProgress:
            self.later.append(step)

    def append(self, made: Any, item: Any) -> None:
        made.append(self.value(item))

    def set_item(self, made: Any, key: Any, value: Any) -> None:
        made[self.value(key)] = self.value(value)

    def finish(self, number: int, made: Any) -> Any:
        """A class is there: so can be what waited for it."""
        self.built[number] = made
        self.building.discard(number)
        waiting, self.later = self.later, []
        for step in waiting:
            self.fill(step)
        return made

    def make_literal(self, record: Mapping[str, Any], number: int) -> Any:
        if "bits" in record:  # a NaN has more of them than one can write
            parts = struct.unpack("<dd", bytes.fromhex(record["bits"]))
            return complex(*parts) if record["type"] == "complex" else parts[0]
        return LITERALS.get(record["type"], ast.literal_eval)(record["text"])

    def make_placeholder(self, record: Mapping[str, Any], number: int) -> Placeholder:
        return Placeholder(record["type"], record["reason"])

    def make_list(self, record: Mapping[str, Any], number: int) -> Any:
        made: list[Any] = []
        self.built[number] = made
        for item in record["items"]:
            self.fill(functools.partial(self.append, made, item))
        return made

    def make_tuple(self, record: Mapping[str, Any], number: int) -> Any:
        return BASES[record["kind"]](self.values(record["items"]))

    make_frozenset = make_tuple

    def make_set(self, record: Mapping[str, Any], number: int) -> Any:
        made: set[Any] = set()
        self.built[number] = made
        made.update(self.values(record["items"]))
        return made

    def make_dict(self, record: Mapping[str, Any], number: int) -> Any:
        made: dict[Any, Any] = {}
        self.built[number] = made
        for key, value in record["pairs"]:
            self.fill(functools.partial(self.set_item, made, key, value))
        return made

    def make_tensor(self, record: Mapping[str, Any], number: int) -> Any:
        tensor = self.tensors[record["tensor"]]
        if "base" in record:  # restored as a tensor that shares memory; autograd is to know it as a view, too
            import torch

            base = self.value(record["base"])
            with torch.inference_mode(False), torch.set_grad_enabled(record["requires_grad"]):
                offset = base.storage_offset() + record["offset"]
                tensor = base.as_strided(tensor.shape, tensor.stride(), offset)
            self.tensors[record["tensor"]] = tensor
        self.built[number] = tensor
        if "grad" in record:
            tensor.grad = self.value(record["grad"])
        for name, value in record.get("state", {}).items():
            setattr(tensor, name, self.value(value))
        return tensor

    def make_array(self, record: Mapping[str, Any], number: int) -> Any:
        numpy = importlib.import_module("numpy")
        data = self.tensors[record["tensor"]].numpy().tobytes()
        made = numpy.frombuffer(data, dtype=numpy.dtype(record["dtype"])).reshape(record["shape"])
        return made[()] if record["scalar"] else made.copy(order=record["order"])

    def make_module(self, record: Mapping[str, Any], number: int) -> Any:
        return self.module(record["name"])

    def make_import(self, record: Mapping[str, Any], number: int) -> Any:
        found: Any = self.module(record["module"])
        for part in record["qualname"].split("."):
            try:
                found = getattr(found, part)
            except AttributeError as error:
                raise Undecided(
                    f"there is no {record['module']}.{record['qualname']} in this process (see --import)"
                ) from error
        return found

    def make_cell(self, record: Mapping[str, Any], number: int) -> Any:
        made = types.CellType()
        self.built[number] = made
        if "value" in record:
            self.fill(lambda: setattr(made, "cell_contents", self.value(record["value"])))
        return made

    def make_function(self, record: Mapping[str, Any], number: int) -> Any:
        _, file, path = self.source(record["module"])
        code = find_code(file, record["qualname"], record["line"], record["at"])
        if code is None:
            raise Undecided(f"{path} does not define {record['qualname']} any more")
        cells = dict(zip(record["free"], self.values(record["closure"]), strict=True))
        lacking = [name for name in code.co_freevars if name not in cells]
        if lacking:
            raise Undecided(
                f"{record['qualname']} now uses {', '.join(lacking)} of the function around it, not recorded"
            )
        defaults = tuple(self.values(record["defaults"])) or None
        if number in self.built:
            return self.built[number]
        closure = tuple(cells[name] for name in code.co_freevars) or None
        made = types.FunctionType(code, vars(self.module(record["module"])), record["name"], defaults, closure)
        self.built[number] = made
        made.__module__, made.__qualname__ = record["reported_module"], record["qualname"]
        made.__kwdefaults__ = {name: self.value(value) for name, value in record["kwdefaults"].items()} or None
        for name, value in record.get("state", {}).items():
            setattr(made, name, self.value(value))
        return made

    def make_call(self, record: Mapping[str, Any], number: int) -> Any:
        function = self.value(record["callable"])
        if function is type:
            self.begin(number)
        arguments, named = self.values(record["args"]), record.get("kwargs", {})
        made = function(*arguments, **{name: self.value(value) for name, value in named.items()})
        self.built[number] = made
        for name, value in record.get("attributes", {}).items():
            setattr(made, name, self.value(value))
        if function is type:
            return self.finish(number, made)
        if "state" in record:
            state = self.value(record["state"])
            made.__setstate__(state) if hasattr(made, "__setstate__") else vars(made).update(state)
        for item in record.get("items", ()):
            made.append(self.value(item))
        for key, value in record.get("pairs", ()):
            made[self.value(key)] = self.value(value)
        return made

    def make_class(self, record: Mapping[str, Any], number: int) -> Any:
        name = record["qualname"]
        self.begin(number)
        tree, file, path = self.source(record["module"])
        node = find_class(tree, name)
        if node is None:
            raise Undecided(f"{path} does not define {name} any more")
        for needed in record["needs"]:
            if needed in self.modules[record["module"]]["values"]:
                self.set_global(record["module"], needed)
        closure = {key: self.value(value) for key, value in record["closure"].items()}
        made = self.defined(node, file.co_flags & FUTURE_FLAGS, path, record["module"], closure)
        made.__qualname__ = name
        self.finish(number, made)
        for key, value in record["attributes"].items():
            now = self.value(value)
            if type(now) is not type(vars(made).get(key)) or not same(vars(made).get(key), now):
                setattr(made, key, now)
        return made

    def defined(self, node: ast.ClassDef, flags: int, path: str, module: str, closure: Mapping[str, Any]) -> Any:
        """Runs a `class` statement, with what it takes from functions around it as arguments of one."""
        at: dict[str, Any] = {"lineno": node.lineno, "col_offset": 0, "end_lineno": node.lineno, "end_col_offset": 0}
        arguments = ast.arguments(
            posonlyargs=[], args=[ast.arg(arg=n, **at) for n in closure], kwonlyargs=[], kw_defaults=[], defaults=[]
        )
        given = ast.Return(value=ast.Name(id=node.name, ctx=ast.Load(), **at), **at)
        maker = ast.FunctionDef(name="_graphprobe_make", args=arguments, body=[node, given], decorator_list=[], **at)
        if sys.version_info >= (3, 12):
            maker.type_params = []
        code = compile(ast.Module(body=[maker], type_ignores=[]), path, "exec", flags=flags, dont_inherit=True)
        namespace = vars(self.module(module))
        before = namespace.get("_graphprobe_make", self)
        exec(code, namespace)
        make = namespace.pop("_graphprobe_make")
        if before is not self:
            namespace["_graphprobe_make"] = before
        return make(**closure)

    def begin(self, number: int) -> None:
        if number in self.building:
            raise InProgress(self.doc["objects"][number].get("qualname", number))
        self.building.add(number)

    def make_instance(self, record: Mapping[str, Any], number: int) -> Any:
        kind, base = self.value(record["class"]), BASES[record["base"]]
        if base in (tuple, str, bytes, int, float, frozenset):
            content = self.value(record["content"])
            if number in self.built:
                return self.built[number]
            made = base.__new__(kind, content)
        elif base is BaseException:
            made = base.__new__(kind, *self.values(record["items"]))
        else:
            made = base.__new__(kind)
            if base is collections.deque:
                base.__init__(made, (), self.value(record["content"]))
            elif base is collections.defaultdict:
                base.__init__(made, self.value(record["content"]))
        self.built[number] = made
        if base in (list, collections.deque):
            base.extend(made, self.values(record["items"]))
        elif base is set:
            base.update(made, self.values(record["items"]))
        for key, value in record.get("pairs", ()):
            base.__setitem__(made, self.value(key), self.value(value))
        if "state" in record:
            object.__getattribute__(made, "__dict__").update(
                {name: self.value(value) for name, value in record["state"].items()}
            )
        for name, value in record.get("slots", {}).items():
            object.__setattr__(made, name, self.value(value))
        return made


# </rebuild>
