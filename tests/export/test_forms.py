"""Each form from small things made by hand, and what is refused."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result
from google.protobuf import text_format

from compare.made import call, chain, scalar, tensor
from compare.recording import MemoryDump
from conftest import Finished
from graphprobe.cli.commands.export import FORMS as OFFERED
from graphprobe.cli.main import main
from graphprobe.compare.run import compare_dumps
from graphprobe.errors import ArtifactNotFoundError, SchemaError, UsageError
from graphprobe.export import chrome_trace, model_explorer, parquet, tensorboard
from graphprobe.export.forms import FORMS, export
from graphprobe.records import Manifest, TensorMeta, Where
from graphprobe.report.graph_nodes import parse_graphs
from graphprobe.store import layout
from graphprobe.store.calls import Call, CallSlot, WithStatistics
from graphprobe.store.reader import Run
from graphprobe.store.step_file import StepLine, encode_step
from graphprobe.store.writer import RunWriter

NESTED = """class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[s0, 8][8, 1]cpu", p: "b8[][]cpu", w: "f4e2m1fnx2[8][1]cpu"):
        l_x_ = L_x_

        # File: x.py:3 in f, code: y = torch.cond(p, yes, no, (x,))
        true_0 = self.true_0
        false_0 = self.false_0
        cond = torch.ops.higher_order.cond(p, true_0, false_0, (l_x_,));  p = true_0 = false_0 = None
        y: "f32[s0, 8][Max(1, s0), 1]cpu" = cond[0];  cond = None
        size: "Sym(s0)" = torch.ops.aten.sym_size.int(y, 0)
        big: "Sym(s0 >= 2)" = size >= 2
        topk = torch.topk(y, 2);  y = None
        values: "f32[s0, 2][2, 1]cpu" = topk[0]
        indices: "i64[s0, 2][2, 1]cpu" = topk[1];  topk = None
        cat: "f32[2*s0, 2][2, 1]cpu" = torch.cat([values, values], dim = 0);  values = None
        odd = some thing;  cat = None
        return (l_x_, indices, cat, None)

    class true_0(torch.nn.Module):
        def forward(self, l_x_: "f32[s0, 8][8, 1]cpu"):
            sin: "f32[s0, 8][8, 1]cpu" = l_x_.sin();  l_x_ = None
            return (sin,)

    class false_0(torch.nn.Module):
        def forward(self, l_x_: "f32[s0, 8][8, 1]cpu"):
            weight: "f32[8][1]cpu" = self.weight
            mul: "f32[s0, 8][8, 1]cpu" = l_x_ * weight
            return (mul,)
"""


def manifest() -> Manifest:
    now = time.time_ns()
    return Manifest(
        graphprobe="0.1", python="3.11", platform="linux", argv=["x.py"], cwd="/", pid=1, parent_pid=1, started_ns=now
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one graph, a pass that raised nothing and has no step, and a step that did not end."""
    writer = RunWriter.create(tmp_path / "runs", manifest=manifest(), rank=None, max_bytes=None)
    where = Where(model=0, direction="forward", compile_id="0/0")
    file = writer.write_text(layout.graph_file(0, "forward", number=0), NESTED)
    writer.event(where=where, kind="graph", name="aot_forward_graph", file=file, nodes_after=15)
    file = writer.write_text(layout.ir_file(0, "forward", "original", number=1), "op0: ExternKernel\n")
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
    (tool_dir / layout.STEPS).write_text("".join(map(encode_step, lines)) + '{"step":0,"time_')
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
    assert set(nodes) == {"cond", "size", "big", "topk", "cat", "odd", "output_0"}
    inner = {a.name: a.g for a in nodes["cond"].attribute if a.type == onnx.AttributeProto.GRAPH}
    assert set(inner) == {"true_0", "false_0"}
    assert [(n.domain, n.op_type) for n in inner["false_0"].node] == [("torch", "get_attr"), ("operator", "mul")]
    assert (list(nodes["cond"].input), list(nodes["cond"].output)) == (["p", "l_x_"], ["y"])
    assert list(nodes["topk"].output) == ["values", "indices"]
    assert list(nodes["cat"].input) == ["values", "values"]
    assert (nodes["odd"].domain, nodes["odd"].op_type) == ("graphprobe", "expression")
    types = {info.name: info.type.tensor_type for info in [*model.graph.input, *model.graph.value_info]}
    assert types["big"].elem_type == onnx.TensorProto.BOOL and types["size"].elem_type == onnx.TensorProto.INT64
    assert [d.dim_param or d.dim_value for d in types["y"].shape.dim] == ["s0", 8]
    assert next(i for i in model.graph.input if i.name == "w").doc_string == "dtype float4_e2m1fn_x2"
    # What is returned as it came in gets a name of its own; None is no output.
    assert (nodes["output_0"].op_type, list(nodes["output_0"].input)) == ("ReturnAlias", ["l_x_"])
    assert [o.name for o in model.graph.output] == ["output_0", "indices", "cat"]


