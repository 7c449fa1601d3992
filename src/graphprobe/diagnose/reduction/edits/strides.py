"""Plain layouts: memory of its own for each input, contiguous."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule

from graphprobe.diagnose.reduction.edits.base import EditBase, EditPass, NotApplicable, shares, sharing, tensor_at
from graphprobe.diagnose.reduction.edits.measure import is_strided


class Contiguous(EditBase, frozen=True):
    """Inputs become contiguous tensors at the beginning of a storage of just their size; expanded dims are filled.

    Attributes:
        inputs: positions of tensors that share memory with no other input.
    """

    inputs: tuple[int, ...]

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        """Copy the tensors."""
        for i in self.inputs:
            value = tensor_at(inputs, i)
            if value.layout is not torch.strided:
                raise NotApplicable(f"{self}: input {i} has layout {value.layout}")
            if shares(inputs, i):
                raise NotApplicable(f"{self}: input {i} shares its memory")
        return [_own(v, torch.contiguous_format) if i in self.inputs else v for i, v in enumerate(inputs)]


class Unshare(EditBase, frozen=True):
    """Inputs get memory of their own; their strides stay where they have no gaps.

    Attributes:
        inputs: positions.
    """

    inputs: tuple[int, ...]

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        """Copy the tensors."""
        for i in self.inputs:
            tensor_at(inputs, i)
        return [_own(v, torch.preserve_format) if i in self.inputs else v for i, v in enumerate(inputs)]


def _own(value: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
    return value.detach().resolve_conj().clone(memory_format=layout).requires_grad_(value.requires_grad)


def _candidates(graph: GraphModule, inputs: list[Any]) -> Iterator[EditBase]:
    later = [i for i, first in sharing(inputs).items() if first != i]
    if len(later) > 1:
        yield Unshare(tuple(later))
    yield from (Unshare((i,)) for i in later)
    strided = [i for i in sharing(inputs) if is_strided(inputs[i]) and not shares(inputs, i)]
    if len(strided) > 1:
        yield Contiguous(tuple(strided))
    yield from (Contiguous((i,)) for i in strided)


PASS = EditPass("strides", _candidates)
