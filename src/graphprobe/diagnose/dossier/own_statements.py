"""Statements of a program's modules: what they make, whether it is still that, what changes it afterwards."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from graphprobe.diagnose.dossier.own_modules import DEFINITIONS, OwnModule, root_of

TORCH_PASSES = "torch._inductor."
"""Objects from there are changed by functions that they are given to: pattern matchers."""
OUTSIDE = re.compile(r"\b(argv|parse_args|environ|getenv)\b")
"""What another process has otherwise."""


def is_plain(value: Any) -> bool:
    """Whether its `repr` says all, and nobody can change it."""
    if type(value) is tuple:
        return all(map(is_plain, value))
    return value is None or value is Ellipsis or type(value) in (bool, int, float, complex, str, bytes)


def defines(node: ast.stmt, value: Any) -> bool:
    """Whether this is the definition of this very function, and not of one that had the name before or after."""
    return isinstance(node, ast.FunctionDef) and is_as_written(node, value)


def is_as_written(node: ast.FunctionDef, value: Any) -> bool:
    """Whether a function is what its definition makes without what decorates it."""
    if not isinstance(value, FunctionType) or value.__dict__.keys() - {"_tags"}:
        return False
    return value.__code__.co_firstlineno == _first_line(node) and value.__code__.co_name == node.name


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(part.lineno for part in node.decorator_list)])


def is_stale(node: ast.stmt, value: Any) -> bool:
    """Whether a value is not what its statement says, where that can be seen."""
    if isinstance(node, ast.FunctionDef):
        return not node.decorator_list and not is_as_written(node, value)
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return False
    if OUTSIDE.search(ast.unparse(node.value)):
        return True
    if isinstance(node, ast.Assign) and not all(isinstance(target, ast.Name) for target in node.targets):
        return is_plain(value)
    try:
        return bool(ast.literal_eval(node.value) != value)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return is_plain(value)


def changes_of(home: OwnModule, name: str, value: Any) -> Iterator[ast.stmt]:
    """Statements that change a global after it was made."""
    passes = type(value).__module__.startswith(TORCH_PASSES)
    for node in (*home.others, *(n for nodes in home.bindings.values() for n in nodes)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = isinstance(node.value.func, ast.Attribute) and root_of(node.value.func) == name
            if called or (passes and name in _given(node.value)):
                yield node
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(not isinstance(target, ast.Name) and root_of(target) == name for target in targets):
                yield node
        elif isinstance(node, DEFINITIONS):
            changing = [] if isinstance(value, FunctionType | type) else node.decorator_list
            if any(root_of(part) == name or name in _given(part) for part in changing):
                yield node


def _given(call: ast.expr) -> list[str]:
    """Names that are arguments of a call."""
    if not isinstance(call, ast.Call):
        return []
    return [a.id for a in (*call.args, *(k.value for k in call.keywords)) if isinstance(a, ast.Name)]


def node_of(function: Any, text: str) -> ast.FunctionDef | ast.Lambda | None:
    """Its definition in the text of its file."""
    code: CodeType = function.__code__
    found: list[ast.FunctionDef | ast.Lambda] = []
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            if _first_line(node) == code.co_firstlineno:
                found.append(node)
        elif isinstance(node, ast.Lambda) and code.co_name == "<lambda>" and node.lineno == code.co_firstlineno:
            names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            if tuple(names) == code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
                found.append(node)
    if len(found) > 1:  # several on one line
        starts = min(((at[0], at[2]) for at in code.co_positions() if at[2] != at[3] and at[0]), default=None)
        found = [n for n in found if isinstance(n, ast.Lambda) and (n.body.lineno, n.body.col_offset) == starts]
    return found[0] if len(found) == 1 else None


def dedented(home: OwnModule, node: ast.stmt) -> str:
    lines = home.text.splitlines()[node.lineno - 1 : node.end_lineno]
    text = textwrap.dedent("\n".join(lines))
    try:
        same = ast.dump(ast.parse(text).body[0]) == ast.dump(node)
    except SyntaxError:
        same = False
    return text if same else ast.unparse(node)


def bare(node: ast.stmt) -> ast.stmt:
    """A definition without annotations of its arguments and results."""
    made = ast.parse(ast.unparse(node)).body[0]
    for inner in ast.walk(made):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            inner.returns = None
        elif isinstance(inner, ast.arg):
            inner.annotation = None
    return made
