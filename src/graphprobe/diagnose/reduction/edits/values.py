"""Plainer values: zeros, ones, small integers, one value throughout, few significant bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule

from graphprobe.diagnose.reduction.edits.base import EditBase, EditPass, NotApplicable, tensor_at, tensors
from graphprobe.diagnose.reduction.edits.measure import rounded, value_rank

FILLS = {"zeros": 0, "ones": 1, "small": 2, "signed": 3, "uniform": 4, "single": 4, "bits4": 5, "bits8": 6}
"""Of a `Fill`, with the rank of such values; and `nonfinite`."""


class Fill(EditBase, frozen=True):
    """Tensors get plainer values; strides and shared memory stay.

    Integers stay between the least and the greatest value of their tensor and 0, so that indices stay valid.

    Attributes:
        inputs: positions.
        kind: `zeros`; `ones`; `small`: 1 to 5 in turn; `signed`: -3 to 3 in turn; `uniform`: the finite value of the
            largest magnitude everywhere; `single`: that value where it stands, zeros elsewhere; `bits4`, `bits8`:
            rounded to so many significant bits; `nonfinite`: the first NaN or infinity where it stands, zeros
            elsewhere.
    """

    inputs: tuple[int, ...]
    kind: str

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        """Write the values."""
        if self.kind not in FILLS and self.kind != "nonfinite":
            raise NotApplicable(f"{self}: there is no such kind")
        for i in self.inputs:
            _write(tensor_at(inputs, i), self.kind)
        return inputs


def _write(tensor: torch.Tensor, kind: str) -> None:
    if tensor.layout is not torch.strided:
        raise NotApplicable(f"a tensor of layout {tensor.layout}")
    target = tensor.detach()
    for d in range(target.ndim):
        if target.stride(d) == 0 and target.shape[d] > 1:
            target = target.narrow(d, 0, 1)
    if target.numel():
        target.copy_(_filled(target, kind))


def _filled(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """New values for a tensor that is not empty."""
    if tensor.is_complex():
        if kind not in ("zeros", "ones", "bits4", "bits8"):
            raise NotApplicable(f"complex values are never {kind}")
        if kind in ("zeros", "ones"):
            return torch.full_like(tensor, kind == "ones")
        parts = torch.view_as_real(tensor.resolve_conj())
        return torch.view_as_complex(_filled(parts, kind).contiguous())
    positions = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape)
    wide = tensor.to(torch.float64)
    if kind == "zeros":
        made = torch.zeros_like(wide)
    elif kind == "ones":
        made = torch.ones_like(wide)
    elif kind == "small":
        made = (positions % 5 + 1).to(torch.float64)
    elif kind == "signed":
        made = (positions % 7 - 3).to(torch.float64)
    elif kind in ("bits4", "bits8"):
        made = rounded(wide, int(kind.removeprefix("bits")))
    else:
        made = _one_value(wide, positions, kind)
    if tensor.dtype is torch.bool:
        return made.to(torch.int64) % 2 == 1
    if not tensor.is_floating_point():
        made = made.clamp(min(float(wide.min()), 0.0), max(float(wide.max()), 0.0))
    return made.to(tensor.dtype)


def _one_value(wide: torch.Tensor, positions: torch.Tensor, kind: str) -> torch.Tensor:
    finite = torch.isfinite(wide)
    if kind == "nonfinite":
        if bool(finite.all()):
            raise NotApplicable("all values are finite")
        at = int((~finite).reshape(-1).to(torch.int8).argmax())
    else:
        at = int(torch.where(finite, wide.abs(), -1.0).reshape(-1).argmax())
    value = wide.reshape(-1)[at]
    if kind == "uniform":
        return torch.full_like(wide, float(value))
    return torch.where(positions == at, value, 0.0)


def _candidates(graph: GraphModule, inputs: list[Any]) -> Iterator[EditBase]:
    every = [i for i in tensors(inputs) if inputs[i].numel()]
    floating = [i for i in every if inputs[i].is_floating_point() or inputs[i].is_complex()]
    ranks = {i: value_rank(inputs[i]) for i in every}
    groups = list(dict.fromkeys([tuple(every), tuple(floating)]))
    groups = [group for group in groups if len(group) > 1] + [(i,) for i in every]
    for group in groups:
        for kind, rank in FILLS.items():
            simpler = tuple(i for i in group if ranks[i] > rank)
            if simpler and (len(simpler) == len(group) or len(group) > 1):
                yield Fill(simpler, kind)
        spoiled = tuple(i for i in group if i in floating and not bool(torch.isfinite(inputs[i]).all()))
        if spoiled:
            yield Fill(spoiled, "nonfinite")
            yield from (Fill(spoiled, kind) for kind in ("zeros", "ones"))


PASS = EditPass("values", _candidates)
