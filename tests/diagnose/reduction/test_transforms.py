"""Graphs with transforms of torch.func become graphs of plain operators that compute the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.prove import DynamoGraph
from graphprobe.diagnose.reduction.problem import Problem
from graphprobe.diagnose.reduction.transforms import without_transforms
from graphprobe.diagnose.rungs import Watch, dynamo_rung
from graphprobe.engine.naming import op_of, source_of
from graphprobe.errors import UsageError
from graphprobe.internals.tensors import has_levels

ROWS = torch.linspace(-1, 1, 12).reshape(3, 4)


def recorded(fn: Callable[..., Any], *args: Any) -> DynamoGraph:
    watch = Watch()
    torch._dynamo.reset()
    torch.compile(fn, backend=dynamo_rung(watch), fullgraph=True)(*args)
    (found,) = watch.dynamo
    return found


def energy(row: torch.Tensor) -> torch.Tensor:
    return (row.sin() * row).sum()


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "vmap": lambda x: torch.vmap(lambda row: row.softmax(0) + 1)(x),
    "grad": lambda x: torch.func.grad(energy)(x),
    "vmap of grad": lambda x: torch.vmap(torch.func.grad(energy))(x),
    "jvp": lambda x: torch.func.jvp(energy, (x,), (torch.ones_like(x),)),
    "jacfwd": lambda x: torch.func.jacfwd(lambda y: y.cos())(x[0]),
    "hessian": lambda x: torch.func.hessian(energy)(x[0]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_graph_computes_the_same_in_plain_operators(name: str) -> None:
    graph = recorded(PROGRAMS[name], ROWS)
    assert has_levels(graph.graph.graph)
    made = without_transforms(graph.graph, graph.calls)
    assert not has_levels(made.graph)
    calls = [n for n in made.graph.nodes if n.op == "call_function"]
    assert calls and all(op_of(n).startswith(("aten.", "prims.", "operator.getitem")) for n in calls)
    assert any((source_of(n) or "").startswith(f"{__file__}:") for n in calls)
    (values,) = graph.calls
    torch.testing.assert_close(tuple(made(*values.restore())), tuple(graph.graph(*values.restore())))


def test_what_has_no_transform_or_cannot_be_traced_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = recorded(lambda x: x.sin() + 1, ROWS)
    assert without_transforms(graph.graph, graph.calls) is graph.graph
    graph = recorded(PROGRAMS["vmap"], ROWS)
    assert without_transforms(graph.graph, []) is graph.graph

    def refuses(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no rule")

    monkeypatch.setattr("graphprobe.diagnose.reduction.transforms.make_fx", refuses)
    assert without_transforms(graph.graph, graph.calls) is graph.graph
    with pytest.raises(UsageError, match="inside of a transform"):
        Problem.of(Case(graph.graph, graph.calls, "wrong_value"), timeout_s=60)
