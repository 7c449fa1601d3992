"""Planted faults of code generation are found launch by launch, without a compilation; a healthy graph has none."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path

import mixing_cases
import planting
import pytest
import torch

import graphprobe
from graphprobe.diagnose.kernel_check import CompiledGraph, WholeGraph
from graphprobe.diagnose.local import LocalError
from graphprobe.diagnose.searches.kernel_names import MixingReport, faulty_launches, mix, name_kernels
from graphprobe.engine.interpret import run_graph
from graphprobe.engine.replaced_launches import MixedGraph

PER_FAULT = 4
"""Runs besides those of a search: the first two, one to see whether more is wrong, one to confirm."""


def planted(faults: Collection[int], *, layers: int, grad: bool = False) -> list[CompiledGraph]:
    model, x = mixing_cases.transformer(layers)
    with planting.kernel(lambda number, _: number in faults):
        return mixing_cases.compiled_graphs(model, [x], grad=grad)


def mixed_report(compiled: CompiledGraph) -> MixingReport:
    return mix(compiled, 0, run_graph(compiled.final, compiled.inputs[0]))


def kernels(compiled: CompiledGraph) -> list[int]:
    """Positions of the generated kernels among the launches."""
    assert compiled.lowered is not None and compiled.compiled is not None
    launches = MixedGraph(compiled.lowered, compiled.compiled).launches
    return [at for at, launch in enumerate(launches) if launch.io.kind == "kernel"]


def check(compiled: CompiledGraph, faults: Collection[int], report: MixingReport) -> None:
    positions = kernels(compiled)
    assert {launch.position for launch in report.found} == {positions[number] for number in faults}, report
    assert all(launch.confirmed for launch in report.found)
    assert report.problem == "" and report.kept == []
    assert report.compilations == 0
    for launch in report.found:
        assert launch.runs <= math.ceil(math.log2(report.launches))
        assert launch.nodes and launch.sources and launch.kernel.startswith("cpp_")
    assert report.runs <= len(faults) * (2 * math.log2(report.launches) + PER_FAULT)


@pytest.mark.parametrize("faults", [pytest.param((2,), marks=pytest.mark.heavy), (1, 5)], ids=str)
def test_two_layers(faults: tuple[int, ...]) -> None:
    (compiled,) = planted(faults, layers=2)
    report = mixed_report(compiled)
    check(compiled, faults, report)
    # What no suspect explains is accused itself, with its source.
    notes: list[str] = []
    suspects = name_kernels([compiled], [(compiled, 0)], [], notes, more=True)
    assert [s.kernel for s in suspects] == [launch.kernel for launch in report.found]
    assert notes == []
    for suspect, launch in zip(suspects, report.found, strict=True):
        assert suspect.node.name in launch.nodes and suspect.stage == "codegen" and suspect.source is not None
        assert suspect.kernel_source is not None and "* 1.5f + 0.25f" in suspect.kernel_source[1]
    assert name_kernels([compiled], [(compiled, 0)], [], notes, more=False) == []


@pytest.mark.heavy
@pytest.mark.parametrize("faults", [(5,), (2, 9), (3, 8, 14)], ids=str)
def test_six_layers(faults: tuple[int, ...]) -> None:
    (compiled,) = planted(faults, layers=6)
    check(compiled, faults, mixed_report(compiled))


@pytest.mark.heavy
def test_six_layers_backward() -> None:
    forward, backward = planted((), layers=6, grad=True)
    first = len(kernels(forward))
    assert mixed_report(backward).found == []
    forward, backward = planted((first + 4, first + 11), layers=6, grad=True)
    assert mixed_report(forward).found == []
    check(backward, (4, 11), mixed_report(backward))


def test_none_and_all_replaced() -> None:
    """On a graph with a fault: as it is, it is wrong; with all launches replaced it is within the noise of eager."""
    (compiled,) = planted((2,), layers=2)
    assert compiled.lowered is not None and compiled.compiled is not None
    mixed = MixedGraph(compiled.lowered, compiled.compiled)
    inputs = compiled.inputs[0]
    expected = WholeGraph(compiled, 0, run_graph(compiled.final, inputs))
    plain = mixed.run(inputs)
    assert all(torch.equal(a, b) for a, b in zip(plain.outputs, compiled.outputs[0], strict=True))
    assert expected.judge(plain.outputs, plain.inputs).answer == "worse"
    every = mixed.run(inputs, range(len(mixed.launches)))
    assert len(every.replaced) == len(mixed.launches)
    assert expected.judge(every.outputs, every.inputs).answer == "ok"


def test_healthy() -> None:
    (compiled,) = planted((), layers=2)
    report = mixed_report(compiled)
    assert report.found == [] and report.runs == 1
    assert report.problem.startswith("the outputs of the graph are not wrong")


def test_a_wrong_dtype_is_not_put_down_to_shared_memory() -> None:
    """Whatever is computed in place of a launch, it goes into the room that the wrapper made for it."""
    (compiled,) = planted((), layers=1)
    assert compiled.lowered is not None and compiled.compiled is not None
    wrong = LocalError("worse", "wrong_dtype", math.inf, math.inf, "dtype torch.bool, not torch.uint8")
    mixed = MixedGraph(compiled.lowered, compiled.compiled)
    report = faulty_launches(mixed, compiled.inputs[0], lambda _: wrong)
    assert report.found == []
    assert report.problem == "the outputs are wrong whatever the launches compute: dtype torch.bool, not torch.uint8"


@pytest.mark.heavy
def test_diagnose_names_the_kernel(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)
    )
    with planting.cpp("tanh", lambda x: f"({x} * {x})"):
        diagnosis = graphprobe.diagnose(model, torch.randn(4, 8), grad=False, out=tmp_path)
    (finding,) = diagnosis.findings
    assert (finding.stage, finding.op) == ("codegen", "aten.tanh.default")
    assert finding.kernel is not None and "tanh" in finding.kernel and finding.kernel.startswith("cpp_fused")
    assert "replaced by its part of the graph the fault is gone" in finding.reason
    assert finding.dossier is not None
    source = (Path(finding.dossier) / "kernel.cpp").read_text()
    assert "kernel(" in source and "in_out_ptr0" in source
    assert "kernel.cpp" in (Path(finding.dossier) / "REPORT.md").read_text()
