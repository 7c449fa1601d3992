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
