"""AOTAutograd and Inductor as building blocks: partitioners, decompositions, boxed calls, an editing hook."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule

from graphprobe.internals.caches import bypassed
from graphprobe.internals.names import require

Compiler = Callable[[GraphModule, Any], Callable[..., Any]]
Edit = Callable[[GraphModule, str], GraphModule]
"""Takes a graph and its direction, `forward` or `backward`; returns the graph to compile instead."""

COMMON = "torch._dynamo.backends.common"
PARTITIONERS = "torch._functorch.partitioners"


def min_cut_partitioner() -> Callable[..., Any]:
    """The partitioner that recomputes what is cheap, as Inductor uses it."""
    found = require(PARTITIONERS, "min_cut_rematerialization_partition", purpose="the min-cut partitioner")
    return partial(found, compiler="inductor")


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
    aot_autograd = require(COMMON, "aot_autograd", purpose="every AOTAutograd backend")
    settings: dict[str, Any] = {"fw_compiler": forward, "bw_compiler": backward}
    if min_cut:
        settings["partition_fn"] = min_cut_partitioner()
    if keep_mutations:
        settings["keep_inference_input_mutations"] = True
    if not decompose:
        compiled: Callable[..., Any] = aot_autograd(**settings)(gm, example_inputs)
        return compiled
    table = {op: function for op, function in inductor_decompositions().items() if str(op) not in whole}
    with effect_tokens_unlifted():
        compiled = aot_autograd(decompositions=table, **settings)(gm, example_inputs)
        return compiled


def effect_tokens_unlifted() -> AbstractContextManager[Any]:
    """AOTAutograd configured as Inductor has it: effect tokens are made inside the graph."""
    config = require("torch._functorch", "config", purpose="decomposing backends")
    if not hasattr(config, "unlift_effect_tokens"):
        return nullcontext()
    patched: AbstractContextManager[Any] = config.patch({"unlift_effect_tokens": True})
    return patched


def crossref_setting() -> str | None:
    """What torch's own `fake_tensor_crossref` says: `all`, `custom_ops`, or None when it is off or not there."""
    config = require("torch._functorch", "config", purpose="crossref")
    value = getattr(config, "fake_tensor_crossref", False)
    return str(value) if value else None


def boxed_call(function: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """`function` as one of a list, which it empties, so that who calls it keeps none of its inputs alive."""

    def run(args: list[Any]) -> Any:
        values = tuple(args)
        args.clear()
        return function(*values)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def boxed_nop(gm: GraphModule, example_inputs: Any) -> Callable[[list[Any]], Any]:
    """`gm`, which is changed, as a boxed function; an active DebugMode that asks for it has the graph interpreted."""
    make = require("torch._dynamo.backends.debugging", "boxed_nop", purpose="boxed calls")
    made: Callable[[list[Any]], Any] = make(gm, example_inputs)
    return made


def inductor_compile(gm: GraphModule, example_inputs: Any, *, edit: Edit) -> Callable[..., Any]:
    """Inductor, with `edit` applied to each graph that AOTAutograd hands it.

    torch's caches know nothing of the edit: they are off, so that no edited code is kept, and none from before taken.
    """
    compile_fx = require("torch._inductor.compile_fx", "compile_fx", purpose="an edited Inductor")
    compile_fx_inner = require("torch._inductor.compile_fx", "compile_fx_inner", purpose="an edited Inductor")

    def inner(graph: GraphModule, inputs: Any, **settings: Any) -> Any:
        with bypassed():
            direction = "backward" if settings.get("is_backward") else "forward"
            return compile_fx_inner(edit(graph, direction), inputs, **settings)

    with bypassed():
        compiled: Callable[..., Any] = compile_fx(gm, example_inputs, inner_compile=inner)
        return compiled


def is_higher_order(target: object) -> bool:
    """Whether a call target is an operator that takes graphs, such as `cond`."""
    return isinstance(target, torch._ops.HigherOrderOperator)
