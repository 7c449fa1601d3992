"""Finds functions and classes in a text. The part between the marks is copied into each `replay.py`."""

from __future__ import annotations

# <lookup>
import ast
import math
import types
from collections.abc import Iterator
from typing import Any

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


# </lookup>
