"""Graph breaks planted in real programs: each is named, found on its line, and gone when mended as the remedy says."""

import ast
import contextlib
import importlib
import inspect
import operator
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from analysis import planted_breaks
from analysis.planted_breaks import PLANTS, Plant, doubled, faked, unfaked
from graphprobe.analysis.breaks import BreakReport
from graphprobe.backends.explain import ExplainWithBackend, explain
from graphprobe.internals.dynamo import graph_breaks
from graphprobe.report import print_explanation

X = torch.ones(4)


def explained(fn: Any, *args: Any, **settings: Any) -> BreakReport:
    """What Dynamo comes upon; nobody looks behind it."""
    with warnings.catch_warnings(), ExplainWithBackend("eager") as backend:
        warnings.simplefilter("ignore")
        with contextlib.suppress(torch._dynamo.exc.Unsupported):
            torch.compile(fn, backend=backend, **settings)(X.clone(), *args)
        return backend.output().report


@pytest.mark.parametrize("name", PLANTS)
def test_named_found_and_mended(name: str) -> None:
    plant: Plant = PLANTS[name]
    found = explained(plant.broken)
    own = [row for row in found.breaks if row.inside is None]
    file = planted_breaks.__file__
    assert {(row.kind, row.file, row.line) for row in own} == {(plant.kind, file, line) for line in plant.lines}
    assert all(plant.remedy in row.remedy for row in own)
    assert "# here" in own[0].source and own[0].function in (name, "<listcomp>")
    assert own[0].outcome == plant.outcome
    assert [row.function for row in found.own_uncompiled] == [name] * (plant.outcome == "function")
    assert not any("{" in text for row in own for text in (row.cause, row.remedy, row.consequence))
    torch._dynamo.reset()  # what Dynamo has given up on, it does not look at again
    with torch._dynamo.config.patch(plant.config):
        mended = explained(plant.mended, *plant.mended_args)
    assert (mended.breaks, mended.own_uncompiled) == ([], [])
    assert mended.graphs and not any(graph.broken for graph in mended.graphs)
    if plant.same and plant.mended is not plant.broken:
        assert torch.equal(plant.mended(X.clone(), *plant.mended_args), plant.broken(X.clone()))


def as_remedied(plant: Plant, remedy: str) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """The broken program, once for each part of the remedy that can be applied as it stands."""
    config = torch._dynamo.config
    for name in re.findall(r"`torch\._dynamo\.config\.(\w+) = True`", remedy):
        yield name, plant.broken, {name: True}
    for name, function in re.findall(r"`torch\._dynamo\.config\.(\w+)\.add\(([\w.]+)\)`", remedy):
        yield name, plant.broken, {name: {*getattr(config, name), eval(function, vars(planted_breaks))}}
    for new, old in re.findall(r"(?:use|write|:) `([^`]+)` in the place of `([^`]+)`", remedy):
        yield old, rewritten(plant, lambda node, new=new, old=old: replaced(node, old, new)), {}
    if "`if not torch.compiler.is_compiling():` in front" in remedy:
        yield "is_compiling", rewritten(plant, lambda node: guarded(node, plant.lines[0])), {}


def replaced(node: ast.AST, old: str, new: str) -> ast.AST:
    found = isinstance(node, ast.expr) and ast.unparse(node) == old
    return ast.parse(new, mode="eval").body if found else node


def guarded(node: ast.AST, line: int) -> ast.AST:
    if isinstance(node, ast.Expr) and node.lineno <= line <= (node.end_lineno or 0):
        return ast.If(ast.parse("not torch.compiler.is_compiling()", mode="eval").body, [node], [])
    return node


