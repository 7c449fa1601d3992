"""`watch(shadow=K)`: values and gradients that are wrong, and not NaN, are found; what is right triggers nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import graphprobe
from watch.test_watch import GPT, LSTM, MLP, same, watched
from watch.trainings import SmallGPT, Training, numbers_of, tokens_of

pytestmark = pytest.mark.slow


def late(calls: int, wrong: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """A backend whose code goes wrong after so many calls of a graph, whenever it was compiled."""

    def backend_with_a_late_fault(graph: Any, inputs: list[Any]) -> Callable[..., Any]:
        made = [0]

        def call(*args: Any) -> Any:
            made[0] += 1
            return tuple(wrong(result) if made[0] > calls else result for result in graph(*args))

        return call

    return backend_with_a_late_fault


class ScaledBackward(torch.autograd.Function):
    """As it is forward; backward a twentieth too large."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 1.05


@pytest.mark.parametrize("wrong", [lambda loss: loss * 1.01, ScaledBackward.apply], ids=["a value", "a gradient alone"])
def test_what_goes_wrong_without_a_nan_is_found_within_k_calls(wrong: Any, tmp_path: Path) -> None:
    training = replace(MLP, backend=late(6, wrong))
    answer, _ = watched(training, 12, tmp_path, shadow=4)
    assert (answer.kind, answer.step, answer.uncompiled) == ("shadow", 8, "no")
    assert answer.call.endswith("call 8")
    named = "the gradient of fc1.weight" if wrong == ScaledBackward.apply else "outputs[0]"
    assert f"call 8 is not as uncompiled, {named}" in answer.what
    assert "trainings.py:" in answer.operation.source
    assert Path(answer.inputs).is_file()


def test_a_fault_that_does_not_come_again_is_told_as_such(tmp_path: Path) -> None:
    program, spoilt = os.getpid(), [0]

    def backend_of_a_broken_machine(graph: Any, inputs: list[Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            spoilt[0] += 1
            wrong = os.getpid() == program and spoilt[0] == 8
            return tuple(result + wrong * 0.01 for result in graph(*args))

        return call

    answer, _ = watched(replace(MLP, backend=backend_of_a_broken_machine), 12, tmp_path, shadow=4)
    assert (answer.kind, answer.step) == ("shadow", 8)
    assert "made again, the same call is right" in answer.what


class ConvNet(nn.Module):
    """With a normalisation in training, a counter in Python, and numbers drawn by Python itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4 * 4 * 4, 3)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = torch.relu(self.norm(self.conv(x))) * (1 + self.calls / 100)
        return self.head(x.flatten(1)).square().mean()


def images_of(step: int) -> torch.Tensor:
    return torch.randn(4, 1, 6, 6, generator=torch.Generator().manual_seed(step))


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = SmallGPT(d=32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(tokens)


HEALTHY = {
    "gpt with dropout": Training(lambda: SmallGPT(dropout=0.2), tokens_of, backend="aot_eager"),
    "convnet": Training(ConvNet, images_of),
    "lstm": LSTM,
    "autocast": Training(Autocast, tokens_of, backend="inductor"),
    "accumulation": replace(GPT, accumulate=2),
}


@pytest.mark.parametrize("training", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_training_is_silent_and_the_same_to_the_last_bit(training: Training, tmp_path: Path) -> None:
    plain = training.run(13)
    torch.compiler.reset()
    answer, came = watched(training, 13, tmp_path, shadow=3)
    assert answer is None
    assert same(plain, came)


def test_a_step_compiled_with_its_optimizer_is_not_compared_and_this_is_noted(tmp_path: Path) -> None:
    layer = nn.Linear(8, 1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = layer(x).square().mean()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.mul_(0.5)
        return loss.detach()

    with graphprobe.watch(out_dir=tmp_path, quiet=True, shadow=2) as watch:
        compiled = torch.compile(step, backend="eager")
        for number in range(4):
            compiled(numbers_of(number))
    assert watch.answer is None
    (run,) = [graphprobe.open_run(watch.folder)]
    assert any("changed what was not copied" in note for note in run.manifest.notes)


def test_arguments_that_are_changed_are_compared_too(tmp_path: Path) -> None:
    def fill(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.add_(x)
        return cache.sum()

    def run(wrong: float) -> Any:
        cache = torch.zeros(8)
        with torch.no_grad(), graphprobe.watch(out_dir=tmp_path, quiet=True, shadow=4, budget_s=30.0) as watch:
            compiled = torch.compile(fill, backend=adding(wrong))
            for number in range(1, 10):
                compiled(cache, torch.full((8,), float(number)))
        return watch.answer, cache

    def adding(wrong: float) -> Callable[..., Any]:
        def backend_that_writes(graph: Any, inputs: list[Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                result = graph(*args)
                tensors = [one for one in args if isinstance(one, torch.Tensor)]
                tensors[0].add_(wrong)
                return result

            return call

        return backend_that_writes

    answer, cache = run(0.0)
    assert answer is None
    assert torch.equal(cache, torch.full((8,), 45.0))
    answer, _ = run(0.5)
    assert answer.kind == "shadow"
    assert "after the call" in answer.what
