"""`compare` on dumps of programs that differ, where the call that differs is named, and of such that do not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from compare import gpt_faults, gpt_training, pairs
from compare.gpt_faults import gpt
from compare.made import MemoryDump, replaced
from compare.pairs import Dumps
from compare.recording import Recorder
from graphprobe.compare import CallName, compare_dumps, open_dump
from graphprobe.compare.result import UNDECIDED_KINDS, Summary, WrongCall

FLOAT, NARROW, HALF = torch.float32, torch.bfloat16, torch.float16
Trained = Callable[[str, str], Path]
WAYS = [
    pytest.param(data, level, marks=() if (data, level) == ("tensor", "api") else (pytest.mark.heavy,))
    for data in ("tensor", "stats")
    for level in ("api", "mix")
]


def compared(
    dumps: Dumps, candidate: pairs.Run, reference: pairs.Run, *, replay: bool = True, **options: Any
) -> Summary:
    options = {"data": "tensor", **options}
    return pairs.compared(dumps(candidate, **options), dumps(reference, "reference", **options), replay=replay)


def assert_same(summary: Summary) -> None:
    assert (summary.outcome, summary.findings) == ("same", []), summary.notes


def only_cause(summary: Summary) -> tuple[WrongCall, list[CallName]]:
    """The one finding that accuses, and its calls on both sides."""
    assert summary.outcome == "different" and summary.first is not None, summary.notes
    assert [f for f in summary.findings if f.kind not in UNDECIDED_KINDS] == [summary.first]
    return summary.first, [call for call in (summary.first.candidate, summary.first.reference) if call is not None]


@pytest.mark.parametrize(("data", "level"), WAYS)
@pytest.mark.parametrize("name", pairs.FAULTS)
def test_the_call_that_differs_is_the_only_cause(name: str, data: str, level: str, dumps: Dumps) -> None:
    fault = pairs.FAULTS[name]
    first, calls = only_cause(compared(dumps, fault.candidate, fault.reference, data=data, level=level))
    assert any(fault.api in call.api and call.module.startswith(fault.module) for call in calls), first


LONG = {
    "llama against compiled",
    "llama, compiled and stepped",
    "llama, batch against four",
    "llama, AdamW, bfloat16",
    "t5, bfloat16",
}
"""Healthy pairs that are run by `make test-all` alone: others are like them."""

SLOW = {"llama, compiled", "t5, autocast", "llama, batch in two"}


def mark_of(name: str) -> Any:
    return pytest.mark.heavy if name in LONG else pytest.mark.slow if name in SLOW else ()


@pytest.mark.parametrize(("data", "level"), WAYS)
@pytest.mark.parametrize("name", [pytest.param(name, marks=mark_of(name)) for name in pairs.HEALTHY])
def test_healthy_pairs_are_the_same(name: str, data: str, level: str, dumps: Dumps) -> None:
    assert_same(compared(dumps, *pairs.HEALTHY[name], data=data, level=level))


QUICK = ("flipped element", "weight noise", "doubled gradient")
GPT_WAYS = [
    pytest.param(name, data, dtype, marks=() if quick else pytest.mark.heavy)
    for name in gpt_faults.FAULTS
    for data in ("tensor", "stats")
    for dtype in (FLOAT, NARROW)
    for quick in [(data, dtype) == ("tensor", NARROW) or (name in QUICK and dtype is FLOAT)]
]


@pytest.mark.parametrize(("name", "data", "dtype"), GPT_WAYS)
def test_a_fault_of_a_gpt_is_the_only_cause(name: str, data: str, dtype: torch.dtype, dumps: Dumps) -> None:
    """Between equal dtypes without a replay, too."""
    if (name, data, dtype) == ("flipped, unseen", "stats", NARROW):
        pytest.skip("one sign in 2048 elements changes no statistic by more than bfloat16 does")
    planted = gpt_faults.FAULTS[name]
    for replay in (True, False) if dtype is FLOAT else (True,):
        summary = compared(dumps, gpt(dtype, planted.plant), gpt(), data=data, replay=replay)
        first, calls = only_cause(summary)
        assert any(call.module.startswith(planted.module) for call in calls), first
        assert data == "stats" or (first.kind, first.verdict) == (planted.kind, "differs")
        assert all(".py:" in call.source for call in calls), first


TRAINED = ("softmax_bf16", "chunk_order", "zero_missing", "param_left_out", "untied", "data_order", "data_one")
REWRITTEN = ("softmax by hand", "in-place residual", "linear in slices")
"""Of `gpt_training`, what is not left to `make test-all`: values alone."""
TRAINING = [
    pytest.param(name, data, marks=pytest.mark.slow if data == "tensor" and name in chosen else pytest.mark.heavy)
    for changes, chosen in ((gpt_training.FAULTS, TRAINED), (gpt_training.HEALTHY, REWRITTEN))
    for name in changes
    for data in ("tensor", "stats")
]


@pytest.mark.parametrize(("name", "data"), TRAINING)
def test_a_change_of_a_training_is_named_and_a_rewriting_is_not(name: str, data: str, training: Trained) -> None:
    summary = pairs.compared(training(name, data), training("none", data))
    change = gpt_training.FAULTS.get(name)
    if change is None:
        assert summary.outcome == ("undecided" if name == "compiled" else "same"), (summary.first, summary.notes)
        return
    first = summary.first
    assert first is not None and change.names(first), first
    assert (summary.outcome == "different") == (first.kind not in UNDECIDED_KINDS)


def flipped(result: torch.Tensor) -> torch.Tensor:
    result = result.clone()
    result.view(-1)[77] *= -1
    return result


def with_nan(result: torch.Tensor) -> torch.Tensor:
    result = result.clone()
    result.view(-1)[5] = float("nan")
    return result


def coarse(result: torch.Tensor) -> torch.Tensor:
    return result.to(torch.float8_e4m3fn).to(result.dtype)


def larger(result: torch.Tensor) -> torch.Tensor:
    return result * 1.03


aten = torch.ops.aten
KERNELS: dict[str, tuple[tuple[Any, int, Any], str, str]] = {
    # of a GPT or a convnet: operator, which of its runs, what it gives; kind of the finding; API and module
    "gpt, norm": ((aten.native_layer_norm.default, 3, larger), "wrong_value", "layer_norm blocks.1.ln2"),
    "gpt, flipped": ((aten.addmm.default, 5, flipped), "wrong_value", "linear blocks.1.attn.proj"),
    "gpt, coarse": ((aten.addmm.default, 5, coarse), "wrong_value", "linear blocks.1.attn.proj"),
    "gpt, NaN": ((aten.gelu.default, 1, with_nan), "nonfinite", "gelu blocks.1.mlp"),
    "gpt, gradient": ((aten.gelu_backward.default, 1, larger), "wrong_gradient", "gelu blocks.2.mlp"),
    "conv": ((aten.convolution.default, 0, larger), "wrong_value", "conv2d 0"),
    "conv, gradient": ((aten.convolution_backward.default, 0, larger), "wrong_gradient", "conv2d 0"),
}


def with_kernel(name: str, dtype: torch.dtype = FLOAT) -> tuple[pairs.Run, pairs.Run]:
    """The program with the kernel, and the reference without it."""
    healthy = gpt(dtype) if name.startswith("gpt") else pairs.CONV if dtype is FLOAT else pairs.CONV_NARROW
    return pairs.wrong(healthy, *KERNELS[name][0]), gpt() if name.startswith("gpt") else pairs.CONV


@pytest.mark.parametrize("dtype", [FLOAT, NARROW])
@pytest.mark.parametrize("name", KERNELS)
def test_a_wrong_kernel_is_named(name: str, dtype: torch.dtype, dumps: Dumps) -> None:
    """Between equal dtypes without a replay and by statistics alone, too."""
    _, kind, named = KERNELS[name]
    for data, replay in (("tensor", True), ("tensor", False), ("stats", False))[: 3 if dtype is FLOAT else 1]:
        first = compared(dumps, *with_kernel(name, dtype), data=data, replay=replay).first
        assert first is not None and first.candidate is not None
        call = first.candidate
        assert (first.kind, f"{call.api.rpartition('.')[2]} {call.module}") == (kind, named), (data, replay)
        assert not replay or first.verdict == "candidate_worse"


def test_the_reference_may_be_the_wrong_side(dumps: Dumps) -> None:
    first = compared(dumps, *reversed(with_kernel("gpt, flipped"))).first
    assert first is not None and (first.kind, first.verdict) == ("wrong_value", "candidate_better")


def test_blocks_in_another_order_are_moved_calls(dumps: Dumps) -> None:
    plant = gpt_faults.instead(lambda model: model, gpt_faults.in_another_order)
    first, calls = only_cause(compared(dumps, gpt(plant=plant), gpt()))
    assert first.kind == "moved_call" and calls[0].module.startswith("blocks.2")


@pytest.mark.parametrize("data", ["tensor", "stats"])
@pytest.mark.parametrize("dtype", [NARROW, pytest.param(HALF, marks=pytest.mark.heavy)])
def test_a_gpt_in_a_narrow_dtype_is_the_same(dtype: torch.dtype, data: str, dumps: Dumps) -> None:
    for replay in (True, False):
        assert_same(compared(dumps, gpt(dtype), gpt(), data=data, replay=replay))


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_attention_by_hand_is_the_same(data: str, dumps: Dumps) -> None:
    by_hand = gpt_faults.instead(lambda m: m.blocks[1].attn, gpt_faults.attention_by_hand)
    assert_same(compared(dumps, gpt(plant=by_hand), gpt(), data=data))


def test_one_more_call_without_effect_is_told_and_not_accused(dumps: Dumps) -> None:
    plant = gpt_faults.around(lambda m: m.blocks[2].ln2, lambda f, x: f(x * 1.0))
    for dtype in (FLOAT, NARROW):
        summary = compared(dumps, gpt(dtype, plant), gpt())
        assert_same(summary)
        assert summary.counts.candidate_only in (2, 3)  # forward and backward
        assert set(summary.counts.by_rule) == {"exact"}


def test_a_layer_in_another_precision_than_its_peers_is_reported(dumps: Dumps) -> None:
    reference = list(open_dump(dumps(gpt(), "reference", data="stats")).calls(0, 0))
    label = "nn.functional.linear.6.forward"
    for dtype in (FLOAT, NARROW):
        calls = list(open_dump(dumps(gpt(dtype), data="stats")).calls(0, 0))
        (place,) = [i for i, call in enumerate(calls) if call.label == label]
        slots = [
            replaced(s, digest="", meta=replaced(s.meta, dtype="float8_e5m2")) if s.role == "output" else s
            for s in calls[place].slots
        ]
        calls[place] = replaced(calls[place], slots=tuple(slots))
        with compare_dumps(MemoryDump(calls), MemoryDump(reference)) as comparison:
            first = comparison.summary.first
        assert first is not None and first.candidate is not None
        assert (first.kind, first.candidate.label) == ("dtype", label)


def test_random_operations_are_told_and_not_accused() -> None:
    def dropping(seed: int, dtype: torch.dtype = FLOAT) -> MemoryDump:
        weight, x = (torch.randn(8, 8, generator=torch.Generator().manual_seed(n)).to(dtype) for n in (1, 2))
        torch.manual_seed(seed)
        with Recorder() as recorder:
            F.linear(F.dropout(F.linear(x, weight), 0.5), weight)
        return recorder.dump

    for dtype in (FLOAT, NARROW):
        with compare_dumps(dropping(2, dtype), dropping(1)) as comparison:
            summary = comparison.summary
        assert summary.outcome == "undecided" and not summary.findings
        assert any("random" in note for note in summary.notes)
    with compare_dumps(dropping(1), dropping(1)) as comparison:
        assert comparison.summary.outcome == "same"


def test_an_activation_in_place_is_the_same(dumps: Dumps) -> None:
    in_place = pairs.Run(pairs.trained(2, act=lambda x: F.relu(x, inplace=True)))
    assert_same(compared(dumps, in_place, pairs.Run(pairs.trained(2, act=F.relu))))


def test_gradients_clipped_before_they_are_unscaled(dumps: Dumps) -> None:
    def train(unscale: bool) -> pairs.Run:
        def step(model: Any) -> None:
            torch.manual_seed(1)
            scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            scaler.scale(model(torch.randn(4, 32)).square().mean()).backward()
            if unscale:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)

        return pairs.Run(step, pairs.net())

    first = compared(dumps, train(False), train(True)).first
    assert first is not None and first.candidate is not None
    assert (first.kind, first.candidate.api) == ("moved_call", "torch._foreach_norm")


def test_what_replaces_a_call_is_named_beside_it(dumps: Dumps) -> None:
    fault = pairs.FAULTS["replaced"]
    first = compared(dumps, fault.candidate, fault.reference, data="stats").first
    assert first is not None and first.candidate is not None and first.reference is not None
    assert (first.kind, first.verdict) == ("replaced_call", "differs")
    assert (first.candidate.api, first.reference.api) == ("torch.nn.functional.gelu", "torch.nn.functional.silu")
    assert any(text.startswith("between ") and "silu" in text and "gelu" in text for text in first.evidence)


@pytest.mark.slow
def test_parts_of_a_batch_that_add_up_to_something_else_are_not_the_same(dumps: Dumps) -> None:
    def not_divided(model: Any) -> None:
        divided = torch.Tensor.__truediv__
        torch.Tensor.__truediv__ = lambda x, parts: divided(x, 1)  # type: ignore[method-assign]
        try:
            pairs.in_parts(2)(model)
        finally:
            torch.Tensor.__truediv__ = divided  # type: ignore[method-assign]

    summary = compared(
        dumps, pairs.Run(not_divided, pairs.llama_with()), pairs.Run(pairs.in_parts(1), pairs.llama_with())
    )
    assert [summary.outcome, *(f.kind for f in summary.findings)] == ["undecided", "growth"]


def test_parts_of_a_batch_without_an_optimizer_are_not_compared(dumps: Dumps) -> None:
    summary = compared(dumps, pairs.Run(pairs.batch_split, pairs.llama_with()), pairs.LLAMA)
    assert summary.outcome == "undecided"
    assert any("in 2 parts, and no step of an optimizer" in note for note in summary.notes)


def test_one_cause_in_each_layer_and_step_is_one(dumps: Dumps) -> None:
    summary = compared(dumps, pairs.Run(pairs.trained(2, eps=0.1)), pairs.Run(pairs.trained(2)), data="stats")
    first = summary.first
    assert first is not None and first.candidate is not None and len(summary.findings) == 1
    assert (first.step, first.candidate.label) == (0, "nn.functional.layer_norm.0.forward")
    assert first.also_count == 5
    assert {"nn.functional.layer_norm.1.forward", "nn.functional.layer_norm.2.forward in step 1"} <= set(first.also)


@pytest.mark.parametrize("name", ["llama, bfloat16", "llama, autocast", "llama, one thread"])
def test_no_module_is_accused_of_the_noise_of_those_inside(name: str, dumps: Dumps) -> None:
    assert_same(compared(dumps, *pairs.HEALTHY[name], level="module"))


def test_a_module_is_accused_of_what_it_computes_between_those_inside(dumps: Dumps) -> None:
    fault = pairs.FAULTS["built, relu is gelu"]
    summary = compared(dumps, fault.candidate, fault.reference, level="module")
    first = summary.first
    assert first is not None and first.candidate is not None and len(summary.findings) == 1
    assert (first.kind, first.candidate.api, first.candidate.module) == ("wrong_value", "Block", "blocks.0")
