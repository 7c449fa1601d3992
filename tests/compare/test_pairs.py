"""`compare` on dumps of programs that differ, where the call that differs is named, and of such that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from compare import gpt_faults, pairs
from graphprobe.compare.result import UNDECIDED_KINDS, Summary

WAYS = [
    pytest.param(data, level, marks=() if (data, level) == ("tensor", "api") else (pytest.mark.heavy,))
    for data in ("tensor", "stats")
    for level in ("api", "mix")
]


def dumped_and_compared(candidate: pairs.Run, reference: pairs.Run, folder: Path, **options: Any) -> Summary:
    for run, name in ((candidate, "candidate"), (reference, "reference")):
        pairs.dumped(run, folder / name, **options)
    return pairs.compared(folder / "candidate", folder / "reference")


@pytest.mark.parametrize(("data", "level"), WAYS)
@pytest.mark.parametrize("name", pairs.FAULTS)
def test_the_call_that_differs_is_the_only_cause(name: str, data: str, level: str, tmp_path: Path) -> None:
    fault = pairs.FAULTS[name]
    summary = dumped_and_compared(fault.candidate, fault.reference, tmp_path, data=data, level=level)
    assert summary.outcome == "different", summary.notes
    first = summary.first
    assert first is not None
    calls = [call for call in (first.candidate, first.reference) if call is not None]
    assert any(fault.api in call.api and call.module.startswith(fault.module) for call in calls), first
    assert [f for f in summary.findings if f.kind not in UNDECIDED_KINDS] == [first]


LONG = {
    "llama against compiled",
    "llama, compiled and stepped",
    "llama, batch against four",
    "llama, AdamW, bfloat16",
    "t5, bfloat16",
}
"""Healthy pairs that are run by `make test-all` alone: others are like them."""


@pytest.mark.parametrize(("data", "level"), WAYS)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.heavy if n in LONG else ()) for n in pairs.HEALTHY])
def test_healthy_pairs_are_the_same(name: str, data: str, level: str, tmp_path: Path) -> None:
    summary = dumped_and_compared(*pairs.HEALTHY[name], tmp_path, data=data, level=level)
    assert (summary.outcome, summary.findings) == ("same", []), summary.notes


GPT_WAYS = [
    pytest.param(data, dtype, marks=() if (data, dtype) == ("tensor", torch.bfloat16) else (pytest.mark.heavy,))
    for data in ("tensor", "stats")
    for dtype in (torch.float32, torch.bfloat16)
]


@pytest.mark.parametrize(("data", "dtype"), GPT_WAYS)
@pytest.mark.parametrize("name", gpt_faults.FAULTS)
def test_a_fault_of_a_gpt_is_the_only_cause(name: str, data: str, dtype: torch.dtype, tmp_path: Path) -> None:
    if (name, data, dtype) == ("flipped, unseen", "stats", torch.bfloat16):
        pytest.skip("one sign in 2048 elements changes no statistic by more than bfloat16 does")
    planted = gpt_faults.FAULTS[name]
    summary = dumped_and_compared(gpt_faults.gpt(dtype, planted.plant), gpt_faults.gpt(), tmp_path, data=data)
    assert summary.outcome == "different", summary.notes
    first = summary.first
    assert first is not None
    calls = [call for call in (first.candidate, first.reference) if call is not None]
    assert any(call.module.startswith(planted.module) for call in calls), first
    assert [f for f in summary.findings if f.kind not in UNDECIDED_KINDS] == [first]


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_a_gpt_in_bfloat16_is_the_same(data: str, tmp_path: Path) -> None:
    summary = dumped_and_compared(gpt_faults.gpt(torch.bfloat16), gpt_faults.gpt(), tmp_path, data=data)
    assert (summary.outcome, summary.findings) == ("same", []), summary.notes


def attention_by_hand(self: Any, x: torch.Tensor) -> torch.Tensor:
    batch, length, width = x.shape
    q, k, v = (
        part.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)
        for part in self.qkv(x).chunk(3, dim=-1)
    )
    scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    mixed = torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v
    return self.proj(mixed.transpose(1, 2).reshape(batch, length, width))


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_attention_by_hand_is_the_same(data: str, tmp_path: Path) -> None:
    by_hand = gpt_faults.instead(lambda m: m.blocks[1].attn, attention_by_hand)
    summary = dumped_and_compared(gpt_faults.gpt(plant=by_hand), gpt_faults.gpt(), tmp_path, data=data)
    assert (summary.outcome, summary.findings) == ("same", []), summary.notes


def test_an_activation_in_place_is_the_same(tmp_path: Path) -> None:
    def in_place(x: torch.Tensor) -> torch.Tensor:
        return F.relu(x, inplace=True)

    runs = pairs.Run(pairs.trained(2, act=in_place)), pairs.Run(pairs.trained(2, act=F.relu))
    summary = dumped_and_compared(*runs, tmp_path, data="tensor")
    assert (summary.outcome, summary.findings) == ("same", []), summary.notes


def test_gradients_clipped_before_they_are_unscaled(tmp_path: Path) -> None:
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

    first = dumped_and_compared(train(False), train(True), tmp_path, data="tensor").first
    assert first is not None and first.candidate is not None
    assert (first.kind, first.candidate.api) == ("moved_call", "torch._foreach_norm")


def test_what_replaces_a_call_is_named_beside_it(tmp_path: Path) -> None:
    fault = pairs.FAULTS["replaced"]
    first = dumped_and_compared(fault.candidate, fault.reference, tmp_path, data="stats").first
    assert first is not None and first.candidate is not None and first.reference is not None
    assert (first.kind, first.verdict) == ("replaced_call", "differs")
    assert (first.candidate.api, first.reference.api) == ("torch.nn.functional.gelu", "torch.nn.functional.silu")
    assert any(text.startswith("between ") and "silu" in text and "gelu" in text for text in first.evidence)


def test_parts_of_a_batch_that_add_up_to_something_else_are_not_the_same(tmp_path: Path) -> None:
    def not_divided(model: Any) -> None:
        divided = torch.Tensor.__truediv__
        torch.Tensor.__truediv__ = lambda x, parts: divided(x, 1)  # type: ignore[method-assign]
        try:
            pairs.in_parts(2)(model)
        finally:
            torch.Tensor.__truediv__ = divided  # type: ignore[method-assign]

    runs = pairs.Run(not_divided, pairs.llama_with()), pairs.Run(pairs.in_parts(1), pairs.llama_with())
    summary = dumped_and_compared(*runs, tmp_path, data="tensor")
    assert summary.outcome == "undecided"
    assert [f.kind for f in summary.findings] == ["growth"]


def test_parts_of_a_batch_without_an_optimizer_are_not_compared(tmp_path: Path) -> None:
    runs = pairs.Run(pairs.batch_split, pairs.llama_with()), pairs.LLAMA
    summary = dumped_and_compared(*runs, tmp_path, data="tensor")
    assert summary.outcome == "undecided"
    assert any("in 2 parts, and no step of an optimizer" in note for note in summary.notes)


def test_one_cause_in_each_layer_and_step_is_one(tmp_path: Path) -> None:
    runs = (pairs.Run(pairs.trained(2, eps=0.1)), pairs.Run(pairs.trained(2)))
    summary = dumped_and_compared(*runs, tmp_path, data="stats")
    first = summary.first
    assert first is not None and first.candidate is not None and len(summary.findings) == 1
    assert (first.step, first.candidate.label) == (0, "nn.functional.layer_norm.0.forward")
    assert first.also_count == 5
    assert {"nn.functional.layer_norm.1.forward", "nn.functional.layer_norm.2.forward in step 1"} <= set(first.also)


@pytest.mark.parametrize("name", ["llama, bfloat16", "llama, autocast", "llama, one thread"])
def test_no_module_is_accused_of_the_noise_of_those_inside(name: str, tmp_path: Path) -> None:
    summary = dumped_and_compared(*pairs.HEALTHY[name], tmp_path, data="tensor", level="module")
    assert (summary.outcome, summary.findings) == ("same", [])


def test_a_module_is_accused_of_what_it_computes_between_those_inside(tmp_path: Path) -> None:
    fault = pairs.FAULTS["built, relu is gelu"]
    summary = dumped_and_compared(fault.candidate, fault.reference, tmp_path, data="tensor", level="module")
    first = summary.first
    assert first is not None and first.candidate is not None and len(summary.findings) == 1
    assert (first.kind, first.candidate.api, first.candidate.module) == ("wrong_value", "Block", "blocks.0")
