"""The user's functions that a program leads to, and their source, parsed: what functions and names in it are."""

from __future__ import annotations

import ast
import functools
import linecache
import types
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, NamedTuple

import torch

from graphprobe.diagnose.dynamo.frame_places import is_users
from graphprobe.judge.effect_walk import variables_of

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
LITERALS: dict[type[ast.AST], str] = {
    ast.Dict: "dict",
    ast.DictComp: "dict",
    ast.List: "list",
    ast.ListComp: "list",
    ast.Set: "set",
    ast.SetComp: "set",
    ast.Tuple: "tuple",
    ast.JoinedStr: "str",
}

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Is: "is_",
    ast.IsNot: "is_not",
    ast.In: "contains",
    ast.NotIn: "contains",
}


MOST_FUNCTIONS = 200
"""Functions that are looked at."""

FILLING = ("add", "append", "appendleft", "extend", "insert", "setdefault", "update")


class Named(NamedTuple):
    """Something that the source calls, reads or does."""

    name: str
    source: str


class ParsedFile:
    """A file of the user's, parsed."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.tree = ast.parse(text)
        self.parents: dict[ast.AST, ast.AST] = {
            child: parent for parent in ast.walk(self.tree) for child in ast.iter_child_nodes(parent)
        }
        self.imports: dict[str, str] = {}
        self.aliases: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.partition(".")[0]
                    self.imports[alias.asname or first] = alias.name if alias.asname else first
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        self.aliases = dict(self._aliases())

    def _aliases(self) -> Iterator[tuple[str, str]]:
        """Other names that the file gives to what it has imported: `cond = torch.cond`."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and self.is_imported(node.value):
                for target in node.targets:
                    yield last_of(target), self.dotted(node.value)

    def is_imported(self, node: ast.AST) -> bool:
        """Whether an expression is something that the file imports, or an attribute of that."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self.imports

    def outwards(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Each node around this one, the nearest first, with the part of it that this one is in."""
        while node in self.parents:
            yield self.parents[node], node
            node = self.parents[node]

    def function_of(self, node: ast.AST) -> ast.AST:
        """The function whose code the node is, or the module; a comprehension belongs to the function around it."""
        around = (parent for parent, _ in self.outwards(node) if isinstance(parent, SCOPES))
        return next(around, self.tree)

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The class around a node, if any."""
        return next((parent for parent, _ in self.outwards(node) if isinstance(parent, ast.ClassDef)), None)

    def dotted(self, node: ast.AST) -> str:
        """What an expression that is called is named: `numpy.round` for `np.round`."""
        if isinstance(node, ast.Name):
            return self.imports.get(node.id) or self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            head = self.dotted(node.value)
            return f"{head}.{node.attr}" if head else node.attr
        kind = LITERALS.get(type(node))
        if kind is None and isinstance(node, ast.Constant):
            kind = type(node.value).__name__
        return kind or ""


@functools.lru_cache(maxsize=64)
def source_at(file: str) -> ParsedFile | None:
    """The file, parsed; None where it cannot be."""
    try:
        text = "".join(linecache.getlines(file))
        return ParsedFile(file, text) if text else None
    except (SyntaxError, ValueError, RecursionError):
        return None


def last_of(node: ast.AST) -> str:
    """`append` of `hits.append`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function's code, those of functions inside of it left out, in the order of the text."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, SCOPES):
            yield from own_nodes(child)


def function_node(source: ParsedFile, code: CodeType) -> Any:
    """The definition that a code object was made from; None if it is not found."""
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            if min([node.lineno, *(d.lineno for d in node.decorator_list)]) == code.co_firstlineno:
                return node
        elif isinstance(node, ast.Lambda) and code.co_name == "<lambda>" and node.lineno == code.co_firstlineno:
            return node
    return None


