"""Fewer inputs: two that look the same become one, and what nothing uses is dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule

from graphprobe.diagnose.reduction.edits.base import EditBase, EditPass, NotApplicable, is_number, placeholders


class Merge(EditBase, frozen=True):
    """Everything that used the second input uses the first one, and the second one is dropped.

    Attributes:
        first, second: positions of tensors of one shape, dtype, layout and device, or of equal numbers.
    """

    first: int
    second: int

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        """Replace and drop."""
        nodes = placeholders(graph)
        if not 0 <= self.first < self.second < len(nodes):
            raise NotApplicable(f"{self}: there are {len(nodes)} inputs")
        if _look(inputs[self.first]) != _look(inputs[self.second]):
            raise NotApplicable(f"{self}: the inputs do not look the same")
        nodes[self.second].replace_all_uses_with(nodes[self.first])
        graph.graph.erase_node(nodes[self.second])
        return [v for i, v in enumerate(inputs) if i != self.second]


class DropInput(EditBase, frozen=True):
    """Inputs that nothing uses are dropped.

    Attributes:
        inputs: positions.
    """

    inputs: tuple[int, ...]

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        """Drop them."""
        nodes = placeholders(graph)
        for i in self.inputs:
            if i >= len(nodes) or nodes[i].users:
                raise NotApplicable(f"{self}: input {i} is used, or not there")
            graph.graph.erase_node(nodes[i])
        return [v for i, v in enumerate(inputs) if i not in self.inputs]


def _look(value: Any) -> tuple[Any, ...]:
    """What two inputs must have in common to be merged."""
    if isinstance(value, torch.Tensor):
        stride = value.stride() if value.layout is torch.strided else ()
        return (value.shape, value.dtype, value.layout, stride, value.device, value.requires_grad)
    return (type(value), value) if is_number(value) else (id(value),)


def _unused(graph: GraphModule, inputs: list[Any]) -> Iterator[EditBase]:
    found = [i for i, node in enumerate(placeholders(graph)) if not node.users]
    if len(found) > 1:
        yield DropInput(tuple(found))
    yield from (DropInput((i,)) for i in found)


def _alike(graph: GraphModule, inputs: list[Any]) -> Iterator[EditBase]:
    looks = [_look(value) for value in inputs]
    for second in range(1, len(inputs)):
        alike = [first for first in range(second) if looks[first] == looks[second]]
        yield from (Merge(first, second) for first in dict.fromkeys([*alike[:1], *alike[-1:]]))


UNUSED = EditPass("unused_inputs", _unused)
PASS = EditPass("merge", _alike)
