"""The parts of `drift` that need no training: the envelope of a step, two trajectories, the ranks of a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

import graphprobe
from graphprobe.errors import SchemaError
from graphprobe.watch import trajectories
from graphprobe.watch.envelope import Envelope
from graphprobe.watch.trajectories import StepObservation

NAMES = ("fc.weight", "fc.bias")


def steps_of(
    apart: Callable[[int], float], *, seed: int = 0, count: int = 60, scale: float = 1.0, name: str = NAMES[0]
) -> list[StepObservation]:
    """The observations of a training: at each step the figures of one are apart from those of the others."""
    drawn = np.random.default_rng(seed)
    found = []
    for step in range(1, count + 1):
        gradients = [1.0 + 0.5 * math.sin(step), 2.0]
        here = gradients.index(gradients[NAMES.index(name)])
        noise = 1 + apart(step) * drawn.uniform(0.5, 1.5) * drawn.choice([-1, 1])
        gradients[here] *= noise
        others = 1e-7 * drawn.standard_normal()
        loss = (3.0 - 0.01 * step) * (1 + others)
        found.append(
            StepObservation(
                step=step, time_ns=0, loss=loss, norm=math.hypot(*gradients), names=NAMES, gradients=tuple(gradients),
                sizes=(scale, 0.5), digests=(f"{seed}", "same"),
            )
        )  # fmt: skip
    return found


def growing(step: int) -> float:
    return 1e-7 * 1.1**step


PLAIN = steps_of(lambda step: 0.0)


def test_runs_that_part_slowly_are_rounding_and_the_growth_is_told() -> None:
    drift = trajectories.held_together(PLAIN, steps_of(growing, seed=1))
    assert (drift.verdict, drift.step) == ("rounding", None)
    growth = trajectories.growth_of([growing(step) for step in range(60)])
    assert growth is not None and growth.factor == pytest.approx(1.1) and growth.error < 1e-6
    noisy = trajectories.growth_of([growing(i) * np.random.default_rng(i).uniform(0.3, 3) for i in range(60)])
    assert noisy is not None and abs(noisy.factor - 1.1) < 4 * noisy.error < 0.1


@pytest.mark.parametrize("name", NAMES)
def test_a_jump_is_named_with_step_and_parameter(name: str) -> None:
    jumps = steps_of(lambda step: 1e-3 if step >= 40 else 1e-7, seed=1, name=name)
    drift = trajectories.held_together(PLAIN, jumps)
    assert (drift.verdict, drift.step, drift.what) == ("leaves", 40, f"gradient of {name}")
    once = trajectories.held_together(PLAIN, steps_of(lambda step: 1e-3 if step == 40 else 1e-7, seed=1))
    assert once.verdict == "rounding"


def test_with_moved_runs_what_they_do_is_rounding() -> None:
    moved = [steps_of(growing, seed=seed) for seed in range(2, 6)]
    far = steps_of(lambda step: 20 * growing(step), seed=1)
    assert trajectories.first_outside(PLAIN, far, moved) is None
    farther = steps_of(lambda step: 1e4 * growing(step) if step >= 30 else growing(step), seed=1)
    assert trajectories.first_outside(PLAIN, farther, moved) == (30, "gradient of fc.weight")


def test_another_seed_other_data_and_other_parameters_are_another_run() -> None:
    other = trajectories.held_together(PLAIN, steps_of(growing, scale=1.01))
    assert other.verdict == "other" and "fc.weight differs before the first step" in other.sentence
    assert trajectories.why_other(PLAIN, []) == "the second run has no step of an optimizer"
    data = [StepObservation(step=i, time_ns=0, loss=1.0, data=d) for i, d in enumerate("abc", 1)]
    late = [StepObservation(step=i, time_ns=0, loss=1.0, data=d) for i, d in enumerate("abd", 1)]
    assert trajectories.why_other(data, [*reversed(data)]) == "the data of step 1 differs"
    drift = trajectories.held_together(data, late)
    assert drift.steps == 2 and drift.notes == ["the data of step 3 differs; the steps before it were compared"]


def test_a_page_draws_the_trajectory_and_the_band_of_moved_runs(tmp_path: Path) -> None:
    drift = trajectories.held_together(PLAIN, steps_of(lambda step: 1e-3 if step >= 40 else 1e-7, seed=1))
    drift.deviations = {"moved 0": [1e-9, 1.0, 0.0], "moved 1": [1.0, 1e-9, 0.0], "compiled": [0.0, 1e-4, 1.0]}
    drift.step = 2
    file = tmp_path / "drift.json"

    def page() -> str:
        return graphprobe.report(file, out=tmp_path / "page.html", force=True).read_text("utf-8")

    file.write_bytes(msgspec.json.encode(drift))
    text, low, high, middle = page(), "90.0", "6.0", "43.3"
    assert "LEAVES" in text and "the bar is step 2." in text
    assert f'points="70.0,{low} 393.0,{middle} 716.0,{high}"' in text
    assert f'points="70.0,{high} 393.0,{high} 716.0,{low} 716.0,{low} 393.0,{low} 70.0,{low}"' in text
    assert 'x1="393.0"' in text
    drift.deviations = {}
    file.write_bytes(msgspec.json.encode(drift))
    assert "<polyline" not in page()
    file.write_text(file.read_text("utf-8").replace('"held":0', '"held":"none"'), "utf-8")
    with pytest.raises(SchemaError, match="is no drift"):
        page()


def test_the_rank_that_is_alone_is_named() -> None:
    def rank(number: int, parts_at: int) -> list[StepObservation]:
        def digest(step: int) -> str:
            return f"{step}{number if step >= parts_at else ''}"

        return [
            StepObservation(step=step, time_ns=0, names=NAMES, digests=("x", digest(step)), gradients=(1.0, 1.0))
            for step in range(1, 40, 10)
        ]

    together = trajectories.ranks_part({number: rank(number, 99) for number in range(3)})
    assert together.verdict == "rounding"
    parted = trajectories.ranks_part({0: rank(0, 99), 1: rank(1, 21), 2: rank(2, 99)})
    assert (parted.verdict, parted.step, parted.what) == ("leaves", 21, "fc.bias")
    assert parted.sentence == "the ranks part between step 11 and step 21, in fc.bias; rank 1 is alone"
    two = trajectories.ranks_part({0: rank(0, 99), 1: rank(1, 1)})
    assert two.sentence == "the ranks part before step 1, in fc.bias"


@pytest.mark.parametrize(
    ("roundoff", "change", "found"),
    [
        (6e-8, lambda g: g * (1 + 1e-3), True),
        (6e-8, lambda g: g + 1e-3 * np.roll(g, 1), True),
        (6e-8, lambda g: np.roll(g, 1), True),
        (4e-3, lambda g: g * (1 + 1e-3), True),
        (4e-3, lambda g: g, False),
        (6e-8, lambda g: g, False),
    ],
    ids=["factor", "elements", "places", "factor in bfloat16", "bfloat16", "float32"],
)
def test_a_small_error_from_one_step_on_is_outside(
    roundoff: float, change: Callable[..., np.ndarray], found: bool
) -> None:
    drawn, envelope, outside = np.random.default_rng(0), Envelope(), []
    for step in range(1, 150):
        plain = {"gradient of a": drawn.standard_normal(4096), "gradient of b": 1e-9 * drawn.standard_normal(8)}

        def rounded(plain: dict[str, np.ndarray] = plain) -> dict[str, np.ndarray]:
            small = {"gradient of b": 1e-9 * drawn.standard_normal(8)}  # nothing but rounding
            return small | {"gradient of a": plain["gradient of a"] * (1 + roundoff * drawn.uniform(-1, 1, 4096))}

        mine, moved = rounded(), [rounded(), rounded()]
        if step >= 120:
            mine["gradient of a"] = change(mine["gradient of a"])
        outside += [(step, figure.name) for figure in envelope.outside(mine, plain, moved)]
        envelope.take(mine, plain, moved)
    assert outside == ([(step, "gradient of a") for step in range(120, 150)] if found else [])
