"""Backends that run AOTAutograd's graphs as they are: with the partitioner or decompositions alone, or kept whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule

from graphprobe.backends.graphs import Mode, ModeInterpreter, copy_graph_module, debug_backend, has_higher_order
from graphprobe.errors import UsageError
from graphprobe.internals.aot.backends import (
    Edit,
    aot_compile,
    boxed_call,
    crossref_setting,
    debug_interpreter,
    inductor_compile,
    invoke_subgraph_infer,
    take_boxed,
)
from graphprobe.internals.dynamo.torch_backends import lookup
from graphprobe.internals.operators.operators import crossref_mode

Compiled = Callable[..., Any]


class AotRecipe(NamedTuple):
    """How AOTAutograd is set up: which partitioner, whether it decomposes, where it leaves mutations of inputs."""

    min_cut: bool
    decompose: bool
    keep_mutations: bool


RECIPES = {
    "aot_eager": AotRecipe(min_cut=True, decompose=False, keep_mutations=True),
    "aot_eager_default_partitioner": AotRecipe(min_cut=False, decompose=False, keep_mutations=True),
    "aot_eager_decomp_partition": AotRecipe(min_cut=True, decompose=True, keep_mutations=False),
}


def boxed(gm: GraphModule, *, backend: str, mode: Mode | None = None) -> Compiled:
    """A copy of `gm` as a function of one list, which it empties, so that inputs are freed after their last use.

    A DebugMode that is active at the call, and wants compiled code interpreted, has it so.
    """
    own = copy_graph_module(gm)
    by_call = mode is not None and has_higher_order(gm)
    take_boxed(own)

    def run(args: list[Any]) -> Any:
        interpreter = debug_interpreter(own, backend)
        if mode is not None and by_call:
            interpreter = ModeInterpreter(own, mode)
        with nullcontext() if mode is None or by_call else mode():
            if interpreter is None:
                return own.forward(args)
            values = list(args)
            args.clear()
            return interpreter.run(*values)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def run_recipe(
    name: str,
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: Mode | None = None,
    edit: Edit | None = None,
) -> Compiled:
    """Compile as the recipe `name` says.

    Args:
        name: a key of RECIPES.
        gm: Dynamo's graph.
        example_inputs: what Dynamo gave the backend.
        mode: makes what each graph runs under.
        edit: gets each graph with its direction and returns what is to run instead.
    """

    def compiler(direction: str) -> Callable[[GraphModule, Any], Compiled]:
        def compile_graph(graph: GraphModule, inputs: Any) -> Compiled:
            return boxed(graph if edit is None else edit(graph, direction), backend=name, mode=mode)

        return compile_graph

    recipe = RECIPES[name]._asdict()
    return aot_compile(gm, example_inputs, forward=compiler("forward"), backward=compiler("backward"), **recipe)


@debug_backend
def aot_eager(gm: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
    """AOTAutograd with the min-cut partitioner; its graphs run as they are."""
    return run_recipe("aot_eager", gm, example_inputs)


@debug_backend
def aot_eager_default_partitioner(gm: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
    """AOTAutograd with the partitioner that recomputes nothing; its graphs run as they are."""
    return run_recipe("aot_eager_default_partitioner", gm, example_inputs)


@debug_backend
def aot_eager_decomp_partition(gm: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
    """AOTAutograd as Inductor sets it up, decompositions included; its graphs run as they are.

    torch's `fake_tensor_crossref` setting is honoured.
    """
    return run_recipe("aot_eager_decomp_partition", gm, example_inputs, mode=_crossref(crossref_setting()))


@debug_backend
def aot_eager_decomp_partition_with_mode(
    gm: GraphModule, example_inputs: Sequence[Any], *, mode: AbstractContextManager[Any]
) -> Compiled:
    """As `aot_eager_decomp_partition`, forward and backward each run under `mode`, e.g. a TorchDispatchMode.

    Raises:
        UsageError: `mode` is no context manager.
    """
    if not hasattr(mode, "__enter__"):
        raise UsageError(f"mode takes a mode object such as a TorchDispatchMode, not {mode!r}")
    return run_recipe("aot_eager_decomp_partition", gm, example_inputs, mode=lambda: mode)


@debug_backend
def aot_eager_decomp_partition_crossref(
    gm: GraphModule, example_inputs: Sequence[Any], *, check: str | None = None
) -> Compiled:
    """As `aot_eager_decomp_partition`, with each operator's fake kernel compared with the real one.

    Args:
        gm: Dynamo's graph.
        example_inputs: what Dynamo gave the backend.
        check: `custom_ops`, or `all` for torch's own operators too; torch's setting when not given, else `custom_ops`.

    Raises:
        UsageError: `check` is neither.
    """
    chosen = check or crossref_setting() or "custom_ops"
    if chosen not in ("custom_ops", "all"):
        raise UsageError(f"check takes 'custom_ops' or 'all', not {chosen!r}")
    return run_recipe("aot_eager_decomp_partition", gm, example_inputs, mode=_crossref(chosen))


def inductor(
    gm: GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None, options: dict[str, Any] | None = None
) -> Compiled:
    """torch's Inductor; `mode` and `options` as `torch.compile` takes them."""
    given = {"mode": mode, "options": options}
    compiled: Compiled = lookup("inductor")(gm, example_inputs, **{k: v for k, v in given.items() if v is not None})
    return compiled


def compile_edited(name: str, gm: GraphModule, example_inputs: Sequence[Any], edit: Edit) -> Compiled:
    """`name`, one of EDITABLE, with `edit` applied to each graph that AOTAutograd makes."""
    if name == "inductor":
        return inductor_compile(gm, example_inputs, edit=edit)
    if name == "aot_eager_decomp_partition_crossref":
        mode = _crossref(crossref_setting() or "custom_ops")
        return run_recipe("aot_eager_decomp_partition", gm, example_inputs, mode=mode, edit=edit)
    return run_recipe(name, gm, example_inputs, edit=edit)


EDITABLE = frozenset({*RECIPES, "aot_eager_decomp_partition_crossref", "inductor"})
"""Backends that `compile_edited` knows."""


def _crossref(check: str | None) -> Mode | None:
    if check is None:
        return None
    return lambda: crossref_mode(everything=check == "all")


@debug_backend
def invoke_subgraph(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """AOTAutograd with the min-cut partitioner; forward and backward become `invoke_subgraph` calls under `make_fx`.

    Compiling inside `make_fx` is off in torch unless `torch._dynamo.config.force_compile_during_fx_trace` is set.
    Outside of `make_fx` the graphs just run.
    """
    infer = invoke_subgraph_infer()
    disable: Any = torch.compiler.disable  # neither carries annotations
    allow_in_graph: Any = torch.compiler.allow_in_graph

    def compile_graph(graph: GraphModule, inputs: Any) -> Callable[..., Any]:
        def plain_call(*operands: Any) -> Any:
            return infer(graph, *operands)

        return boxed_call(disable(allow_in_graph(plain_call)))

    return aot_compile(
        gm,
        example_inputs,
        forward=compile_graph,
        backward=compile_graph,
        min_cut=True,
        decompose=False,
        keep_mutations=True,
    )
