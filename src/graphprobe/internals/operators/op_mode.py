"""Stands between a piece of code and the operators it runs, above the kernels and below autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from graphprobe.internals.require import require

Overload = OpOverload
"""`torch.ops.aten.add.Tensor` and its like."""

Around = Callable[[Overload, tuple[Any, ...], dict[str, Any]], Any]
"""Is called in place of an operator, with its arguments, and returns what the operator shall return."""


class OpMode(TorchDispatchMode):
    """A context manager: inside, `around` is asked for the result of every operator, those of a backward included.

    Inside `around` operators run as if the mode were not there. Higher-order operators run unseen, with all in them.
    """

    supports_higher_order_operators = True

    def __init__(self, around: Around) -> None:
        super().__init__()
        self._around = around

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, OpOverload):
            return func(*args, **(kwargs or {}))
        return self._around(func, args, kwargs or {})


def decomposition_of(op: Overload) -> Callable[..., Any] | None:
    """What torch says the operator is made of; None where it says nothing."""
    table = require("torch._decomp", "decomposition_table", purpose="running an operator as its decomposition")
    found: Callable[..., Any] | None = table.get(op)
    return found
