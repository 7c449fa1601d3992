"""Dynamo's graphs without the transforms of `torch.func`: what they do to the ops, in ATen ops.

Inside of a transform (`vmap`, `grad`, `jvp` and what is made of them) values are wrapped in levels that exist only
while it runs: they cannot be saved, and no piece of the graph can be cut out there. AOTAutograd traces through the
transforms, so that from there on a graph of the ATen ops that they lead to is the same program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from graphprobe.diagnose.prove import DynamoGraph

LEVELS = ("torch._functorch", "torch._C._functorch", "torch.autograd.forward_ad")
"""Modules whose functions begin and end a transform, or wrap a value."""


def has_transforms(graph: GraphModule) -> bool:
    """Whether a node of the graph begins or ends a level of a transform."""
    return any(
        n.op == "call_function" and str(getattr(n.target, "__module__", "")).startswith(LEVELS)
        for n in graph.graph.nodes
    )


def without_transforms(graphs: Sequence[DynamoGraph]) -> list[DynamoGraph]:
    """Each graph, or where it has transforms the graph of ATen ops that its last recorded call runs.

    One that cannot be traced stays as it is. Source lines and modules of the nodes are kept.
    """
    return [_traced(g) if g.calls and has_transforms(g.graph) else g for g in graphs]


def _traced(graph: DynamoGraph) -> DynamoGraph:
    def run(*args: Any) -> Any:
        with preserve_node_meta():
            return Interpreter(graph.graph).run(*args)

    try:
        inputs = [v.detach() if isinstance(v, torch.Tensor) else v for v in graph.calls[-1].restore()]
        traced = make_fx(run)(*inputs)
    except Exception:  # an op that tracing has no rule for; then what can be done with the graph as it is
        return graph
    found = DynamoGraph(traced, graph.calls)
    found.logs = graph.logs
    return found
