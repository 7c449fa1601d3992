"""Programs whose float64 run is of something else, or impossible: right is healthy, and 1.3 times right is a fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import graphprobe
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.references import explained, measure
from graphprobe.judge.observation import read
from graphprobe.judge.uncompiled import Reference

X = torch.linspace(-2, 2, 24).reshape(4, 6) + 0.01


def times(factor: float) -> Callable[..., Any]:
    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        def scaled(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or factor == 1:
                return value
            return value * factor if value.is_floating_point() else value + 1

        return lambda *args: [scaled(value) for value in gm.forward(*args)]

    return backend


def other_factor(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * (2 if x.dtype is torch.float32 else 3)


def bits(x: torch.Tensor) -> torch.Tensor:
    return (x.view(torch.int32) & 0x7F800000).view(torch.float32) * x


def smallest_step(x: torch.Tensor) -> torch.Tensor:
    return torch.log(x.abs() * 0 + torch.finfo(x.dtype).eps) + x


def neighbours(x: torch.Tensor) -> torch.Tensor:
    return (torch.nextafter(x, x + 1) - x) * 1e6


def through_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() * 2) + x


def shared(x: torch.Tensor) -> torch.Tensor:
    y = x.t()
    y.mul_(2)
    return x + y.t()


def cancelled(x: torch.Tensor) -> torch.Tensor:
    return (x + 1e6) - 1e6


def counts(x: torch.Tensor) -> torch.Tensor:
    return (x * 100).long()


def out_of_range(x: torch.Tensor) -> torch.Tensor:
    return (x * 100).to(torch.int8)


def hooked() -> torch.nn.Module:
    model = torch.nn.Linear(6, 3)
    model.weight.register_hook(lambda gradient: gradient * 3)
    return model


PROGRAMS = (
    other_factor,
    bits,
    smallest_step,
    neighbours,
    through_numpy,
    shared,
    cancelled,
    counts,
    out_of_range,
    hooked(),
)


@pytest.mark.heavy
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: getattr(fn, "__name__", "hooked"))
def test_what_is_wrong_is_never_healthy_and_what_is_right_is(
    fn: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    grad = isinstance(fn, torch.nn.Module)
    assert graphprobe.diagnose(fn, X.clone(), backend=times(1), grad=grad).verdict == "healthy"
    found = graphprobe.diagnose(fn, X.clone(), backend=times(1.3), grad=grad)
    assert found.verdict == "fault", found.notes


@pytest.mark.heavy
def test_roundings_of_sums_accuse_nobody_where_there_is_no_float64_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of a bias before a batch norm is nothing but roundings."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    convolution = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()]
    model = torch.nn.Sequential(*convolution, torch.nn.Conv2d(8, 8, 3), torch.nn.BatchNorm2d(8))

    def step(x: torch.Tensor) -> torch.Tensor:
        return model((x.view(torch.int32) & 0x7FFFFFFF).view(torch.float32))

    found = graphprobe.diagnose(step, torch.randn(4, 3, 32, 32), grad=True)
    assert found.verdict != "fault", found.findings


@pytest.mark.parametrize(("fn", "runs"), [(torch.sin, 1), (lambda x: (x * 1e6).sin(), 3)])
def test_one_perturbed_run_is_enough_for_now_if_it_is_not_moved_far(fn: Callable[..., Any], runs: int) -> None:
    program = Program(fn, [((X,), {})])

    def run(step: Callable[[Program], Any], kind: Any) -> Any:
        return step(program)

    reference = Reference([[read(call) for call in program.run(lambda fn: fn)]] * 2)
    assert measure(reference, run, few=True) == []
    assert len(reference.perturbed) == runs and reference.few == (runs == 1)
    while reference.make_perturbed:
        before = len(reference.perturbed)
        assert reference.perturb_more() and len(reference.perturbed) > before
    assert len(reference.perturbed) == 3 + 8 and not reference.few


@pytest.mark.parametrize(("moved", "right"), [(4_000.0, True), (0.0, False)])
def test_what_few_numbers_three_moved_runs_leave_open_is_judged_by_three_more(moved: float, right: bool) -> None:
    """A choice that hangs on a rounding may fall the same way in three runs."""
    x = torch.randn(64, 4096, generator=torch.Generator().manual_seed(0))
    seeds: list[int] = []

    def sums(roundings: float) -> Callable[..., Any]:
        return lambda x: x.sum(1) + roundings * 2**-24 * (torch.arange(64) == 3)

    def run(step: Any, kind: Any) -> Any:
        of_moved = step.func is Program.run_moved
        seeds.extend([step.keywords["seed"]] if of_moved else [])
        return step(Program(sums(moved if of_moved and seeds[-1] >= 3 else 0), [((x.clone(),), {})]))

    def calls(fn: Callable[..., Any]) -> list[Any]:
        return [read(call) for call in Program(fn, [((x.clone(),), {})], effects=False).run(lambda fn: fn)]

    reference = Reference([calls(sums(0))])
    assert explained(reference, calls(sums(5)), run, lambda step, kind: step()) and seeds == [0, 1, 2]
    assert explained(reference, calls(sums(5_000)), run, lambda step, kind: step()) == right
    assert seeds == [0, 1, 2, 3, 4, 5]
