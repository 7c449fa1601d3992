"""Calls of a function of torch in a program that Dynamo made no graph of, each as a graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphprobe.diagnose.program import Program
from graphprobe.diagnose.searches.blame import MOST, graphs_of_calls

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def program(x: torch.Tensor) -> torch.Tensor:
    scores = torch.nn.functional.softmax(x * 2, dim=1)
    return torch.add(scores.clamp(min=0.1), 1, alpha=3)


def graphs(op: str, fn: Any = program) -> list[tuple[torch.Tensor, ...]]:
    """What each graph of one call gives on the values that were captured."""
    found = graphs_of_calls(Program(fn, [((X,), {})]), op)
    return [graph.graph(*call.restore()) for graph in found for call in graph.calls]


@pytest.mark.parametrize(
    ("op", "result"),
    [
        ("torch.nn.functional.softmax", torch.softmax(X * 2, 1)),
        ("torch.Tensor.clamp", torch.softmax(X * 2, 1).clamp(min=0.1)),
        ("torch.add", program(X)),
    ],
)
def test_a_call_is_made_again(op: str, result: torch.Tensor) -> None:
    (again,) = graphs(op)
    assert torch.equal(again, result)


def test_calls_until_the_program_raises() -> None:
    def raising(x: torch.Tensor) -> torch.Tensor:
        return torch.add(x, 1) + torch.add(x, torch.ones(7))

    one, *others = graphs_of_calls(Program(raising, [((X,), {})]), "torch.add")
    assert torch.equal(one.graph(*one.calls[0].restore()), X + 1)
    assert len(others) == 1


def test_values_are_those_before_the_call() -> None:
    assert torch.equal(graphs("torch.Tensor.add_", lambda x: x.clone().add_(1).add_(1))[1], X + 2)


def test_no_more_than_so_many_and_none_of_another_name() -> None:
    assert len(graphs("torch.neg", lambda x: [torch.neg(x) for _ in range(MOST + 3)])) == MOST
    assert graphs("torch.sigmoid") == []


def test_arguments_that_no_graph_takes() -> None:
    generator = torch.Generator()
    assert graphs("torch.randn", lambda x: torch.randn(3, generator=generator) + x) == []
