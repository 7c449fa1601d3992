"""A backend whose compiled graphs stay whole, as `invoke_subgraph` calls, when an outer `make_fx` traces them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from graphprobe.backends.graphs import debug_backend
from graphprobe.internals.aot.backends import aot_compile, invoke_subgraph_infer


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

        call = disable(allow_in_graph(plain_call))

        def run(args: list[Any]) -> Any:
            operands = tuple(args)
            args.clear()
            return call(*operands)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    return aot_compile(
        gm,
        example_inputs,
        forward=compile_graph,
        backward=compile_graph,
        min_cut=True,
        decompose=False,
        keep_mutations=True,
    )
