"""Weights that something changed between two steps, and memory that nobody read: who is told, and who is not."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import graphprobe
from compare.pairs import compared


def changed(tensor: torch.Tensor, place: int, factor: float) -> None:
    """Writes to an element, in a way that no dump sees."""
    element = ctypes.c_float.from_address(tensor.data_ptr() + 4 * place)
    element.value *= factor


def trained(
    path: Path, between: Callable[[nn.Sequential], Any] = lambda net: None, *, rate: float = 0.1, **options: Any
) -> Path:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    with graphprobe.dump(path, model=net, **options):
        for number in range(3):
            if number == 2:
                between(net)
            net(torch.randn(5, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return path


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_a_weight_that_changed_between_two_steps(data: Any, tmp_path: Path) -> None:
    good = trained(tmp_path / "good", data=data)
    wrong = trained(tmp_path / "wrong", lambda net: changed(net[2].weight, 9, 1.5), data=data)
    for candidate, reference, side in ((wrong, good, "candidate"), (good, wrong, "reference")):
        summary = compared(candidate, reference)
        (cause,) = summary.findings
        assert (summary.outcome, cause.kind, cause.step) == ("different", "changed_unseen", 2)
        assert cause.candidate is not None and cause.candidate.label == "nn.functional.linear.1.forward"
        assert cause.evidence[0].startswith(f"in the {side}, input.1 (2.weight) was changed")


EDITS: dict[str, tuple[Callable[[nn.Sequential], Any], str]] = {
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
def test_a_call_that_one_side_alone_makes_between_two_steps(edit: str, data: Any, tmp_path: Path) -> None:
    between, label = EDITS[edit]
    good, wrong = trained(tmp_path / "good", data=data), trained(tmp_path / "wrong", between, data=data)
    for candidate, reference, kind in ((wrong, good, "extra_call"), (good, wrong, "missing_call")):
        summary = compared(candidate, reference)
        (cause,) = summary.findings
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


def scaled(path: Path, buffer: str = "", *, factor: float = 1.3, steps: int = 3, data: Any = "tensor") -> Path:
    torch.manual_seed(0)
    net = Scaled()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with graphprobe.dump(path, model=net, data=data):
        for number in range(steps):
            net.train(number < 2)
            if buffer and number == 2:
                net.get_buffer(buffer).numpy()[:] *= factor  # no dump sees it
            net(torch.randn(5, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return path


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_a_buffer_that_changed_between_two_steps(data: Any, tmp_path: Path) -> None:
    good = scaled(tmp_path / "good", data=data)
    wrong = scaled(tmp_path / "wrong", "scale", data=data)
    for candidate, reference, side in ((wrong, good, "candidate"), (good, wrong, "reference")):
        summary = compared(candidate, reference)
        (cause,) = summary.findings
        assert (summary.outcome, cause.kind, cause.step) == ("different", "changed_unseen", 2)
        assert cause.candidate is not None and cause.candidate.label == "Tensor.mul.0.forward"
        assert cause.evidence[0].startswith(f"in the {side}, input.1 was changed after a call got it")


def test_a_buffer_that_both_sides_change_and_one_of_them_twice(tmp_path: Path) -> None:
    """Nothing shows what the calls made of it, so that nobody can be accused; but the two are not the same."""
    good, wrong = scaled(tmp_path / "good"), scaled(tmp_path / "wrong", "norm.running_var", factor=4.0)
    for candidate, reference in ((wrong, good), (good, wrong)):
        summary = compared(candidate, reference)
        assert [summary.outcome, *(cause.kind for cause in summary.findings)] == ["undecided", "growth"]
        assert "something changed it that no record shows" in " ".join(summary.findings[0].evidence)


@pytest.mark.parametrize("buffer", ["", "scale", "norm.running_var"])
def test_buffers_that_differ_by_rounding_or_not_at_all(buffer: str, tmp_path: Path) -> None:
    good, other = scaled(tmp_path / "good"), scaled(tmp_path / "other", buffer, factor=1 + 2.0**-22)
    summary = compared(other, good)
    assert (summary.outcome, summary.findings) == ("same", [])


@pytest.mark.parametrize(
    "between",
    [
        lambda net: changed(net[2].weight, 9, 1 + 2.0**-22),  # a rounding
        lambda net: [changed(net[2].weight, place, 0.5) for place in range(32)],  # on both sides
    ],
)
def test_what_is_within_noise_or_alike_is_not_told(between: Callable[[nn.Sequential], Any], tmp_path: Path) -> None:
    both = trained(tmp_path / "a", between)
    noise = trained(tmp_path / "b", lambda net: [between(net), changed(net[0].weight, 3, 1 + 2.0**-21)])
    summary = compared(both, noise)
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


def made(path: Path, junk: float, **options: str) -> Path:
    with graphprobe.dump(path, data="tensor"):
        enlarged(junk, **options)
    return path


def test_memory_that_is_overwritten_before_it_is_read_does_not_matter(tmp_path: Path) -> None:
    summary = compared(made(tmp_path / "a", 3.0), made(tmp_path / "b", -70.0))
    assert (summary.outcome, summary.findings) == ("same", [])


@pytest.mark.parametrize("options", [{"read": "before"}, {"out": "none"}])
def test_memory_that_is_read_matters(options: dict[str, str], tmp_path: Path) -> None:
    """A copy of it is kept; or it is never overwritten."""
    summary = compared(made(tmp_path / "a", 3.0, **options), made(tmp_path / "b", -70.0, **options))
    assert summary.outcome in ("undecided", "different")


def test_what_overwrites_it_is_judged(tmp_path: Path) -> None:
    summary = compared(made(tmp_path / "a", 3.0, out="wrong"), made(tmp_path / "b", -70.0))
    assert summary.outcome == "different" and summary.first is not None
    assert summary.first.step == 0
