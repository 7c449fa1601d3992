"""Two faults of two stages in one program are both reported, each with its own proof."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import hosts
import planting
import pytest
import torch

import graphprobe
from graphprobe.diagnose import steps
from graphprobe.diagnose.local import LocalError, Suspect
from graphprobe.diagnose.rungs import RungReport
from graphprobe.findings import Finding


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


def test_suspects_that_turn_out_to_be_one_operation_are_one_finding(tmp_path: Path) -> None:
    """A launch stands for its last operation, until a proof has told which of them it is."""
    graph = torch.fx.symbolic_trace(lambda x: torch.atanh(x).div(x).mul(x).silu())
    nodes = {str(n.name): n for n in graph.graph.nodes if n.op != "placeholder"}
    proven = {"div": "aten.atanh.default", "mul": "aten.atanh.default", "silu": "aten.silu.default"}

    class Proving:
        compilation = SimpleNamespace(first=False)

        def prove(self, suspect: Suspect) -> Finding:
            folder = tmp_path / suspect.node.name
            folder.mkdir()
            op, also = proven[suspect.node.name], [f"aten.{suspect.node.name}.Tensor"]
            return Finding(kind="wrong_value", stage="codegen", op=op, also=also, dossier=str(folder), source="a.py:1")

    error = LocalError("worse", "wrong_value", 9.0, 9.0)
    suspects = [Suspect("wrong_value", "codegen", "forward", graph, nodes[name], {}, error, []) for name in proven]
    report = RungReport()
    steps._prove(suspects, report, cast("Any", Proving()))
    assert [(f.op, f.also) for f in report.findings] == [
        ("aten.atanh.default", ["aten.div.Tensor", "aten.mul.Tensor"]),
        ("aten.silu.default", ["aten.silu.Tensor"]),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["div", "silu"]