def functions_of(fn: Any) -> list[types.FunctionType]:
    """The user's functions that a function or module leads to, the near ones first. No code of the user runs."""
    found: list[types.FunctionType] = []
    seen: set[int] = set()
    edge: list[Any] = [fn]
    while edge and len(found) < MOST_FUNCTIONS:
        value = edge.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, types.FunctionType):
            if is_users(value.__code__.co_filename):
                found.append(value)
                edge += [v for _, v in variables_of(value)]
            edge += filter(None, [value.__dict__.get("__wrapped__")])
        else:
            edge += _leads(value)
    return found


def _leads(value: Any) -> list[Any]:
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, (staticmethod, classmethod)):
        return [value.__func__]
    if isinstance(value, property):
        return [part for part in (value.fget, value.fset, value.fdel) if part is not None]
    if isinstance(value, type):
        kinds = [kind for kind in value.__mro__ if _is_users_class(kind)]
        return [part for kind in kinds for part in vars(kind).values() if _is_code(part)]
    if isinstance(value, (list, tuple)):
        return [part for part in value[:MOST_FUNCTIONS] if _is_code(part) or _is_users_class(type(part))]
    if not _is_users_class(type(value)) and not isinstance(value, torch.nn.Module):
        return []
    parts = [*_attributes(value).values(), *(value.children() if isinstance(value, torch.nn.Module) else ())]
    return [type(value), *(part for part in parts if _is_code(part) or _is_users_class(type(part)))]


def _is_code(value: Any) -> bool:
    kinds = (types.FunctionType, types.MethodType, staticmethod, classmethod, property, functools.partial, type)
    return isinstance(value, kinds)


def _is_users_class(kind: type) -> bool:
    if kind.__module__ == "__main__":
        return True
    return any(isinstance(v, types.FunctionType) and is_users(v.__code__.co_filename) for v in vars(kind).values())


def _attributes(value: Any) -> dict[str, Any]:
    found = getattr(value, "__dict__", None)
    return found if isinstance(found, dict) else {}


def returned_names(fn: Callable[..., Any], path: str) -> list[Named]:
    """What computed an entry of what a function returns, the outer calls last; `path` is the entry's."""
    code = getattr(fn, "__code__", None)
    source = source_at(code.co_filename) if isinstance(code, CodeType) else None
    scope = function_node(source, code) if source is not None and code is not None else None
    if source is None or scope is None:
        return []
    values = [n.value for n in own_nodes(scope) if isinstance(n, ast.Return) and n.value is not None]
    found: list[Named] = []
    for value in [scope.body] if isinstance(scope, ast.Lambda) else values:
        entry, rest = _entry(value, path)
        put = _filled(scope, entry.id, rest) if isinstance(entry, ast.Name) else []
        for part in (entry, *put):
            calls = [n for n in ast.walk(part) if isinstance(n, ast.Call)]
            found += [Named(source.dotted(n.func), f"{source.file}:{n.lineno}") for n in reversed(calls)]
    return [named for named in found if named.name and not named.name.startswith("torch.")]


def _entry(node: ast.expr, path: str) -> tuple[ast.expr, str]:
    """The entry of a list or tuple, where it is spelled out, and the path of what is meant in that."""
    first, _, rest = path.partition(".")
    if isinstance(node, (ast.List, ast.Tuple)) and first.isdigit() and int(first) < len(node.elts):
        return _entry(node.elts[int(first)], rest)
    return node, path


def _filled(scope: ast.AST, name: str, path: str) -> list[ast.expr]:
    """What is put into a list, dict or set of a function after it is made; first what became the entry at `path`."""
    put: list[ast.expr] = []
    for node in own_nodes(scope):
        func = node.func if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and isinstance(func, ast.Attribute) and func.attr in FILLING:
            put += node.args[-1:] if ast.unparse(func.value) == name else []
        elif isinstance(node, ast.Assign):
            into = [t.value for t in node.targets if isinstance(t, ast.Subscript)]
            put += [node.value] if any(ast.unparse(t) == name for t in into) else []
    first = path.partition(".")[0]
    at = int(first) if first.isdigit() and int(first) < len(put) else 0
    return [*put[at : at + 1], *put[:at], *put[at + 1 :]]
