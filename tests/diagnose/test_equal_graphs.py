"""When two graphs are one: other values go in, and nothing else is different."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from graphprobe.diagnose.searches.equal_graphs import EQUAL, EqualGraphs, fingerprint
from graphprobe.findings import Diagnosis
from graphprobe.internals.dynamo.compile_calls import Compiled

ONES = torch.ones(3)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 2) + ONES


def made(fn: Callable[..., Any], x: torch.Tensor) -> str:
    return fingerprint(make_fx(fn)(x))


def test_other_values_are_the_same_graph() -> None:
    assert made(doubled, torch.randn(4, 3)) == made(doubled, torch.randn(4, 3))


@pytest.mark.parametrize(
    ("fn", "x"),
    [
        (lambda x: torch.tanh(x * 2) + ONES, torch.randn(4, 3)),
        (lambda x: torch.relu(x * 3) + ONES, torch.randn(4, 3)),
        (lambda x: torch.relu(x * 2) + 2 * ONES, torch.randn(4, 3)),
        (doubled, torch.randn(5, 3)),
        (doubled, torch.randn(3, 4).t()),
        (doubled, torch.randn(4, 3).double()),
    ],
    ids=["op", "number", "constant", "shape", "strides", "dtype"],
)
def test_another_graph(fn: Callable[..., Any], x: torch.Tensor) -> None:
    assert made(fn, x) != made(doubled, torch.randn(4, 3))


class Block(torch.nn.Module):
    def __init__(self, number: int, *, scale: float = 1.0) -> None:
        super().__init__()
        self.number, self.scale = number, scale
        self.weight = torch.nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.scale


def test_functions_are_counted_with_the_first_that_has_their_graphs() -> None:
    first, second, other = (
        Compiled(Block(0), "eager"),
        Compiled(Block(1), "eager"),
        Compiled(Block(2, scale=2), "eager"),
    )
    first.uncompiled = True
    calls, known = [((torch.randn(3),), {})], EqualGraphs()
    diagnosis = Diagnosis(verdict="fault", notes=["another"])
    assert not known.has(first, ["seen"], calls, 600)
    known.add(first, ["seen"], calls, diagnosis)
    assert known.has(second, ["seen"], calls, 600) and second.uncompiled, "it runs as the first does"
    assert not known.has(other, ["seen"], calls, 600) and not other.uncompiled
    assert not known.has(second, ["seen", "and more"], calls, 600)
    known.add(other, ["seen"], calls, Diagnosis(verdict="healthy"))
    assert known.has(Compiled(Block(3, scale=2), "eager"), ["seen"], calls, 600), "each kind has its own"
    assert diagnosis.notes == ["another", EQUAL.format(count=2)]
    note = "2 equal graphs, looked into once, with the values of the first"
    assert known.told([("Block", diagnosis)]) == [("Block", note)]


def test_what_is_not_finished_stands_for_nothing() -> None:
    block, known = Compiled(Block(0), "eager"), EqualGraphs()
    known.add(block, [], [((torch.randn(3),), {})], Diagnosis(verdict="undecided", unfinished=True))
    assert not known.has(block, [], [((torch.randn(3),), {})], 600)
