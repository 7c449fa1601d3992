"""`window.json`: the nodes around the accused one, with what was measured of each; it never costs a finding."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.dossier.window import MOST_NODES, around, window_of
from graphprobe.diagnose.dossier.writer import write_dossier
from graphprobe.diagnose.kernel_check import CompiledGraph, check_graph
from graphprobe.diagnose.local import LocalError, Suspect
from graphprobe.engine.values import capture
from graphprobe.findings import Finding


def traced(calls: int) -> fx.GraphModule:
    """A chain of sines, each added to the input of the graph."""

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(calls):
            x = torch.sin(x) + w
        return x

    return fx.symbolic_trace(program)


def suspect_of(graph: fx.GraphModule, name: str, **more: Any) -> Suspect:
    node = next(n for n in graph.graph.nodes if n.name == name)
    error = LocalError("worse", z=math.inf, reason="beyond measure")
    return Suspect("wrong_value", "codegen", "forward", graph, node, {}, error, [], **more)


def shown(suspect: Suspect) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The file, and its nodes by name."""
    found = json.loads(window_of(suspect) or b"")
    return found, {node["name"]: node for node in found["nodes"]}


def test_the_neighbours_and_their_errors_are_there() -> None:
    graph = traced(3)
    measured = {"sin": LocalError("ok", z=0.5), "add_1": LocalError("worse", z=9.0), "sin_2": LocalError("skipped")}
    found, nodes = shown(suspect_of(graph, "add", measured=measured))
    assert list(nodes) == [n.name for n in graph.graph.nodes] and found["graph_nodes"] == len(nodes)
    assert (found["culprit"], found["stage"], found["schema"]) == ("add", "codegen", 1)
    assert (nodes["add"]["z"], nodes["add"]["accused"]) == ("inf", True)
    assert nodes["sin"]["z"] == 0.5 and nodes["add_1"]["answer"] == "worse" and nodes["sin_2"]["z"] is None
    assert nodes["sin_1"]["answer"] == "not_compared" and nodes["x"]["kind"] == "placeholder"
    assert ["sin", "add"] in found["edges"] and ["w", "add"] in found["edges"] and ["add", "sin_1"] in found["edges"]


def test_a_large_graph_is_cut_around_the_culprit_and_says_so() -> None:
    found, nodes = shown(suspect_of(traced(200), "add_100"))
    assert len(nodes) == MOST_NODES and found["graph_nodes"] == 403
    assert {"sin_100", "add_100", "sin_101", "add_99"} <= nodes.keys() and "sin" not in nodes
    # The weight that every addition reads is shown, and does not lead to all of them.
    assert nodes["w"]["more_users"] > 100 and "add_180" not in nodes


def test_what_belongs_to_the_culprit_is_told_from_it_and_comes_first() -> None:
    graph = traced(5)
    nodes = list(graph.graph.nodes)
    assert around(nodes[2:5], 2) == set(nodes[2:4])
    _, found = shown(suspect_of(graph, "add", others=nodes[2:3]))
    assert [name for name, node in found.items() if node["accused"]] == ["add"]
    assert [name for name, node in found.items() if node["involved"]] == ["sin"]


def test_what_cannot_be_written_costs_nothing() -> None:
    suspect = suspect_of(traced(2), "add")
    suspect.measured = {"sin": "no error"}  # type: ignore[dict-item]
    assert window_of(suspect) is None
    suspect.measured = {}
    suspect.node.target = object()  # no name
    assert window_of(suspect) is None or json.loads(window_of(suspect) or b"")


def test_the_check_of_the_kernels_measures_all_nodes_for_it() -> None:
    """The second operation is wrong: of the others it is known that they are right, and how right."""
    x = torch.linspace(-1, 1, 64)
    graph = make_fx(lambda x: torch.exp(torch.sin(x) * 3))(x)
    sin = torch.sin(x)
    wrong = sin * 3 * 1.01
    names = [n.name for n in graph.graph.nodes if n.op == "call_function"]
    outputs = [torch.exp(wrong)]
    compiled = CompiledGraph("forward", graph, [[x]], [outputs], [[x]], names, [[sin, wrong, *outputs]])
    (suspect,) = check_graph(compiled, 0).suspects
    _, found = shown(suspect)
    assert (found["mul"]["answer"], found["mul"]["accused"]) == ("worse", True) and found["mul"]["z"] > 1000
    assert found["sin"]["answer"] == found["exp"]["answer"] == "ok" and found["exp"]["z"] <= 4
    assert found["sin"]["type"] == "float32[64]"


def test_an_input_that_a_graph_passes_on_has_to_be_that_input() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.sin(x), w

    graph, x, w = fx.symbolic_trace(program), torch.linspace(0.1, 1, 64), torch.ones(4)
    for passed, answer in ((w, "ok"), (w + 1e-6, "worse")):
        compiled = CompiledGraph("forward", graph, [[x, w]], [[torch.sin(x), passed]], [[x, w]])
        whole = check_graph(compiled, 0).whole
        assert whole.answer == answer
    assert whole.reason == "output 1 is not the input that it should be"


def test_the_dossier_has_it_and_says_so(tmp_path: Path) -> None:
    x = torch.ones(4)
    case = Case(traced(1), [capture([x, x])], "wrong_value")
    finding = Finding(kind="wrong_value", stage="codegen", op="aten.sin.default")
    write_dossier(tmp_path / "with", case, finding, versions={}, window=b"{}")
    write_dossier(tmp_path / "without", case, finding, versions={})
    assert (tmp_path / "with" / "window.json").read_bytes() == b"{}"
    assert "`window.json`: the nodes around" in (tmp_path / "with" / "REPORT.md").read_text()
    assert not (tmp_path / "without" / "window.json").exists()
