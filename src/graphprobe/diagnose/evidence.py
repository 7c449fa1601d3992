"""The evidence that names a stage: a failing case, run with the compiler stopped after each of its stages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import torch
from torch.fx import GraphModule

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.check_case import check, program_of, settings_of
from graphprobe.diagnose.exceptions import Origin
from graphprobe.diagnose.local import local_error
from graphprobe.diagnose.rungs import Watch, graphs_rung, kernel_rung, run_program
from graphprobe.diagnose.settings import Compilation
from graphprobe.engine.forked_child import isolated
from graphprobe.engine.interpret import copied_together, flat_outputs, run_graph
from graphprobe.engine.subgraph import output_node
from graphprobe.engine.values import same_bits
from graphprobe.errors import UnsupportedTorchError
from graphprobe.findings import Kind
from graphprobe.internals.caches import bypassed
from graphprobe.internals.operators.operators import decomposed_while_traced
from graphprobe.internals.tensors import tree_leaves
from graphprobe.judge.judging import Difference
from graphprobe.judge.stage_table import GRAPHS, Evidence, Graphs, Loops
from graphprobe.judge.uncompiled import Reference

log = logging.getLogger(__name__)

RAISED: tuple[Kind, ...] = ("crash_compile", "crash_runtime", "extra_exception")
DEATHS: tuple[Kind, ...] = ("segfault", "hang")


class Seen(msgspec.Struct):
    """What a child process saw: where an exception came from, what the IR computes, and whether sizes are symbols.

    `lost`: why it could not look.
    """

    origin: Origin | None = None
    loops: Loops | None = None
    dynamic: bool = False
    lost: str = ""


def evidence_of(
    case: Case, kind: Kind, reference: Reference, compilation: Compilation, *, op: str | None, alone: bool = True
) -> Evidence:
    """Run a case that fails at each point of the pipeline, the first ones first, and look at what comes after them.

    Args:
        kind: how it fails.
        op: the accused operation.
        alone: it is wrong when compiled by itself.
    """
    if not compilation.is_inductor:
        wrong: Graphs | None = "aot" if compilation.is_aot_eager else None
        wrong = "dynamo" if _fails(case, "dynamo", kind, reference, compilation) else wrong
        return Evidence(kind, wrong, inductor=False, traced_away=bool(op) and decomposed_while_traced(str(op)))
    if case.caches:
        return Evidence(kind, cached=True)
    wrong = next((point for point in GRAPHS if _fails(case, point, kind, reference, compilation)), None)
    traced_away = bool(op) and len(case.calls) == 1 and decomposed_while_traced(str(op))
    if wrong is not None and kind not in RAISED:
        return Evidence(kind, wrong, traced_away=traced_away)
    seen = _seen(lambda: _evaluate(case, compilation), compilation)
    origin = _seen(lambda: _raise(case, compilation), compilation).origin if kind in RAISED else None
    raised_in = origin.stage if origin is not None else None
    found = Evidence(kind, wrong, True, seen.loops, raised_in, traced_away, seen.dynamic, alone)
    return replace(found, lost=f"Inductor's IR was not evaluated: {seen.lost}." if seen.lost else "")


def _seen(look: Callable[[], Seen], compilation: Compilation) -> Seen:
    outcome = isolated(look, timeout_s=compilation.timeout_s)
    if outcome.value is not None:
        return msgspec.convert(outcome.value, Seen)
    return Seen(lost=outcome.raised.line if outcome.raised is not None else outcome.end)


def _fails(case: Case, point: Graphs, kind: Kind, reference: Reference, compilation: Compilation) -> bool:
    limit = compilation.timeout_s
    result = check(case, timeout_s=limit, reference=reference, backend=lambda: graphs_rung(Watch(), point), repeats=1)
    return result.died is not None or alike(kind, result.differences)


def alike(kind: Kind, found: list[Difference]) -> bool:
    """Whether a point fails in the way that is looked for: an exception is another failure than a wrong value."""
    certain = [d for d in found if d.certain]
    if kind in RAISED or kind in DEATHS:
        return any(d.kind in RAISED for d in certain)
    return any(d.kind not in RAISED for d in certain)


def _evaluate(case: Case, compilation: Compilation) -> Seen:
    """Is Inductor's IR of each graph right? Nothing is compiled, so that no kernel can end the process."""
    watch = Watch()
    with bypassed(), settings_of(case):
        run_program(program_of(case), compilation, graphs_rung(watch, "post_grad"))
        answers = [loops_of(graph.graph, inputs) for graph in watch.graphs for inputs in graph.inputs[:1]]
    order: tuple[Loops, ...] = ("wrong", "unknown", "right")
    worst = next((answer for answer in order if answer in answers), None)
    formal = [n for graph in watch.graphs for n in graph.graph.graph.nodes if n.op == "placeholder"]
    return Seen(None, worst, any(isinstance(n.meta.get("val"), torch.SymInt) for n in formal))


def _raise(case: Case, compilation: Compilation) -> Seen:
    """Compile to the end: where does the exception come from?"""
    with bypassed(), settings_of(case):
        return Seen(run_program(program_of(case), compilation, kernel_rung(Watch(), expose=False)).origin)


def loops_of(graph: GraphModule, inputs: list[Any]) -> Loops:
    """What Inductor's IR of a graph computes, evaluated in plain torch, held against the graph run op by op."""
    from graphprobe.internals.ir.evaluation import evaluate_ir  # imports Inductor, which takes seconds

    if run_graph(graph, inputs).failed is not None:
        return "right"  # what an op checks by itself is nothing that loops could say
    try:
        values = evaluate_ir(graph, copied_together(inputs))
    except UnsupportedTorchError:  # another torch: that is no property of the graph, and is told
        raise
    except Exception as error:  # a lowering that raises, or an IR that the evaluator does not know
        log.info("the IR was not evaluated: %s: %s", type(error).__name__, error)
        return "unknown"
    if values.dtypes or values.faults:
        return "wrong"
    returned = tree_leaves(output_node(graph).args[0])
    lost = any(value is None and node is not None for value, node in zip(values.outputs, returned, strict=False))
    if lost or values.unsupported:
        return "unknown"

    placeholders = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
    written = [placeholders.index(name) for name in values.mutated if name in placeholders]

    def call(*args: Any) -> Any:
        return [*flat_outputs(graph(*args)), *(args[i] for i in written)]

    got = [*values.outputs, *(values.mutated[placeholders[i]] for i in written)]
    found = local_error("graph", call, copied_together(inputs), {}, got)
    if found.answer in ("unsure", "skipped"):
        return "right" if not same_bits(call(*copied_together(inputs)), got) else "unknown"
    return "right" if found.answer in ("ok", "better") else "wrong"