@pytest.mark.parametrize(
    ("text", "domain", "name", "reads"),
    [
        ("torch.ops.aten.add.Tensor(a, 1)", "aten", "add", ("a",)),
        ("torch.ops.aten.cat.default([b, a, b], 1)", "aten", "cat", ("b", "a", "b")),
        ("torch._C._nn.linear(a, b)", "torch", "linear", ("a", "b")),
        ("self.L__self___fc(a)", "module", "L__self___fc", ("a",)),
        ("a.view(2, other)", "torch.Tensor", "view", ("a",)),
        ("a[(slice(None, b, None), 0)]", "operator", "getitem", ("a", "b")),
        ("a @ b", "operator", "matmul", ("a", "b")),
        ("-a", "operator", "neg", ("a",)),
        ("a != 2", "operator", "ne", ("a",)),
        ("a.shape", "python", "getattr", ("a",)),
        ("operator.iadd(a, 2)", "operator", "iadd", ("a",)),
        ("3.5", "graphprobe", "expression", ()),
        ("odd a b", "graphprobe", "expression", ("a", "b")),
    ],
)
def test_expressions_are_taken_apart(text: str, domain: str, name: str, reads: tuple[str, ...]) -> None:
    head = "class G(torch.nn.Module):\n    def forward(self, a, b):\n        "
    (graph,) = parse_graphs(f"{head}n = {text}\n        return ({text},)\n").graphs
    node, output = graph.nodes[2:]
    assert (node.operator.domain, node.operator.name, node.reads) == (domain, name, reads)
    assert node.expression() == text and (output.op, output.reads) == ("output", reads)


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


def twice() -> list[Call]:
    """Two steps of a chain, with an argument that is no tensor and a call without slots."""
    found: list[Call] = []
    for step in range(2):
        calls = chain(["torch.relu", "torch.exp", "torch.relu"], seed=step)
        extra = call(3, "torch.add", scalar("input.1", 2), tensor("output.0", "output", np.float32([1, np.nan])))
        calls += [extra, call(4, "torch.manual_seed"), call(5, "torch.relu", *calls[2].slots, index=1)]
        found += [_in_step(one, step) for one in calls]
    return found


def _in_step(one: Call, step: int) -> Call:
    import msgspec

    return msgspec.structs.replace(one, step=step, module="net.act" if one.position < 3 else "")


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    board.Reload()
    return {tag: [(one.step, one.value) for one in board.Scalars(tag)] for tag in board.Tags()["scalars"]}


def test_scalars_are_the_statistics_of_each_step(tmp_path: Path) -> None:
    calls = twice()
    (file,), count = tensorboard.export_tensorboard(MemoryDump(calls), tmp_path)
    assert file.parent == tmp_path
    read = scalars(tmp_path)
    assert sum(map(len, read.values())) == count
    expected = [(c.step, np.float32(c.slots[1].stats.mean)) for c in calls if c.label == "exp.0.forward"]
    assert read["net.act/exp.0.forward/output.0/mean"] == expected
    assert read["program/add.0.forward/output.0/nan"] == [(0, 1.0), (1, 1.0)]
    assert not [tag for tag in read if "/input." in tag], "what a call got was given by another"


