"""What tensors of one dtype, shape and strides have in common, found out once."""

from __future__ import annotations

import functools

import msgspec
import torch

from graphprobe.engine.tensor_stats import Kind, plain_kind
from graphprobe.records import TensorMeta

_MOST = 8192
"""Forms that are known at a time; a program whose sizes never come back begins afresh."""


class TensorForm(msgspec.Struct, gc=False):
    """What all plain tensors of one dtype, shape and strides have in common.

    `items` is how many there are; the shape where there are `strides`: gaps between them, or another order. Without a
    `kind` statistics do not know the dtype.
    """

    meta: TensorMeta
    kind: Kind | None
    count: int
    items: int | tuple[int, ...]
    strides: tuple[int, ...] | None


class Forms:
    """The forms of the plain tensors seen so far. May be used from any thread."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[torch.dtype, torch.Size, tuple[int, ...]], TensorForm] = {}

    def of(self, tensor: torch.Tensor) -> TensorForm:
        """The form of a tensor that `is_plain`; while it is kept, the same object for the same form."""
        key = (tensor.dtype, tensor.shape, tensor.stride())
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            found = self._known[key] = _form(tensor)
        return found


def _form(tensor: torch.Tensor) -> TensorForm:
    shape, strides, count = tuple(tensor.shape), tensor.stride(), tensor.numel()
    no_gaps = tensor.is_contiguous()
    items, strides_or_none = (count, None) if no_gaps else (shape, strides)
    return TensorForm(meta_of(tensor), plain_kind(tensor), count, items, strides_or_none)


SYMBOLIC = -1
"""In place of a size that is no number, as the ragged one of a nested tensor."""


def meta_of(tensor: torch.Tensor) -> TensorMeta:
    """What the tensor is; of a layout without strides, none are given."""
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    try:
        return _meta(tensor.dtype, tensor.shape, strides, tensor.device)
    except TypeError:  # a symbolic size has no hash
        return _made(tensor.dtype, tensor.shape, strides, tensor.device)


def _made(dtype: torch.dtype, shape: torch.Size, strides: tuple[int, ...], device: torch.device) -> TensorMeta:
    # Asking a symbolic size for its number could add a guard to a graph that is being traced.
    sizes, steps = (tuple(n if type(n) is int else SYMBOLIC for n in numbers) for numbers in (shape, strides))
    return TensorMeta(text_of(dtype), sizes, steps, text_of(device))


_meta = functools.lru_cache(maxsize=_MOST)(_made)


@functools.cache
def text_of(value: torch.dtype | torch.device) -> str:
    """`float32`, `cuda:0`: torch's name without the prefix."""
    return str(value).removeprefix("torch.")
