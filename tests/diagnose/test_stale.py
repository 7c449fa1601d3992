"""A number of an earlier call that explains what was observed, and nothing else, is named."""

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import symbolic_trace

from graphprobe.diagnose.prove import DynamoGraph
from graphprobe.diagnose.searches.whole import stale_number
from graphprobe.engine.values import capture

X = torch.linspace(-1, 1, 5)


def graph_of(fn: Callable[..., Any], *inputs: Any) -> DynamoGraph:
    return DynamoGraph(symbolic_trace(fn), [capture(list(inputs) or [X])])


def test_a_number_that_was_baked_in_is_accused() -> None:
    graphs = [graph_of(lambda x: torch.relu(x) * 2.0), graph_of(lambda x: torch.relu(x) * 3.0)]
    graphs[1].graph.graph.find_nodes(op="call_function", target=torch.relu)[0].meta["stack_trace"] = ""
    found = stale_number(graphs, [[torch.relu(X) * 2.0], [torch.relu(X) * 2.0]])
    assert (found.op, found.node) == ("operator.mul", "mul")
    assert found.reason == "it was given 2, the number of an earlier call, in place of 3"
    graphs = [graph_of(lambda x: torch.clamp(x * 2.0, -1.2, 1.2)), graph_of(lambda x: torch.clamp(x * 3.0, -1.3, 1.3))]
    for factor, low, op in ((3.0, -1.2, "torch.clamp"), (2.0, -1.3, "operator.mul")):
        found = stale_number(graphs, [[torch.clamp(X * factor, low, 1.3)]])
        assert found is not None and found.op == op
    graphs = [graph_of(lambda x, delta: torch.add(x, x, alpha=delta + 0.5), X, delta) for delta in (1.0, 2.0)]
    found = stale_number(graphs, [[X + 1.5 * X]])
    assert found is not None and found.op == "torch.add"
    assert "given 1.5" in found.reason and "place of 2.5" in found.reason


def test_returned_numbers_and_what_is_wrong_in_another_way() -> None:
    graphs = [graph_of(lambda x: x * 2.0), graph_of(lambda x: x * 3.0)]
    other_ops = [graph_of(lambda x: torch.add(x, 2)), graph_of(lambda x: torch.sub(x, 3))]
    not_taken = [graph_of(lambda x: x.reshape(5, 1)), graph_of(lambda x: x.reshape(2, 2), torch.ones(4))]
    for made, observed in (
        (graphs, [[X * 3.0]]),
        (graphs, [[X * 5.0]]),
        (graphs, []),
        (graphs[:1], [[X * 2.0]]),
        ([], [[X]]),
        (other_ops, [[torch.sub(X, 2)]]),
        (not_taken, [[torch.ones(5, 1)]]),
    ):
        assert stale_number(made, observed) is None
    traced = symbolic_trace(lambda x, n: (x * n, torch.scalar_tensor(n + 1)))
    graph = DynamoGraph(traced, [capture([X, 3.0]), capture([X, 4.0])])
    found = stale_number([graph], [[X * 3.0, 4.0], [X * 4.0, 4.0]])
    assert found is not None and found.op == "operator.add"
    assert found.reason == "it was given 3, the number of an earlier call, in place of 4"
    assert stale_number([graph], [[X * 3.0, 4.0], [X * 4.0, 5.0]]) is None
