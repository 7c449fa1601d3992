"""Programs whose float64 run is of something else, or impossible: right is healthy, and 1.3 times right is a fault."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import graphprobe
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.references import explained, measure
from graphprobe.judge import Observation, Reference, read

X = torch.linspace(-2, 2, 24).reshape(4, 6) + 0.01


def times(factor: float) -> Callable[..., Any]:
    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        def scaled(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or factor == 1:
                return value
            return value * factor if value.is_floating_point() else value + 1

        return lambda *args: [scaled(value) for value in gm.forward(*args)]

    return backend


def shared(x: torch.Tensor) -> torch.Tensor:
    y = x.t()
    y.mul_(2)
    return x + y.t()


def hooked() -> torch.nn.Module:
    model = torch.nn.Linear(6, 3)
    model.weight.register_hook(lambda gradient: gradient * 3)
    return model


PROGRAMS: dict[str, Callable[..., Any]] = {
    "other_factor": lambda x: x.sin() * (2 if x.dtype is torch.float32 else 3),
    "bits": lambda x: (x.view(torch.int32) & 0x7F800000).view(torch.float32) * x,
    "smallest_step": lambda x: torch.log(x.abs() * 0 + torch.finfo(x.dtype).eps) + x,
    "neighbours": lambda x: (torch.nextafter(x, x + 1) - x) * 1e6,
    "through_numpy": lambda x: torch.from_numpy(x.detach().numpy() * 2) + x,
    "shared": shared,
    "cancelled": lambda x: (x + 1e6) - 1e6,
    "counts": lambda x: (x * 100).long(),
    "out_of_range": lambda x: (x * 100).to(torch.int8),
    "hooked": hooked(),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_wrong_is_never_healthy_and_what_is_right_is(name: str, tmp_path: Path) -> None:
    for factor, verdict in ((1, "healthy"), (1.3, "fault")):
        how: dict[str, Any] = {"backend": times(factor), "grad": name == "hooked", "out": tmp_path / f"{factor}"}
        found = graphprobe.diagnose(PROGRAMS[name], X.clone(), **how)
        assert found.verdict == verdict, found.notes


@pytest.mark.heavy
def test_roundings_of_sums_accuse_nobody_where_there_is_no_float64_run(tmp_path: Path) -> None:
    """The gradient of a bias before a batch norm is nothing but roundings."""
    convolution = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()]
    model = torch.nn.Sequential(*convolution, torch.nn.Conv2d(8, 8, 3), torch.nn.BatchNorm2d(8))

    def step(x: torch.Tensor) -> torch.Tensor:
        return model((x.view(torch.int32) & 0x7FFFFFFF).view(torch.float32))

    found = graphprobe.diagnose(step, torch.randn(4, 3, 32, 32), grad=True, out=tmp_path)
    assert found.verdict != "fault", found.findings


def observed(fn: Callable[..., Any], x: torch.Tensor) -> list[Observation]:
    return [read(call) for call in Program(fn, [((x.clone(),), {})], effects=False).run(lambda fn: fn)]


@pytest.mark.parametrize(("fn", "runs"), [(torch.sin, 1), (lambda x: (x * 1e6).sin(), 3)])
def test_one_perturbed_run_is_enough_for_now_if_it_is_not_moved_far(fn: Callable[..., Any], runs: int) -> None:
    program, reference = Program(fn, [((X,), {})]), Reference([observed(fn, X)] * 2)
    assert measure(reference, lambda step, kind: step(program), few=True) == []
    assert len(reference.perturbed) == runs and reference.few == (runs == 1)
    while reference.further["perturbed"]:
        before = len(reference.perturbed)
        assert reference.make("perturbed") and len(reference.perturbed) > before
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

    reference = Reference([observed(sums(0), x)])
    assert explained(reference, observed(sums(5), x), run, lambda step, kind: step()) and seeds == [0, 1, 2]
    assert explained(reference, observed(sums(5_000), x), run, lambda step, kind: step()) == right
    assert seeds == [0, 1, 2, 3, 4, 5]
