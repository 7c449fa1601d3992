"""The plain tensor inside one that wraps it: the part of a DTensor on this rank, the values of a nested tensor."""

from __future__ import annotations

import sys

import torch


def local_of(tensor: torch.Tensor) -> tuple[torch.Tensor, str]:
    """The plain tensor that holds the values, and a note that says what is recorded; any other tensor as it is, and no
    note."""
    if tensor.layout is torch.jagged:
        values = getattr(tensor, "_values", None)
        if isinstance(values, torch.Tensor):
            return values, "a nested tensor: what is recorded are the values of all its parts, one after the other"
        return tensor, ""
    module = sys.modules.get("torch.distributed.tensor")  # where nobody has loaded it, there is no DTensor
    kind = getattr(module, "DTensor", None)
    if kind is None or not isinstance(tensor, kind):
        return tensor, ""
    local = getattr(tensor, "_local_tensor", None)
    if not isinstance(local, torch.Tensor):
        return tensor, ""
    placed = ", ".join(str(placement) for placement in getattr(tensor, "placements", ()))
    return local, f"a DTensor {list(tensor.shape)} ({placed}): what is recorded is the part of this rank"
