"""When two graphs are one: other values go in, and nothing else is different."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from graphprobe.diagnose.searches.equal_graphs import EQUAL, EqualGraphs, fingerprint
from graphprobe.findings import Diagnosis
from graphprobe.internals.dynamo.compile_calls import Compiled
from graphprobe.settings.limits import TimeBudget

ONES = torch.ones(3)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 2) + ONES


def made(fn: Callable[..., Any], x: torch.Tensor) -> str:
    return fingerprint(make_fx(fn)(x))


OTHERS: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "op": (lambda x: torch.tanh(x * 2) + ONES, torch.randn(4, 3)),
    "number": (lambda x: torch.relu(x * 3) + ONES, torch.randn(4, 3)),
    "constant": (lambda x: torch.relu(x * 2) + 2 * ONES, torch.randn(4, 3)),
    "shape": (doubled, torch.randn(5, 3)),
    "strides": (doubled, torch.randn(3, 4).t()),
    "dtype": (doubled, torch.randn(4, 3).double()),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_graph(other: str) -> None:
    assert made(*OTHERS[other]) != made(doubled, torch.randn(4, 3)) == made(doubled, torch.randn(4, 3))


class Block(torch.nn.Module):
    def __init__(self, number: int, *, scale: float = 1.0) -> None:
        super().__init__()
        self.number, self.scale = number, scale
        self.weight = torch.nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.scale


def test_functions_are_counted_with_the_first_that_has_their_graphs() -> None:
    first, second, other = (Compiled(Block(i, scale=scale), "eager") for i, scale in enumerate((1, 1, 2)))
    first.uncompiled = True
    calls, known = [((torch.randn(3),), {})], EqualGraphs()
    diagnosis = Diagnosis(verdict="fault", notes=["another"])
    assert not known.has(first, ["seen"], calls, TimeBudget(600))
    known.add(first, ["seen"], calls, diagnosis)
    assert known.has(second, ["seen"], calls, TimeBudget(600)) and second.uncompiled, "it runs as the first does"
    assert not known.has(other, ["seen"], calls, TimeBudget(600)) and not other.uncompiled
    assert not known.has(second, ["seen", "and more"], calls, TimeBudget(600))
    known.add(other, ["seen"], calls, Diagnosis(verdict="healthy"))
    assert known.has(Compiled(Block(3, scale=2), "eager"), ["seen"], calls, TimeBudget(600)), "each kind has its own"
    assert diagnosis.notes == ["another", EQUAL.format(count=2)]
    note = "2 equal graphs, looked into once, with the values of the first"
    assert known.told([("Block", diagnosis)]) == [("Block", note)]
    unfinished = EqualGraphs()
    unfinished.add(first, [], calls, Diagnosis(verdict="undecided", unfinished=True))
    assert not unfinished.has(first, [], calls, TimeBudget(600)), "that stands for nothing"
