"""Which infinities a graph means, and who is judged to have made one: the rules alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from graphprobe.probe.dump.overflow_rules import FloatSummary, OverflowJudge
from graphprobe.probe.dump.traits import OpTraits, row_of, signs_of_graph, tables, traits_of_graph, union

INF = float("inf")
LOWEST = torch.finfo(torch.float32).min


@pytest.mark.parametrize(
    ("function", "reads", "meant"),
    [
        (lambda x, m: x * 2, "", ""),
        (lambda x, m: torch.where(m, x, -INF), "", "-"),
        (lambda x, m: x.masked_fill(m, INF), "", "+"),
        (lambda x, m: -x.masked_fill(m, INF), "", "-"),
        (lambda x, m: 1 - x.masked_fill(m, INF), "", "-"),
        (lambda x, m: x.masked_fill(m, -INF).exp(), "", ""),
        (lambda x, m: x.masked_fill(m, -INF).softmax(-1), "", ""),
        (lambda x, m: x.masked_fill(m, -INF) * -2, "", "+"),
        (lambda x, m: (1 - m.to(x.dtype)) * LOWEST, "", "-"),
        (lambda x, m: x.masked_fill(m, -1e30) * 1e30, "", ""),
        (lambda x, m: m.to(x.dtype).log(), "", "-"),
        (lambda x, m: x.log(), "", ""),
        (lambda x, m: x * 2, "-", "-"),
        (lambda x, m: -x, "-", "+"),
        (lambda x, m: x.tanh(), "+-", ""),
    ],
)
def test_signs_are_followed_through_nodes(function: Callable[..., torch.Tensor], reads: str, meant: str) -> None:
    """As one fused launch would carry them out, with inputs that hold infinities of the signs `reads`."""
    graph = make_fx(function)(torch.randn(4, 4), torch.ones(4, 4, dtype=torch.bool)).graph
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    table = union([tables(nodes, signs_of_graph(graph))[nodes[-1]]])
    assert table[row_of(reads)] == frozenset(meant)


def test_what_an_op_may_write_into() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        y.mul_(2)
        return torch.add(x, y, out=torch.empty(3))

    graph = make_fx(program)(torch.randn(3)).graph
    found = {node.name: traits.mutates for node, traits in traits_of_graph(graph).items()}
    assert found["add"] == () and found["mul_"] == ("input.0",) and found["add_1"] == ("kwarg.out",)


def summary(slot: str, memory: int, **what: float) -> FloatSummary:
    return FloatSummary(slot, memory, **{"nan": 0, "positive": 0, "negative": 0, **what})  # type: ignore[arg-type]


def test_origins_and_carriers() -> None:
    judge, plain = OverflowJudge(), OpTraits()
    fine, spoiled = summary("input.0", 1), summary("output.0", 2, positive=3)
    assert judge.judge(plain, lambda: [fine], [summary("output.0", 9)]) is None
    origin = judge.judge(plain, lambda: [fine], [spoiled])
    assert origin is not None and origin.role == "origin" and origin.problems[0].kind == "inf"
    carrier = judge.judge(plain, lambda: [spoiled], [summary("output.0", 3, nan=1)])
    assert carrier is not None and carrier.role == "carrier"
    # What lies at an address that is written anew is no longer spoiled.
    assert judge.judge(plain, lambda: [spoiled], [summary("output.0", 3)]) is None
    assert judge.judge(plain, lambda: [summary("input.0", 3, nan=1)], [summary("output.0", 4, nan=1)]) is None


@pytest.mark.parametrize(
    ("read", "wrote", "problems"),
    [
        ({"negative": 2}, {"negative": 2}, []),
        ({"negative": 2}, {"positive": 1, "negative": 2}, [("inf", "+")]),
        ({"high": 500.0}, {"high": 448.0, "limit": 448.0}, [("saturated", "+")]),
        ({"high": 448.0}, {"high": 448.0, "limit": 448.0}, []),
    ],
)
def test_an_origin_has_what_no_input_had(read: Any, wrote: Any, problems: list[tuple[str, str]]) -> None:
    """An infinity of that sign, or a number that is larger than the dtype can hold."""
    inputs, outputs = [summary("input.0", 1, **read)], [summary("output.0", 2, **wrote)]
    found = OverflowJudge().judge(OpTraits(), lambda: inputs, outputs)
    assert [(one.kind, one.sign) for one in (found.problems if found is not None else ())] == problems
