"""A stand-alone Python file that lowers a post-grad graph again, checks the scheduler's nodes, runs, and compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import fx

from graphprobe.engine.values import one_file_bytes
from graphprobe.internals.ir.records import IRGraph
from graphprobe.probe.formats import Script
from graphprobe.probe.formats.fx_py import GraphSource, preamble
from graphprobe.probe.formats.literals import Unreproducible, metas_text

NODE_META = (
    "user_visible_output_idxs",
    "original_output_strides",
    "inductor_realize_to_strides",
    "low_precision_pointwise_barrier",
    "should_fallback",
    "dislike_padding",
    "custom",
)
"""Metadata of nodes that lowering reads and that fake propagation does not make again."""

LOWER = '''
import sympy
import torch._inductor.compile_fx
import torch._inductor.debug
import torch._inductor.graph
from torch._dynamo.source import ConstantSource
from torch._inductor.utils import BoxedBool
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy import functions as sympy_functions
from torch.utils._sympy.value_ranges import ValueRanges
from unittest import mock

SHAPE_ENV = ShapeEnv()
NAMED = {}
DIFFERENT = []


def make_symbols():
    for row in SYMBOLS:
        number = int("".join(c for c in row["name"] if c.isdigit()))
        with mock.patch.object(SHAPE_ENV, "_generate_unique_id", lambda source_name: number):
            made = SHAPE_ENV.create_symbol(
                row["value"], ConstantSource(row["name"]), DimDynamic.DYNAMIC,
                positive=row["positive"] or None, do_not_specialize_zero_one=True,
            )
        low = -sympy.oo if row["low"] is None else row["low"]
        high = sympy.oo if row["high"] is None else row["high"]
        if high is sympy.oo or low is -sympy.oo:
            default = SHAPE_ENV.var_to_range[made]
            low, high = default.lower if low is -sympy.oo else low, default.upper if high is sympy.oo else high
        SHAPE_ENV.var_to_range[made] = ValueRanges(low, high)
        NAMED[row["name"]] = made
    for guard in GUARDS:
        try:
            SHAPE_ENV.evaluate_expr(expression(guard))
        except Exception as error:
            say(f"guard {guard} not restored: {error}")


def expression(text):
    names = {k: v for k, v in vars(sympy_functions).items() if not k.startswith("_")}
    return sympy.sympify(text, locals={**names, **NAMED})


def sym(text, value):
    """A symbolic size of the lowered graph, with the value it had."""
    if not SYMBOLS:
        return value
    return SHAPE_ENV.create_symintnode(expression(text), hint=value)


def fake_input(example, mode):
    if not isinstance(example, dict):
        return example
    shape, stride, offset = example["shape"], example["stride"], example["offset"]
    dtype = getattr(torch, example["dtype"])
    with mode:
        if not isinstance(offset, int) or offset:
            size = offset + 1 + sum((n - 1) * s for n, s in zip(shape, stride))
            return torch.empty(size, dtype=dtype, device=example["device"]).as_strided(shape, stride, offset)
        return torch.empty_strided(shape, stride, dtype=dtype, device=example["device"])


def apply_metadata(graph_module):
    for path, nodes in metadata().items():
        target = graph_module
        for part in path.split(".") if path else ():
            target = getattr(target, part)
        for n in target.graph.nodes:
            n.meta.update(nodes.get(n.name, {}))


def lower():
    """Lowers exactly the graph above: no post-grad pass runs, and views stay views."""
    make_symbols()
    graph_module = build()
    mode = FakeTensorMode(shape_env=SHAPE_ENV, allow_non_fake_inputs=True)
    inputs = [fake_input(example, mode) for example in examples()]
    seen = []
    compile_fx, debug = torch._inductor.compile_fx, torch._inductor.debug
    reported = getattr(debug, TAP)
    record_strides = compile_fx._recursive_record_original_output_strides

    def tap(nodes):
        seen.append([ir_row(node) for node in nodes])
        return reported(nodes)

    def keep_strides(gm):
        record_strides(gm)
        apply_metadata(graph_module)

    off = {"use_post_grad_passes": False, "fx_graph_cache": False, "fx_graph_remote_cache": False}
    known = {k: v for k, v in CONFIG.items() if hasattr(torch._inductor.config, k)}
    apply_metadata(graph_module)
    with (
        torch._inductor.config.patch({**known, **off}),
        mock.patch.object(debug, TAP, tap),
        mock.patch.object(compile_fx, "view_to_reshape", lambda gm: None),
        mock.patch.object(torch._inductor.graph, "get_donated_idxs", lambda: DONATED_IDXS or None),
        mock.patch.object(compile_fx, "_recursive_record_original_output_strides", keep_strides),
    ):
        compiled = compile_fx.compile_fx_inner(
            graph_module, inputs, cudagraphs=BoxedBool(False), static_input_idxs=STATIC_INPUT_IDXS,
            is_backward=IS_BACKWARD, is_inference=IS_INFERENCE,
        )
    return compiled, seen[0] if seen else []


def plain(row):
    return json.loads(json.dumps(row))


def compare_ir(rows):
    rows, recorded = [plain(row) for row in rows], [plain(row) for row in RECORDED]
    for i in range(max(len(rows), len(recorded))):
        got = rows[i] if i < len(rows) else "nothing"
        want = recorded[i] if i < len(recorded) else "nothing"
        if got != want:
            DIFFERENT.append(i)
            say(f"scheduler node {i}: {got}\\n    recorded: {want}")
    say(f"IR {STAGE}: {len(recorded)} scheduler nodes, {len(DIFFERENT) or 'none'} different")


def graphprobe_run():
    torch.set_num_threads(NUM_THREADS)
    compiled, rows = lower()
    compare_ir(rows)
    return lambda args: compiled(list(args))


if __name__ == "__main__":
    sys.exit(main(graphprobe_run, METAS, __file__, PROBLEMS) or int(bool(DIFFERENT)))
'''


def ir_py_source(
    gm: fx.GraphModule,
    ir: IRGraph,
    *,
    title: str,
    stage: Literal["original", "optimized"],
    options: Mapping[str, Any],
    donated_idxs: Sequence[int],
    inputs: Sequence[object],
) -> Script:
    """A script that rebuilds the graph Inductor lowered and lowers it again.

    Run, it lowers `gm` with the settings that are in force now and with post-grad passes off, compares the scheduler's
    nodes (name, kind, fused members, outputs with dtype, shape, stride, device) with `ir`, then runs as `fx_py` scripts
    do. It exits 0 when both agree, 1 when either differs, 125 when it cannot run.

    Args:
        gm: the graph after the post-grad passes, as it was lowered.
        ir: the recorded scheduler nodes of the same, outermost graph.
        stage: `original` compares before fusion, `optimized` after.
        options: as given to `compile_fx_inner`.
        donated_idxs: inputs that a backward may overwrite (`internals.inductor_ir.donated_inputs()`).
        inputs: example inputs of the compile, fake tensors and symbolic numbers.
    """
    # Private torch is loaded only where Inductor ran.
    from graphprobe.internals.ir import scheduler_nodes as inductor_ir

    graph = GraphSource(gm)
    examples = _body("examples", "[", [_example(graph, value) for value in inputs], "]")
    metadata = _body("metadata", "{", _metadata(graph, gm, ""), "}")
    known, guards = inductor_ir.symbols(inputs)
    facts = {
        "STAGE": stage,
        "TAP": "log_ir_pre_fusion" if stage == "original" else "log_ir_post_fusion",
        "IS_INFERENCE": bool(options.get("is_inference")),
        "IS_BACKWARD": bool(options.get("is_backward")),
        "STATIC_INPUT_IDXS": list(options.get("static_input_idxs") or ()),
        "DONATED_IDXS": list(donated_idxs),
        "NUM_THREADS": torch.get_num_threads(),
        "CONFIG": dict(inductor_ir.config_overrides()),
        "GUARDS": guards,
    }
    head = preamble(title, graph, inputs)  # after every literal was made, so that it lists all problems
    settings = "".join(f"{name} = {value!r}\n" for name, value in facts.items())
    tables = f"SYMBOLS = {metas_text(known)}\nRECORDED = {metas_text(_rows(ir))}\n"
    data = settings + tables.rstrip()
    parts = [head.rstrip(), data, inductor_ir.rows_source().rstrip(), examples, metadata, LOWER.strip()]
    return Script(
        source="\n\n\n".join(parts) + "\n",
        constants=one_file_bytes(graph.tensors) if graph.tensors else None,
        problems=tuple(graph.problems),
    )


def _rows(ir: IRGraph) -> list[tuple[Any, ...]]:
    """The recorded nodes, as `rows_source` makes them of those of the run."""
    return [
        (
            node.name,
            node.kind,
            node.members,
            [(out.name, out.dtype, out.shape, out.stride, out.device) for out in node.outputs],
        )
        for node in ir.nodes
    ]


def _body(name: str, opening: str, lines: Sequence[str], closing: str) -> str:
    inside = "".join(f"        {line},\n" for line in lines)
    return f"def {name}():\n    return {opening}\n{inside}    {closing}"


def _example(graph: GraphSource, value: object) -> str:
    described: Any = value
    if isinstance(value, torch.Tensor):
        described = {
            "shape": list(value.shape),
            "stride": list(value.stride()),
            "offset": value.storage_offset(),
            "dtype": str(value.dtype).removeprefix("torch."),
            "device": str(value.device),
        }
    try:
        return graph.literals.text(described, {})
    except Unreproducible as reason:
        graph.problem(f"example input: {reason}")
        return "None"


def _metadata(graph: GraphSource, gm: fx.GraphModule, path: str) -> list[str]:
    """One line a graph: the metadata that lowering reads, by node; what has no literal is left out."""
    nodes = []
    for node in gm.graph.nodes:
        kept = []
        for key in NODE_META:
            if key in node.meta:
                try:
                    kept.append(f"{key!r}: {graph.literals.text(node.meta[key], {})}")
                except Unreproducible:
                    continue
        if kept:
            nodes.append(f"{node.name!r}: {{{', '.join(kept)}}}")
    lines = [f"{path!r}: {{{', '.join(nodes)}}}"] if nodes else []
    for name, child in gm.named_children():
        if isinstance(child, fx.GraphModule):
            lines += _metadata(graph, child, f"{path}.{name}" if path else name)
    return lines
