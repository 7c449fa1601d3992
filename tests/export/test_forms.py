"""Each form from small things made by hand, and what is refused."""

import contextlib
import json
import re
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import onnx
import pytest
from click.testing import CliRunner, Result
from google.protobuf import text_format

from compare.made import MemoryDump, chain
from conftest import ROOT, Finished
from graphprobe.cli.commands.export import FORMS as OFFERED
from graphprobe.cli.main import main
from graphprobe.compare import compare_dumps
from graphprobe.errors import ArtifactNotFoundError, SchemaError, UsageError
from graphprobe.export import chrome_trace, model_explorer
from graphprobe.export.forms import FORMS, export
from graphprobe.records import NodeValue, Where
from graphprobe.store import Run, StepLine, json_line, layout
from report.printed_graphs import Graph, listed, node, several, written
from store.dump_helpers import new_run

NESTED = "class GraphModule(torch.nn.Module): …"


WIDE, PAIR = NodeValue("float32", ("s0", 8)), NodeValue("float32", ("s0", 2))
GRAPHS = (
    Graph(
        "GraphModule",
        (
            node("l_x_", "L_x_", value=WIDE, op="placeholder"),
            node("p", "p", value=NodeValue("bool", ()), op="placeholder"),
            node("w", "w", value=NodeValue("float4_e2m1fn_x2", (8,)), op="placeholder"),
            node("true_0", "true_0", op="get_attr"),
            node("false_0", "false_0", op="get_attr"),
            several(
                node("cond", "torch.ops.higher_order.cond", "p", "true_0", "false_0", listed("tuple", "l_x_")), WIDE
            ),
            node("y", "operator.getitem", "cond", 0, value=WIDE),
            node("size", "torch.ops.aten.sym_size.int", "y", 0, value=NodeValue("int64", text="Sym(s0)")),
            node("big", "operator.ge", "size", 2, value=NodeValue("bool", text="Sym(s0 >= 2)")),
            several(node("topk", "torch.topk", "y", 2), PAIR, NodeValue("int64", ("s0", 2))),
            node("values", "operator.getitem", "topk", 0, value=PAIR),
            node("indices", "operator.getitem", "topk", 1, value=NodeValue("int64", ("s0", 2))),
            node("cat", "torch.cat", listed("list", "values", "values"), 0, value=NodeValue("float32", ("2*s0", 2))),
            node("output", "output", listed("tuple", "l_x_", "indices", "cat", None), op="output"),
        ),
    ),
    Graph(
        "GraphModule/true_0",
        (
            node("l_x_", "l_x_", value=WIDE, op="placeholder"),
            node("sin", "sin", "l_x_", value=WIDE, op="call_method"),
            node("output", "output", listed("tuple", "sin"), op="output"),
        ),
    ),
    Graph(
        "GraphModule/false_0",
        (
            node("l_x_", "l_x_", value=WIDE, op="placeholder"),
            node("weight", "weight", value=NodeValue("float32", (8,)), op="get_attr"),
            node("mul", "operator.mul", "l_x_", "weight", value=WIDE),
            node("output", "output", listed("tuple", "mul"), op="output"),
        ),
    ),
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one graph, a pass that raised nothing and has no step, and a step that did not end."""
    writer = new_run(tmp_path / "runs", argv=["x.py"], pid=1)
    where = Where(model=0, direction="forward", compile_id="0/0")
    file = written(writer, layout.graph_file(Where(model=0, direction="forward"), number=0), NESTED, GRAPHS)
    writer.event(where=where, kind="graph", name="aot_forward_graph", file=file, nodes_after=15)
    file = writer.write_text(
        layout.ir_file(Where(model=0, direction="forward"), "original", number=1), "op0: ExternKernel\n"
    )
    writer.event(where=where, kind="ir", name="aot_forward_original_graph", file=file)
    own = Where(model=0, direction="forward", pass_name="mine")
    writer.event(where=own, kind="pass", name="mine", changed=False, elapsed_ns=2000, nodes_before=15, nodes_after=15)
    writer.close("finished")
    (tool_dir,) = tmp_path.glob("runs/*/graphprobe")
    now = time.time_ns()
    lines = [
        StepLine(0, now - 9000, component="dynamo", name="trace", compile_id="0/0", thread=7),
        StepLine(1, now - 8000, component="inductor", name="lower", model=0, direction="forward", thread=7),
    ]
    (tool_dir / layout.STEPS).write_text("".join(map(json_line, lines)) + '{"step":0,"time_')
    return tmp_path / "runs"


def invoke(*args: object) -> Result:
    return CliRunner().invoke(main, ["export", *map(str, args)])


def model_in(path: Path) -> onnx.ModelProto:
    model = text_format.Parse(path.read_text(), onnx.ModelProto())
    onnx.checker.check_model(model)
    return model


def test_the_command_offers_every_form() -> None:
    assert list(OFFERED) == list(FORMS)
    shown = invoke("--help").output
    assert all(f"{name} " in shown for name in FORMS)


def test_a_nested_graph_is_an_attribute_of_its_node(run: Path, tmp_path: Path) -> None:
    done = invoke(run, "--to", "onnx-text", "-o", tmp_path / "out", "--graph", "model__0/forward/graph")
    assert done.exit_code == 0, done.output
    (file,) = (tmp_path / "out").rglob("*.pbtxt")
    model = model_in(file)
    nodes = {node.name: node for node in model.graph.node}
    assert set(nodes) == {"cond", "size", "big", "topk", "cat", "output_0"}
    inner = {a.name: a.g for a in nodes["cond"].attribute if a.type == onnx.AttributeProto.GRAPH}
    assert set(inner) == {"true_0", "false_0"}
    assert [(n.domain, n.op_type) for n in inner["false_0"].node] == [("torch", "get_attr"), ("operator", "mul")]
    assert (list(nodes["cond"].input), list(nodes["cond"].output)) == (["p", "l_x_"], ["y"])
    assert list(nodes["topk"].output) == ["values", "indices"]
    assert list(nodes["cat"].input) == ["values", "values"]
    types = {info.name: info.type.tensor_type for info in [*model.graph.input, *model.graph.value_info]}
    assert types["big"].elem_type == onnx.TensorProto.BOOL and types["size"].elem_type == onnx.TensorProto.INT64
    assert [d.dim_param or d.dim_value for d in types["y"].shape.dim] == ["s0", 8]
    assert next(i for i in model.graph.input if i.name == "w").doc_string == "dtype float4_e2m1fn_x2"
    # What is returned as it came in gets a name of its own; None is no output.
    assert (nodes["output_0"].op_type, list(nodes["output_0"].input)) == ("ReturnAlias", ["l_x_"])
    assert [o.name for o in model.graph.output] == ["output_0", "indices", "cat"]


def test_a_run_that_was_killed_has_a_timeline(run: Path, tmp_path: Path) -> None:
    done = invoke(run, "--to", "chrome-trace", "-o", tmp_path / "t.json")
    assert done.exit_code == 0 and "steps.jsonl line 3 is cut off" in done.output
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    spans = {event["name"]: event for event in events if event["ph"] == "X"}
    assert set(spans) == {"trace", "lower", "mine"}
    assert all(spans[name]["args"]["unfinished"] for name in ("trace", "lower"))
    assert spans["trace"]["pid"] == spans["lower"]["pid"] == 1, "the model that the trace led to"
    assert spans["mine"]["dur"] == 2.0 and spans["mine"]["args"]["changed"] is False
    assert {e["args"]["nodes"] for e in events if e["ph"] == "C"} == {15}


def test_a_run_without_steps_has_one_too(run: Path, tmp_path: Path) -> None:
    (steps,) = run.glob("*/graphprobe/steps.jsonl")
    steps.unlink()
    left_out: list[str] = []
    assert chrome_trace.export_run(Run.open(run), tmp_path / "t.json", left_out) > 0
    assert len(left_out) == 1 and "steps.jsonl cannot be read" in left_out[0]


def test_a_dump_of_graphs_has_a_row_for_each_graph(recorded_run: Path, tmp_path: Path) -> None:
    (dump,) = recorded_run.glob("torch_compile_debug/*/graph_dump")
    done = export(dump, tmp_path / "t.json", "chrome-trace")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert done.count == len(events)
    named = [event["name"] for event in events if event["ph"] == "M"]
    assert named.count("process_name") == 1 and named.count("thread_name") == len(named) - 1 >= 2
    rows = {event["tid"] for event in events if event["ph"] == "i"}
    assert rows == set(range(1, len(named)))


@pytest.fixture
def comparison(tmp_path: Path) -> Iterator[Path]:
    longer = chain(["torch.relu", "torch.exp", "torch.relu", "torch.sin"], scale={1: 1.01})
    with compare_dumps(MemoryDump(longer), MemoryDump(chain(["torch.relu", "torch.exp", "torch.relu"]))) as made:
        folder = tmp_path / "comparison"
        folder.mkdir()
        lines = [msgspec.json.encode(row) for row in made.rows()]
        (folder / "rows.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        (folder / "comparison.json").write_text('{"schema": 2}')
        yield folder


def test_errors_are_node_data_on_the_graph_of_the_calls(comparison: Path, tmp_path: Path) -> None:
    export(comparison, tmp_path / "errors", "model-explorer")
    calls = chain(["torch.relu", "torch.exp", "torch.relu", "torch.sin"], scale={1: 1.01})
    model_explorer.export_calls(MemoryDump(calls), tmp_path / "calls")
    (graph,) = json.loads((tmp_path / "calls/graphs.json").read_text())["graphs"]
    edges = {n["id"]: [edge["sourceNodeId"] for edge in n["incomingEdges"]] for n in graph["nodes"]}
    assert edges == {
        "relu.0.forward": [],
        "exp.0.forward": ["relu.0.forward"],
        "relu.1.forward": ["exp.0.forward"],
        "sin.0.forward": ["relu.1.forward"],
    }
    level = json.loads((tmp_path / "errors/level.json").read_text())
    assert list(level) == [graph["id"]]
    found = level[graph["id"]]
    assert set(found["results"]) == set(edges) - {"sin.0.forward"}, "a call without a partner has no error"
    assert found["results"]["relu.0.forward"]["value"] == 0 < 4 < found["results"]["exp.0.forward"]["value"]
    limits = [one["value"] for one in found["thresholds"]]
    assert limits[0] == 4 and limits == sorted(limits) and all("bgColor" in one for one in found["thresholds"])


def test_what_cannot_be_exported_says_what_can(run: Path, comparison: Path, tmp_path: Path) -> None:
    done = invoke(comparison, "--to", "chrome-trace", "-o", tmp_path / "b")
    assert done.exit_code == 2
    assert "is a comparison; chrome-trace is made from a run, a dump of compiled graphs or a profile" in done.output
    assert "a comparison can be exported to model-explorer" in done.output
    assert not (tmp_path / "b").exists()
    assert invoke(tmp_path / "none", "--to", "onnx-text", "-o", tmp_path / "c").exit_code == 2
    (tmp_path / "text.txt").write_text("text")
    with pytest.raises(UsageError, match="is nothing that graphprobe reads"):
        export(tmp_path / "text.txt", tmp_path / "c", "model-explorer")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="is nothing that graphprobe reads"):
        export(tmp_path / "empty", tmp_path / "c", "model-explorer")


def test_options_that_do_not_go_together(run: Path, comparison: Path, tmp_path: Path) -> None:
    for arguments, said in (
        ((run, "--to", "chrome-trace", "--graph", "x"), "--graph x: it picks"),
        ((run, "--to", "onnx-text", "--graph", "nowhere"), "no artifact 'nowhere'"),
        ((run, "--to", "svg"), "'svg' is not one of"),
    ):
        done = invoke(*arguments, "-o", tmp_path / "out")
        assert done.exit_code == 2 and said in done.output, done.output
        assert not (tmp_path / "out").exists()
    (comparison / "rows.jsonl").unlink()
    with pytest.raises(ArtifactNotFoundError, match="has no rows.jsonl"):
        export(comparison, tmp_path / "p", "model-explorer")
    (comparison / "rows.jsonl").write_text("{}\n")
    with pytest.raises(SchemaError, match="line 1 is no row"):
        export(comparison, tmp_path / "p", "model-explorer")
    (comparison / "comparison.json").write_text('{"schema": 99}')
    with pytest.raises(SchemaError, match="has schema 99"):
        export(comparison, tmp_path / "p", "model-explorer")
    assert list(tmp_path.glob("**/.tmp-*")) == [] and not (tmp_path / "p").exists()


def test_what_cannot_be_written_is_an_error(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "t.json")

    for module in (chrome_trace, model_explorer):
        monkeypatch.setattr(module, "replace_file", full)
    for form, out in (("chrome-trace", tmp_path / "t.json"), ("model-explorer", tmp_path / "m")):
        done = invoke(run, "--to", form, "-o", out)
        assert done.exit_code == 2 and "t.json: No space left on device" in done.output, done.output
        assert not out.exists()


def test_nothing_is_overwritten(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert invoke(run, "--to", "onnx-text", "-o", out).exit_code == 0
    again = invoke(run, "--to", "onnx-text", "-o", out)
    assert again.exit_code == 2 and "replace it with --force" in again.output
    (out / "old").touch()
    assert invoke(run, "--to", "onnx-text", "-o", out, "--force").exit_code == 0
    assert not (out / "old").exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").touch()
    refused = invoke(run, "--to", "onnx-text", "-o", mine, "--force")
    assert refused.exit_code == 2 and "--force does not remove" in refused.output and (mine / "thesis.txt").exists()
    for form, there in (("onnx-text", mine / "thesis.txt"), ("chrome-trace", mine)):
        assert invoke(run, "--to", form, "-o", there, "--force").exit_code == 2
    assert "there is no folder" in invoke(run, "--to", "chrome-trace", "-o", tmp_path / "no/t.json").output


def test_it_needs_no_torch(run_python: Callable[..., Finished], run: Path, comparison: Path, tmp_path: Path) -> None:
    program = """
import sys
from graphprobe.cli.main import main
forms = [("onnx-text", 1), ("chrome-trace", 1), ("model-explorer", 1), ("model-explorer", 2)]
for out, (form, what) in zip("abcd", forms):
    main(["export", sys.argv[what], "--to", form, "-o", out], standalone_mode=False)
assert "torch" not in sys.modules
"""
    done = run_python("-c", program, str(run), str(comparison), cwd=tmp_path)
    assert done.code == 0, done.err
    assert {path.name for path in tmp_path.iterdir()} >= set("abcd")


Python = Callable[..., Finished]
PAGE = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(run_warm: Python, tmp_path_factory: pytest.TempPathFactory) -> Path:
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
