"""Tensors whose items can be read where they lie, told without giving up the interpreter's lock.

`is_neg()` and `is_conj()` give it up for a moment, and a thread that waits for it takes it: the program would stand
still for as long as that thread likes, at every value that is looked at. The dispatch keys tell the same, and keep it.
"""

from __future__ import annotations

from typing import Any

import torch

PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
"""Classes that keep their values in a storage of their own, as it seems."""

_keys: Any = getattr(torch._C, "_dispatch_keys", None)
_plain: dict[int, bool] = {}
"""By dispatch keys: whether tensors that have them lie on the CPU, with strides, and show their items unchanged."""


def is_plain(tensor: Any) -> bool:
    """Whether the items of `tensor` lie on the CPU as they are: no subclass, no layout of its own, no lazy view."""
    if type(tensor) not in PLAIN_TYPES:
        return False
    if _keys is None:
        return _asked(tensor)
    keys = _keys(tensor).raw_repr()
    found = _plain.get(keys)
    if found is None:
        found = _plain[keys] = _asked(tensor)
    return found


def _asked(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_neg() and not tensor.is_conj()
