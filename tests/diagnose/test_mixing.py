"""Planted faults of code generation are found launch by launch, without a compilation; a healthy graph has none."""

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
from graphprobe.internals.inductor.lowered_graph import watched_lowering

PER_FAULT = 4
"""Runs besides those of a search: the first two, one to see whether more is wrong, one to confirm."""


def planted(faults: Collection[int], *, layers: int = 2, grad: bool = False) -> list[CompiledGraph]:
    model, x = mixing_cases.transformer(layers)
    with planting.kernel(lambda number, _: number in faults):
        return mixing_cases.compiled_graphs(model, [x], grad=grad)


@pytest.fixture(scope="module")
def faulty() -> CompiledGraph:
    """Two layers whose kernels 1 and 5 are wrong."""
    return planted((1, 5))[0]


@pytest.fixture(scope="module")
def healthy() -> CompiledGraph:
    return planted(())[0]


def mixed(compiled: CompiledGraph) -> MixedGraph:
    assert compiled.lowered is not None and compiled.compiled is not None
    return MixedGraph(compiled.lowered, compiled.compiled)


def mixed_report(compiled: CompiledGraph) -> MixingReport:
    with watched_lowering() as lowered:
        report = mix(compiled, 0, run_graph(compiled.final, compiled.inputs[0]))
    assert not lowered, "no graph is compiled for it"
    return report


def kernels(compiled: CompiledGraph) -> list[int]:
    """Positions of the generated kernels among the launches."""
    return [at for at, launch in enumerate(mixed(compiled).launches) if launch.io.kind == "kernel"]


def check(compiled: CompiledGraph, faults: Collection[int], report: MixingReport) -> None:
    positions = kernels(compiled)
    assert {launch.position for launch in report.found} == {positions[number] for number in faults}, report
    assert all(launch.confirmed for launch in report.found)
    assert report.problem == "" and report.kept == []
    for launch in report.found:
        assert launch.runs <= math.ceil(math.log2(report.launches))
        assert launch.nodes and launch.kernel.startswith("cpp_")
    assert report.runs <= len(faults) * (2 * math.log2(report.launches) + PER_FAULT)


@pytest.mark.slow
def test_two_layers(faulty: CompiledGraph) -> None:
    report = mixed_report(faulty)
    check(faulty, (1, 5), report)
    # What no suspect explains is accused itself, with its source.
    notes: list[str] = []
    suspects = name_kernels([faulty], [(faulty, 0)], [], notes, more=True)
    assert [s.kernel for s in suspects] == [launch.kernel for launch in report.found]
    assert notes == []
    for suspect, launch in zip(suspects, report.found, strict=True):
        assert suspect.node.name in launch.nodes and suspect.stage == "codegen" and suspect.source is not None
        assert suspect.kernel_source is not None and "* 1.5f + 0.25f" in suspect.kernel_source[1]
    assert name_kernels([faulty], [(faulty, 0)], [], notes, more=False) == []


@pytest.mark.heavy
def test_six_layers_backward() -> None:
    forward, backward = planted((), layers=6, grad=True)
    first = len(kernels(forward))
    assert mixed_report(backward).found == []
    forward, backward = planted((first + 4, first + 11), layers=6, grad=True)
    assert mixed_report(forward).found == []
    check(backward, (4, 11), mixed_report(backward))


@pytest.mark.slow
def test_none_and_all_replaced(faulty: CompiledGraph) -> None:
    """On a graph with a fault: as it is, it is wrong; with all launches replaced it is within the noise of eager."""
    graph, inputs = mixed(faulty), faulty.inputs[0]
    expected = WholeGraph(faulty, 0, run_graph(faulty.final, inputs))
    plain = graph.run(inputs)
    assert all(torch.equal(a, b) for a, b in zip(plain.outputs, faulty.outputs[0], strict=True))
    assert expected.judge(plain.outputs, plain.inputs).answer == "worse"
    every = graph.run(inputs, range(len(graph.launches)))
    assert len(every.replaced) == len(graph.launches)
    assert expected.judge(every.outputs, every.inputs).answer == "ok"


@pytest.mark.slow
def test_a_healthy_graph(healthy: CompiledGraph) -> None:
    report = mixed_report(healthy)
    assert report.found == [] and report.runs == 1
    assert report.problem.startswith("the outputs of the graph are not wrong")
    wrong = LocalError("worse", "wrong_dtype", math.inf, math.inf, "dtype torch.bool, not torch.uint8")
    report = faulty_launches(mixed(healthy), healthy.inputs[0], lambda _: wrong)
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
    assert "alone, the result is right" in finding.reason
    assert finding.dossier is not None
    source = (Path(finding.dossier) / "kernel.cpp").read_text()
    assert "kernel(" in source and "in_out_ptr0" in source
    assert "kernel.cpp" in (Path(finding.dossier) / "REPORT.md").read_text()
