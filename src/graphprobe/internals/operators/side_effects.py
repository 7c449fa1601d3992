"""Operators that are run for what they do, not for a result: no pass of a compiler drops them.

An effect token would order them among each other, too, but torch 2.13 cannot hand one to the body of a `cond`. So they
are marked for FX's and Inductor's removal of dead code alone, and keep the order that their inputs give them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.node import has_side_effect

_library = torch.library.Library("graphprobe", "FRAGMENT")


def define_side_effect(name: str, arguments: str, kernel: Callable[..., None], *, any_strides: bool = False) -> Any:
    """The operator `graphprobe::name(arguments) -> ()`, for every device.

    Without values (fake and meta tensors) nothing is run. Under `vmap` it is run once for the whole batch, with the
    batch in front. No CUDA graph is captured around it: a replay would not run it.

    Args:
        name: not defined before in this process.
        arguments: as in a schema, e.g. `Tensor t, str name`.
        kernel: gets the arguments as they are. It must not raise, change a tensor, or keep one.
        any_strides: let Inductor choose the strides of what it passes, instead of those of eager code.
    """
    tags = [
        getattr(torch.Tag, tag, None) for tag in ("cudagraph_unsafe", *(("flexible_layout",) if any_strides else ()))
    ]
    _library.define(f"{name}({arguments}) -> ()", tags=tuple(tag for tag in tags if tag is not None))
    _library.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"graphprobe::{name}", _nothing, lib=_library)
    operator = getattr(torch.ops.graphprobe, name).default
    has_side_effect(operator)

    def batched(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[None, None]:
        operator(*(_batch_first(value, dim) for value, dim in zip(args, in_dims, strict=True)))
        return None, None

    torch.library.register_vmap(f"graphprobe::{name}", batched, lib=_library)
    return operator


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _batch_first(value: Any, dim: Any) -> Any:
    return value.movedim(dim, 0) if isinstance(dim, int) and isinstance(value, torch.Tensor) else value
