"""Fewer inputs that require gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.fx import GraphModule

from graphprobe.diagnose.reduction.edits.base import EditBase, EditPass, tensor_at, tensors


class DropGrad(EditBase, frozen=True):
    """Inputs require no gradients.

    Attributes:
        inputs: positions.
    """

    inputs: tuple[int, ...]

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        """Clear the flags."""
        for i in self.inputs:
            inputs[i] = tensor_at(inputs, i).detach()
        return inputs


def _candidates(graph: GraphModule, inputs: list[Any]) -> Iterator[EditBase]:
    asking = [i for i in tensors(inputs) if inputs[i].requires_grad]
    if len(asking) > 1:
        yield DropGrad(tuple(asking))
    yield from (DropGrad((i,)) for i in asking)


PASS = EditPass("requires_grad", _candidates)
