"""Finds the statement of the user's that computed a wrong value, chose the branch or made a side effect."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import itertools
import re
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType
from typing import Any, NamedTuple

import torch

from graphprobe.diagnose.dynamo.frame_places import FramePlace, is_users
from graphprobe.diagnose.dynamo.python_source import (
    CALL,
    COMPREHENSIONS,
    SCOPES,
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
from graphprobe.judge.effect_walk import names_of_code

MOST_FUNCTIONS = 200
"""Functions that are looked at."""

CHANGING = frozenset(
    "add append appendleft clear discard difference_update extend extendleft insert intersection_update move_to_end "
    "pop popitem popleft put remove reverse rotate send setdefault sort symmetric_difference_update update write "
    "writelines".split()
)
"""Methods of Python's containers that change them."""

BUILTINS = ("setattr", "delattr", "next", "operator.setitem", "operator.delitem", "heapq.heappush", "heapq.heappop")
"""Functions that change their first argument."""

OWN = "random generator of "
PREFIXES = {"Python": ("random.",), "numpy": ("numpy.random.",), "torch": ("torch.",)}
DRAWN = re.compile(r"rand|normal|bernoulli|dropout|multinomial|poisson|uniform_|exponential_|cauchy_|geometric_|seed")
"""Functions of torch that draw numbers."""

PART = re.compile(r"[A-Za-z_]\w*|\[[^\]]*\]")

UNSURE = "()"
"""After the name of a method that may change nothing."""

SIGNS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.MatMult: "@",
}

FILLING = ("add", "append", "appendleft", "extend", "insert", "setdefault", "update")

EXITS = (ast.Return, ast.Raise, ast.Break, ast.Continue)


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


