"""torch's own backends by name, and Inductor with the options of a mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def lookup(name: str) -> Callable[..., Any]:
    """The backend function that torch has registered under `name`."""
    if name == "inductor":
        return inductor_with_mode(None)
    from torch._dynamo.backends.registry import lookup_backend

    found: Callable[..., Any] = lookup_backend(name)
    return found


def inductor_with_mode(mode: str | None) -> Callable[..., Any]:
    """Inductor as `torch.compile(mode=…)` would have it; `mode` and `options` given to torch.compile come before."""
    configured = mode

    def inductor(gm: Any, example_inputs: Any, *, mode: str | None = None, options: Any = None) -> Any:
        import torch

        # torch.compile hands mode and options to function backends as they are; by name, it makes this of them.
        return torch._TorchCompileInductorWrapper(mode or configured, options, None)(gm, example_inputs)

    return inductor
