"""The operators that carry out a planted fault when a graph runs: any compiler takes them as opaque calls."""

from __future__ import annotations

import ctypes
import functools
import time
from typing import Any

import torch

CHANGING = ("accuracy", "dtype", "stride", "alias", "nan")
"""Kinds after which the program goes on with a wrong value."""

STOPPING = ("runtime", "hang", "segfault")
"""Kinds after which it does not."""

WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
    torch.float64: torch.complex128,
    torch.int32: torch.int64,
    torch.int64: torch.float64,
}
"""What a value of a dtype comes out as under `dtype`: never narrower, so that no consumer reads past its end."""


class PlantedFault(RuntimeError):
    """What a fault of kind `compile` or `runtime` raises; the message names what it hit."""


@functools.cache
def fault_ops() -> tuple[Any, Any, Any]:
    """`(fault, fault_gradient, library)`, defined on first use; the operators live as long as the library does.

    `fault(value, operands, kind, label, amount)` returns `value`, spoiled; its gradient passes unchanged.
    `fault_gradient(value, kind, label, amount)` returns a copy of `value` whose gradient comes back spoiled.
    """
    make_library: Any = torch.library.Library  # it carries no annotations
    library = make_library("graphprobe", "FRAGMENT")
    library.define("fault(Tensor value, Tensor[] operands, str kind, str label, float amount) -> Tensor")
    library.define("fault_gradient(Tensor value, str kind, str label, float amount) -> Tensor")
    library.impl("fault", _fault, "CompositeExplicitAutograd")
    library.impl("fault_gradient", _copy, "CompositeExplicitAutograd")
    torch.library.register_fake("graphprobe::fault", _copy, lib=library)
    torch.library.register_fake("graphprobe::fault_gradient", _copy, lib=library)
    torch.library.register_autograd("graphprobe::fault", _pass_gradient, setup_context=_remember, lib=library)
    torch.library.register_autograd("graphprobe::fault_gradient", _spoil_gradient, setup_context=_remember, lib=library)
    return torch.ops.graphprobe.fault.default, torch.ops.graphprobe.fault_gradient.default, library


def _copy(value: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(value).copy_(value)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.rest = inputs[1:]


def _pass_gradient(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    operands = ctx.rest[0]
    return gradient, [None] * len(operands), None, None, None


def _spoil_gradient(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    return fault_ops()[0](gradient, [], *ctx.rest), None, None, None


def _fault(value: torch.Tensor, operands: list[torch.Tensor], kind: str, label: str, amount: float) -> torch.Tensor:
    if kind == "runtime":
        raise PlantedFault(label)
    if kind == "hang":
        while True:
            time.sleep(1)
    if kind == "segfault":
        ctypes.string_at(0)
    if kind == "alias":
        return operands[0].data.copy_(value)  # `data`: autograd is not to notice, as with a compiler's mistake
    result = _copy(value)
    if kind == "accuracy":
        return result.logical_not_() if result.dtype is torch.bool else result.add_(amount)
    if kind == "nan" and result.numel():
        result[(0,) * result.dim()] = torch.nan
    if kind == "dtype":
        return result.to(WIDER[result.dtype])
    if kind == "stride":
        return _other_strides(result)
    return result


def _other_strides(value: torch.Tensor) -> torch.Tensor:
    """The same values laid out in the reverse order of dimensions; in one dimension, with a gap between elements."""
    if value.dim() == 1:
        return value.new_zeros(2 * len(value))[::2].copy_(value)
    order = tuple(reversed(range(value.dim())))
    laid_out = value.permute(order).contiguous().permute(order)
    return laid_out if laid_out.stride() != value.stride() else value.contiguous()
