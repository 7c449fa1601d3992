"""Lowering or code generation: is Inductor's IR of an op right already, or is it right and its code wrong?"""

from __future__ import annotations

import torch

from graphprobe.diagnose.local import local_error
from graphprobe.diagnose.suspects import Suspect
from graphprobe.engine.interpret import copied_together
from graphprobe.engine.subgraph import extract
from graphprobe.findings import Stage
from graphprobe.internals.ir_eval import evaluate_ir


def stage_of(suspect: Suspect) -> Stage:
    """`lowering` when the IR of the op, evaluated in plain torch, is wrong; `codegen` when it is right.

    An op whose IR cannot be evaluated, a template or a call into a library, was chosen by its lowering.
    """
    try:
        graph, inputs = extract(suspect.graph, {suspect.node}, suspect.values)
        values = evaluate_ir(graph, copied_together(inputs))
    except Exception:  # a lowering that raises, or an IR that the evaluator does not know
        return "lowering"
    if values.dtypes or values.faults:
        return "lowering"
    if any(value is None for value in values.outputs) or values.unsupported:
        return "lowering"

    def call(*args: object) -> object:
        return graph(*args)

    error = local_error(suspect.op, call, inputs, {}, list(values.outputs))
    if error.answer not in ("ok", "better", "unsure"):
        return "lowering"
    # The IR was made for these very sizes. Where a graph must do for others too, lowering decides what hangs on them.
    return "lowering" if _is_dynamic(suspect) and not suspect.wrong_alone else "codegen"


def _is_dynamic(suspect: Suspect) -> bool:
    placeholders = [n for n in suspect.graph.graph.nodes if n.op == "placeholder"]
    return any(isinstance(n.meta.get("val"), torch.SymInt) for n in placeholders)
