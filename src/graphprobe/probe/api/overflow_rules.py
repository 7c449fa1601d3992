"""Which infinities an operator of an eager program makes on purpose: the rules of graphs, for one operator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from graphprobe.internals.operators.eager_ops import EagerOp
from graphprobe.probe.dump.infinities import BOTH, MASK, NOTHING, Signs, largest, tables
from graphprobe.probe.dump.traits import NONE, OpTraits

_MOST_VALUES = 1 << 24
"""A larger tensor is not looked through for being a mask of ones and zeros."""


def traits_of(op: EagerOp, inputs: Sequence[tuple[str, Any]], outputs: Sequence[tuple[str, Any]]) -> OpTraits:
    """What is meant of the outputs of `op`, read from its arguments and from the values of its inputs.

    An input that holds the largest or the lowest number of its dtype, or an infinity, is such a value on purpose: had
    an operator before it made it, the rules for values that an origin has spoiled would apply.

    Args:
        op: after it has run.
        inputs: its tensors by slot, as they were before.
        outputs: its tensors by slot.
    """
    if not outputs:
        return NONE
    graph, whole = Graph(), dict[Node, Signs]()
    before = {slot: value for slot, value in inputs if isinstance(value, torch.Tensor)}

    def of(slot: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            value = before.get(slot, value)
            # A node without inputs is what the rules take for a constant, whose signs are looked up.
            node = graph.call_function(torch.full, ((), 0.0))
            node.meta["val"] = value
            whole[node] = _signs_of(value)
            return node
        if isinstance(value, (list, tuple)):
            return [of(f"{slot}.{index}", item) for index, item in enumerate(value)]
        return value if isinstance(value, (bool, int, float, type(None))) else None

    args = tuple(of(f"input.{index}", value) for index, value in enumerate(op.args))
    kwargs = {name: of(f"kwarg.{name}", value) for name, value in op.kwargs.items()}
    node = graph.call_function(op.target, args, kwargs)
    node.meta["val"] = outputs[0][1]
    try:
        table = tables([node], whole)[node]
    except Exception:  # arguments of a kind that the rules do not know: then nothing is said against the operator
        table = (BOTH, BOTH, BOTH, BOTH)
    return OpTraits(infinities={"": table})


def _signs_of(tensor: torch.Tensor) -> Signs:
    if tensor.dtype == torch.bool:
        return MASK
    if not tensor.is_floating_point() or not tensor.numel():
        return NOTHING
    values = tensor.detach()
    if values.element_size() == 1:
        values = values.to(torch.float32)
    limit = largest(tensor.dtype)
    if math.isinf(limit):
        return NOTHING
    known = torch.nan_to_num(values, nan=0.0, posinf=math.inf, neginf=-math.inf)
    low, high = float(known.amin()), float(known.amax())
    if low == 0 and high == 1 and tensor.numel() <= _MOST_VALUES and bool(((known == 0) | (known == 1)).all()):
        return MASK
    return frozenset("+" * (high >= limit) + "-" * (low <= -limit))
