"""What the steps of a diagnosis find: suspects that are proven, passes that could be watched, the IR of a graph."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import hosts
import planting
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import graphprobe
from graphprobe.diagnose import evidence, steps
from graphprobe.diagnose.local import LocalError, Suspect
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.rungs import RungReport
from graphprobe.diagnose.settings import Compilation
from graphprobe.errors import UnsupportedTorchError
from graphprobe.findings import Finding
from graphprobe.internals.inductor import executable_snapshots


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_a_wrong_decomposition_and_a_wrong_kernel(tmp_path: Path) -> None:
    model, args, _ = hosts.mlp(inner=lambda h: torch.relu(h) - 0.1)
    silu = planting.decomposition(torch.ops.aten.silu.default, lambda x: x * torch.sigmoid(x * 1.05))
    with silu, planting.inductor(cpp__inject_relu_bug_TESTING_ONLY="accuracy"):
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
    suspects = [Suspect("codegen", "forward", graph, nodes[name], {}, error) for name in proven]
    report = RungReport()
    steps._prove(suspects, report, cast("Any", Proving()))
    assert [(f.op, f.also) for f in report.findings] == [
        ("aten.atanh.default", ["aten.div.Tensor", "aten.mul.Tensor"]),
        ("aten.silu.default", ["aten.silu.Tensor"]),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["div", "silu"]


def compilation(folder: Path) -> Compilation:
    return Compilation("inductor", None, folder, timeout_s=60)


def test_the_ir_of_a_graph(tmp_path: Path) -> None:
    """As in a backward, of an input without a gradient."""
    x = torch.ones(3)
    assert evidence.loops_of(make_fx(lambda x: (None, x * 2))(x), [x]) == "right"

    def lacking() -> evidence.Seen:
        raise UnsupportedTorchError("torch 2.99 keeps a Kernel of its IR otherwise")

    lost = evidence._seen(lacking, compilation(tmp_path)).lost
    assert lost == "UnsupportedTorchError: torch 2.99 keeps a Kernel of its IR otherwise"
    assert evidence._seen(lambda: evidence.Seen(loops="right"), compilation(tmp_path)).lost == ""


@pytest.mark.parametrize(("entries", "notes"), [(executable_snapshots.PATTERN_ENTRIES, []), (("NoSuch",), ["NoSuch"])])
def test_unwatched_passes(entries: Any, notes: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(executable_snapshots, "PATTERN_ENTRIES", entries)
    report = steps.passes(Program(torch.sin, [((torch.ones(3),), {})]), compilation(tmp_path))
    told = "not every pass was looked into: this torch lacks torch._inductor.pattern_matcher:{}.apply"
    assert report.notes == [told.format(name) for name in notes]
