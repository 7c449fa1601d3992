"""A run of 0.1, which has no records of its graphs: everything that reads graphs reads it from its texts."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner, Result
from google.protobuf import text_format

from graphprobe.cli.main import main
from graphprobe.records import SCHEMA_VERSION
from graphprobe.store import Run

OLD = Path(__file__).parent.parent / "data" / "run_of_0_1"


def invoke(*args: object) -> Result:
    return CliRunner().invoke(main, list(map(str, args)))


def test_it_opens() -> None:
    run = Run.open(OLD)
    assert (run.manifest.graphprobe, run.manifest.schema) == ("0.1.0", SCHEMA_VERSION)
    assert run.problems == [] and run.verify() == []
    assert all(run.graph_records(event) is None for event in run.events())


def test_a_pass_of_it_is_told_by_node() -> None:
    done = invoke("diff", OLD, "--pass", "pattern_matcher", "--json")
    assert done.exit_code == 1, done.output
    document = json.loads(done.output)
    (graph,) = [one for one in document["graphs"] if one["graph"] == "inner_f"]
    assert [node["name"] for node in graph["removed"]] == ["permute_2", "permute_3"]
    assert graph["removed"][0]["expression"] == "torch.ops.aten.permute.default(mm, [1, 0])"
    assert graph["removed"][0]["place"] == "/home/me/net.py:10"


def test_its_graphs_are_exported(tmp_path: Path) -> None:
    done = invoke("export", OLD, "--to", "onnx-text", "-o", tmp_path / "onnx")
    assert done.exit_code == 0, done.output
    model = text_format.Parse((tmp_path / "onnx/model__0/dynamo_out_graph.pbtxt").read_text(), onnx.ModelProto())
    onnx.checker.check_model(model)
    nodes = {node.name: node for node in model.graph.node}
    assert list(nodes["split"].output) == ["left", "right"] and list(nodes["mul"].input) == ["picked", "right"]
    assert {a.name for a in nodes["cond"].attribute if a.type == onnx.AttributeProto.GRAPH} == {
        "cond_true_0",
        "cond_false_0",
    }
    done = invoke("export", OLD, "--to", "model-explorer", "-o", tmp_path / "explorer")
    assert done.exit_code == 0, done.output
    graphs = {graph["id"]: graph for graph in json.loads((tmp_path / "explorer/graphs.json").read_text())["graphs"]}
    linear = next(node for node in graphs["model__0/dynamo"]["nodes"] if node["id"] == "linear")
    assert linear["incomingEdges"][0]["sourceNodeId"] == "l_x_" and linear["label"] == "linear"


@pytest.mark.parametrize("command", ["ls", "report"])
def test_it_is_shown(command: str, tmp_path: Path) -> None:
    done = invoke(command, OLD, *(("-o", tmp_path / "report.html") if command == "report" else ()))
    assert done.exit_code == 0, done.output
    assert command == "ls" or "2 of 2 changed a graph" in (tmp_path / "report.html").read_text()
