"""Turns Dynamo's graphs into a form that pieces can be cut out of and compiled again.

Transforms of `torch.func` become the ATen ops that they lead to. Inside of one (`vmap`, `grad`, `jvp` and what is made
of them) values are wrapped in levels that exist only while it runs: they cannot be saved, and no piece of the graph can
be cut out there. AOTAutograd traces through the transforms, so that its graph is the same program.

Floats that are inputs become constants: with dynamic shapes a float of a module (the momentum of a batch norm) is a
tensor that `item` makes a number of, which Dynamo does not trace a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from graphprobe.diagnose.reduction.edits.measure import set_constant
from graphprobe.engine.forked_child import isolated
from graphprobe.engine.values import CapturedValues
from graphprobe.internals.inductor.stages import copy_graph
from graphprobe.internals.tensors import has_levels

BEFORE_ATEN = ("dynamo", "pre_grad")
"""Stages that work on Dynamo's own graph, whose transforms are not traced through."""


def without_transforms(graph: GraphModule, calls: Sequence[CapturedValues]) -> GraphModule:
    """The graph, or where it has transforms one of the ATen ops that the last of `calls` leads to.

    One that cannot be traced stays as it is. Nothing is computed. Source lines and modules of the nodes are kept.
    """
    if not calls or not has_levels(graph.graph):
        return graph

    def run(*args: Any) -> Any:
        with preserve_node_meta():
            return Interpreter(graph).run(*args)

    def traced() -> GraphModule:
        inputs = [v.detach() if isinstance(v, torch.Tensor) else v for v in calls[-1].restore()]
        return make_fx(run, tracing_mode="fake")(*inputs)

    if isolated(lambda: bool(traced())).died:  # tracing itself ends the process
        return graph
    try:
        return traced()
    except Exception:  # an op that tracing has no rule for; then what can be done with the graph as it is
        return graph


def with_plain_floats(graph: GraphModule, calls: Sequence[CapturedValues]) -> GraphModule:
    """The graph, with the floats that are inputs as the numbers that they are, where all calls have the same."""

    def reads(gm: GraphModule) -> list[tuple[int, Node]]:
        places = [n for n in gm.graph.nodes if n.op == "placeholder"]
        return [(i, n) for i, p in enumerate(places) for n in p.users if n.op == "call_method" and n.target == "item"]

    if not calls or not reads(graph):
        return graph
    made, rows = copy_graph(graph), [call.restore() for call in calls]
    for i, node in reads(made):
        numbers = {row[i].item() for row in rows if isinstance(row[i], torch.Tensor) and row[i].numel() == 1}
        number = numbers.pop() if len(numbers) == 1 else None
        if not isinstance(number, float):
            continue
        set_constant(node, number)
        made.graph.erase_node(node)
    made.recompile()
    return made
