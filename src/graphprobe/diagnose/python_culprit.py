"""Which Python code of the user's computed an argument or a result, or chose the branch that a call is in."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType
from typing import Any, NamedTuple

from graphprobe.diagnose.python_source import (
    CALL,
    COMPREHENSIONS,
    FramePlace,
    Named,
    Names,
    ParsedFile,
    arms_of,
    function_node,
    last_of,
    own_nodes,
    ranked,
    source_at,
    starts,
)


def argument_names(frames: Sequence[FramePlace], call: str, path: str) -> list[Named]:
    """What computed an argument of a torch call that the innermost of the user's frames made.

    Args:
        call: name of the torch function.
        path: of the argument: its position or keyword, and then what it is in that.
    """
    source = source_at(frames[0].file) if frames else None
    node = source.at(frames[0]) if source is not None else None
    if source is None or node is None:
        return []
    names = Names(source, frames)
    for expression in _arguments(node, call, path):
        names.visit(expression)
    return ranked(names.found)


def _arguments(node: ast.AST, call: str, path: str) -> list[ast.AST]:
    """The expressions that may have become the argument."""
    first, _, rest = path.partition(".")
    if isinstance(node, ast.BinOp):
        return [node.left if call.startswith("__r") else node.right]
    if isinstance(node, ast.AugAssign):
        return [node.value]
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.Subscript):
        return [node.slice]
    if not isinstance(node, ast.Call):
        return []
    everything: list[ast.AST] = [*node.args, *(k.value for k in node.keywords)]
    if last_of(node.func).strip("_") != call.strip("_"):
        return everything
    if not first.isdigit():
        return [k.value for k in node.keywords if k.arg == first] or everything
    # Of a method the first argument stands before the name.
    for position in (int(first) - 1, int(first)) if _may_be_method(node.func) else (int(first),):
        if 0 <= position < len(node.args) and not any(isinstance(a, ast.Starred) for a in node.args):
            return [_entry(node.args[position], rest)[0]]
    return everything


def _may_be_method(func: ast.AST) -> bool:
    head = func
    while isinstance(head, ast.Attribute):
        head = head.value
    modules = ("torch", "F", "nn", "functional")
    return isinstance(func, ast.Attribute) and not (isinstance(head, ast.Name) and head.id in modules)


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


FILLING = ("add", "append", "appendleft", "extend", "insert", "setdefault", "update")


class TorchCall(NamedTuple):
    """A torch call: the user's frames that led to it, and its name."""

    frames: Sequence[FramePlace]
    name: str


def branch_names(one: TorchCall | None, other: TorchCall | None, shared: Sequence[Sequence[FramePlace]]) -> list[Named]:
    """What chose between a call that only the uncompiled program makes, and one that only the compiled one does.

    Args:
        one: the first call; None if that side makes none here.
        other: the second.
        shared: frames of calls that both sides make: what these are in was run by both.
    """
    for choose in (_chosen, _ended):
        found: list[Named] = []
        for side, against in ((one, other), (other, one)):
            for level, place in enumerate(side.frames if side is not None else ()):
                source = source_at(place.file)
                node = source.at(place, side.name if side is not None and not level else None) if source else None
                if side is not None and source is not None and node is not None:
                    same = [*_nodes(source, [frame for frames in shared for frame in frames])]
                    names = Names(source, side.frames[level:])
                    choose(names, node, _other_nodes(source, node, against, place), same)
                    found += names.found
        if found:
            return ranked(found)
    return []


def _nodes(source: ParsedFile, frames: Iterable[FramePlace]) -> Iterator[ast.AST]:
    for place in dict.fromkeys(frames):
        node = source.at(place) if place.file == source.file else None
        if node is not None:
            yield node


def _other_nodes(source: ParsedFile, node: ast.AST, against: TorchCall | None, place: FramePlace) -> list[ast.AST]:
    """Where the other call is in the same function."""
    found: list[ast.AST] = []
    for level, frame in enumerate(against.frames if against is not None else ()):
        there = source.at(frame, against.name if against and not level else None) if frame.file == place.file else None
        if there is not None and source.function_of(there) is source.function_of(node):
            found.append(there)
    return found


