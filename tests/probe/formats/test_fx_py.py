"""FX graphs as scripts and as ONNX: the rebuilt graph is the same graph, and what cannot be rebuilt is said."""

import copy
import importlib.util
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from graphprobe.engine.values import same_bits
from graphprobe.internals.ir.records import IRBuffer, IRGraph, IRNode, NodeOrigin
from graphprobe.probe.formats import Script
from graphprobe.probe.formats.fx_py import fx_py_source
from graphprobe.probe.formats.fx_text import fingerprint, graph_text
from graphprobe.probe.views import fx_pbtxt, ir_pbtxt, ir_text

from .compiled import PROGRAMS, Stages, parse_onnx


def rebuild(script: Script, folder: Path) -> fx.GraphModule:
    path = folder / "graph.py"
    path.write_text(script.source)
    if script.constants is not None:
        (folder / script.constants_name.format(stem="graph")).write_bytes(script.constants)
    spec = importlib.util.spec_from_file_location("graph", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.pop("graph", None)
    spec.loader.exec_module(module)
    return module.build()


def shape_of(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return ("node", value.name)
    if isinstance(value, (list, tuple)):
        return (type(value).__name__.removeprefix("immutable_"), [shape_of(v) for v in value])
    if isinstance(value, dict):
        return {k: shape_of(v) for k, v in value.items()}
    if isinstance(value, slice):
        return ("slice", shape_of([value.start, value.stop, value.step]))
    return repr(value) if isinstance(value, (float, complex)) else value


def assert_same_graph(a: fx.GraphModule, b: fx.GraphModule) -> None:
    rows = [[(n.op, n.name, n.target, shape_of(n.args), shape_of(n.kwargs)) for n in g.graph.nodes] for g in (a, b)]
    assert rows[0] == rows[1]
    for node in a.graph.nodes:
        if node.op == "get_attr":
            one, two = operator.attrgetter(node.target)(a), operator.attrgetter(node.target)(b)
            if isinstance(one, fx.GraphModule):
                assert_same_graph(one, two)
            else:
                assert same_bits(one, two, stride=True) == []


STATIC = [(name, False) for name in sorted(PROGRAMS)]
DYNAMIC = [
    pytest.param(name, True, marks=pytest.mark.slow if name == "transformer_dropout" else ())
    for name in sorted(PROGRAMS)
    if name not in ("conv_batch_norm", "mutation_and_alias")
]


@pytest.mark.parametrize(("name", "dynamic"), [*STATIC, *DYNAMIC])
def test_the_rebuilt_graph_has_the_same_nodes(
    name: str, dynamic: bool, traced: Callable[..., Stages], tmp_path: Path
) -> None:
    stages = traced(name, dynamic)
    assert len(stages.graphs) >= 2
    for gm in stages.graphs:
        script = fx_py_source(gm, title=name)
        assert script.problems == ()
        assert_same_graph(gm, rebuild(script, tmp_path))


@pytest.mark.parametrize("name", ["cond_constants", "bfloat16_autocast", "conv_batch_norm"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_as_onnx(name: str, dynamic: bool, traced: Callable[..., Stages]) -> None:
    for gm in traced(name, dynamic).graphs:
        model = parse_onnx(fx_pbtxt(gm, name))
        calls = [n for n in gm.graph.nodes if n.op.startswith("call_")]
        made = {out for n in model.graph.node for out in n.output} | {i.name for i in model.graph.input}
        several = [n for n in calls if isinstance(n.meta.get("val", n.meta.get("example_value")), (tuple, list))]
        assert {n.name for n in calls if n not in several} <= made
        if any(n.target is torch.ops.higher_order.cond for n in calls):
            (cond,) = [n for n in model.graph.node if n.op_type == "cond"]
            assert sum(a.type == onnx.AttributeProto.GRAPH for a in cond.attribute) == 2


@pytest.mark.parametrize(
    ("name", "without"),
    [
        ("bfloat16_autocast", ""),
        pytest.param("cond_constants", "", marks=pytest.mark.heavy),
        pytest.param("transformer_dropout", "dynamo", marks=pytest.mark.heavy),
    ],
)
def test_the_script_reproduces_what_ran(
    name: str, without: str, traced: Callable[..., Stages], run_script: Callable[..., Any]
) -> None:
    scripts = [path for path in sorted(traced(name).folder.rglob("*.py")) if path.parent.name != without]
    assert scripts
    for path in scripts:
        done = run_script(path)
        assert done.code == 0 and "EQUAL: all" in done.out, f"{path}\n{done.out}\n{done.err}"


def odd_graph() -> fx.GraphModule:
    root = torch.nn.Module()
    root.conv = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 2, padding=1), torch.nn.BatchNorm1d(3)).eval()
    base = torch.arange(6.0)
    root.register_buffer("whole", base)
    root.register_buffer("part", base[::2])
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_module("conv", (x,))
    z = graph.call_function(operator.getitem, (y, (slice(None), Ellipsis, slice(None, -1, 1))))
    z = graph.call_method("clamp", (z,), {"min": float("-inf"), "max": float("inf")})
    nan = graph.call_function(torch.ops.aten.full.default, ([2], float("nan")), {"dtype": torch.float64})
    whole, part = graph.get_attr("whole"), graph.get_attr("part")
    both = graph.call_function(torch.cat, ([whole, part],), {"dim": -1})
    soft = graph.call_function(torch.nn.functional.softmax, (both,), {"dim": 0, "dtype": torch.float32})
    keyword = graph.create_node("call_function", torch.ops.aten.neg.default, (soft,), {}, "lambda_")
    keyword.name = "class"
    contiguous = torch.contiguous_format
    last = graph.call_function(torch.ops.aten.clone.default, (keyword,), {"memory_format": contiguous})
    device = graph.call_function(torch.zeros, (1,), {"device": torch.device("cpu"), "dtype": torch.bool})
    graph.output((z, nan, {"last": last}, device))
    return fx.GraphModule(root, graph)


def test_odd_arguments_names_and_leaf_modules(tmp_path: Path, run_script: Callable[..., Any]) -> None:
    gm = odd_graph()
    script = fx_py_source(gm, title="odd", inputs=[torch.zeros(1, 2, 4)])
    assert script.problems == ()
    back = rebuild(script, tmp_path)
    assert_same_graph(gm, back)
    x = torch.randn(1, 2, 4)
    assert same_bits(fx.Interpreter(gm).run(x), fx.Interpreter(back).run(x)) == []
    assert back.part.untyped_storage().data_ptr() == back.whole.untyped_storage().data_ptr()
    done = run_script(tmp_path / "graph.py")
    assert done.code == 0, done.out + done.err


def script_calling(function: Any, **options: Any) -> Script:
    graph = fx.Graph()
    graph.output(graph.call_function(function, (graph.placeholder("x"),)))
    return fx_py_source(fx.GraphModule({}, graph), title="one call", **options)


def test_what_exists_in_this_process_only_is_said_and_exits_125(tmp_path: Path, run_script: Callable[..., Any]) -> None:
    script = script_calling(lambda x: x)
    (problem,) = script.problems
    assert "exists only in the process that compiled it" in problem
    (tmp_path / "lost.py").write_text(script.source)
    done = run_script(tmp_path / "lost.py")
    assert done.code == 125
    assert problem in done.out and f"# {problem}" in script.source


def test_an_operator_of_another_library_needs_its_import(tmp_path: Path, run_script: Callable[..., Any]) -> None:
    library = torch.library.Library("graphprobe_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    script = script_calling(torch.ops.graphprobe_test.twice.default, inputs=[torch.ones(2)])
    assert script.problems == ()
    assert "graphprobe_test::twice" in script.source.split("\n\n")[0]
    (tmp_path / "other.py").write_text(script.source)
    done = run_script(tmp_path / "other.py")
    assert done.code == 125
    assert "--import" in done.out


def traced() -> fx.GraphModule:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x[:, 1:3].sin() + y * 2.5).clamp(float("nan")).sum(dim=[0], dtype=torch.float64)

    return make_fx(f, tracing_mode="fake")(torch.ones(3, 4), torch.ones(3, 2))


def node(gm: fx.GraphModule, part: str) -> fx.Node:
    return next(n for n in gm.graph.nodes if part in str(n.target))


def test_text_holds_counts_shapes_and_source() -> None:
    text = graph_text(traced())
    assert text.startswith("# 9 nodes") or " nodes\n" in text.splitlines()[0] + "\n"
    assert "# inputs (2): x_1, y_1" in text
    assert "f32[3, 4][4, 1]cpu" in text
    assert "torch.ops.aten.sin.default" in text


def test_text_of_a_graph_in_the_middle_of_a_pass() -> None:
    gm = traced()
    sin = node(gm, "sin")
    sin.meta["val"] = object()
    gm.graph.output_node().append(sin)  # unsorted: used before it is made
    assert "aten.sin" in graph_text(gm)
    del gm.graph._codegen
    assert "sin" in graph_text(gm)


def test_the_fingerprint_sees_a_nested_graph_and_no_copy() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))

    gm = make_fx(f, tracing_mode="symbolic")(torch.ones(3))
    before = fingerprint(gm)
    assert fingerprint(copy.deepcopy(gm)) == before
    inner = next(m for name, m in gm.named_children() if isinstance(m, fx.GraphModule))
    next(n for n in inner.graph.nodes if n.op == "call_function").target = torch.ops.aten.exp.default
    assert fingerprint(gm) != before


