"""The user's functions that a program leads to, and what computed what they return."""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

from graphprobe.diagnose.dynamo.frame_places import is_users
from graphprobe.diagnose.dynamo.python_source import Named, function_node, own_nodes, source_at
from graphprobe.judge.effect_walk import variables_of

MOST_FUNCTIONS = 200
"""Functions that are looked at."""

FILLING = ("add", "append", "appendleft", "extend", "insert", "setdefault", "update")


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
