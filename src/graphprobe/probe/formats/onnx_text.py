"""Graphs as ONNX models in protobuf text: they open in Netron. Structure only, nothing here can be executed as ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from graphprobe.export.onnx_text import Builder, text_of
from graphprobe.internals.ir.records import IRBuffer, IRGraph, IRNode


def ir_pbtxt(ir: IRGraph, name: str) -> str:
    """Scheduler IR: a node each, domain `aten` with the aten name, or `inductor` for fused and other kernels.

    Buffers that are written again get versioned names (`buf3.v2`); a read that no earlier node wrote becomes a graph
    input. The model passes `onnx.checker.check_model`.

    Raises:
        ImportError: `onnx` is not installed.
    """
    build = Builder()
    current: dict[str, str] = {}
    for buffer in ir.inputs:
        current[buffer.name] = build.fresh(buffer.name)
        build.inputs.append(build.info(current[buffer.name], buffer.dtype, buffer.shape))
    for node in ir.nodes:
        reads = []
        for read in node.inputs:
            if read not in current:
                current[read] = build.fresh(read)
                build.inputs.append(build.info(current[read], None, None, "read before any node here wrote it"))
            reads.append(current[read])
        writes = []
        for buffer in node.outputs:
            made = build.fresh(buffer.name)
            build.infos.append(build.info(made, buffer.dtype, buffer.shape))
            writes.append((buffer, made))
        domain, op_type = _ir_name(node)
        outputs = [made for _, made in writes] or [build.fresh(f"{node.name}.done")]
        build.add(domain, op_type, reads, outputs, node.name, _ir_attributes(node), node.text)
        for buffer, made in writes:
            current[buffer.name] = made
            current.update(dict.fromkeys(buffer.mutates, made))
    for i, value in enumerate(ir.outputs):
        build.output(current.get(value, value), f"output_{i}")
    return text_of(build.model(name))


def _ir_name(node: IRNode) -> tuple[str, str]:
    names = [origin.target for origin in node.origins]
    aten = [name.removeprefix("aten.").split(".")[0] for name in names if name.startswith("aten.")]
    if node.kind in ("fused", "foreach", "grouped", "template"):
        return "inductor", "_".join([node.kind, *dict.fromkeys(aten)])
    kernel = (node.kernel or node.kind).split(".")
    if not aten and kernel[0] == "aten":
        aten = kernel[1:2]
    return ("aten", aten[-1]) if aten else ("inductor", kernel[-1] or "op")


def _ir_attributes(node: IRNode) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": node.kind, "type": node.type}
    if node.origins:
        found["origins"] = [f"{origin.name}={origin.target}" for origin in node.origins]
        lines = list(dict.fromkeys(origin.source for origin in node.origins if origin.source))
        found |= {"source": lines} if lines else {}
    if node.members:
        found["members"] = list(node.members)
    if node.ranges is not None:
        found |= {"ranges": list(node.ranges[0]), "reduction_ranges": list(node.ranges[1])}
    if node.kernel:
        found["kernel"] = node.kernel
    found["strides"] = [f"{out.name}: ({', '.join(out.stride)})" for out in node.outputs if out.stride is not None]
    found |= _memory(node.outputs)
    return found


def _memory(outputs: Sequence[IRBuffer]) -> dict[str, list[str]]:
    mutates = [f"{out.name}: {name}" for out in outputs for name in out.mutates]
    aliases = [f"{out.name}: {name}" for out in outputs for name in out.aliases]
    return ({"mutates": mutates} if mutates else {}) | ({"aliases": aliases} if aliases else {})


def fx_pbtxt(gm: fx.GraphModule, name: str) -> str:
    """An FX graph, see `export.onnx_text`. Raises ImportError when `onnx` is not installed."""
    from graphprobe.export.onnx_text import model_from
    from graphprobe.probe.graph_facts import graphs_from

    return text_of(model_from(graphs_from(gm), name))
