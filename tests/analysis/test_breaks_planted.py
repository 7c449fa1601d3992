"""Graph breaks planted in real programs: each is named, found on its line, and gone when mended as the remedy says."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from analysis import planted_breaks
from analysis.planted_breaks import PLANTS, Plant, doubled, faked, unfaked
from graphprobe.analysis.breaks import BreakReport
from graphprobe.backends.explain import ExplainWithBackend, explain
from graphprobe.internals import graph_breaks

X = torch.ones(4)


def explained(fn: Any, *args: Any, **settings: Any) -> BreakReport:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return explain(fn, **settings)(X.clone(), *args).report


@pytest.mark.parametrize("name", PLANTS)
def test_named_found_and_mended(name: str) -> None:
    plant: Plant = PLANTS[name]
    found = explained(plant.broken)
    own = [row for row in found.breaks if row.inside is None]
    assert {(row.kind, row.file, row.line) for row in own} == {(plant.kind, planted_breaks.__file__, plant.line)}
    assert plant.remedy in own[0].remedy
    assert "# here" in own[0].source and own[0].function == "broken"
    assert own[0].outcome == plant.outcome
    assert [row.function for row in found.own_uncompiled] == ["broken"] * (plant.outcome == "function")
    assert not any("{" in text for row in own for text in (row.cause, row.remedy, row.consequence))
    torch._dynamo.reset()  # what Dynamo has given up on, it does not look at again
    with torch._dynamo.config.patch(plant.config):
        mended = explained(plant.mended, *plant.mended_args)
    assert (mended.breaks, mended.own_uncompiled) == ([], [])
    assert mended.graphs and not any(graph.broken for graph in mended.graphs)
    if plant.same and plant.mended is not plant.broken:
        assert torch.equal(plant.mended(X.clone(), *plant.mended_args), plant.broken(X.clone()))


def test_there_are_many_kinds() -> None:
    assert len({plant.kind for plant in PLANTS.values()}) >= 24


def test_consequences_are_told() -> None:
    (row,) = explained(PLANTS["branch_in_a_loop"].broken).breaks
    assert row.consequence == "the break is inside a loop"
    (row,) = explained(PLANTS["break_in_a_with"].broken).breaks
    assert row.consequence.startswith("the break is inside a `with`")


def test_fullgraph_gives_the_break_that_it_raises() -> None:
    plant = PLANTS["branch"]
    (row,) = explained(plant.broken, fullgraph=True).breaks
    assert (row.kind, row.line, row.outcome, row.count) == ("data-dependent-branch", plant.line, "raised", 1)
    assert explained(plant.mended, fullgraph=True).found is False


def test_operator_without_a_rule_for_fake_tensors() -> None:
    backend = ExplainWithBackend("eager")
    with pytest.raises(Exception, match="no fake impl"):
        torch.compile(lambda x: unfaked(x) + 1, backend=backend)(X)
    (row,) = backend.output().remedies
    assert (row.kind, row.outcome) == ("fake-tensor", "raised") and "register_fake" in row.remedy
    backend.close()
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


def taps() -> Iterator[Any]:
    for patch in graph_breaks.patches(object()):  # type: ignore[arg-type]
        module = __import__(patch.module, fromlist=["_"])
        yield __import__("functools").reduce(getattr, patch.attribute.split("."), module)


def test_nothing_stays_behind() -> None:
    before = list(taps())
    backend = ExplainWithBackend("eager")
    other = ExplainWithBackend("eager")
    assert list(taps()) != before
    backend.close()
    assert list(taps()) != before
    other.close()
    other.close()
    assert list(taps()) == before
    del backend, other
    unheld = ExplainWithBackend("eager")
    assert list(taps()) != before
    del unheld
    assert list(taps()) == before
    explain(PLANTS["item"].mended)(X)
    assert list(taps()) == before


def test_a_failing_observer_is_told_and_harms_nothing() -> None:
    class Failing:
        failures: list[str] = []  # noqa: RUF012

        def graph_break(self, fact: object, backend: object) -> None:
            raise ZeroDivisionError("planted")

        uncompiled = graph_break

        def failed(self, what: str, details: str) -> None:
            self.failures.append(details.strip().splitlines()[-1])

    stop = graph_breaks.listen(Failing())
    try:
        out = torch.compile(PLANTS["branch"].broken, backend="eager")(X)
    finally:
        stop()
    assert torch.equal(out, PLANTS["branch"].broken(X))
    assert Failing.failures == ["ZeroDivisionError: planted"]
