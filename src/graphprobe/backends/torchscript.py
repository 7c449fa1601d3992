"""TorchScript: Dynamo's graph where it can be scripted, else the graphs of AOTAutograd, else a plain message."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from graphprobe.backends.graphs import copy_graph_module, debug_backend
from graphprobe.errors import GraphprobeError
from graphprobe.internals.aot_backends import aot_compile, boxed_call, is_higher_order
from graphprobe.internals.dynamo.compile_facts import calls_of

NUMBERS = ((torch.SymInt, int), (torch.SymFloat, float), (torch.SymBool, bool), (bool, bool), (int, int))


class ScriptingError(GraphprobeError):
    """TorchScript cannot compile a graph; its own message is chained."""

    slug = "torchscript"


def script(gm: GraphModule) -> Callable[..., Any]:
    """`gm` as a TorchScript function of its inputs. `gm` itself is left as it is.

    Raises:
        ScriptingError: TorchScript cannot compile it.
    """
    own = copy_graph_module(gm)
    for node in own.graph.nodes:
        _fit(node)
    own.recompile()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*(TorchScript|torch.jit).*")
            scripted: Callable[..., Any] = torch.jit.script(own)
    except Exception as error:  # TorchScript raises what its parser happens to trip over
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        takes_graphs = sorted({str(n.target) for n in own.graph.nodes if is_higher_order(n.target)})
        because = f"it has {', '.join(takes_graphs)}, which TorchScript does not know" if takes_graphs else first
        raise ScriptingError(
            f"TorchScript cannot compile this graph: {because}",
            hint="TorchScript is deprecated in torch and lags behind its operators; use aot_eager",
        ) from error
    return scripted


def _fit(node: Node) -> None:
    """Rewrite a node into what TorchScript can read: no overloads, typed numbers, devices as text, tuples."""
    if node.op == "placeholder":
        value = node.meta.get("val", node.meta.get("example_value"))
        node.type = next((scalar for symbolic, scalar in NUMBERS if isinstance(value, symbolic)), None)
        return
    if node.op == "output":
        node.args = (tuple(node.args[0]) if isinstance(node.args[0], list) else node.args[0],)
    packet = getattr(node.target, "overloadpacket", None)
    if packet is not None:
        node.target = packet
    node.kwargs = {name: str(v) if isinstance(v, torch.device) else v for name, v in node.kwargs.items()}
    node.type = None


def _compile_graph(graph: GraphModule, inputs: Any) -> Callable[..., Any]:
    return boxed_call(script(graph))


@debug_backend
def aot_ts(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """AOTAutograd with the default partitioner; each of its graphs is scripted.

    Raises:
        ScriptingError: TorchScript cannot compile one of the graphs; the backward's may come as late as `backward()`.
    """
    return aot_compile(
        gm,
        example_inputs,
        forward=_compile_graph,
        backward=_compile_graph,
        min_cut=False,
        decompose=False,
        keep_mutations=False,
    )


@debug_backend
def ts(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Dynamo's graph scripted; where that fails, the graphs that AOTAutograd makes of it.

    Raises:
        ScriptingError: TorchScript can compile neither.
    """
    if not _has_empty_list(gm):
        try:
            return script(gm)
        except ScriptingError:
            pass  # Dynamo's graph is plain Python to TorchScript; AOT's below has only operators, and raises on its own
    compiled: Callable[..., Any] = aot_ts(gm, example_inputs)
    return compiled


def _has_empty_list(gm: GraphModule) -> bool:
    """TorchScript takes an empty list for one of tensors, and `torch.tensor([])` then fails when it runs."""
    return any(value == [] for node in calls_of(gm) for value in (*node.args, *node.kwargs.values()))