@pytest.mark.slow
def test_ir_of_an_attention_block(lowered: Callable[..., Stages]) -> None:
    (_, original), (_, optimized), *_ = lowered("attention_dropout").irs
    assert len(optimized.nodes) < len(original.nodes)
    assert {n.kind for n in original.nodes} >= {"compute", "extern"}
    fused = [n for n in optimized.nodes if n.kind == "fused"]
    names = {n.name for n in original.nodes}
    assert fused and all(len(n.members) > 1 and set(n.members) <= names for n in fused)
    assert any(n.ranges is not None and n.ranges[1] for n in original.nodes)
    sources = {o.source for n in original.nodes for o in n.origins if o.name.startswith("tanh")}
    assert len(sources) == 1 and "in f: return (x + weights @ v).tanh() * 2" in str(sources)
    assert {b.name for b in original.inputs} >= {"primals_1"}
    assert len(original.outputs) > 1
    assert msgspec.json.decode(msgspec.json.encode(original), type=IRGraph) == original
    for ir in (original, optimized):
        text = ir_text(ir, title="t")
        assert all(f"\n{n.name}: " in text for n in ir.nodes)
        model = parse_onnx(ir_pbtxt(ir, "forward"))
        real = [n for n in model.graph.node if n.domain != "graphprobe"]
        assert [n.name for n in real] == [n.name for n in ir.nodes]
        assert {n.domain for n in real} == ({"aten", "inductor"} if ir is optimized else {"aten"})
        shapes = {v.name: v for v in [*model.graph.value_info, *model.graph.output]}
        assert all(out.name in shapes for n in ir.nodes for out in n.outputs if out.dtype)