def _chosen(names: Names, node: ast.AST, others: list[ast.AST], shared: list[ast.AST]) -> None:
    """The conditions under which a node runs and the others do not."""
    source = names.source
    theirs = {arm for other in others for arm in arms_of(source, other)}
    common = {arm for other in shared for arm in arms_of(source, other)}
    loops = (ast.For, ast.AsyncFor, ast.While, *COMPREHENSIONS)
    for parent, part in arms_of(source, node):
        before = len(names.found)
        if (parent, part) in theirs:
            continue
        if (parent, part) not in common:
            names.conditions(parent, part)
        elif isinstance(parent, loops):  # entered by both, but perhaps not as often
            names.conditions(parent, part)
            names.found[before:] = [named for named in names.found[before:] if named.weight == CALL]


def _ended(names: Names, node: ast.AST, others: list[ast.AST], shared: list[ast.AST]) -> None:
    """The conditions under which the function ends before a node."""
    taken = {arm for other in (*others, *shared) for arm in arms_of(names.source, other)}
    if node not in others:
        for parent, part in _ends_before(names.source, node, taken):
            names.conditions(parent, part)


EXITS = (ast.Return, ast.Raise, ast.Break, ast.Continue)


def _ends_before(
    source: ParsedFile, node: ast.AST, taken: set[tuple[ast.AST, ast.AST]]
) -> Iterator[tuple[ast.AST, Any]]:
    """Conditions earlier in the same function under which it is left, the nearest first."""
    scope = source.function_of(node)
    earlier = [n for n in own_nodes(scope) if isinstance(n, (ast.If, ast.Try)) and starts(n) < starts(node)]
    for statement in reversed(earlier):
        leaves = any(isinstance(inner, EXITS) for inner in own_nodes(statement))
        if leaves and node not in ast.walk(statement) and (statement, statement.body[0]) not in taken:
            yield statement, statement.body[0]


def returned_names(fn: Callable[..., Any], path: str) -> list[Named]:
    """What computed an entry of what a function returns; `path` is the entry's."""
    code = getattr(fn, "__code__", None)
    source = source_at(code.co_filename) if isinstance(code, CodeType) else None
    if source is None or code is None:
        return []
    scope = function_node(source, code)
    values = [n.value for n in own_nodes(scope) if isinstance(n, ast.Return)] if scope is not None else []
    values = [scope.body] if isinstance(scope, ast.Lambda) else values
    names = Names(source, [FramePlace(source.file, code.co_firstlineno, function=code.co_qualname)])
    for value in filter(None, values):
        entry, rest = _entry(value, path)
        names.visit(entry)
        for put in _filled(scope, entry.id, rest) if scope is not None and isinstance(entry, ast.Name) else ():
            names.visit(put)
    return ranked(n for n in names.found if not n.name.startswith("torch."))


def function_class(place: FramePlace) -> str | None:
    """The class derived from `torch.autograd.Function` in whose method a place is; None if in none."""
    source = source_at(place.file)
    node = source.at(place) if source is not None else None
    owner = source.class_of(node) if source is not None and node is not None else None
    if source is None or owner is None:
        return None
    bases = [source.dotted(base) for base in owner.bases]
    return owner.name if any(base.endswith("Function") for base in bases) else None


def applied_in(place: FramePlace) -> str | None:
    """What the user's line calls: `Twice.apply`, `torch.cond`; None if that is not known."""
    source = source_at(place.file)
    node = source.at(place) if source is not None else None
    if source is None or node is None:
        return None
    applied = (n for n in ast.walk(node) if isinstance(n, ast.Attribute) and n.attr == "apply")
    called = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
    names = [source.dotted(n) for n in (*applied, *called)]
    return next((name for name in names if name and not hasattr(builtins, name)), None)
