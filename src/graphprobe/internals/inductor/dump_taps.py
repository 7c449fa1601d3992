"""What the dump asks of torch's compiler: who is compiled, Inductor with a mode, and what a graph was lowered to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
import torch
from torch.fx import GraphModule, Node

from graphprobe.internals.caches import bypassed
from graphprobe.internals.dynamo.frame_names import compiled_now
from graphprobe.internals.inductor.lowered_graph import Lowering, ScheduledGraph, watched
from graphprobe.internals.inductor.stages import COMPILE_FX, compile_kernels
from graphprobe.internals.ir.records import IRNode
from graphprobe.internals.names import require

Inner = Callable[[GraphModule, Sequence[Any], dict[str, Any]], Any]


class UnderCompile(NamedTuple):
    """What Dynamo is compiling on this thread.

    Attributes:
        names: class of the module or the function, and longer; empty outside Dynamo.
        owner: identity of the module whose method it is; 0 for a function.
    """

    names: tuple[str, ...] = ()
    owner: int = 0


def under_compile() -> UnderCompile:
    """See `UnderCompile`."""
    try:
        named = compiled_now()
    except Exception:  # another torch keeps this elsewhere
        named = None
    if named is None:
        return UnderCompile()
    if named.module is not None:
        kind = type(named.module)
        return UnderCompile((kind.__name__, f"{kind.__module__}.{kind.__qualname__}", named.given), id(named.module))
    name = named.plain
    return UnderCompile((name if name.isidentifier() else "function", name, named.given))


def compile_id() -> str | None:
    """torch's id of the compile under way on this thread, e.g. `0/1`."""
    from graphprobe.internals.dynamo.dynamo_taps import current_compile_id

    return current_compile_id()


def inductor_graphs(
    gm: GraphModule, example_inputs: Sequence[Any], *, mode: str | None, options: dict[str, Any] | None, inner: Inner
) -> Callable[..., Any]:
    """Inductor as `torch.compile(mode=…, options=…)` has it, up to the graphs that AOTAutograd makes.

    `inner` gets each with its inputs and Inductor's settings, and returns what runs. CUDA graphs are off: no launch is
    seen in a replay. Caches are bypassed: a hit would run no pass, and tell nothing of what the code stems from.
    """
    compile_fx = require(COMPILE_FX, "compile_fx", purpose="the dump of ops")
    wrapper = torch._TorchCompileInductorWrapper(mode, options, None)
    patches = {**wrapper.config, "triton.cudagraphs": False}

    def inner_compile(graph: GraphModule, inputs: Sequence[Any], **settings: Any) -> Any:
        return inner(graph, inputs, settings)

    with bypassed():
        compiled: Callable[..., Any] = compile_fx(
            gm, list(example_inputs), inner_compile=inner_compile, config_patches=patches
        )
        return compiled


def uses_cuda_graphs(mode: str | None, options: dict[str, Any] | None) -> bool:
    """Whether Inductor would capture CUDA graphs with these."""
    wrapper = torch._TorchCompileInductorWrapper(mode, options, None)
    config = require("torch._inductor", "config", purpose="the dump of ops")
    return bool(wrapper.config.get("triton.cudagraphs", config.triton.cudagraphs))


class Lowered(msgspec.Struct):
    """What Inductor made of one graph.

    Attributes:
        module, code: the generated wrapper and its text; None when there is no Python wrapper.
        nodes: the scheduler's after fusion, those of nested graphs included.
        inputs: names of the inputs in the wrapper, in order.
        fx: FX nodes after all passes, by name.
        values: by buffer, the name of the FX node whose value it holds.
    """

    module: ModuleType | None = None
    code: str = ""
    nodes: list[IRNode] = []
    inputs: list[str] = []
    fx: dict[str, Node] = {}
    values: dict[str, str] = {}


def lower(gm: GraphModule, example_inputs: Sequence[Any], settings: dict[str, Any]) -> tuple[Any, Lowered | None]:
    """Inductor's last part on a graph of AOTAutograd: its result as it is, and what became of the graph.

    The second is None when nothing was seen, e.g. because the graph computes nothing.
    """
    with bypassed(), watched() as found:
        output = compile_kernels(gm, example_inputs, settings)
    outer = [part for part in found.parts if not _nested(part)]
    if not outer:
        return output, None
    try:
        if found.error is not None:
            raise found.error
        return output, _lowered(found, outer[-1])
    except Exception as error:
        raise NotSeen(error, output) from error


class NotSeen(Exception):
    """The graph is compiled (`output`), and what it was lowered to could not be read (`error`)."""

    def __init__(self, error: Exception, output: Any) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error
        self.output = output


def _nested(part: ScheduledGraph) -> bool:
    return type(part.handler).__name__ == "SubgraphLowering"


def _lowered(found: Lowering, outer: ScheduledGraph) -> Lowered:
    module, code = found.modules.get(id(outer.handler), (None, ""))
    result = Lowered(module, code, [], [str(name) for name in outer.handler.graph_inputs])
    for part in found.parts:
        result.nodes.extend(part.nodes)
        for node in part.fx:
            result.fx.setdefault(node.name, node)
        for name, node in part.values().items():
            result.values.setdefault(name, node.name)
    return result