def rewritten(plant: Plant, change: Callable[[ast.AST], ast.AST]) -> Any:
    class Change(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            return change(self.generic_visit(node))

    tree = ast.parse(inspect.getsource(plant.broken))
    tree.body[0].decorator_list = []  # type: ignore[attr-defined]
    ast.increment_lineno(tree, plant.broken.__code__.co_firstlineno - 1)
    before = ast.unparse(tree)
    text = ast.unparse(ast.fix_missing_locations(Change().visit(tree)))
    assert text != before, "the remedy names what the program does not have"
    names = dict(vars(planted_breaks))
    exec(compile(text, "<remedied>", "exec"), names)
    return names[plant.broken.__name__]


def test_there_are_many_kinds() -> None:
    assert len(PLANTS) >= 60 and len({plant.kind for plant in PLANTS.values()}) >= 26


APPLIED: set[tuple[str, str]] = set()


@pytest.mark.heavy
@pytest.mark.parametrize("name", PLANTS)
def test_what_the_remedy_says_word_for_word_mends_it(name: str) -> None:
    plant = PLANTS[name]
    shown = explain(plant.broken)(X.clone()).report.breaks
    (remedy,) = {row.remedy for row in shown if row.inside is None and row.line in plant.lines}
    for what, program, config in as_remedied(plant, remedy):
        torch._dynamo.reset()
        with torch._dynamo.config.patch(config):
            again = explained(program)
        assert (again.breaks, again.own_uncompiled) == ([], []), (what, remedy)
        APPLIED.add((name, what))


@pytest.mark.heavy
def test_many_remedies_can_be_applied_as_they_stand() -> None:
    """Behind the tests above, in the same process."""
    assert len(APPLIED) >= 20 or not APPLIED


def test_a_method_that_must_return_a_number() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        return x.sin() if planted_breaks.Positive(x * 2) else x.cos()

    (row,) = explained(broken).breaks
    assert (row.kind, row.function, row.outcome) == ("tensor-item", "__bool__", "function")
    assert "`torch.where(self.tensor.sum() > 0, a, b)`, and no `if`" in row.remedy
    torch._dynamo.reset()
    assert not explained(lambda x: torch.where((x * 2).sum() > 0, x.sin(), x.cos())).found


def test_an_error_behind_a_break_is_told_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        a = np.frombuffer(b"\0\0\0\0", dtype=np.float32)
        return y + torch.from_numpy(a.copy()).sum()

    with ExplainWithBackend("eager") as backend:
        with pytest.raises(AssertionError, match="nditer"):
            torch.compile(broken, backend=backend)(X)
        report = backend.output().report
    (row,) = report.breaks
    line = broken.__code__.co_firstlineno + 2
    assert (row.kind, row.line, row.outcome, row.count) == ("numpy", line, "died", 1) and report.break_count == 1
    assert row.error.startswith("AssertionError: Expected np.nditer base") and f":{line + 1} in broken)" in row.error
    assert report.to_json()["breaks"][0]["error"] == row.error
    print_explanation(report)
    assert "  error:   AssertionError: Expected np.nditer" in capsys.readouterr().out


def test_a_backend_that_fails_behind_a_break_is_told_with_it() -> None:
    """And one that fails without a break is an error of its own, and no break."""

    def backend(gm: Any, inputs: Any) -> Any:
        if any(node.target is torch.cos or node.target == "cos" for node in gm.graph.nodes):
            raise KeyError("planted")
        return gm

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    for program, kinds in ((broken, ["explicit-break"]), (torch.cos, []), (lambda x: x.cos() + 1, ["backend-failure"])):
        torch._dynamo.reset()
        with ExplainWithBackend(backend) as watched:
            if kinds:
                with pytest.raises(Exception, match="planted"):
                    torch.compile(program, backend=watched)(X)
            report = watched.output().report
        assert [row.kind for row in report.breaks] == kinds
        assert report.break_count == kinds.count("explicit-break") and report.found == bool(kinds)
        assert all(row.outcome == "died" and "planted" in row.error for row in report.breaks)


def test_consequences_are_told() -> None:
    for name, where in (
        ("branch_in_a_loop", "the break is inside a loop"),
        ("break_in_a_with", "the break is inside a `with`"),
    ):
        (row,) = explained(PLANTS[name].broken).breaks
        assert row.consequence.startswith(where)


def test_fullgraph_gives_the_break_that_it_raises() -> None:
    plant = PLANTS["branch"]
    (row,) = explained(plant.broken, fullgraph=True).breaks
    assert (row.kind, row.line, row.outcome, row.count) == ("data-dependent-branch", *plant.lines, "raised", 1)
    assert explained(plant.mended, fullgraph=True).found is False


def test_operator_without_a_rule_for_fake_tensors() -> None:
    with ExplainWithBackend("eager") as backend, pytest.raises(Exception, match="no fake impl"):
        torch.compile(lambda x: unfaked(x) + 1, backend=backend)(X)
    (row,) = backend.output().remedies
    assert (row.kind, row.outcome) == ("fake-tensor", "raised") and "register_fake" in row.remedy
    assert explained(lambda x: faked(x) + 1).found is False


def test_generator() -> None:
    with ExplainWithBackend("eager") as backend:
        assert len(list(torch.compile(doubled, backend=backend)(X))) == 1
    report = backend.output().report
    (row,) = report.own_uncompiled
    assert (row.function, row.kind, row.line) == ("doubled", "generator", doubled.__code__.co_firstlineno)
    assert report.found and not report.breaks
    assert explained(lambda x: next(iter(doubled(x)))).found is False


def test_same_line_in_caller_and_callee_counts_twice() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x.sin()).cos()

    (row,) = explained(outer).breaks
    assert (row.count, row.functions) == (2, ["outer", "inner"])


