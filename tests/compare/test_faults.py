"""Planted faults in a transformer and a convnet, against float32 and against bfloat16; healthy controls are silent."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from compare.programs import ConvNet, Gpt, conv_run, gpt_run
from compare.recording import MemoryDump
from graphprobe.compare.options import Options
from graphprobe.compare.result import Summary
from graphprobe.compare.run import compare_dumps
from graphprobe.diagnose.call_replay import TorchReplayer

FLOAT, NARROW = torch.float32, torch.bfloat16


@cache
def reference(program: str) -> MemoryDump:
    return gpt_run() if program == "gpt" else conv_run()


@cache
def faulty(name: str, dtype: torch.dtype = torch.float32) -> MemoryDump:
    return gpt_run(dtype=dtype, **FAULTS[name][0])


def compared(candidate: MemoryDump, program: str = "gpt", *, replay: bool = True, values: bool = True) -> Summary:
    other = reference(program)
    if not values:
        candidate, other = candidate.without_values(), other.without_values()
    options = Options(replayer=TorchReplayer() if replay and values else None)
    with compare_dumps(candidate, other, options) as comparison:
        return comparison.summary


def noisy_weight(model: Gpt) -> None:
    weight = model.blocks[2].up.weight.data
    weight.mul_(1 + 1e-3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))


def swapped_order(model: Gpt) -> None:
    model.order = [0, 2, 1]


def swapped_weights(model: Gpt) -> None:
    model.blocks[1], model.blocks[2] = model.blocks[2], model.blocks[1]


def tanh_argument(model: Gpt) -> None:
    model.blocks[1].gelu = "tanh"


def between(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Gpt], None]:
    """One more operation before the norm of block 2."""

    def plant(model: Gpt) -> None:
        norm = model.blocks[2].ln2
        inner = norm.forward
        norm.forward = lambda x: inner(change(x))

    return plant


def flipped(result: torch.Tensor, *_: Any) -> torch.Tensor:
    result = result.clone()
    result.view(-1)[77] *= -1
    return result


def with_nan(result: torch.Tensor, *_: Any) -> torch.Tensor:
    result = result.clone()
    result.view(-1)[5] = float("nan")
    return result


def narrow_input(result: torch.Tensor, args: Any, kwargs: Any) -> torch.Tensor:
    return F.linear(args[0].to(torch.float8_e4m3fn).to(result.dtype), *args[1:])


def tanh_gelu(result: torch.Tensor, args: Any, kwargs: Any) -> torch.Tensor:
    return F.gelu(args[0], approximate="tanh")


def scaled(result: torch.Tensor, *_: Any) -> torch.Tensor:
    return result * 1.02


FAULTS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    # planted: kind of the finding, label, module
    "wrong op": ({"plant": {"layer_norm.3": scaled}}, "wrong_value", "layer_norm.3.forward", "blocks.1.ln2"),
    "flipped element": ({"plant": {"linear.5": flipped}}, "wrong_value", "linear.5.forward", "blocks.1.proj"),
    "NaN": ({"plant": {"gelu.1": with_nan}}, "nonfinite", "gelu.1.forward", "blocks.1"),
    "low precision": ({"plant": {"linear.5": narrow_input}}, "wrong_value", "linear.5.forward", "blocks.1.proj"),
    "gelu variant": ({"plant": {"gelu.2": tanh_gelu}}, "wrong_value", "gelu.2.forward", "blocks.2"),
    "gelu argument": ({"change": tanh_argument}, "scalar", "gelu.1.forward", "blocks.1"),
    "weight noise": ({"change": noisy_weight}, "state", "linear.10.forward", "blocks.2.up"),
    "swapped weights": ({"change": swapped_weights}, "state", "linear.4.forward", "blocks.1.qkv"),
    "swapped order": ({"change": swapped_order}, "moved_call", "layer_norm.2.forward", "blocks.2.ln1"),
    "one more op": ({"change": between(lambda x: x * 1.5)}, "extra_call", "mul.0.forward", "blocks.2.ln2"),
    "doubled input gradient": (
        {"plant_gradient": {"linear.9.backward.grad_input.0": lambda g: 2 * g}},
        "wrong_gradient",
        "linear.9.backward",
        "blocks.2.proj",
    ),
    "wrong weight gradient": (
        {"plant_gradient": {"linear.9.backward.grad_input.1": lambda g: 1.05 * g}},
        "wrong_gradient",
        "linear.9.backward",
        "blocks.2.proj",
    ),
}


NUMERIC = ("wrong_value", "wrong_gradient", "nonfinite")
"""Kinds of which something tells which side is wrong."""

QUICK = ("flipped element", "weight noise", "doubled input gradient")
EACH = [pytest.param(name, marks=() if name in QUICK else pytest.mark.heavy) for name in FAULTS]


@pytest.mark.parametrize("dtype", [FLOAT, pytest.param(NARROW, marks=pytest.mark.heavy)], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", EACH)
def test_first_divergence_is_the_planted_call(name: str, dtype: torch.dtype) -> None:
    _, kind, label, module = FAULTS[name]
    summary = compared(faulty(name, dtype))
    assert summary.outcome == "different"
    first = summary.first
    assert first is not None and first.candidate is not None
    assert (first.kind, first.candidate.label, first.candidate.module) == (kind, label, module)
    assert first.candidate.source.startswith(("programs.py:", "test_faults.py:"))
    assert first.verdict == ("candidate_worse" if kind in NUMERIC else "differs")


@pytest.mark.parametrize("replay", [True, pytest.param(False, marks=pytest.mark.heavy)], ids=["replay", "no replay"])
@pytest.mark.parametrize(
    ("program", "dtype"),
    [
        pytest.param(
            name, dtype, marks=() if (name, dtype) in {("gpt", NARROW), ("conv", FLOAT)} else pytest.mark.heavy
        )
        for name in ("gpt", "conv")
        for dtype in (FLOAT, NARROW, torch.float16)
    ],
    ids=str,
)
def test_healthy_is_silent(program: str, dtype: torch.dtype, replay: bool) -> None:
    run = gpt_run if program == "gpt" else conv_run
    for values in (True, False):
        summary = compared(run(dtype=dtype), program, replay=replay, values=values)
        assert (summary.outcome, summary.findings) == ("same", []), values


@pytest.mark.parametrize("name", EACH)
def test_without_replay_every_fault_shows_between_equal_dtypes(name: str) -> None:
    _, kind, label, _ = FAULTS[name]
    for values in (True, False):
        first = compared(faulty(name), replay=False, values=values).first
        assert first is not None and first.candidate is not None
        assert (first.kind, first.candidate.label) == (kind, label), values


def test_one_more_call_without_effect_is_told_and_not_accused() -> None:
    for dtype in (FLOAT, NARROW):
        summary = compared(gpt_run(dtype=dtype, change=between(lambda x: x * 1.0)))
        assert summary.outcome == "same"
        assert summary.counts.candidate_only == 2  # forward and backward
        assert set(summary.counts.by_rule) == {"exact"}


def test_a_call_that_replaces_another_is_named() -> None:
    def silu(model: Gpt) -> None:
        block = model.blocks[1]
        down = block.down.forward
        block.down.forward = lambda x: down(F.silu(x))

    for dtype in (FLOAT, NARROW):
        summary = compared(gpt_run(dtype=dtype, change=silu))
        assert summary.first is not None and summary.first.candidate is not None
        assert summary.first.candidate.label == "silu.0.forward", dtype


@pytest.mark.heavy
def test_faults_of_a_convnet() -> None:
    def wrong_norm(model: ConvNet) -> None:
        model.norms[1].eps = 1e-2

    for dtype in (FLOAT, NARROW):
        first = compared(conv_run(dtype=dtype, change=wrong_norm), "conv").first
        assert first is not None and first.candidate is not None
        assert (first.kind, first.candidate.label) == ("scalar", "batch_norm.1.forward")
        assert first.slot == "kwarg.eps"
        planted = {"conv2d.2": lambda r, a, k: F.conv2d(a[0], a[1], a[2], 1, 1, 1).mul(0.97)}
        first = compared(conv_run(dtype=dtype, plant=planted), "conv").first
        assert first is not None and first.candidate is not None
        assert (first.candidate.label, first.candidate.module) == ("conv2d.2.forward", "convs.2")
        gradient = {"conv2d.1.backward.grad_input.1": lambda g: -g}
        first = compared(conv_run(dtype=dtype, plant_gradient=gradient), "conv").first
        assert first is not None and first.candidate is not None
        assert (first.kind, first.candidate.label) == ("wrong_gradient", "conv2d.1.backward")
        assert first.slot == "grad_input.1"


def test_the_reference_may_be_the_wrong_side() -> None:
    good, bad = gpt_run(), gpt_run(plant={"linear.5": flipped})
    with compare_dumps(good, bad, Options(replayer=TorchReplayer())) as comparison:
        first = comparison.summary.first
    assert first is not None and first.candidate is not None
    assert (first.verdict, first.candidate.label) == ("candidate_better", "linear.5.forward")


@pytest.mark.heavy
def test_a_layer_in_another_precision_than_its_peers_is_reported() -> None:
    def half(dump: MemoryDump, number: int) -> MemoryDump:
        calls = []
        for call in dump.list:
            if call.label == f"linear.{number}.forward":
                slots = tuple(
                    msgspec.structs.replace(
                        s, value="", digest="", meta=msgspec.structs.replace(s.meta, dtype="float8_e5m2")
                    )
                    if s.meta is not None and s.role == "output"
                    else s
                    for s in call.slots
                )
                call = msgspec.structs.replace(call, slots=slots)
            calls.append(call)
        return MemoryDump(calls, dump.arrays)

    for dtype in (FLOAT, NARROW):
        first = compared(half(gpt_run(dtype=dtype), 6)).first
        assert first is not None and first.candidate is not None
        assert (first.kind, first.candidate.label) == ("dtype", "linear.6.forward")


@pytest.mark.heavy
def test_random_operations_are_told_and_not_accused() -> None:
    def dropping(seed: int, dtype: torch.dtype = FLOAT) -> MemoryDump:
        def plant(result: torch.Tensor, *_: Any) -> torch.Tensor:
            mask = torch.rand(result.shape, generator=torch.Generator().manual_seed(seed)) > 0.1
            return result * mask / 0.9

        model_change = between(lambda x: F.dropout(x, 0.1))
        return gpt_run(dtype=dtype, change=model_change, plant={"dropout.0": plant})

    other = dropping(1)
    for dtype in (FLOAT, NARROW):
        with compare_dumps(dropping(2, dtype), other) as comparison:
            summary = comparison.summary
        assert summary.outcome == "undecided" and not summary.findings
        assert any("random" in note for note in summary.notes)
    with compare_dumps(dropping(1), other) as comparison:
        assert comparison.summary.outcome == "same"
