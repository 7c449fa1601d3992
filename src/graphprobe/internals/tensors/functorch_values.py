"""What a tensor inside `torch.vmap`, `torch.func.grad` and their like really holds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from graphprobe.internals.require import require

_PURPOSE = "recording calls inside torch.vmap and torch.func"

_is_wrapped: Callable[[Any], bool] = require("torch._C._functorch", "is_functorch_wrapped_tensor", purpose=_PURPOSE)
_is_batched: Callable[[Any], bool] = require("torch._C._functorch", "is_batchedtensor", purpose=_PURPOSE)
_batch_dim: Callable[[Any], int] = require("torch._C._functorch", "maybe_get_bdim", purpose=_PURPOSE)
_unwrap: Callable[[Any], torch.Tensor] = require("torch._C._functorch", "get_unwrapped", purpose=_PURPOSE)


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Whether a transform of functorch stands between the program and the tensor's memory."""
    return _is_wrapped(tensor)


def without_transforms() -> AbstractContextManager[Any]:
    """A block in which operators work on plain tensors, and wrap nothing."""
    made: AbstractContextManager[Any] = require(
        "torch._functorch.pyfunctorch", "temporarily_clear_interpreter_stack", purpose=_PURPOSE
    )()
    return made


def physical(tensor: torch.Tensor) -> tuple[torch.Tensor, str]:
    """The tensor that has the memory, and in words what the program does not see of it; empty for a plain tensor."""
    batches = []
    while _is_wrapped(tensor):
        if _is_batched(tensor):
            batches.append(_batch_dim(tensor))
        tensor = _unwrap(tensor)
    if not batches:
        return tensor, ""
    dims = ", ".join(map(str, batches))
    return tensor, f"inside torch.vmap: values of the whole batch, batched dimension {dims} of the recorded shape"
