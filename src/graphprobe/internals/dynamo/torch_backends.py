"""Finds torch's own backends by name, and those of a program inside the wrappers that torch keeps them in."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib.metadata import entry_points
from types import FunctionType
from typing import Any

from graphprobe.internals.names import require

REGISTRY, COMMON = "torch._dynamo.backends.registry", "torch._dynamo.backends.common"
WRAPPERS = ("compiler_fn", "_torchdynamo_orig_backend", "_inner")
"""Attributes under which torch, and `graphprobe.wrap`, keep a function that they wrap."""


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


def unwrapped(backend: Any) -> tuple[Any, dict[str, Any]]:
    """What is inside of the wrappers of torch and graphprobe, and the arguments that they pass besides the graph."""
    given: dict[str, Any] = {}
    while not isinstance(backend, FunctionType) and _is_stock(type(backend)):
        inner = next((vars(backend)[name] for name in WRAPPERS if name in getattr(backend, "__dict__", {})), None)
        if inner is None or inner is backend:
            break
        given = {**vars(backend).get("kwargs", {}), **given}
        backend = inner
    return backend, given


def _is_stock(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("torch", "types", "graphprobe")


def aot_arguments(backend: Any) -> dict[str, Any] | None:
    """What `aot_autograd` was given for this backend; None for any other object.

    Once called, it keeps more than that, and its compiler for the backward in a wrapper.
    """
    if not isinstance(backend, require(COMMON, "AotAutograd", purpose="a backend that aot_autograd made")):
        return None
    given = dict(backend.kwargs)
    backward: Any = given.get("bw_compiler")
    if getattr(backward, "_is_wrapped_bw_compiler", False):
        given["bw_compiler"] = inspect.getclosurevars(backward).nonlocals["bw_compiler_fn"]
    for name in ("bw_compiler", "inference_compiler"):
        if name in given and given[name] is given["fw_compiler"]:
            del given[name]
    return given


def aot_autograd() -> Callable[..., Any]:
    """torch's function that makes a backend of AOTAutograd."""
    made: Callable[..., Any] = require(COMMON, "aot_autograd", purpose="a backend that aot_autograd made")
    return made


def registered(name: str) -> Callable[..., Any] | None:
    """What this program has registered as a backend under `name`; None where other programs know the name too."""
    if name in entry_points(group="torch_dynamo_backends").names:
        return None
    found = require(REGISTRY, "_COMPILER_FNS", purpose="backends that a program registers").get(name)
    return None if found is None or _is_torchs(found) else found


def _is_torchs(backend: Any) -> bool:
    """Whether torch defines it, with everything in it."""
    arguments = aot_arguments(backend)
    if arguments is not None:
        return all(_is_torchs(value) for value in arguments.values() if callable(value))
    if isinstance(backend, functools.partial):
        return _is_torchs(backend.func)
    module = getattr(backend, "__module__", None) or type(backend).__module__
    return str(module).partition(".")[0] == "torch"
