"""Calls of a function of torch in a program that Dynamo made no graph of, each as a graph."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import symbolic_trace

from graphprobe.diagnose.program import Program
from graphprobe.diagnose.rungs import DynamoGraph
from graphprobe.diagnose.searches import blame
from graphprobe.diagnose.searches.blame import MOST_CALLS, graphs_of_calls, isolated_suspects
from graphprobe.diagnose.settings import Compilation
from graphprobe.engine.values import capture
from graphprobe.judge import Difference

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def program(x: torch.Tensor) -> torch.Tensor:
    scores = torch.nn.functional.softmax(x * 2, dim=1)
    return torch.add(scores.clamp(min=0.1), 1, alpha=3)


def graphs(op: str, fn: Any = program) -> list[tuple[torch.Tensor, ...]]:
    found = graphs_of_calls(Program(fn, [((X,), {})]), op)
    return [graph.graph(*call.restore()) for graph in found for call in graph.calls]


def test_which_calls_are_made_again() -> None:
    for op, result in (
        ("torch.nn.functional.softmax", torch.softmax(X * 2, 1)),
        ("torch.Tensor.clamp", torch.softmax(X * 2, 1).clamp(min=0.1)),
        ("torch.add", program(X)),
    ):
        (again,) = graphs(op)
        assert torch.equal(again, result)
    generator = torch.Generator()
    first, second = graphs("torch.Tensor.add_", lambda x: x.clone().add_(1).add_(1))
    assert torch.equal(first, X + 1) and torch.equal(second, X + 2), "values are those before the call"
    assert len(graphs("torch.neg", lambda x: [torch.neg(x) for _ in range(MOST_CALLS + 3)])) == MOST_CALLS
    assert graphs("torch.sigmoid") == [], "the program does not call it"
    assert graphs("torch.randn", lambda x: torch.randn(3, generator=generator) + x) == [], "no graph takes that"
    failing = Program(lambda x: torch.add(x, 1) + torch.add(x, torch.ones(7)), [((X,), {})])
    one, _ = graphs_of_calls(failing, "torch.add")
    assert torch.equal(one.graph(*one.calls[0].restore()), X + 1), "until the program raises"


@pytest.mark.parametrize(("text", "wrong"), [("LoweringException: target: aten.cumsum.default", "cumsum"), ("", "cos")])
def test_what_the_error_names_is_tried_first(text: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, tried = Difference("crash_compile", 0, "", text), list[list[str]]()

    def search(search: Any, nodes: list[Any]) -> list[tuple[Any, Difference]]:
        tried.append([node.name for node in nodes])
        return [(node, wanted) for node in nodes if node.name == wrong]

    monkeypatch.setattr(blame._NodeSearch, "wrong", search)
    graph = DynamoGraph(symbolic_trace(lambda x: torch.cumsum(x.sin(), 1).cos()), [capture([X])])
    compilation = Compilation("inductor", None, Path())
    assert [one.node.name for one in isolated_suspects(graph, "kernels", compilation, False, wanted)] == [wrong]
    assert tried == ([["cumsum"]] if text else [[], ["sin", "cumsum", "cos"]])


def test_all_that_crash_alike_are_found_by_halving_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def crashes(graph: torch.fx.GraphModule, _: Any) -> Any:
        if any(node.target == "cos" for node in graph.graph.nodes):
            raise RuntimeError("no cosine")
        return graph.forward

    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = x.sin().exp().tanh().cos().abs()
        return x.sum(1).cos()

    tried, differences = list[int](), blame._NodeSearch._differences

    def counted(search: Any, made: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        tried.append(len(made.graph.nodes))
        return differences(search, made, inputs)

    monkeypatch.setattr(blame._NodeSearch, "_differences", counted)
    raised = "torch._dynamo.exc.BackendCompilerFailed: backend='crashes' raised: RuntimeError: no cosine"
    graph = DynamoGraph(symbolic_trace(program), [capture([X])])
    compilation = Compilation(crashes, None, Path())
    found = isolated_suspects(graph, "kernels", compilation, False, Difference("crash_compile", 0, "", raised))
    assert [one.node.name for one in found] == ["cos", "cos_1", "cos_2", "cos_3", "cos_4"]
    assert len(tried) <= 15, "once for the four alike, and once for the one of another shape"


class Rectified(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return torch.relu(gradient)


@pytest.mark.parametrize("without", ["relu", "cos"])
def test_what_crashes_in_the_backward_of_a_function_is_found_in_its_graph(without: str) -> None:
    made: list[torch.fx.GraphModule] = []

    def crashes(graph: torch.fx.GraphModule, _: Any) -> Any:
        if any(getattr(node.target, "__name__", "") == without for node in graph.graph.nodes):
            raise RuntimeError("not this one")
        return graph.forward

    def kept(graph: torch.fx.GraphModule, _: Any) -> Any:
        made.append(graph)
        return graph.forward

    torch.compile(lambda x: Rectified.apply(x).sin(), backend=kept)(X.clone().requires_grad_()).sum().backward()
    graph = DynamoGraph(made[0], [capture([X])])
    raised = "torch._dynamo.exc.BackendCompilerFailed: backend='crashes' raised: RuntimeError: not this one"
    wanted = Difference("crash_compile", 0, "", raised)
    found = isolated_suspects(graph, "kernels", Compilation(crashes, None, Path()), True, wanted)
    assert [(one.node.name, one.direction) for one in found] == ([("relu", "backward")] if without == "relu" else [])
    assert all(one.source and "test_blame.py" in one.source for one in found)


@pytest.mark.parametrize("like", [X, X.t(), X[:, :1].expand(2, 3), torch.ones(0, 3), torch.ones(2, dtype=torch.int64)])
def test_inputs_are_drawn_in_the_form_that_a_graph_was_made_for(like: torch.Tensor) -> None:
    graph = symbolic_trace(lambda x: x.sin())
    next(iter(graph.graph.nodes)).meta["example_value"] = like
    (drawn,) = blame._drawn(graph)
    assert (drawn.shape, drawn.stride(), drawn.dtype) == (like.shape, like.stride(), like.dtype)
    assert not torch.equal(drawn, like) or not like.numel()


@pytest.mark.parametrize(("first", "second", "same"), [(2, 2, True), (2, 3, False)])
def test_calls_are_alike_if_all_but_the_numbers_in_tensors_is_equal(first: int, second: int, same: bool) -> None:
    graph = symbolic_trace(lambda x: (x.sum(first - 2), (x * 2).sum(second - 2)))
    a, b = (node for node in graph.graph.nodes if node.target == "sum")
    values = {node.name: X for node in graph.graph.nodes}
    search = blame._NodeSearch(DynamoGraph(graph), values, "kernels", Compilation("eager", None, Path()), False)
    assert search._alike(a, b) == same


def test_ops_that_crash_only_together_are_found_by_the_beginning_of_the_graph() -> None:
    def crashes(graph: torch.fx.GraphModule, _: Any) -> Any:
        if {"sin", "cos"} <= {str(getattr(node.target, "__name__", node.target)) for node in graph.graph.nodes}:
            raise RuntimeError("both in one kernel")
        return graph.forward

    raised = "torch._dynamo.exc.BackendCompilerFailed: backend='crashes' raised: RuntimeError: both in one kernel"
    wanted = Difference("crash_compile", 0, "", raised)
    graph = DynamoGraph(symbolic_trace(lambda x: (x.neg().sin().exp() + 1).cos().abs()), [capture([X])])
    compilation = Compilation(crashes, None, Path())
    (found,) = isolated_suspects(graph, "kernels", compilation, False, wanted)
    assert found.node.name == "cos" and found.whole and found.also == ["operator.add"]
    assert isolated_suspects(graph, "kernels", Compilation("eager", None, Path()), False, wanted) == []
