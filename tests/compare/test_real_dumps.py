"""Dumps of GPT-2 and of a convnet, by `graphprobe.dump`: the planted fault is named, a healthy run is silent."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import graphprobe
import models
from compare.pairs import compared
from compare.programs import ConvNet

FLOAT, NARROW = torch.float32, torch.bfloat16
aten = torch.ops.aten


class WrongOp(TorchDispatchMode):
    """The `index`-th run of `op` gives a result that is 3 % too large, as a broken kernel might."""

    def __init__(self, op: Any, index: int) -> None:
        super().__init__()
        self.op, self.index, self.seen = op, index, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # the program has not called this operator
            result = func(*args, **(kwargs or {}))
        if func is self.op:
            self.seen += 1
            if self.seen == self.index + 1:
                return tuple(r if r is None else r * 1.03 for r in result) if type(result) is tuple else result * 1.03
        return result


@cache
def gpt2() -> torch.nn.Module:
    return models.gpt2(n_layer=3, n_embd=48, n_head=4, n_positions=32, vocab_size=96).eval()  # no dropout


@cache
def convnet() -> ConvNet:
    torch.manual_seed(0)
    return ConvNet()


def dumped(
    path: Path,
    program: str,
    dtype: torch.dtype = FLOAT,
    change: Callable[[Any], None] | None = None,
    wrong: tuple[Any, int] | None = None,
) -> Path:
    """One training step."""
    model = copy.deepcopy(gpt2() if program == "gpt2" else convnet()).to(dtype)
    if change is not None:
        change(model)
    torch.manual_seed(1)
    ids, image = torch.randint(0, 96, (2, 16)), torch.randn(4, 3, 16, 16).to(dtype)
    with WrongOp(*(wrong or (None, 0))), graphprobe.dump(path, data="tensor", level="api", model=model):
        loss = model(ids, labels=ids).loss if program == "gpt2" else model(image).float().square().mean()
        loss.backward()
    return path


def noisy_weight(model: Any) -> None:
    weight = model.transformer.h[1].mlp.c_fc.weight.data
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    weight.mul_((1 + 1e-2 * noise).to(weight.dtype))


def swapped_layers(model: Any) -> None:
    layers = model.transformer.h
    layers[1], layers[2] = layers[2], layers[1]


def other_epsilon(model: Any) -> None:
    model.norms[1].eps = 1e-2


CASES: dict[str, tuple[str, dict[str, Any], str, str, str]] = {
    # program, what is planted, direction, end of the API's name, module
    "gpt2 forward": ("gpt2", {"wrong": (aten.tanh.default, 1)}, "forward", "tanh", "transformer.h.1.mlp.act"),
    "gpt2 backward": (
        "gpt2",
        {"wrong": (aten.tanh_backward.default, 1)},
        "backward",
        "tanh",
        "transformer.h.1.mlp.act",
    ),
    "gpt2 weight": ("gpt2", {"change": noisy_weight}, "forward", "addmm", "transformer.h.1.mlp.c_fc"),
    "gpt2 layers": ("gpt2", {"change": swapped_layers}, "forward", "addmm", "transformer.h.1.attn.c_attn"),
    "convnet forward": ("convnet", {"wrong": (aten.convolution.default, 2)}, "forward", "conv2d", "convs.2"),
    "convnet backward": ("convnet", {"wrong": (aten.convolution_backward.default, 1)}, "backward", "conv2d", "convs.2"),
    "convnet epsilon": ("convnet", {"change": other_epsilon}, "forward", "batch_norm", "norms.1"),
}


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("references")
    return {program: dumped(folder / program, program) for program in ("gpt2", "convnet")}


@pytest.mark.parametrize("dtype", [FLOAT, NARROW], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_the_planted_call_is_named(name: str, dtype: torch.dtype, references: dict[str, Path], tmp_path: Path) -> None:
    program, planted, direction, api, module = CASES[name]
    summary = compared(dumped(tmp_path / "candidate", program, dtype, **planted), references[program])
    first = summary.first
    assert summary.outcome == "different" and first is not None and first.candidate is not None
    call = first.candidate
    assert (first.direction, call.api.rpartition(".")[2], call.module) == (direction, api, module), summary.findings
    assert ".py:" in call.source
    assert first.verdict == ("differs" if "change" in planted else "candidate_worse")


@pytest.mark.parametrize("dtype", [FLOAT, NARROW], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("program", ["gpt2", "convnet"])
def test_a_healthy_run_is_silent(program: str, dtype: torch.dtype, references: dict[str, Path], tmp_path: Path) -> None:
    summary = compared(dumped(tmp_path / "candidate", program, dtype), references[program])
    assert (summary.outcome, summary.findings) == ("same", []), summary.notes
