"""docs/export.md: its commands, in order, on a real run; and every file loads in the tool that it is for."""

import contextlib
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner
from google.protobuf import text_format

from conftest import ROOT, Finished
from graphprobe.cli.main import main
from graphprobe.store import Run

Python = Callable[..., Finished]
PAGE = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(run_warm: Python, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which every command of the page has run, and has said what the page shows."""
    folder = tmp_path_factory.mktemp("page")
    for program in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        (folder / program.split()[1]).write_text(program)
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = piece.partition("\n")
            words = shlex.split(command)
            if words[0] == "mkdir":
                (folder / words[1]).mkdir()
                continue
            if words[1] == "run":
                ran = run_warm("-m", *words, cwd=folder, env={"TORCHINDUCTOR_COMPILE_THREADS": "1"})
                code, said = ran.code, ran.out + ran.err
            else:
                with contextlib.chdir(folder):
                    done = CliRunner().invoke(main, words[1:])
                code, said = done.exit_code, done.output
            assert code == 0, said
            pattern = re.escape(shown.strip()).replace("…", r"[^\n]*")
            assert re.fullmatch(pattern, said.strip()), said
    return folder


@pytest.mark.slow
def test_the_trace_has_every_pass_and_every_launch(page: Path) -> None:
    run = Run.open(page)
    events = json.loads((page / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    passes = [event for event in run.events() if event.kind == "pass"]
    assert len([one for one in spans if "changed" in one["args"]]) == len(passes) > 30
    kernels = [one["name"] for one in spans if one["cat"] in ("kernel", "extern")]
    assert sum(name.startswith("cpp_fused") for name in kernels) >= 2 and "extern_kernels.addmm" in kernels
    # A viewer draws spans of one row inside each other: they must nest.
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for one in spans:
        rows.setdefault((one["pid"], one["tid"]), []).append((one["ts"], one["ts"] + one["dur"]))
    for row in rows.values():
        ends: list[float] = []
        for begin, end in sorted(row, key=lambda span: (span[0], -span[1])):
            while ends and ends[-1] <= begin:
                ends.pop()
            assert not ends or end <= ends[-1] + 1e-3
            ends.append(end)
    (name,) = [e["args"]["name"] for e in events if e["name"] == "process_name" and e["pid"] == 1]
    assert name.startswith("model__0  ") and name.endswith("compile 0/0")


@pytest.mark.slow
def test_onnx_loads_every_graph_with_the_nodes_of_the_run(page: Path) -> None:
    run = Run.open(page)
    kept = {e.path: e.nodes_after for e in run.events() if e.kind in ("graph", "pass") and e.path and e.nodes_after}
    files = sorted((page / "onnx").rglob("*.pbtxt"))
    assert len(files) == len(kept) > 5
    for file in files:
        model = text_format.Parse(file.read_text(), onnx.ModelProto())
        onnx.checker.check_model(model)
    forward = text_format.Parse(
        (page / "onnx/model__0/forward/000_aot_forward_graph.pbtxt").read_text(), onnx.ModelProto()
    )
    by_name = {node.name: node for node in forward.graph.node}
    addmm = by_name["addmm"]
    assert (addmm.domain, addmm.op_type, list(addmm.input)) == ("aten", "addmm", ["primals_2", "primals_3", "permute"])
    assert list(by_name["var_mean"].output) == ["getitem", "getitem_1"], "the items of a tuple are its outputs"
    source = next(a.s.decode() for a in addmm.attribute if a.name == "source")
    assert "train.py:" in source and "self.up(x)" in source
    assert [d.dim_value for d in forward.graph.input[0].type.tensor_type.shape.dim] == [16, 8]
    assert forward.graph.output[0].name == "add_2"


@pytest.mark.slow
def test_node_data_fit_the_graphs(page: Path) -> None:
    graphs = json.loads((page / "explorer/graphs.json").read_text())["graphs"]
    nodes = {graph["id"]: {node["id"] for node in graph["nodes"]} for graph in graphs}
    assert len(nodes) == 2, "a graph for each step"
    data = json.loads((page / "explorer/l2.json").read_text())
    assert set(data) == set(nodes)
    for graph, found in data.items():
        assert set(found["results"]) <= nodes[graph] and len(found["results"]) > 5
        assert found["gradient"][0]["stop"] == 0 and found["gradient"][-1]["stop"] == 1
    first, second = (data[graph]["results"] for graph in nodes)
    assert len(first) == len(second) and [*first.values()] != [*second.values()]
