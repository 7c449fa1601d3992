"""The rung of the kernels shows the values inside of a graph where that is asked for."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.fx import Node, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

from graphprobe.diagnose.exceptions import Origin
from graphprobe.diagnose.kernel_check import CompiledGraph, check_graph
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.rungs import RungReport, Watch, aot_rung, kernel_rung, run_program, show
from graphprobe.diagnose.settings import Compilation


def inside(x: torch.Tensor) -> torch.Tensor:
    return (x.relu() @ x).cos().sum()


@pytest.mark.parametrize("expose", [True, False])
def test_values_are_shown_where_that_is_asked_for(expose: bool, tmp_path: Path) -> None:
    watch, report = Watch(), RungReport()
    program = Program(inside, [((torch.ones(3, 3),), {})])
    run_program(program, Compilation("inductor", None, tmp_path), kernel_rung(watch, expose=expose), report)
    (graph,) = watch.compiled
    assert graph.shown == graph.values == [], "not before somebody wants to see them"
    with Compilation("inductor", None, tmp_path).configured():
        show(watch, graph)
        show(watch, graph)
    assert graph.problem == ""
    assert graph.shown == (["relu", "mm", "cos"] if expose else [])
    assert [len(values) for values in graph.values] == ([len(graph.shown) + 1] if expose else [])  # and the result


def test_kernels_that_raise_when_they_show_their_values_end_nothing() -> None:
    def raising(inputs: list[Any]) -> Any:
        raise AssertionError("expected size 4==4, stride 1==25 at dim=1")

    final = torch.fx.symbolic_trace(lambda x: x.relu())
    graph = CompiledGraph("forward", final, inputs=[[torch.ones(3)]], to_show=lambda: raising)
    show(Watch(), graph)
    assert graph.problem == "its values could not be shown: AssertionError: expected size 4==4, stride 1==25 at dim=1"
    assert graph.values == []
    assert check_graph(graph, 0).checked == 0


@pytest.mark.parametrize("recorded", [0, 1])
def test_values_of_so_many_calls_are_kept(recorded: int, tmp_path: Path) -> None:
    watch, report = Watch(recorded=recorded), RungReport()
    program = Program(inside, [((torch.ones(3, 3),), {})] * 2)
    run_program(program, Compilation("inductor", None, tmp_path), aot_rung(watch), report)
    assert [call.raised for call in report.calls] == [None, None]
    assert [len(graph.inputs) for graph in watch.graphs] == [len(graph.calls) for graph in watch.dynamo] == [recorded]


def test_what_runs_is_told_by_what_the_program_calls(tmp_path: Path) -> None:
    told, seen = tmp_path / "last.json", list[Origin]()

    class Following(Watch):
        def tell(self, node: Node, *rest: Any) -> None:
            super().tell(node, *rest)
            seen.append(msgspec.json.decode(told.read_bytes(), type=Origin))

    program = Program(
        lambda x: torch.nn.functional.mse_loss(x, x + 1, reduction="none").sin(), [((torch.ones(3, 3),), {})]
    )
    backend = aot_rung(Following(told=told), decompose=True)
    run_program(program, Compilation("aot_eager", None, tmp_path), backend, RungReport())
    of_loss, last = [place for place in seen if place.op == "torch.nn.functional.mse_loss"], seen[-1]
    assert [place.also[0] for place in of_loss] == ["aten.sub.Tensor", "aten.pow.Tensor_Scalar"]
    assert of_loss[0].also[1:] == ["aten.mse_loss.default"]
    assert last.op == "torch.sin" and last.also[0] == "aten.sin.default"
    assert last.source is not None and last.source.startswith(__file__)


def test_an_input_that_a_graph_passes_on_has_to_be_that_input() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.sin(x), w

    graph, x, w = symbolic_trace(program), torch.linspace(0.1, 1, 64), torch.ones(4)
    for passed, answer in ((w, "ok"), (w + 1e-6, "worse")):
        compiled = CompiledGraph("forward", graph, [[x, w]], [[torch.sin(x), passed]], [[x, w]])
        whole = check_graph(compiled, 0).whole
        assert whole.answer == answer
    assert whole.reason == "output 1 is not the input that it should be"


@pytest.mark.parametrize("seen", ["written", "changed", "nothing"])
def test_what_overwrites_an_input_is_accused_and_not_what_reads_it_then(seen: str) -> None:
    saved, w = torch.linspace(0.1, 1, 12).view(3, 4), torch.linspace(0.5, 1, 8).view(4, 2)
    graph = make_fx(lambda saved, view, w: (saved * 3, view @ w))(saved, saved[:2], w)
    results = [saved * 3, (saved * 3)[:2] @ w]
    left = saved * 3
    if seen == "changed":
        left[2] = 0
    compiled = CompiledGraph("backward", graph, [[saved, saved[:2], w]], [results], [[left, left[:2], w]])
    compiled.shown, compiled.values = ["mul", "mm"], [results]
    compiled.overwritten = [{0: left, 1: left[:2]} if seen != "nothing" else {}]
    (suspect,) = check_graph(compiled, 0).suspects
    if seen == "written":
        assert (suspect.op, suspect.also) == ("aten.mul.Tensor", ["aten.mm.default"])
        assert suspect.error.reason.startswith("its result is put into the memory of view_1, which aten.mm.default")
    else:
        assert suspect.op == "aten.mm.default"
        assert ("the memory of view_1 holds something else" in suspect.error.reason) == (seen == "changed")


def test_an_error_names_the_backend_of_the_user(tmp_path: Path) -> None:
    def fails(*_: Any) -> Any:
        raise ValueError("no")

    report, program = RungReport(), Program(torch.sin, [((torch.ones(2),), {})])
    run_program(program, Compilation("inductor", None, tmp_path), Watch().backend(fails), report)
    raised = report.calls[0].raised
    assert raised is not None and "backend='inductor' raised" in raised.message
