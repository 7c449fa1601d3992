"""Two faults of two stages in one program are both reported, each with its own proof."""

from __future__ import annotations

import contextlib
from pathlib import Path

import hosts
import planting
import pytest
import torch

import graphprobe


def wrong_silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x * 1.05)


def inner(h: torch.Tensor) -> torch.Tensor:
    return torch.relu(h) - 0.1


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_a_wrong_decomposition_and_a_wrong_kernel(tmp_path: Path) -> None:
    model, args, _ = hosts.mlp(inner=inner)
    with contextlib.ExitStack() as faults:
        faults.enter_context(planting.decomposition(torch.ops.aten.silu.default, wrong_silu))
        faults.enter_context(planting.inductor(cpp__inject_relu_bug_TESTING_ONLY="accuracy"))
        found = graphprobe.diagnose(model, *args, grad=False, out=tmp_path / "proofs")
    assert found.verdict == "fault"
    assert [(f.stage, f.op) for f in found.findings] == [
        ("decomposition", "aten.silu.default"),
        ("codegen", "aten.relu.default"),
    ]
    assert len({f.dossier for f in found.findings}) == 2
