"""Backends that run AOTAutograd's graphs as they are: torch's own, and those under a mode or with edited graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.fx import GraphModule

from graphprobe.backends.graphs import Mode, ModeInterpreter, debug_backend, has_higher_order, of_torch
from graphprobe.errors import UsageError
from graphprobe.internals.aot_backends import (
    Edit,
    aot_compile,
    boxed_call,
    boxed_nop,
    crossref_setting,
    lookup,
)
from graphprobe.internals.inductor.stages import compile_kernels, inductor_graphs
from graphprobe.internals.operators.operators import crossref_mode

Compiled = Callable[..., Any]

DECOMPOSED, CROSSREF = "aot_eager_decomp_partition", "aot_eager_decomp_partition_crossref"
RECIPES: dict[str, Any] = {
    "aot_eager": {"min_cut": True, "decompose": False, "keep_mutations": True},
    "aot_eager_default_partitioner": {"min_cut": False, "decompose": False, "keep_mutations": True},
    DECOMPOSED: {"min_cut": True, "decompose": True, "keep_mutations": False},
}
"""How torch's backends set AOTAutograd up."""

EDITABLE = frozenset({*RECIPES, CROSSREF, "inductor"})
"""Backends that `compile_edited` knows."""

aot_eager = of_torch("aot_eager", __name__)
aot_eager_default_partitioner = of_torch("aot_eager_default_partitioner", __name__)
aot_eager_decomp_partition = of_torch(DECOMPOSED, __name__)
invoke_subgraph = of_torch("invoke_subgraph", __name__)


def inductor(
    gm: GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None, options: dict[str, Any] | None = None
) -> Compiled:
    """torch's Inductor; `mode` and `options` as `torch.compile` takes them."""
    given = {"mode": mode, "options": options}
    compiled: Compiled = lookup("inductor")(gm, example_inputs, **{k: v for k, v in given.items() if v is not None})
    return compiled


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
    return _compile(DECOMPOSED, gm, example_inputs, lambda: mode)


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
    return _compile(DECOMPOSED, gm, example_inputs, _crossref(check))


def compile_edited(name: str, gm: GraphModule, example_inputs: Sequence[Any], edit: Edit) -> Compiled:
    """`name`, one of EDITABLE, with `edit` applied to each graph that AOTAutograd makes."""
    if name == "inductor":

        def inner(graph: GraphModule, inputs: Sequence[Any], settings: dict[str, Any]) -> Any:
            direction = "backward" if settings.get("is_backward") else "forward"
            return compile_kernels(edit(graph, direction), inputs, settings)

        return inductor_graphs(gm, example_inputs, mode=None, options=None, inner=inner)
    if name == CROSSREF:
        return _compile(DECOMPOSED, gm, example_inputs, _crossref(None), edit)
    return _compile(name, gm, example_inputs, nullcontext, edit)


def _compile(
    name: str, gm: GraphModule, example_inputs: Sequence[Any], mode: Mode, edit: Edit = lambda graph, direction: graph
) -> Compiled:
    """As torch's backend `name`, one of RECIPES; each graph is edited, and runs under what `mode` makes."""

    def compiler(direction: str) -> Callable[[GraphModule, Any], Compiled]:
        return lambda graph, inputs: boxed(edit(graph, direction), inputs, mode)

    recipe = RECIPES[name]
    return aot_compile(gm, example_inputs, forward=compiler("forward"), backward=compiler("backward"), **recipe)


def boxed(gm: GraphModule, example_inputs: Sequence[Any], mode: Mode = nullcontext) -> Compiled:
    """`gm` as a function of one list, which it empties, so that inputs are freed after their last use.

    torch runs it, and no rule of a mode for operators that take graphs is needed. `gm` is changed.
    """
    if mode is not nullcontext and has_higher_order(gm):
        return boxed_call(lambda *values: ModeInterpreter(gm, mode).run(*values))
    inner = boxed_nop(gm, example_inputs)

    def run(args: list[Any]) -> Any:
        with mode():
            return inner(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _crossref(check: str | None) -> Mode:
    chosen = check or crossref_setting() or "custom_ops"
    if chosen not in ("custom_ops", "all"):
        raise UsageError(f"check takes 'custom_ops' or 'all', not {chosen!r}")
    return lambda: crossref_mode(everything=chosen == "all")