def test_rewritten_buffers_get_versioned_names() -> None:
    row = IRBuffer("buf0", "float32", ("s0", "4"), ("4", "1"), "cpu")
    again = IRBuffer("buf0", "float32", ("s0", "4"), ("4", "1"), "cpu", mutates=("arg0",))
    ir = IRGraph(
        nodes=(
            IRNode("op0", "compute", "S", ("arg0",), (row,), (NodeOrigin("sin", "aten.sin.default", "m.py:3"),)),
            IRNode("op1", "extern", "E", ("buf0", "lost"), (again,)),
            IRNode("op2", "nop", "N", ("arg0",)),
        ),
        inputs=(IRBuffer("arg0", "float4_e2m1fn_x2", ("4",), ("1",), "cpu"),),
        outputs=("buf0", "buf0", "arg0", "none1"),
    )
    model = parse_onnx(ir_pbtxt(ir, "x"))
    assert [list(n.output) for n in model.graph.node[:3]] == [["buf0"], ["buf0.v2"], ["op2.done"]]
    assert list(model.graph.node[2].input) == ["buf0.v2"]
    assert model.graph.output[0].name == "buf0.v2"
    assert len({o.name for o in model.graph.output}) == 4
    assert model.graph.input[0].doc_string == "dtype float4_e2m1fn_x2"
    assert model.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "s0"
