"""Weights that something changed between two steps, and memory that nobody read: who is told, and who is not."""

import copy
import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from compare.pairs import Dumps, Run, compared
from graphprobe.compare import compare_dumps, open_dump
from graphprobe.compare.ranks import MergedDump
from graphprobe.compare.result import UNDECIDED_KINDS


def changed(tensor: torch.Tensor, place: int, factor: float) -> None:
    """Writes to an element, in a way that no dump sees."""
    element = ctypes.c_float.from_address(tensor.data_ptr() + 4 * place)
    element.value *= factor


Between = Callable[[nn.Sequential], Any]
SIDES = ("candidate", "reference")


def nothing(net: nn.Module) -> None:
    pass


@cache
def trained(between: Between = nothing) -> Run:
    """Three steps of a network, which something changes before the last one."""

    def build() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))

    return Run(lambda net: train(net, between), build)


def train(net: nn.Module, between: Callable[[Any], Any]) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number in range(3):
        if number == 2:
            between(net)
        net(torch.randn(5, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_a_weight_that_changed_between_two_steps(data: Any, dumps: Dumps) -> None:
    good = dumps(trained(), data=data)
    wrong = dumps(trained(lambda net: changed(net[2].weight, 9, 1.5)), data=data)
    for candidate, reference, side in ((wrong, good, "candidate"), (good, wrong, "reference")):
        (cause,) = (summary := compared(candidate, reference)).findings
        assert (summary.outcome, cause.kind, cause.step) == ("different", "changed_unseen", 2)
        assert cause.candidate is not None and cause.candidate.label == "nn.functional.linear.1.forward"
        assert cause.evidence[0].startswith(f"in the {side}, input.1 (2.weight) was changed")


EDITS: dict[str, tuple[Between, str]] = {
    "clamp_": (lambda net: net[2].weight.data.clamp_(-0.1, 0.1), "Tensor.clamp_.0.forward"),
    "set an element": (lambda net: net[2].weight.data.__setitem__((1, 1), 3.0), "Tensor.__setitem__.0.forward"),
    "other data": (lambda net: setattr(net[2].weight, "data", net[2].weight * 0.9), "Tensor.mul.0.forward"),
    "all at once": (
        lambda net: torch._foreach_mul_([p.data for p in net.parameters()], 0.9),
        "_foreach_mul_.0.forward",
    ),
    "load": (
        lambda net: net.load_state_dict({k: v * 1.1 for k, v in net.state_dict().items()}),
        "Tensor.copy_.0.forward",
    ),
}


@pytest.mark.parametrize("data", ["tensor", "stats"])
@pytest.mark.parametrize("edit", EDITS)
def test_a_call_that_one_side_alone_makes_between_two_steps(edit: str, data: Any, dumps: Dumps) -> None:
    between, label = EDITS[edit]
    good, wrong = dumps(trained(), data=data), dumps(trained(between), data=data)
    for candidate, reference, kind in ((wrong, good, "extra_call"), (good, wrong, "missing_call")):
        (cause,) = (summary := compared(candidate, reference)).findings
        assert (summary.outcome, cause.kind, cause.step) == ("different", kind, 2)
        named = cause.candidate or cause.reference
        assert named is not None and named.label == label


class Scaled(nn.Module):
    """A model with buffers: one that stays, and two that its calls change."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 4), nn.BatchNorm1d(4)
        self.register_buffer("scale", torch.arange(1.0, 5.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x)) * self.scale


@cache
def scaled(buffer: str = "", factor: float = 1.3) -> Run:
    """The same with buffers, of which something that no dump sees scales one before the last step."""

    def build() -> Scaled:
        torch.manual_seed(0)
        return Scaled()

    def between(net: Scaled) -> None:
        net.eval()
        if buffer:
            net.get_buffer(buffer).numpy()[:] *= factor

    return Run(lambda net: train(net, between), build)


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_a_buffer_that_changed_between_two_steps(data: Any, dumps: Dumps) -> None:
    good, wrong = dumps(scaled(), data=data), dumps(scaled("scale"), data=data)
    for candidate, reference, side in ((wrong, good, "candidate"), (good, wrong, "reference")):
        (cause,) = (summary := compared(candidate, reference)).findings
        assert (summary.outcome, cause.kind, cause.step) == ("different", "changed_unseen", 2)
        assert cause.candidate is not None and cause.candidate.label == "Tensor.mul.0.forward"
        assert cause.evidence[0].startswith(f"in the {side}, input.1 was changed after a call got it")


def test_a_buffer_that_both_sides_change_and_one_of_them_twice(dumps: Dumps) -> None:
    """Nothing shows what the calls made of it, so that nobody can be accused; but the two are not the same."""
    good, wrong = dumps(scaled(), data="tensor"), dumps(scaled("norm.running_var", factor=4.0), data="tensor")
    for summary in (compared(wrong, good), compared(good, wrong)):
        assert [summary.outcome, *(cause.kind for cause in summary.findings)] == ["undecided", "growth"]
        assert "something changed it that no record shows" in " ".join(summary.findings[0].evidence)


def halves(net: nn.Sequential) -> None:
    for place in range(32):
        changed(net[2].weight, place, 0.5)


def rounds(net: nn.Sequential) -> None:
    changed(net[2].weight, 9, 1 + 2.0**-22)


ALIKE: dict[str, tuple[Run, Run]] = {
    "buffers": (scaled(), scaled()),
    "a rounding of a buffer": (scaled("scale", factor=1 + 2.0**-22), scaled()),
    "a rounding of a statistic": (scaled("norm.running_var", factor=1 + 2.0**-22), scaled()),
    "a rounding on both sides": (
        trained(rounds),
        trained(lambda net: [rounds(net), changed(net[0].weight, 3, 1 + 2.0**-21)]),
    ),
    "a change on both sides": (
        trained(halves),
        trained(lambda net: [halves(net), changed(net[0].weight, 3, 1 + 2.0**-21)]),
    ),
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_within_noise_or_alike_is_not_told(name: str, dumps: Dumps) -> None:
    summary = compared(*(dumps(run, side, data="tensor") for run, side in zip(ALIKE[name], SIDES, strict=True)))
    assert (summary.outcome, summary.findings) == ("same", [])


def enlarged(junk: float, *, read: str = "", out: str = "") -> list[torch.Tensor]:
    """A buffer of memory that has been given back and taken anew, with whatever it happens to hold."""
    torch.manual_seed(0)
    x, buffer = torch.randn(4, 8), torch.zeros(32)
    buffer.untyped_storage().resize_(0)
    buffer.untyped_storage().resize_(128)
    for place in range(32):
        word = ctypes.c_float.from_address(buffer.data_ptr() + 4 * place)
        word.value = junk * (place + 1)
    view = buffer.view(4, 8)
    found = [view.clone()] if read == "before" else []
    if out != "none":
        torch.tanh(x * 3 if out == "wrong" else x, out=view)
    return [*found, view.sum(0), view + 1]


@pytest.mark.parametrize(
    ("candidate", "both", "outcomes"),
    [
        ({}, {}, ["same"]),  # it is overwritten before it is read
        ({}, {"read": "before"}, ["undecided", "different"]),  # a copy of it is kept
        ({}, {"out": "none"}, ["undecided", "different"]),  # it is never overwritten
        ({"out": "wrong"}, {}, ["different"]),
    ],
)
def test_memory_with_whatever_it_holds(
    candidate: dict[str, str], both: dict[str, str], outcomes: list[str], dumps: Dumps
) -> None:
    one = Run(lambda: enlarged(3.0, **both, **candidate))
    other = Run(lambda: enlarged(-70.0, **both))
    summary = compared(dumps(one, data="tensor"), dumps(other, data="tensor"))
    assert summary.outcome in outcomes
    assert summary.outcome != "same" or summary.findings == []
    assert "out" not in candidate or (summary.first is not None and summary.first.step == 0)


Loss = Callable[[nn.Module, torch.Tensor], Any]
STEPS = 3


def squared(net: nn.Module, x: torch.Tensor) -> Any:
    return net(x).square().mean()


def doubled(net: nn.Module, x: torch.Tensor) -> Any:
    return net(x).square().mul(2.0).mean()


def averaged(losses: tuple[Loss, Loss], noise: float, net: nn.Module) -> list[list[np.ndarray]]:
    """The gradients of each step, as ranks that share them have them."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found, data = [], [torch.Generator().manual_seed(rank) for rank in (0, 1)]
    for _ in range(STEPS):
        for loss, drawn in zip(losses, data, strict=True):
            (loss(net, torch.randn(5, 6, generator=drawn)) / 2).backward()
        found.append([p.grad.numpy() * np.float32(1 + noise) for p in net.parameters() if p.grad is not None])
        optimizer.step()
        optimizer.zero_grad()
    return found


@cache
def of_rank(rank: int, losses: tuple[Loss, Loss], scaled: float = 1.0, noise: float = 0.0) -> Run:
    """A rank whose gradients something that no dump sees averages with those of another, and scales before step 1."""

    def build() -> nn.Sequential:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        gradients.extend(averaged(losses, noise, copy.deepcopy(net)))
        return net

    def run(net: nn.Sequential) -> None:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        data = torch.Generator().manual_seed(rank)
        for step, given in enumerate(gradients):
            losses[rank](net, torch.randn(5, 6, generator=data)).backward()
            for parameter, gradient in zip(net.parameters(), given, strict=True):
                assert parameter.grad is not None
                parameter.grad.numpy()[:] = gradient * np.float32(scaled if step == 1 else 1)
            optimizer.step()
            optimizer.zero_grad()

    gradients: list[list[np.ndarray]] = []
    return Run(run, build)


ALL_SQUARED = squared, squared
RANKS: dict[str, tuple[tuple[Run, ...], list[tuple[str, int, int]]]] = {
    "rounded": (tuple(of_rank(rank, ALL_SQUARED, noise=1e-7) for rank in (0, 1)), []),
    "one scaled": ((of_rank(0, ALL_SQUARED), of_rank(1, ALL_SQUARED, 1.05)), [("changed_unseen", 1, 1)]),
    "all scaled": (tuple(of_rank(rank, ALL_SQUARED, 1.05) for rank in (0, 1)), [("changed_unseen", 0, 1)]),
    "a call of one": (tuple(of_rank(rank, (squared, doubled)) for rank in (0, 1)), [("extra_call", 1, 0)]),
    "not recorded": ((of_rank(0, (squared, doubled)),), []),
}


@pytest.mark.parametrize("data", ["tensor", "stats"])
@pytest.mark.parametrize("name", RANKS)
def test_gradients_that_ranks_share(name: str, data: Any, dumps: Dumps) -> None:
    runs, causes = RANKS[name]
    right = [dumps(of_rank(rank, ALL_SQUARED), "reference", data=data) for rank in (0, 1)]
    candidate, reference = [
        MergedDump("ranks", {rank: open_dump(path) for rank, path in enumerate(paths[: len(runs)])})
        for paths in ([dumps(run, data=data) for run in runs], right)
    ]
    candidate.facts["world_size"] = "2"
    with compare_dumps(candidate, reference) as found:
        named = [(f.kind, f.rank, f.step) for f in found.summary.findings if f.kind not in UNDECIDED_KINDS]
        assert (named, found.summary.outcome == "different") == (causes, bool(causes))
