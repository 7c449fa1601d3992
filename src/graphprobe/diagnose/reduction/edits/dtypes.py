"""Plainer dtypes: float32 and int64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule

from graphprobe.diagnose.reduction.edits.base import (
    EditBase,
    EditPass,
    NotApplicable,
    set_attribute,
    shares,
    tensor_at,
    tensor_attributes,
    tensors,
)
from graphprobe.diagnose.reduction.edits.literals import put_everywhere
from graphprobe.diagnose.reduction.edits.measure import rank_of


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Cast(EditBase, frozen=True):
    """Tensors of one dtype get another; rounded where it holds fewer bits.

    Attributes:
        source, dtype: names, e.g. `bfloat16`, `float32`.
        inputs: positions; empty: all inputs and attributes of dtype `source`.
        literals: where the graph itself names `source`, it names `dtype` afterwards.
    """

    source: str
    dtype: str
    inputs: tuple[int, ...] = ()
    literals: bool = False

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        """Convert the tensors."""
        source, dtype = getattr(torch, self.source), getattr(torch, self.dtype)
        chosen = self.inputs or [i for i in tensors(inputs) if inputs[i].dtype == source]
        for i in chosen:
            value = tensor_at(inputs, i)
            if value.dtype != source:
                raise NotApplicable(f"{self}: input {i} is {value.dtype}")
            if shares(inputs, i):
                raise NotApplicable(f"{self}: input {i} shares its memory")
        values = [_converted(v, dtype) if i in chosen else v for i, v in enumerate(inputs)]
        if not self.inputs:
            for target, tensor in tensor_attributes(graph).items():
                if tensor.dtype == source:
                    made: torch.Tensor = _converted(tensor, dtype)
                    if isinstance(tensor, torch.nn.Parameter):
                        made = torch.nn.Parameter(made.detach(), tensor.requires_grad)
                    set_attribute(graph, target, made)
        if self.literals:
            put_everywhere(graph, lambda value: dtype if value is source else value)
        return values


def _converted(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """In another dtype, with the same strides where they have no gaps."""
    return value.detach().to(dtype).requires_grad_(value.requires_grad)


def plain(dtype: torch.dtype) -> torch.dtype:
    """The plainest dtype of the same kind."""
    if dtype.is_complex:
        return torch.complex64
    if dtype.is_floating_point:
        return torch.float32
    return torch.bool if dtype is torch.bool else torch.int64


def _candidates(graph: GraphModule, inputs: list[Any]) -> Iterator[EditBase]:
    every = [inputs[i].dtype for i in tensors(inputs)] + [t.dtype for t in tensor_attributes(graph).values()]
    sources = [d for d in dict.fromkeys(every) if plain(d) is not d and rank_of(plain(d)) < rank_of(d)]
    for source in sources:
        for literals in (True, False):
            yield Cast(_name(source), _name(plain(source)), literals=literals)
    for i in tensors(inputs):
        if inputs[i].dtype in sources:
            yield Cast(_name(inputs[i].dtype), _name(plain(inputs[i].dtype)), inputs=(i,))


PASS = EditPass("dtypes", _candidates)