def variables_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables that a function finds outside of it, and its defaults."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not filled yet
            continue
    for name in dict.fromkeys(names_of_code(code)):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    defaults = function.__defaults__ or ()
    named = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    yield from zip(named, defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


class ChangingStatement:
    """A statement that changes something.

    Attributes:
        parts: what is changed, as in the source: `["self", "history"]`.
        name: what is called or done.
    """

    def __init__(self, target: ast.AST, name: str, node: Any, function: types.FunctionType, source: ParsedFile) -> None:
        self.parts = PART.findall(ast.unparse(target))
        self.name, self.node, self.function, self.source = name, node, function, source

    def named(self) -> Named:
        """What is called or done, with its line."""
        return Named(self.name.removesuffix(UNSURE), f"{self.source.file}:{self.node.lineno}", CALL)


def statement_of(where: str, fn: Any) -> Named | None:
    """The statement that changes what has a label in the snapshots of side effects; None if none is found."""
    changes: list[ChangingStatement] = []
    functions = functions_of(fn)
    for function in functions:
        source = source_at(function.__code__.co_filename)
        node = function_node(source, function.__code__) if source is not None else None
        if source is not None and node is not None:
            changes += _changes(node, function, source, where)
    if where.startswith(OWN):
        return changes[0].named() if changes else None
    value, parts = _resolved(where, functions)
    first = functions[0] if functions else None
    scored = [(_score(c, where, parts, value, first) * _later(c), -i) for i, c in enumerate(changes)]
    best = max(scored, default=(0.0, 0))
    return changes[-best[1]].named() if best[0] > 0 else None


def _changes(
    root: ast.AST, function: types.FunctionType, source: ParsedFile, where: str
) -> Iterator[ChangingStatement]:
    """The changes in a function and in those inside of it, in the order of the text."""
    drawn = PREFIXES.get(where.removeprefix(OWN).split(" ")[0], ()) if where.startswith(OWN) else None
    for node in _in_order(root):
        if drawn is not None:
            if isinstance(node, ast.Call) and _draws(source.dotted(node.func), drawn):
                yield ChangingStatement(node.func, source.dotted(node.func), node, function, source)
            continue
        for target, name in _targets(node, source):
            yield ChangingStatement(target, name, node, function, source)


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        yield from _in_order(child)


def _draws(name: str, prefixes: tuple[str, ...]) -> bool:
    if prefixes != PREFIXES["torch"]:
        return name.startswith(prefixes)
    return bool(DRAWN.search(name.rpartition(".")[2])) and not name.startswith(("random.", "numpy."))


def _targets(node: ast.AST, source: ParsedFile) -> Iterator[tuple[ast.AST, str]]:
    """What a node changes, and in words how."""
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        sign = f"{SIGNS.get(type(node.op), '')}=" if isinstance(node, ast.AugAssign) else "="
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in (part for t in targets for part in _flat(t)):
            if isinstance(target, ast.Subscript):
                yield target.value, f"{ast.unparse(target.value)}.__setitem__"
            elif isinstance(target, ast.Attribute) or _is_outer(source, node, target):
                yield target, f"{ast.unparse(target)} {sign}"
    elif isinstance(node, ast.Delete):
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                yield target.value, f"{ast.unparse(target.value)}.__delitem__"
            elif isinstance(target, ast.Attribute) or _is_outer(source, node, target):
                yield target, f"del {ast.unparse(target)}"
    elif isinstance(node, ast.Call):
        yield from _called(node, source)


def _called(node: ast.Call, source: ParsedFile) -> Iterator[tuple[ast.AST, str]]:
    name = source.dotted(node.func)
    if name.startswith("random.") and node.args:  # random.shuffle
        yield node.args[0], name
    elif name in BUILTINS and node.args:
        target = node.args[0]
        constant = node.args[1] if len(node.args) > 1 else None
        if name == "setattr" and isinstance(constant, ast.Constant) and isinstance(constant.value, str):
            target = ast.Attribute(target, constant.value, ast.Load())
        yield target, name
    elif isinstance(node.func, ast.Attribute) and not name.startswith(("torch.", "numpy.")):
        yield node.func.value, name if last_of(node.func) in CHANGING else f"{name}{UNSURE}"


def _flat(target: ast.AST) -> Iterator[ast.AST]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            yield from _flat(part)
    else:
        yield target


def _outer_names(source: ParsedFile, node: ast.AST) -> set[str]:
    """The names that a function declares as global or nonlocal."""
    scope = next((parent for parent, _ in source.outwards(node) if isinstance(parent, SCOPES)), source.tree)
    found = (n for n in ast.walk(scope) if isinstance(n, (ast.Global, ast.Nonlocal)))
    return {name for node in found for name in node.names}


def _is_outer(source: ParsedFile, node: ast.AST, target: ast.AST) -> bool:
    return isinstance(target, ast.Name) and target.id in _outer_names(source, node)


def _resolved(where: str, functions: list[types.FunctionType]) -> tuple[Any, list[str]]:
    """The object that a label stands for, if it can be reached, and the parts of the label."""
    text = re.sub(r"^(closure|global|default|class|generator|argument) ", "", where)
    parts = PART.findall(text if not where.startswith("argument ") else text.lstrip("0123456789"))
    for function in functions:
        known = dict(variables_of(function)) | {function.__name__: function}
        if parts and parts[0] in known and not where.startswith("argument "):
            value: Any = known[parts[0]]
            for part in parts[1:]:
                value = vars(value).get(part) if hasattr(value, "__dict__") and not part.startswith("[") else None
            if value is not None:
                return value, parts
    return None, parts


def _score(
    change: ChangingStatement, where: str, parts: list[str], value: Any, first: types.FunctionType | None
) -> float:
    """How well a change fits a label: the object itself, its whole name, or the end of it."""
    names = [part for part in parts if not part.startswith("[")]
    own = [part for part in change.parts if not part.startswith("[")]
    sure = 0.0 if change.name.endswith(UNSURE) else 0.5
    known = dict(variables_of(change.function))
    found: Any = known.get(own[0]) if own else None
    for name in own[1:]:
        found = _attributes(found).get(name)
    if value is not None and found is value and not isinstance(found, (int, float, str, bool)):
        return 5 + sure
    argument = _parameter(first, where) if change.function is first else ""
    if argument and own[:1] == [argument] and own[1:] == names[: len(own) - 1]:
        return 4 + sure + len(own)
    if names and own == names[: len(own)] and (len(own) == len(names) or sure):
        return 4 + len(own) / len(names) + sure
    if names and own and own[-1] == names[-1] and sure:
        return 3
    if names and any(name in names for name in own) and sure:
        return 2
    return 1 if sure and not _is_made_here(change) else 0


def _later(change: ChangingStatement) -> float:
    """What makes an object rarely changes one that is there already."""
    return 0.5 if change.function.__name__ in ("__init__", "__new__", "__post_init__") else 1.0


def _is_made_here(change: ChangingStatement) -> bool:
    """Whether what is changed is a variable of the function's own, and no parameter."""
    first = change.parts[0] if change.parts else ""
    code = change.function.__code__
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return first in code.co_varnames and first not in arguments


def _parameter(function: types.FunctionType | None, where: str) -> str:
    """The name of the parameter that an argument with this label goes to."""
    given = re.match(r"argument (\w+)", where)
    if function is None or given is None:
        return ""
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    return names[int(given[1])] if given[1].isdigit() and int(given[1]) < len(names) else given[1]


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


def other_function(one: TorchCall | None, other: TorchCall | None) -> list[Named]:
    """The call, in code that both run, that leads each of two torch calls into another function."""
    if one is None or other is None:
        return []
    pairs = [*zip(reversed(one.frames), reversed(other.frames), strict=False)]
    for (place, there), (inner, other_inner) in itertools.pairwise(pairs):
        if place.source != there.source:
            return []
        if _function_at(inner) is not _function_at(other_inner):
            name = applied_in(place)
            return [Named(name, place.source, CALL)] if name else []
    return []


def _function_at(place: FramePlace) -> ast.AST | None:
    source = source_at(place.file)
    node = source.at(place) if source is not None else None
    return source.function_of(node) if source is not None and node is not None else None


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


def read_names(frames: Sequence[FramePlace]) -> list[Named]:
    """What the innermost of the user's frames calls, reads or does: the whole expression first, then its parts."""
    source = source_at(frames[0].file) if frames else None
    node = source.at(frames[0]) if source is not None else None
    if source is None or node is None:
        return []
    names = Names(source, frames)
    names.visit(node)
    if isinstance(node, ast.Call) and (whole := source.dotted(node.func)):
        around = [Named(name, frames[0].source, CALL) for name in names.decorators(node.func)]
        return [Named(whole, frames[0].source, CALL), *around, *(n for n in ranked(names.found) if n.name != whole)]
    return ranked(names.found)


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
