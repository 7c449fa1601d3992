"""`graphprobe drift` on runs that are there: two of one training are held together, others are another run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import graphprobe
from cli.calling import call


def train(folder: Path, *, seed: int = 0, threads: int = 1, wrong_from: int = 999, steps: int = 200) -> None:
    """A watched training whose gradient goes wrong in a step."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
        with graphprobe.watch(out_dir=folder, quiet=True, every=1):
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            for step in range(1, steps + 1):
                batch = torch.randn(32, 64, generator=torch.Generator().manual_seed(step))
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                if step >= wrong_from:
                    model[2].weight.grad.mul_(1.01)
                optimizer.step()
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "one")
    train(folder / "two", threads=2)
    train(folder / "seed", seed=1)
    train(folder / "wrong", wrong_from=120)
    return folder


def test_another_number_of_threads_is_rounding(runs: Path) -> None:
    done = call("drift", runs / "one", runs / "two", code=0)
    assert "ROUNDING: the runs part as rounding lets them, over 200 steps" in done.stdout


def test_another_seed_is_another_run(runs: Path) -> None:
    done = call("drift", runs / "one", runs / "seed", code=125)
    assert "ANOTHER RUN: these are not two runs of one training: 0.weight differs before the first step" in done.stdout


def test_a_gradient_that_goes_wrong_is_named(runs: Path) -> None:
    done = call("drift", runs / "one", runs / "wrong", code=1)
    assert "LEAVES in step 120: gradient of 2.weight" in done.stdout
    document = json.loads(call("drift", runs / "one", runs / "wrong", "--json", code=1).stdout)
    assert (document["verdict"], document["step"], document["what"]) == ("leaves", 120, "gradient of 2.weight")
    assert document["runs"]["a"].startswith(str(runs / "one")) and len(document["deviations"]["b"]) == 200


def test_what_is_no_two_runs_is_refused(runs: Path) -> None:
    one = runs / "one"
    assert "drift takes two runs, not 3" in call("drift", one, one, one, code=2).output
    assert "holds no runs of several ranks" in call("drift", one, code=2).output
    assert "nothing to run" in call("drift", code=2).output