def test_recompile_limit_is_a_function_left_uncompiled() -> None:
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n

    with torch._dynamo.config.patch(recompile_limit=1), ExplainWithBackend("eager") as backend:
        compiled = torch.compile(fn, backend=backend, dynamic=False)
        for n in range(3):
            compiled(X, n)
    report = backend.output().report
    assert [(row.function, row.kind) for row in report.own_uncompiled] == [("fn", "recompile-limit")]
    assert not report.breaks


def test_breaks_of_another_backend_are_not_taken() -> None:
    first, second = ExplainWithBackend("eager"), ExplainWithBackend("eager")
    torch.compile(PLANTS["explicit"].broken, backend=first)(X)
    torch.compile(PLANTS["item"].broken, backend=second)(X)
    assert [row.kind for row in first.output().remedies] == ["explicit-break"]
    assert [row.kind for row in second.output().remedies] == ["tensor-item"]
    first.close()
    torch.compile(PLANTS["tolist"].broken, backend=ExplainWithBackend(second))(X)
    assert {row.kind for row in second.output().remedies} == {"tensor-item", "tensor-tolist"}
    second.close()


def taps() -> list[Any]:
    patches = graph_breaks.patches(object())  # type: ignore[arg-type]
    return [operator.attrgetter(patch.attribute)(importlib.import_module(patch.module)) for patch in patches]


def test_nothing_stays_behind() -> None:
    before = taps()
    backend, other = ExplainWithBackend("eager"), ExplainWithBackend("eager")
    assert taps() != before
    backend.close()
    assert taps() != before
    other.close()
    other.close()
    assert taps() == before
    unheld = ExplainWithBackend("eager")
    assert taps() != before
    del unheld
    assert taps() == before
    explain(PLANTS["item"].mended)(X)
    assert taps() == before


class Failing:
    def __init__(self) -> None:
        self.failures: list[str] = []

    def graph_break(self, fact: object, backend: object) -> None:
        raise ZeroDivisionError("planted")

    uncompiled = graph_break

    def failed(self, what: str, details: str) -> None:
        self.failures.append(details.strip().splitlines()[-1])


def test_a_failing_observer_is_told_and_harms_nothing() -> None:
    observer = Failing()
    stop = graph_breaks.listen(observer)
    try:
        out = torch.compile(PLANTS["branch"].broken, backend="eager")(X)
    finally:
        stop()
    assert torch.equal(out, PLANTS["branch"].broken(X))
    assert observer.failures == ["ZeroDivisionError: planted (nothing more of it is collected)"]
