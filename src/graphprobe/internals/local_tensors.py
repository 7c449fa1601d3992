"""The part of a distributed tensor that this process has."""

from __future__ import annotations

import sys

import torch


def local_of(tensor: torch.Tensor) -> tuple[torch.Tensor, str]:
    """The local tensor of a DTensor and a note that says so; any other tensor as it is, and no note."""
    module = sys.modules.get("torch.distributed.tensor")  # where nobody has loaded it, there is no DTensor
    kind = getattr(module, "DTensor", None)
    if kind is None or not isinstance(tensor, kind):
        return tensor, ""
    local = getattr(tensor, "_local_tensor", None)
    if not isinstance(local, torch.Tensor):
        return tensor, ""
    placed = ", ".join(str(placement) for placement in getattr(tensor, "placements", ()))
    return local, f"a DTensor {list(tensor.shape)} ({placed}): what is recorded is the part of this rank"
