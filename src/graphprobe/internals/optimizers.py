"""Makes torch's optimizers compute uncompiled what Dynamo traces of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from graphprobe.internals.bus import Patch, Subscription


@contextmanager
def as_traced() -> Iterator[None]:
    """A block in which the counts of steps stay tensors, as when an optimizer is compiled, and become no numbers.

    Such a tensor has float32, and a number of Python float64: for `1 - 0.999**step` that is a difference in the fifth
    digit, which is by design.
    """
    names = {"_get_value": _itself, "_stack_if_compiling": _stacked}
    modules = [name for name in [*sys.modules] if name.startswith("torch.optim.")]
    patches = [
        Patch("diagnose_optimizers", module, name, make)
        for module in modules
        for name, make in names.items()
        if name in vars(sys.modules[module])
    ]
    with Subscription(patches).installed():
        yield


def _itself(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: value


def _stacked(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: torch.stack(values) if isinstance(values[0], torch.Tensor) else original(values)
