"""What the dump asks of torch's compiler: who is compiled, Inductor with a mode, and what a graph was lowered to."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import msgspec
import torch
from torch.fx import GraphModule, Node

from graphprobe.internals.caches import bypassed
from graphprobe.internals.ir_records import IRNode
from graphprobe.internals.patches import Patch, PatchSet
from graphprobe.internals.require import require
from graphprobe.internals.stages import COMPILE_FX, compile_kernels
from graphprobe.internals.unseen import unseen

Inner = Callable[[GraphModule, Sequence[Any], dict[str, Any]], Any]


def names_under_compile() -> tuple[str, ...]:
    """What Dynamo is compiling on this thread goes by these names: class of the module or the function, and longer.

    Empty outside Dynamo.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner: Any = frame.f_locals.get("self")
        if type(owner).__name__ == "OutputGraph":
            try:
                return _names(owner.root_tx)
            except Exception:  # another torch keeps this elsewhere
                return ()
        frame = frame.f_back
    return ()


def _names(root: Any) -> tuple[str, ...]:
    code = root.f_code
    first = root.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    qualified = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
    if isinstance(first, torch.nn.Module):
        kind = type(first)
        return (kind.__name__, f"{kind.__module__}.{kind.__qualname__}", code.co_name)
    name = code.co_name
    if name.startswith("torch_dynamo_resume_in_"):
        name = name.removeprefix("torch_dynamo_resume_in_").rpartition("_at_")[0]
        return (name, code.co_name)
    return (name if name.isidentifier() else "function", name, qualified)


def compile_id() -> str | None:
    """torch's id of the compile under way on this thread, e.g. `0/1`."""
    from graphprobe.internals.dynamo import current_compile_id

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
    with bypassed(), _collecting() as found:
        output = compile_kernels(gm, example_inputs, settings)
    if not found.graphs:
        return output, None
    if found.error is not None:
        raise NotSeen(found.error, output)
    try:
        return output, _lowered(found)
    except Exception as error:
        raise NotSeen(error, output) from error


class NotSeen(Exception):
    """The graph is compiled (`output`), and what it was lowered to could not be read (`error`)."""

    def __init__(self, error: Exception, output: Any) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error
        self.output = output


def _lowered(found: _Found) -> Lowered:
    outer = found.graphs[-1]
    module, code = found.modules.get(id(outer), (None, ""))
    return Lowered(module, code, found.nodes, [str(n) for n in outer.graph_inputs], found.fx, found.values)


class _Found:
    def __init__(self) -> None:
        self.graphs: list[Any] = []
        self.nodes: list[IRNode] = []
        self.fx: dict[str, Node] = {}
        self.values: dict[str, str] = {}
        self.error: Exception | None = None
        self.modules: dict[int, tuple[ModuleType, str]] = {}


class _Collector(threading.local):
    def __init__(self) -> None:
        self.found: _Found | None = None


_collector = _Collector()
_tap_lock = threading.Lock()
_taps: list[PatchSet] = []
_users: list[object] = []


@contextlib.contextmanager
def _collecting() -> Iterator[_Found]:
    """The tap on Inductor's report of its nodes, for as long as some thread lowers a graph that is dumped."""
    import torch._inductor.debug as debug
    import torch._inductor.graph as graph

    before, found = _collector.found, _Found()
    user = object()
    with _tap_lock:
        if not _users:
            patches = PatchSet()
            patches.apply(debug, Patch("dump_lowering", debug.__name__, "log_ir_post_fusion", _tap))
            patches.apply(graph, Patch("dump_module", graph.__name__, "GraphLowering.compile_to_module", _tap_module))
            _taps.append(patches)
        _users.append(user)
    _collector.found = found
    try:
        yield found
    finally:
        _collector.found = before
        with _tap_lock:
            _users.remove(user)
            if not _users:
                _taps.pop().undo()


def _tap(original: Callable[..., Any]) -> Callable[..., Any]:
    def log_ir_post_fusion(nodes: Any) -> Any:
        found = _collector.found
        if found is not None:
            try:
                _collect(found, nodes)
            except Exception as error:  # the compile must not see our faults
                found.error = found.error or error
        return original(nodes)

    return log_ir_post_fusion


def _tap_module(original: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps the module while there is one: without caches, torch forgets it and its file before the graph is done."""

    def compile_to_module(self: Any, *args: Any, **kwargs: Any) -> Any:
        with unseen:
            module = original(self, *args, **kwargs)
        found = _collector.found
        if found is not None and isinstance(module, ModuleType):
            with contextlib.suppress(OSError):
                found.modules[id(self)] = (module, Path(str(module.__file__)).read_text("utf-8"))
        return module

    return compile_to_module


def _collect(found: _Found, nodes: Any) -> None:
    from torch._inductor.virtualized import V

    from graphprobe.internals.inductor_ir import ir_graph

    nested = type(V.graph).__name__ == "SubgraphLowering"
    found.nodes.extend(ir_graph(nodes).nodes)
    if not nested:
        found.graphs.append(V.graph)
    module: Any = V.graph.module
    for node in module.graph.nodes:
        found.fx.setdefault(node.name, node)
    outputs = [out for node in nodes for out in node.get_outputs()]
    origins = {out.get_name(): getattr(out.node, "origin_node", None) for out in outputs}
    for out in outputs:  # a buffer that another one changes only has the value of its node after that
        for changed in out.get_mutations():
            origins[out.get_name()] = origins[out.get_name()] or origins.get(changed)
            origins[changed] = None
    for name, origin in origins.items():
        if origin is not None:
            found.values.setdefault(name, origin.name)
