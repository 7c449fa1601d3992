"""A captured graph in the form that was asked for: text, ONNX text, or a Python script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphprobe.probe.formats import IRGraph, Script
from graphprobe.store.layout import Extension, Stage


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
        from graphprobe.probe.formats.ir_text import ir_text

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
