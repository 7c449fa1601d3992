"""Finds torch's and a program's backends, and has AOTAutograd and Inductor as their building blocks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from contextlib import nullcontext
from importlib.metadata import entry_points
from types import FunctionType
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch.fx import GraphModule

from graphprobe.internals.names import require
from graphprobe.internals.unseen import unseen

REGISTRY, COMMON = "torch._dynamo.backends.registry", "torch._dynamo.backends.common"
WRAPPERS = ("compiler_fn", "_torchdynamo_orig_backend", "_inner")
"""Attributes under which torch, and `graphprobe.wrap`, keep a function that they wrap."""

STOCK = ("torch", "types", "graphprobe")
"""Packages of the classes that wrap."""

Compiler = Callable[[GraphModule, Any], Callable[..., Any]]
Edit = Callable[[GraphModule, str], GraphModule]
"""Takes a graph and its direction, `forward` or `backward`; returns the graph to compile instead."""

PARTITIONERS = "torch._functorch.partitioners"


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
        # torch.compile hands mode and options to function backends as they are; by name, it makes this of them.
        return torch._TorchCompileInductorWrapper(mode or configured, options, None)(gm, example_inputs)

    return inductor


def unwrapped(backend: Any) -> tuple[Any, dict[str, Any]]:
    """What is inside of the wrappers of torch and graphprobe, and the arguments that they pass besides the graph."""
    given: dict[str, Any] = {}
    while not isinstance(backend, FunctionType) and type(backend).__module__.partition(".")[0] in STOCK:
        inner = next((vars(backend)[name] for name in WRAPPERS if name in getattr(backend, "__dict__", {})), None)
        if inner is None or inner is backend:
            break
        given = {**vars(backend).get("kwargs", {}), **given}
        backend = inner
    return backend, given


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


def inductor_decompositions() -> dict[Any, Callable[..., Any]]:
    """Inductor's decompositions under its present configuration."""
    select = require("torch._inductor.decomposition", "select_decomp_table", purpose="Inductor's decompositions")
    found: dict[Any, Callable[..., Any]] = select()
    return found


def aot_compile(
    gm: GraphModule,
    example_inputs: Any,
    *,
    forward: Compiler,
    backward: Compiler,
    min_cut: bool,
    decompose: bool,
    keep_mutations: bool,
    whole: Collection[str] = (),
) -> Callable[..., Any]:
    """`gm` through AOTAutograd, each resulting graph through its compiler.

    Args:
        gm: Dynamo's graph.
        example_inputs: what Dynamo gave the backend.
        forward: compiles the forward graph, and the only graph where nothing needs a gradient.
        backward: compiles the backward graph.
        min_cut: partition as Inductor does, with recomputation; else every saved value that is needed is saved.
        decompose: with Inductor's decompositions.
        keep_mutations: leave mutations of inputs in an inference graph, instead of copying back after it.
        whole: names of operations, such as `aten.silu.default`, that are not decomposed.
    """
    settings: dict[str, Any] = {"fw_compiler": forward, "bw_compiler": backward}
    if min_cut:
        partition = require(PARTITIONERS, "min_cut_rematerialization_partition", purpose="the min-cut partitioner")
        settings["partition_fn"] = functools.partial(partition, compiler="inductor")
    if keep_mutations:
        settings["keep_inference_input_mutations"] = True
    if decompose:
        known = inductor_decompositions().items()
        settings["decompositions"] = {op: function for op, function in known if str(op) not in whole}
    # With decompositions as Inductor has it: effect tokens are made inside the graph.
    with functorch_config.patch({"unlift_effect_tokens": True}) if decompose else nullcontext():
        compiled: Callable[..., Any] = aot_autograd()(**settings)(gm, example_inputs)
        return compiled


def crossref_setting() -> str | None:
    """What torch's own `fake_tensor_crossref` says: `all`, `custom_ops`, or None when it is off."""
    value = functorch_config.fake_tensor_crossref
    return str(value) if value else None


def boxed_call(function: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """`function` as one of a list, which it empties, so that who calls it keeps none of its inputs alive."""

    def run(args: list[Any]) -> Any:
        values = tuple(args)
        args.clear()
        with unseen:
            return function(*values)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def boxed_nop(gm: GraphModule, example_inputs: Any) -> Callable[[list[Any]], Any]:
    """`gm`, which is changed, as a boxed function; an active DebugMode that asks for it has the graph interpreted."""
    make = require("torch._dynamo.backends.debugging", "boxed_nop", purpose="boxed calls")
    made: Callable[[list[Any]], Any] = make(gm, example_inputs)
    return made


def is_higher_order(target: object) -> bool:
    """Whether a call target is an operator that takes graphs, such as `cond`."""
    return isinstance(target, torch._ops.HigherOrderOperator)
