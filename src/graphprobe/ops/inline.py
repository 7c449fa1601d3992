"""The two functions that stand inside a model, and the operators behind them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from graphprobe.engine.tensor_stats import finish, meta_of, readable, stats_async, stats_of
from graphprobe.errors import UsageError
from graphprobe.internals.dynamo.compile_facts import frames_from
from graphprobe.internals.operators.operators import define_side_effect
from graphprobe.internals.quiet import is_fake, quiet
from graphprobe.ops.destination import failed, keep, switch
from graphprobe.probe.dump.tensors import is_capturing
from graphprobe.report.visible import print_tensor

FIRST = 6
"""Elements that `print` shows."""

_TORCH = os.path.dirname(torch.__file__) + os.sep

logger = logging.getLogger("graphprobe")

_tap: Callable[[torch.Tensor, str, str, bool], torch.Tensor]


def save(t: torch.Tensor, name: str) -> torch.Tensor:
    """Write the values of `t` to disk, when the program comes to this point; and those of its gradient.

    Works in eager code and inside `torch.compile(fullgraph=True)`, in forward and backward, in `no_grad`, autocast, the
    branches of `torch.cond` and under the transforms of `torch.func`; `vmap` saves the whole batch, batch dimension
    first.

    Args:
        t: any dtype, shape and device; the values are copied before the program goes on.
        name: in the file's name and in its record. Used again, it gives a next file.

    Returns:
        `t`, for the program to go on with: the gradient that flows through it is saved as `<name>.grad`. When `t`
        requires no gradient, this is `t` itself; else a view of it, in which changes in place are changes of `t`. After
        such a change the gradient is not saved. A program that ignores the result saves the values only.

    Raises:
        UsageError: `t` is no tensor, or `name` no text.
    """
    _check("save", t, name, named=True)
    if switch.off:
        return t
    compiled = torch.compiler.is_compiling()
    if compiled or not _is_odd(t):
        _save(t, name, compiled, False)
    elif not is_fake(t):
        _save_kernel(t, name, compiled, False)
    return _tap(t, name, "save", compiled) if torch.is_grad_enabled() and t.requires_grad else t


def print(t: torch.Tensor, name: str = "") -> torch.Tensor:
    """Print one line about `t` to standard output: dtype, shape, device, statistics and the first elements.

    Where it works and what it returns are as of `save`; the gradient has a line of its own, `<name>.grad`. On an
    accelerator it waits for the device.

    Args:
        t: any dtype, shape and device. Minimum, maximum and mean are those of the finite elements.
        name: at the beginning of the line.

    Raises:
        UsageError: `t` is no tensor, or `name` no text.
    """
    _check("print", t, name, named=False)
    compiled = torch.compiler.is_compiling()
    if compiled or not _is_odd(t):
        _print(t, name)
    elif not is_fake(t):
        _print_kernel(t, name)
    return _tap(t, name, "print", compiled) if torch.is_grad_enabled() and t.requires_grad else t


def _check(function: str, t: object, name: object, *, named: bool) -> None:
    if not isinstance(t, torch.Tensor):
        raise UsageError(
            f"graphprobe.ops.{function} takes a tensor, not {type(t).__name__}", hint="call it for each tensor of it"
        )
    if not isinstance(name, str) or (named and not name):
        raise UsageError(
            f"graphprobe.ops.{function}: the name is {name!r}; expected text", hint=f"ops.{function}(t, 'hidden')"
        )


def _is_odd(t: torch.Tensor) -> bool:
    """Whether the class of a tensor takes operators in its own hands; it may know nothing of ours."""
    return type(t).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def _tapped(t: torch.Tensor, name: str, function: str, compiled: bool) -> torch.Tensor:
    """A view of `t`, the gradient of which is saved or printed.

    A plain view, since the output of an autograd.Function could not be changed in place. The hook is on the view, so
    that what is saved does not depend on other uses of `t`. Dynamo takes the whole as one call, because it cannot trace
    a hook on an intermediate; AOTAutograd runs it, and traces what the hook does into the backward graph.
    """
    view = t.view_as(t)
    if view.requires_grad:
        of_gradient = f"{name}.grad" if name else "grad"

        def tell(gradient: torch.Tensor) -> None:
            odd = not compiled and _is_odd(gradient)
            if function == "print":
                (_print_kernel if odd else _print)(gradient, of_gradient)
            else:
                (_save_kernel if odd else _save)(gradient, of_gradient, compiled, True)

        view.register_hook(tell)  # type: ignore[no-untyped-call]
    return view


_tap = torch.compiler.allow_in_graph(_tapped)  # type: ignore[no-untyped-call]


def _save_kernel(t: torch.Tensor, name: str, compiled: bool, gradient: bool) -> None:
    try:
        keep(t, name, compiled=compiled, gradient=gradient, source="" if compiled or gradient else _caller())
    except Exception as error:  # the program must not see our faults
        failed(f"saving {name!r}", error)


def _print_kernel(t: torch.Tensor, name: str) -> None:
    try:
        _show(t, name)
    except Exception as error:
        failed(f"printing {name!r}", error)


_save: Any = define_side_effect("save", "Tensor t, str name, bool compiled, bool gradient", _save_kernel)
_print: Any = define_side_effect("print", "Tensor t, str name", _print_kernel)


def _show(t: torch.Tensor, name: str) -> None:
    meta = meta_of(t)
    if is_capturing():
        print_tensor(name, meta, None, (), lacking="work is being captured into a CUDA graph")
        return
    try:
        plain = readable(t)
        stats = stats_of(plain) if plain.is_cpu else finish(stats_async(plain).cpu())
    except Exception as error:  # sparse, quantised, without values: the line says so
        print_tensor(name, meta, None, (), lacking=str(error))
        return
    print_tensor(name, meta, stats, _first(plain))


def _first(t: torch.Tensor) -> list[object]:
    try:
        with quiet():
            first = t.reshape(-1)[:FIRST].cpu()
            narrow = first.is_floating_point() and first.element_size() == 1  # these have no `tolist`
            return list((first.float() if narrow else first).tolist())
    except RuntimeError:  # packed dtypes cannot be taken apart
        return []


def _caller() -> str:
    """`file.py:12` of the innermost line outside graphprobe and torch."""
    for frame in frames_from(sys._getframe(1)):
        file = frame.f_code.co_filename
        if not file.startswith(_TORCH) and not str(frame.f_globals.get("__name__", "")).startswith("graphprobe."):
            return f"{file.replace(os.sep, '/')}:{frame.f_lineno}"
    return ""
