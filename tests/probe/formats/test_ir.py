"""Scheduler IR as text and as ONNX."""

from collections.abc import Callable

import msgspec
import pytest

from graphprobe.probe.formats import IRBuffer, IRGraph, IRNode, NodeOrigin
from graphprobe.probe.formats.onnx_text import ir_pbtxt
from graphprobe.probe.views import ir_text

from .compiled import Stages, parse_onnx


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
