"""All places that break are listed at once, in loops too; a remedy is shown if it was seen to work."""

import ast
import contextlib
import importlib.util
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from analysis import planted_breaks, planted_loops
from analysis.planted_breaks import PLANTS
from analysis.planted_loops import LOOPS, matrix
from graphprobe.analysis.breaks import BreakReport, GraphBreak
from graphprobe.analysis.breaks_edits import Edit, EditedSource
from graphprobe.backends.explain import explain


def explained(program: Any, *args: Any) -> BreakReport:
    torch._dynamo.reset()
    return explain(program)(*args).report


INSIDE: dict[Callable[..., Any], Callable[..., Any]] = {
    planted_loops.called: planted_loops.helper,
    planted_loops.Routed: planted_loops.Experts,
}
"""What a program calls."""


def marks(program: Callable[..., Any]) -> dict[int, str]:
    """What is to be told at each line."""
    lines, first = inspect.getsourcelines(program)
    here = {first + number: line.partition("# here") for number, line in enumerate(lines)}
    return {number: rest.strip(": \n") for number, (_, mark, rest) in here.items() if mark}


def applied(rows: list[GraphBreak], folder: Path) -> tuple[Any, dict[str, Any], list[GraphBreak]]:
    """The programs with the remedies written as they are told, settings of torch, and what is left as it was."""
    settings: dict[str, Any] = {}
    left: list[GraphBreak] = []
    tree = ast.parse(Path(planted_loops.__file__).read_text("utf-8"))
    for row in rows:
        first = row.remedy.partition("; ")[0]
        if name := re.search(r"`torch\._dynamo\.config\.(\w+) = True`", first):
            settings[name.group(1)] = True
        elif texts := re.search(r"`([^`]+)` in the place of `([^`]+)`", first):
            tree = Changed(row.line or 0, *texts.groups()).visit(tree)
        elif "`if not torch.compiler.is_compiling():` in front" in first:
            tree = Changed(row.line or 0, "guard", "").visit(tree)
        else:
            left.append(row)
    (file := folder / "mended.py").write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("mended", file)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module, settings, left


class Changed(ast.NodeTransformer):
    """What a remedy says, written in by somebody who reads it."""

    def __init__(self, line: int, new: str, old: str) -> None:
        self.line, self.new, self.old = line, new, old

    def visit(self, node: ast.AST) -> Any:
        node = self.generic_visit(node)
        if getattr(node, "lineno", 0) == self.line:
            if self.new == "guard" and isinstance(node, ast.Expr):
                return ast.If(ast.parse("not torch.compiler.is_compiling()", mode="eval").body, [node], [])
            if self.old and isinstance(node, ast.stmt | ast.expr) and ast.unparse(node) == self.old:
                new = ast.parse(self.new).body
                return new[0].value if isinstance(node, ast.expr) and isinstance(new[0], ast.Expr) else new
        return node


@pytest.mark.heavy
@pytest.mark.parametrize("made", LOOPS, ids=lambda made: made.__name__)
def test_all_places_at_once(made: Callable[..., Any], tmp_path: Path) -> None:
    """And with what is told written into the program, exactly the others are left."""
    report = explained(made() if isinstance(made, type) else made, matrix())
    wanted = marks(made) | marks(INSIDE.get(made, planted_loops.matrix))
    rows = [row for row in report.breaks if row.inside is None]
    assert {row.line for row in rows} == set(wanted) and report.all_seen and all(row.tried for row in rows)
    for line, told in wanted.items():
        remedies = [row.remedy for row in rows if row.line == line]
        assert any(told in remedy for remedy in remedies) and any(remedies) == bool(told), (line, remedies)
    module, settings, left = applied(rows, tmp_path)
    program = getattr(module, made.__name__)
    with torch._dynamo.config.patch(settings):
        again = explained(program() if isinstance(program, type) else program, matrix())
    assert {(row.kind, row.cause) for row in again.breaks} == {(row.kind, row.cause) for row in left}


def test_there_are_many_loops() -> None:
    assert len(LOOPS) >= 20 and sum(len(marks(made)) for made in LOOPS) >= 40


@pytest.mark.heavy
@pytest.mark.parametrize("name", PLANTS)
def test_each_cause_is_tried(name: str) -> None:
    """Tracing goes on behind each, and what is shown is a part of what the rule knows."""
    with contextlib.suppress(Exception):
        report = explained(PLANTS[name].broken, torch.ones(4))
    rows = [row for row in report.breaks if row.file == planted_breaks.__file__]
    assert {row.line for row in rows} == set(PLANTS[name].lines) and all(row.tried for row in rows)
    assert report.all_seen or name in NO_WAY_ON
    assert all(bool(row.remedy) == (name not in NO_REMEDY) for row in rows)


NO_WAY_ON: set[str] = set()
NO_REMEDY: set[str] = {"condition_in_a_comprehension"}


@pytest.mark.parametrize(
    ("line", "code", "movable"),
    [
        (2, "x.sum()", True),
        (4, "n + 1", True),
        (5, "y.sum()", False),
        (6, "n * 2", False),
        (7, "self.a", True),
        (8, "self.b", True),
        (9, "time.time()", True),
        (10, "x.max()", False),
        (12, "z.sum()", False),
    ],
)
def test_what_can_be_moved_in_front(line: int, code: str, movable: bool) -> None:
    text = """def f(self, x, y, z):
    m = x.sum()
    n = m * 2
    k = n + 1
    y = y.sum() if (y := k) else 0
    for _ in range(2): n * 2
    self.a += self.a
    self.b.sum()
    time.time()
    x = x + x.max() * (x := 1)
    z.add_(1)
    z.sum()
"""
    assert EditedSource(text).movable(Edit("value", "f.py", line, code)) is movable
