"""`drift` on trainings: healthy ones are rounding; a fault of compiled code is named with its step and parameter."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import graphprobe
from graphprobe.errors import UsageError
from watch.drift_trainings import (
    Plan,
    changed_gradient,
    dropped_cast,
    edited,
    wrong_epsilon,
    wrong_for_short_batches,
    wrong_momentum,
)

STEPS, LATE = 200, 120
"""Of a training, and the step in which a late fault comes."""


def held(plan: Callable[[], Any], folder: Path, steps: int, **options: Any) -> Any:
    return graphprobe.drift(plan, steps=steps, out_dir=folder / "out", **{"budget_s": 120.0, **options})


@pytest.mark.heavy
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["gpt", "conv", "lstm"])
def test_a_healthy_training_is_rounding(model: str, autocast: bool, tmp_path: Path) -> None:
    drift = held(Plan(model, autocast=autocast), tmp_path, STEPS)
    assert (drift.verdict, drift.outside, drift.held, drift.steps) == ("rounding", None, STEPS, STEPS)
    assert len(drift.deviations) == 5
    assert all("in step" in note for note in drift.notes), "of a step alone"


def factor(by: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda gradient: gradient * (1 + by)


def skewed(model: str, change: Callable[[torch.Tensor], torch.Tensor], *shape: int, autocast: bool = False) -> Plan:
    return Plan(model, autocast=autocast, backend=changed_gradient(change, shape=shape, after=LATE - 1))


def short(step: int) -> int:
    return 8 if step % LATE else 3


FAULTS: dict[str, tuple[Callable[[bool], Plan], int, str]] = {
    "factor": (
        lambda autocast: skewed("gpt", factor(1e-2 if autocast else 1e-3), 128, 32, autocast=autocast),
        LATE,
        "gradient of blocks.1.fc1.weight",
    ),
    "epsilon": (lambda autocast: Plan("lstm", autocast, edited(wrong_epsilon)), 1, "gradient of "),
    "cast": (lambda autocast: Plan("gpt" if autocast else "conv", autocast, edited(dropped_cast)), 1, "gradient of "),
    "short batch": (lambda autocast: Plan("gpt", autocast, wrong_for_short_batches(3), short), LATE, "gradient of "),
    "elements": (
        lambda autocast: skewed("conv", lambda g: g + 1e-3 * g.roll(1, 0), 16, 8, 3, 3, autocast=autocast),
        LATE,
        "gradient of conv2.weight",
    ),
    "momentum": (lambda autocast: Plan("conv", autocast, edited(wrong_momentum)), 1, "buffer bn"),
    "views": (lambda autocast: Plan("views", autocast), 1, "gradient of cell.weight_ih"),
}


@pytest.mark.heavy
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_its_step_and_parameter(fault: str, autocast: bool, tmp_path: Path) -> None:
    plan, step, what = FAULTS[fault]
    drift = held(plan(autocast), tmp_path, STEPS)
    assert drift.verdict == "leaves"
    assert abs(drift.step - step) <= 1
    assert what in drift.what


@pytest.mark.slow
def test_every_run_has_a_folder_that_watch_reads_and_is_held_against_another(tmp_path: Path) -> None:
    drift = held(Plan("lstm", backend="eager"), tmp_path, 3, perturbed=1)
    assert (drift.verdict, drift.held, [*drift.runs]) == ("rounding", 3, ["uncompiled", "compiled", "moved 0"])
    files = [graphprobe.open_run(folder).tool_dir / "watch.jsonl" for folder in drift.runs.values()]
    plain, compiled, moved = ([json.loads(line) for line in file.read_text("utf-8").splitlines()] for file in files)
    assert [len(plain), len(compiled), len(moved)] == [3, 3, 3]
    assert plain[0]["data"] == moved[0]["data"] != ""
    assert plain[0]["digests"] == compiled[0]["digests"] != moved[0]["digests"]
    assert "ROUNDING" in str(drift)


@pytest.mark.slow
def test_data_that_differs_is_no_fault(tmp_path: Path) -> None:
    def make_step() -> Callable[[], None]:
        drawn = random.SystemRandom().random()
        layer = torch.nn.Linear(2, 1)
        compiled, optimizer = torch.compile(layer, backend="eager"), torch.optim.SGD(layer.parameters(), lr=0.1)

        def step() -> None:
            compiled(torch.full((2, 2), drawn)).sum().backward()
            optimizer.step()

        return step

    drift = held(make_step, tmp_path, 2, perturbed=1)
    assert (drift.verdict, drift.step) == ("undecided", None)
    assert "the data of step 1 differs" in drift.sentence


@pytest.mark.slow
def test_a_training_that_compiles_nothing_or_makes_no_step_is_refused(tmp_path: Path) -> None:
    def without_compile() -> Callable[[], None]:
        layer = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        return lambda: (layer(torch.ones(1, 2)).sum().backward(), optimizer.step())  # type: ignore[func-returns-value]

    with pytest.raises(UsageError, match="nothing was compiled"):
        held(without_compile, tmp_path / "a", 1, perturbed=1)
    with pytest.raises(UsageError, match="no step of an optimizer was seen in the run uncompiled"):
        held(lambda: lambda: None, tmp_path / "b", 1)


@pytest.mark.parametrize("given", [{"steps": 0}, {"perturbed": "4"}])
def test_what_is_no_number_is_refused(given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"drift\("):
        graphprobe.drift(lambda: lambda: None, out_dir=tmp_path, **given)
