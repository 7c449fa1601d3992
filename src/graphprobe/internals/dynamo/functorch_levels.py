"""Which of Dynamo's nodes begin and end a transform of `torch.func`, or wrap a value for it."""

from __future__ import annotations

from torch.fx import Graph

LEVELS = ("torch._functorch", "torch._C._functorch", "torch.autograd.forward_ad")
"""Modules of the functions that Dynamo puts around what is transformed, as prefixes."""


def has_levels(graph: Graph) -> bool:
    """Whether values of the graph live in levels of `vmap`, `grad`, `jvp` or what is made of them."""
    return any(
        n.op == "call_function" and str(getattr(n.target, "__module__", "")).startswith(LEVELS) for n in graph.nodes
    )
