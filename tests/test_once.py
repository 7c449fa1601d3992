"""One way to say each of: the function that owns each verb, and no second one, neither copied nor written again.

A copy is found by its text, with other names for its own variables and other words; what was written again by what it
takes, calls or makes. Each row and each kind of copy is tried on a second one that is planted in another room.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conftest import module_at
from graphprobe import findings
from graphprobe.engine import forked_child
from graphprobe.internals import after_fork
from graphprobe.internals.inductor import inductor_taps
from graphprobe.judge import judging, stage_table
from graphprobe.numerics import verdict
from graphprobe.report.html import render
from graphprobe.store import reader
from graphprobe.store.foreign import checked

sizes = module_at("scripts", "sizes.py")

SMALL_NODES = 50
"""Functions of fewer nodes of syntax may look alike: a property, a loop over handles."""


class Verb(NamedTuple):
    """What one function does, and nobody else.

    Attributes:
        owner: the function, in whose module the others that help it are.
        signs: of a function's text without its docstring, arguments in the first line. One that has all does the same.
        users: functions elsewhere that have the signs because they call the owner, or are copied into scripts.
    """

    owner: Callable[..., Any]
    signs: tuple[str, ...]
    users: frozenset[str] = frozenset()


ONCE = {
    "hold a call against the uncompiled one": Verb(
        judging.judged,
        (r"\Adef .*\bReference\b.*\) -> ", r"\Adef .*\bObservation\b.*\) -> "),
        frozenset(
            {
                "diagnose.ladder.Ladder.seen_by",
                "diagnose.references.explained",
                "diagnose.references.measure",
                "judge.bits._of_call",
                "judge.bits.bit_differences",
            }
        ),
    ),
    "blame a stage": Verb(
        stage_table.stage_of,
        (r"\Adef .*\bEvidence\b.*\) -> ",),
        frozenset({"diagnose.unexplained._found", "diagnose.unexplained._searched"}),
    ),
    "write a diagnosis as JSON": Verb(
        findings.Diagnosis.to_json,
        (r"\b(Finding|Diagnosis)\b", r"\b(to_builtins|asdict|__struct_fields__)\b"),
        frozenset({"diagnose.exceptions.Culprit.told_in", "diagnose.searches.relations.related"}),
    ),
    "judge numbers against their noise": Verb(verdict.judge, (r"\bVerdict\(",)),
    "read a file that torch.save wrote": Verb(checked.read_tensor, (r"\btorch\.load\(|\bZipFile\(",)),
    "fork a process": Verb(after_fork.fork, (r"\bos\.fork\(",)),
    "say how a child process ended": Verb(forked_child.outcome_of, (r"\bOutcome\(",)),
    "find a generated module": Verb(inductor_taps.generated_module, (r"\bPyCodeCache\b",)),
    "make HTML of a template": Verb(render.template, (r"\bEnvironment\(",)),
    "see whether a process is alive": Verb(reader.is_alive, (r"\bos\.kill\(\w+(\.\w+)*, 0\)",)),
}
"""The owner of each verb, for the verbs that have one."""


@dataclass(frozen=True)
class Function:
    name: str
    """Behind `graphprobe.`: module, class and function."""

    tree: ast.FunctionDef

    @cached_property
    def text(self) -> str:
        body = body_of(self.tree) or [ast.Pass()]
        bare = ast.FunctionDef(self.name, self.tree.args, body, [], self.tree.returns, lineno=1)
        return ast.unparse(ast.fix_missing_locations(bare))


def body_of(function: ast.FunctionDef) -> list[ast.stmt]:
    return function.body[1:] if ast.get_docstring(function) is not None else function.body


def functions_of(modules: Sequence[Any]) -> Iterator[Function]:
    """All functions, those in classes and functions, too."""

    def below(node: ast.AST, name: str) -> Iterator[Function]:
        for child in ast.iter_child_nodes(node):
            inner = f"{name}.{child.name}" if isinstance(child, ast.FunctionDef | ast.ClassDef) else name
            if isinstance(child, ast.FunctionDef):
                yield Function(inner, child)
            yield from below(child, inner)

    for module in modules:
        yield from below(module.tree, module.name.removeprefix("graphprobe."))


def seconds(verb: Verb, functions: Sequence[Function]) -> list[str]:
    """Functions that do what the owner does, outside of its module."""
    home = verb.owner.__module__.removeprefix("graphprobe.") + "."
    others = (one for one in functions if not one.name.startswith(home) and one.name not in verb.users)
    return [one.name for one in others if all(re.search(sign, one.text) for sign in verb.signs)]


class _Renamed(ast.NodeTransformer):
    """Own names by order of appearance, texts alike, no annotations: what a copy may change is gone."""

    def __init__(self, function: ast.FunctionDef) -> None:
        stored = (n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        self._own = {function.name, *stored, *(n.arg for n in ast.walk(function) if isinstance(n, ast.arg))}
        self._names: dict[str, str] = {}

    def _new(self, name: str) -> str:
        return self._names.setdefault(name, f"v{len(self._names)}") if name in self._own else name

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._new(node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(self._new(node.arg))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        return self.generic_visit(ast.Assign([node.target], node.value) if node.value is not None else ast.Pass())

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("") if isinstance(node.value, str) else node


def copies(functions: Sequence[Function]) -> list[list[str]]:
    """Groups of functions that are the same but for their own names and their words."""
    found: dict[str, list[str]] = defaultdict(list)
    for one in functions:
        if sum(1 for part in body_of(one.tree) for _ in ast.walk(part)) >= SMALL_NODES:
            tree = ast.parse(ast.unparse(ast.Module(body_of(one.tree), [])))
            renamed = _Renamed(one.tree)
            arguments = [renamed.visit(ast.arg(argument.arg)).arg for argument in one.tree.args.args]
            found[" ".join([*arguments, ast.dump(renamed.visit(tree))])].append(one.name)
    return [group for group in found.values() if len(group) > 1]


@pytest.fixture(scope="module")
def functions() -> list[Function]:
    return list(functions_of(sizes.modules_of()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ONCE)
def test_each_verb_has_one_owner(name: str, functions: list[Function]) -> None:
    assert seconds(ONCE[name], functions) == []
    assert ONCE[name].users <= {one.name for one in functions}


@pytest.mark.slow
def test_no_function_is_a_copy_of_another(functions: list[Function]) -> None:
    assert copies(functions) == []


def planted(text: str) -> list[Function]:
    return list(functions_of([sizes.Module("graphprobe.elsewhere", Path("elsewhere.py"), text)]))


@pytest.mark.parametrize("name", ONCE)
def test_a_second_owner_is_found_in_another_room(name: str) -> None:
    owner = ONCE[name].owner
    lines = inspect.getsource(owner).splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    text = "\n".join(line[indent:] for line in lines)
    if indent:
        text = f"class {owner.__qualname__.split('.')[0]}:\n" + "\n".join(f"    {line}" for line in text.splitlines())
    assert seconds(ONCE[name], planted(text.replace(f"def {owner.__name__}(", "def another("))) != []
    assert seconds(ONCE[name], planted("def another(value, text):\n    return value.get(text)")) == []


COPIED = """
def first(value: object, at: int) -> bool:
    "One."
    if isinstance(value, (list, tuple)):
        return all(first(item, at) for item in value)
    if at > 3:
        raise ValueError("too deep")
    return value is None or isinstance(value, (bool, int, float, str))
"""


@pytest.mark.parametrize(
    ("changes", "is_copy"),
    [
        ({"first": "second"}, True),
        ({"first": "second", "value": "x", "item": "y", "too deep": "no", '"One."': '"Two."', ": int": ""}, True),
        ({"first": "second", "at > 3": "at > 4"}, False),
        ({"first": "second", "all(": "any("}, False),
    ],
)
def test_a_copy_is_found_under_other_names(changes: dict[str, str], is_copy: bool) -> None:
    other = COPIED
    for old, new in changes.items():
        other = other.replace(old, new)
    assert copies(planted(COPIED + other)) == ([["elsewhere.first", "elsewhere.second"]] if is_copy else [])
