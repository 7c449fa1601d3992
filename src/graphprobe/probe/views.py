"""A captured graph in the form that was asked for: text, ONNX text, or a Python script.

The scheduler's graph as text: a table, then Inductor's own long form of each node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphprobe.probe.formats import IRBuffer, IRGraph, IRNode, Script
from graphprobe.store.layout import Extension, Stage


def ir_text(ir: IRGraph, *, title: str = "") -> str:
    """What the `.txt` files hold."""
    lines = [f"# {title}"] if title else []
    reading = [b.name for b in ir.inputs]
    lines += [f"# {len(ir.nodes)} scheduler nodes", f"# inputs ({len(reading)}): {', '.join(reading)}"]
    lines += [f"# outputs ({len(ir.outputs)}): {', '.join(ir.outputs)}", "#"]
    rows = [("node", "kind", "reads", "writes", "origins"), *(_row(node) for node in ir.nodes)]
    widths = [min(max(len(row[i]) for row in rows), 60) for i in range(4)]
    for row in rows:
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True))
        lines.append(f"# {cells}  {row[4]}".rstrip())
    return "\n".join(lines) + "\n\n\n" + "\n\n\n".join(node.text for node in ir.nodes) + "\n"


def buffer_text(buffer: IRBuffer) -> str:
    """`buf3 float32[4, 8][8, 1]cpu`; shape and stride in elements."""
    if buffer.dtype is None:
        return buffer.name
    shape, stride = ", ".join(buffer.shape or ()), ", ".join(buffer.stride or ())
    return f"{buffer.name} {buffer.dtype}[{shape}][{stride}]{buffer.device or ''}"


def _row(node: IRNode) -> tuple[str, str, str, str, str]:
    written = [(buffer_text(out), ", ".join(out.mutates)) for out in node.outputs]
    writes = ", ".join(f"{text} (in {mutated})" if mutated else text for text, mutated in written)
    origins = ", ".join(f"{origin.name} = {origin.target}" for origin in node.origins)
    return node.name, node.kind, ", ".join(node.inputs), writes, origins


def fx_file(extension: Extension, gm: Any, *, title: str, eager: bool) -> Script:
    """An FX graph; `eager` says that it is Dynamo's own, with autograd still to come."""
    if extension == "txt":
        from graphprobe.probe.formats.fx_text import graph_text

        return Script(source=graph_text(gm))
    if extension == "pbtxt":
        from graphprobe.probe.formats.onnx_text import fx_pbtxt

        return Script(source=fx_pbtxt(gm, title))
    from graphprobe.probe.formats.fx_py import fx_py_source

    return fx_py_source(gm, title=title, stems=("inputs", "outputs"), eager=eager)


def ir_file(
    extension: Extension,
    ir: IRGraph,
    *,
    graph: Any,
    stage: Stage,
    examples: Sequence[Any],
    donated: Sequence[int],
    options: dict[str, Any],
) -> Script:
    """Inductor's scheduler graph.

    Args:
        graph: the FX graph it was lowered from.
        examples, options: what Inductor was called with.
        donated: inputs that the compiled graph may use as scratch memory.
    """
    title = f"{stage} graph of Inductor's scheduler"
    if extension == "txt":
        return Script(source=ir_text(ir, title=title))
    if extension == "pbtxt":
        from graphprobe.probe.formats.onnx_text import ir_pbtxt

        return Script(source=ir_pbtxt(ir, title))
    from graphprobe.internals.ir.scheduler_nodes import config_overrides
    from graphprobe.probe.formats.ir_py import ir_py_source

    return ir_py_source(
        graph,
        ir,
        title=title,
        stage=stage,
        config=config_overrides(),
        is_inference=bool(options.get("is_inference")),
        is_backward=bool(options.get("is_backward")),
        static_input_idxs=tuple(options.get("static_input_idxs") or ()),
        donated_idxs=tuple(donated),
        inputs=examples,
        stems=("inputs", "outputs"),
    )
