"""Work beside a running compilation without being seen by it: no modes, no autograd, no subclass hooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def quiet() -> Iterator[None]:
    """Leave every TorchFunctionMode and TorchDispatchMode, and autograd; all are back on exit.

    Inside, plain tensors behave as in a fresh interpreter: a `FakeTensorMode` that is active outside fakes nothing, an
    active inference mode makes no inference tensors, nothing is recorded for a backward.
    """
    with ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        yield


def is_fake(value: object) -> bool:
    """Whether `value` is a tensor without data: fake, or on the meta device."""
    return isinstance(value, FakeTensor) or (isinstance(value, torch.Tensor) and value.is_meta)


def hint(value: object) -> int | float | bool | None:
    """The number behind a plain or symbolic number, without adding a guard; None when it has none (unbacked)."""
    if isinstance(value, (int, float, bool)):
        return value
    node = getattr(value, "node", None)
    if node is None:
        return None
    try:
        constant = node.maybe_as_int() if isinstance(value, torch.SymInt) else None
        found = constant if constant is not None else (node.hint if node.has_hint() else None)
    except Exception:  # a symbol of a shape environment that is gone
        return None
    kind = {torch.SymBool: bool, torch.SymFloat: float}.get(type(value), int)
    return None if found is None else kind(found)


def symbol_key(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> int:
    """A number that is the same for equal symbolic expressions of one process; much cheaper than their text."""
    return hash(getattr(value.node, "_expr", value.node))
