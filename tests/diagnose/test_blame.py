"""Calls of a function of torch in a program that Dynamo made no graph of, each as a graph."""

from typing import Any

import torch

from graphprobe.diagnose.program import Program
from graphprobe.diagnose.searches.blame import MOST_CALLS, graphs_of_calls

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
