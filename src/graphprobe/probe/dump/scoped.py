"""Whether a program marked an op for the dump, with `graphprobe.scope.data_dump`."""

from __future__ import annotations

from torch.fx import Node

from graphprobe.scope import KEY


def is_scoped(node: Node) -> bool:
    """Whether the op, or for a gradient the op that it is the gradient of, was traced in a `data_dump` block.

    The mark goes along from Dynamo's graph to those of AOTAutograd, forward and backward, and through decompositions
    and Inductor's passes. An op that the partitioner computes again in the backward is marked there, too. Graph inputs
    and constants are not: they are dumped with the ops that read them.
    """
    custom = node.meta.get("custom")
    return node.op not in ("placeholder", "get_attr", "output") and isinstance(custom, dict) and KEY in custom