def test_calls_of_one_tag_are_told_apart(tmp_path: Path) -> None:
    calls = chain(["torch.relu", "torch.relu"])
    both = [calls[0], *(Call(**{f: getattr(calls[1], f) for f in calls[1].__struct_fields__} | {"index": 0}),)]
    tensorboard.export_tensorboard(MemoryDump(both), tmp_path)
    assert {tag.split("/")[1] for tag in scalars(tmp_path)} == {"relu.0.forward", "relu.0.forward#2"}


def test_records_come_back_from_parquet_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROWS_IN_GROUP", 4)
    calls = twice()
    count = parquet.export_dump(MemoryDump(calls), tmp_path / "v.parquet")
    file = pyarrow.parquet.ParquetFile(tmp_path / "v.parquet")
    assert file.metadata.num_row_groups == -(-count // 4) > 2
    rows = file.read().to_pylist()
    assert len(rows) == count == sum(max(1, len(c.slots)) for c in calls)
    first = rows[1]
    assert (first["label"], first["slot"], first["shape"]) == ("relu.0.forward", "output.0", [64])
    assert first["mean"] == calls[0].slots[1].stats.mean and first["digest"] == calls[0].slots[1].digest
    assert [r["scalar"] for r in rows if r["scalar_type"] == "int"] == ["2", "2"]
    alone = next(r for r in rows if r["api"] == "torch.manual_seed")
    assert alone["slot"] is None and alone["mean"] is None


@pytest.fixture
def comparison(tmp_path: Path) -> Iterator[Path]:
    import msgspec

    longer = chain(["torch.relu", "torch.exp", "torch.relu", "torch.sin"], scale={1: 1.01})
    with compare_dumps(MemoryDump(longer), MemoryDump(chain(["torch.relu", "torch.exp", "torch.relu"]))) as made:
        folder = tmp_path / "comparison"
        folder.mkdir()
        lines = [msgspec.json.encode(row) for row in made.rows()]
        (folder / "rows.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        (folder / "comparison.json").write_text('{"schema": 1}')
        yield folder


def test_pairs_come_back_from_parquet(comparison: Path, tmp_path: Path) -> None:
    done = export(comparison, tmp_path / "pairs.parquet", "parquet")
    rows = pyarrow.parquet.read_table(tmp_path / "pairs.parquet").to_pylist()
    assert len(rows) == done.count == 7
    wrong = next(r for r in rows if r["candidate"] == "exp.0.forward" and r["slot"] == "output.0")
    assert (wrong["verdict"], wrong["blame"], wrong["candidate_dtype"]) == ("candidate_worse", "local", "float32")
    assert wrong["level"] > 4 and wrong["candidate_max"] > wrong["reference_max"]
    lone = rows[-1]
    assert lone["candidate"] == "sin.0.forward" and lone["reference"] is None and lone["slot"] is None


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


def test_values_without_statistics_get_them() -> None:
    values: dict[str, np.ndarray] = {}
    slot = tensor("output.0", "output", np.arange(6, dtype=np.float32), values=values, digest=False)
    narrow = CallSlot(name="output.1", role="output", meta=TensorMeta("bfloat16", (2,)), value="narrow")
    values["narrow"] = np.array([0x3F80, 0x4000], np.uint16)  # 1.0 and 2.0
    bare = CallSlot(name=slot.name, role="output", meta=slot.meta, value=slot.value)
    (read,) = WithStatistics(MemoryDump([call(0, "f", bare, narrow)], values)).calls(0, 0)
    assert read.slots[0].stats == slot.stats and "mean" in read.slots[0].known
    assert read.slots[1].stats is not None and (read.slots[1].stats.min, read.slots[1].stats.max) == (1.0, 2.0)


def test_what_cannot_be_exported_says_what_can(run: Path, comparison: Path, tmp_path: Path) -> None:
    done = invoke(run, "--to", "tensorboard", "-o", tmp_path / "b")
    assert done.exit_code == 2
    assert "is a run; tensorboard is made from a dump of compiled graphs or a dump of calls" in done.output
    assert "a run can be exported to chrome-trace, onnx-text, model-explorer" in done.output
    assert not (tmp_path / "b").exists()
    assert invoke(comparison, "--to", "chrome-trace", "-o", tmp_path / "c").exit_code == 2
    assert invoke(tmp_path / "none", "--to", "parquet", "-o", tmp_path / "c").exit_code == 2
    (tmp_path / "text.txt").write_text("text")
    with pytest.raises(UsageError, match="is nothing that graphprobe reads"):
        export(tmp_path / "text.txt", tmp_path / "c", "parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="is nothing that graphprobe reads"):
        export(tmp_path / "empty", tmp_path / "c", "parquet")


def test_options_that_do_not_go_together(run: Path, comparison: Path, tmp_path: Path) -> None:
    for arguments, said in (
        ((run, "--to", "chrome-trace", "--graph", "x"), "--graph x: it picks"),
        ((run, "--to", "model-explorer", "--graphs", "x"), "--graphs x: it goes with a dump"),
        ((run, "--to", "onnx-text", "--graph", "nowhere"), "no artifact 'nowhere'"),
        ((run, "--to", "svg"), "'svg' is not one of"),
    ):
        done = invoke(*arguments, "-o", tmp_path / "out")
        assert done.exit_code == 2 and said in done.output, done.output
        assert not (tmp_path / "out").exists()
    (comparison / "rows.jsonl").unlink()
    with pytest.raises(ArtifactNotFoundError, match="has no rows.jsonl"):
        export(comparison, tmp_path / "p", "parquet")
    (comparison / "rows.jsonl").write_text("{}\n")
    with pytest.raises(SchemaError, match="line 1 is no row"):
        export(comparison, tmp_path / "p", "parquet")
    (comparison / "comparison.json").write_text('{"schema": 99}')
    with pytest.raises(SchemaError, match="is of schema 99"):
        export(comparison, tmp_path / "p", "parquet")
    assert list(tmp_path.glob("**/.tmp-*")) == [] and not (tmp_path / "p").exists()


def test_a_dump_inside_a_run_is_named(run: Path, tmp_path: Path) -> None:
    (folder,) = run.iterdir()
    (folder / "api_dump/rank0").mkdir(parents=True)
    (folder / "api_dump/rank0/manifest.json").write_text('{"schema": 1, "api_dump_schema": 99}')
    done = invoke(run, "--to", "parquet", "-o", tmp_path / "v")
    assert done.exit_code == 2 and f"a dump of calls lies in {folder / 'api_dump'}" in done.output


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


@pytest.mark.parametrize(("form", "package"), [("tensorboard", "tensorboard"), ("parquet", "pyarrow")])
def test_a_missing_package_names_its_extra(
    form: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.import_module

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    makers: dict[str, Callable[[], Any]] = {
        "tensorboard": lambda: tensorboard.export_tensorboard(MemoryDump(twice()), tmp_path),
        "parquet": lambda: parquet.export_dump(MemoryDump(twice()), tmp_path / "v"),
    }
    with pytest.raises(UsageError, match=f"needs the package {package}") as caught:
        makers[form]()
    assert caught.value.hint == f"pip install 'graphprobe[{form}]'"


def test_it_needs_no_torch(run_python: Callable[..., Finished], run: Path, comparison: Path, tmp_path: Path) -> None:
    program = """
import sys
from graphprobe.cli.main import main
forms = {"onnx-text": 1, "chrome-trace": 1, "model-explorer": 1, "parquet": 2}
for out, (form, what) in zip("abcd", forms.items()):
    main(["export", sys.argv[what], "--to", form, "-o", out], standalone_mode=False)
from graphprobe.export.tensorboard import export_tensorboard
import tensorboard.summary.writer.record_writer, tensorboard.compat.proto.event_pb2
assert not {"torch", "tensorflow"} & sys.modules.keys()
"""
    done = run_python("-c", program, str(run), str(comparison), cwd=tmp_path)
    assert done.code == 0, done.err
    assert {path.name for path in tmp_path.iterdir()} >= set("abcd")
