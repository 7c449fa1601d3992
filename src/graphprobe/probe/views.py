"""Writes a captured graph in the form asked for: text, ONNX text, Python, or `output_code.py` that runs on its own."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from graphprobe.engine import replay
from graphprobe.engine.values import one_file_bytes, why_not
from graphprobe.export.onnx_text import Builder, model_from, text_of
from graphprobe.internals.ir.records import IRBuffer, IRGraph, IRNode
from graphprobe.probe.formats import GUARD, Script
from graphprobe.probe.formats.fx_py import fx_py_source
from graphprobe.probe.formats.fx_text import graph_text
from graphprobe.probe.formats.ir_py import ir_py_source
from graphprobe.probe.formats.literals import input_metas, metas_text
from graphprobe.probe.graph_facts import graphs_from
from graphprobe.store.layout import Extension, Stage

CONSTANTS = "constants.safetensors"

_MAIN = """
def graphprobe_run():
{loading}    return lambda args: call(args)


if __name__ == "__main__":
    sys.exit(main(graphprobe_run, METAS, __file__, {problems!r}, {benchmark}))
"""


def _without_main(code: str) -> tuple[str, bool]:
    """Turns the module's own `if __name__ == "__main__":` into a function; whether there was one."""
    lines = code.splitlines()
    found = False
    for node in ast.parse(code).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
            lines[node.lineno - 1] = "def inductor_main():"
            found = True
    return "\n".join(lines) + "\n", found


def output_code_source(code: str, *, constants: Mapping[str, object], inputs: Sequence[object]) -> Script:
    """Inductor's module text with a replay main in place of its benchmark main, which `--benchmark` still runs.

    Args:
        code: the text as Inductor wrote it, in Python (`cpp_wrapper` modules included).
        constants: module attributes that Inductor sets from outside when it loads the text (`_tensor_constant0`,
            `_frozen_param1`, …); they go to `constants.safetensors`.
        inputs: the graph's example inputs (real or fake tensors, plain or symbolic numbers): what inputs are made from
            when none were saved.

    The script exits 0 when the outputs and the mutated inputs are as recorded bit for bit (or nothing was saved to
    compare with), 1 when they are not, 125 when it cannot run. It must be run on the machine type it was made on: the
    kernels are written for that CPU or GPU.
    """
    body, benchmark = _without_main(code)
    first, end, rest = body.partition("\n")
    if not first.strip() or first.lstrip().startswith("#"):  # the guard goes there: the other lines keep their numbers
        body = f"{GUARD}  {first}".rstrip() + end + rest
    problems: list[str] = []
    loading = ""
    blob = None
    for name, value in constants.items():
        if isinstance(value, torch.Tensor) and (reason := why_not(value)) is not None:
            problems.append(f"constant {name} is no plain tensor: {reason}")
        elif not isinstance(value, (torch.Tensor, bool, int, float, str, type(None))):
            problems.append(f"constant {name} is a {type(value).__module__}.{type(value).__qualname__}")
    if constants and not problems:
        blob = one_file_bytes(constants)
        loading = f"    globals().update(load_constants(Path(__file__).with_name({CONSTANTS!r})))\n"
    tail = _MAIN.format(
        loading=loading,
        problems=tuple(problems),
        benchmark="inductor_main" if benchmark else None,
    )
    head = "".join(f"# cannot be reproduced in another process: {line}\n" for line in problems)
    source = f"{head}{body}\n\n# What follows was added by graphprobe: it runs `call` and compares.\n"
    return Script(
        source=f"{source}{replay.embedded()}\n\nMETAS = {metas_text(input_metas(inputs))}\n\n{tail}",
        constants=blob,
        constants_name=CONSTANTS,
        problems=tuple(problems),
    )


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
        return Script(source=graph_text(gm))
    if extension == "pbtxt":
        return Script(source=fx_pbtxt(gm, title))
    return fx_py_source(gm, title=title, eager=eager)


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
        return Script(source=ir_pbtxt(ir, title))
    return ir_py_source(graph, ir, title=title, stage=stage, options=options, donated_idxs=donated, inputs=examples)


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
    for key in ("mutates", "aliases"):
        if names := [f"{out.name}: {name}" for out in node.outputs for name in getattr(out, key)]:
            found[key] = names
    return found


def fx_pbtxt(gm: fx.GraphModule, name: str) -> str:
    """An FX graph, see `export.onnx_text`. Raises ImportError when `onnx` is not installed."""
    return text_of(model_from(graphs_from(gm), name))
