"""Identity of a graph with its inputs: equal for cases that are built alike and hold the same bits, whatever names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch.fx import GraphModule, Node

from graphprobe.engine.naming import op_of
from graphprobe.engine.replay import flat_bits
from graphprobe.engine.subgraph import attribute
from graphprobe.engine.values import why_not
from graphprobe.store.files import digest_from_bytes


def structure(gm: GraphModule) -> list[Any]:
    """A graph without its names: operations, arguments by number, attributes by content."""
    numbers: dict[Node, int] = {}
    rows: list[Any] = []
    for node in gm.graph.nodes:
        target: Any = None
        if node.op in ("call_function", "call_method"):
            target = op_of(node)
        elif node.op in ("get_attr", "call_module"):
            target = of_attribute(attribute(gm, node.target))
        rows.append([node.op, target, _plain(node.args, numbers), _plain(dict(node.kwargs), numbers)])
        numbers[node] = len(numbers)
    return rows


def of_attribute(value: Any) -> Any:
    """What identifies an attribute: a tensor's bits, a graph's structure, a module's text and state."""
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if isinstance(value, GraphModule):
        return structure(value)
    if isinstance(value, torch.nn.Module):
        return [type(value).__qualname__, repr(value), {k: of_tensor(v) for k, v in value.state_dict().items()}]
    return repr(value)


def of_tensor(value: torch.Tensor) -> list[Any]:
    """Dtype, shape, strides, place and bits."""
    bits = digest_from_bytes(flat_bits(value.cpu()).numpy().tobytes()) if why_not(value) is None else repr(value)
    return [str(value.dtype), list(value.shape), list(value.stride()), str(value.device), value.requires_grad, bits]


def of_value(value: Any) -> Any:
    """What identifies one input."""
    return of_tensor(value) if isinstance(value, torch.Tensor) else repr(value)


def combined(*parts: Any) -> str:
    """One digest of plain values."""
    return digest_from_bytes(msgspec.json.encode(parts))


def _plain(value: Any, numbers: Mapping[Node, int]) -> Any:
    if isinstance(value, Node):
        return {"node": numbers[value]}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *(_plain(item, numbers) for item in value)]
    if isinstance(value, dict):
        return {str(k): _plain(v, numbers) for k, v in value.items()}
    if isinstance(value, slice):
        return ["slice", *(_plain(v, numbers) for v in (value.start, value.stop, value.step))]
    return repr(value)


def sharing(inputs: Sequence[Any]) -> list[int]:
    """For each input, the first one with the same memory."""
    first: dict[int, int] = {}
    found = []
    for i, value in enumerate(inputs):
        strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
        key = value.untyped_storage().data_ptr() if strided else 0
        found.append(first.setdefault(key, i) if key else i)
    return found
