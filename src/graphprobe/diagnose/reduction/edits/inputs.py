"""Fewer and plainer inputs: attributes become inputs, alike ones one; no gradients; memory of their own, contiguous."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule

from graphprobe.diagnose.reduction.edits.base import (
    EditBase,
    EditPass,
    NotApplicable,
    is_number,
    placeholders,
    shares,
    tensor_at,
    tensors,
    together,
)
from graphprobe.diagnose.reduction.edits.measure import is_strided, read_from, sharing
from graphprobe.engine.interpret import copy_tensor


class Lift(EditBase, frozen=True):
    """Tensors that the graph reads from its module become inputs, behind the others, in this order.

    Each call gets a copy of what the attribute holds: what one call writes is not seen by the next.
    """

    attributes: tuple[str, ...]  # targets, as in the graph

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        found = read_from(graph, torch.Tensor)
        values = list(inputs)
        for target in self.attributes:
            if target not in found:
                raise NotApplicable(f"{self}: the graph reads no tensor {target}")
            before = placeholders(graph)
            first = next(iter(graph.graph.nodes))
            spot = graph.graph.inserting_after(before[-1]) if before else graph.graph.inserting_before(first)
            with spot:
                placeholder = graph.graph.placeholder(target.replace(".", "_"))
            for node in [n for n in graph.graph.nodes if n.op == "get_attr" and n.target == target]:
                node.replace_all_uses_with(placeholder)
                graph.graph.erase_node(node)
            values.append(copy_tensor(found[target]).requires_grad_(found[target].requires_grad))
        return values


class _OfInputs(EditBase, frozen=True):
    inputs: tuple[int, ...]  # positions


class DropInput(_OfInputs, frozen=True):
    """Inputs that nothing uses are dropped."""

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        nodes = placeholders(graph)
        for i in self.inputs:
            if i >= len(nodes) or nodes[i].users:
                raise NotApplicable(f"{self}: input {i} is used, or not there")
            graph.graph.erase_node(nodes[i])
        return [v for i, v in enumerate(inputs) if i not in self.inputs]


class Merge(EditBase, frozen=True):
    """Everything that used the second input uses the first one, and the second one is dropped.

    Attributes:
        first, second: positions of tensors of one shape, dtype, layout and device, or of equal numbers.
    """

    first: int
    second: int

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        nodes = placeholders(graph)
        if not 0 <= self.first < self.second < len(nodes):
            raise NotApplicable(f"{self}: there are {len(nodes)} inputs")
        if _look(inputs[self.first]) != _look(inputs[self.second]):
            raise NotApplicable(f"{self}: the inputs do not look the same")
        nodes[self.second].replace_all_uses_with(nodes[self.first])
        graph.graph.erase_node(nodes[self.second])
        return [v for i, v in enumerate(inputs) if i != self.second]


def _look(value: Any) -> tuple[Any, ...]:
    """What two inputs must have in common to be merged."""
    if isinstance(value, torch.Tensor):
        stride = value.stride() if value.layout is torch.strided else ()
        return (value.shape, value.dtype, value.layout, stride, value.device, value.requires_grad)
    return (type(value), value) if is_number(value) else (id(value),)


class DropGrad(_OfInputs, frozen=True):
    """Inputs require no gradients."""

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        for i in self.inputs:
            inputs[i] = tensor_at(inputs, i).detach()
        return inputs


class Contiguous(_OfInputs, frozen=True):
    """Inputs become contiguous tensors at the beginning of a storage of just their size; expanded dims are filled."""

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        for i in self.inputs:
            value = tensor_at(inputs, i)
            if value.layout is not torch.strided:
                raise NotApplicable(f"{self}: input {i} has layout {value.layout}")
            if shares(inputs, i):
                raise NotApplicable(f"{self}: input {i} shares its memory")
        return [_own(v, torch.contiguous_format) if i in self.inputs else v for i, v in enumerate(inputs)]


class Unshare(_OfInputs, frozen=True):
    """Inputs get memory of their own; their strides stay where they have no gaps."""

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        for i in self.inputs:
            tensor_at(inputs, i)
        return [_own(v, torch.preserve_format) if i in self.inputs else v for i, v in enumerate(inputs)]


def _own(value: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
    return value.detach().resolve_conj().clone(memory_format=layout).requires_grad_(value.requires_grad)


def _alike(graph: GraphModule, inputs: list[Any]) -> Iterator[EditBase]:
    looks = [_look(value) for value in inputs]
    for second in range(1, len(inputs)):
        alike = [first for first in range(second) if looks[first] == looks[second]]
        yield from (Merge(first, second) for first in dict.fromkeys([*alike[:1], *alike[-1:]]))


def _layouts(graph: GraphModule, inputs: list[Any]) -> Iterator[EditBase]:
    yield from together(Unshare, [i for i, first in sharing(inputs).items() if first != i])
    yield from together(Contiguous, [i for i in sharing(inputs) if is_strided(inputs[i]) and not shares(inputs, i)])


ATTRIBUTES = EditPass("attributes", lambda graph, inputs: together(Lift, list(read_from(graph, torch.Tensor))))
UNUSED = EditPass(
    "unused_inputs",
    lambda graph, inputs: together(DropInput, [i for i, node in enumerate(placeholders(graph)) if not node.users]),
)
MERGE = EditPass("merge", _alike)
GRADIENTS = EditPass(
    "requires_grad", lambda graph, inputs: together(DropGrad, [i for i in tensors(inputs) if inputs[i].requires_grad])
)
STRIDES = EditPass("strides", _layouts)
