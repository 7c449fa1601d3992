"""What Inductor makes of a graph, read in one place while it does: scheduler's nodes, buffers, generated module."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.fx import Node

from graphprobe.errors import UnsupportedTorchError
from graphprobe.internals.bus import Patch, PatchSet
from graphprobe.internals.ir.records import IRNode
from graphprobe.internals.ir.scheduler_nodes import ir_graph
from graphprobe.internals.names import SUPPORTED_HINT, require
from graphprobe.internals.unseen import unseen

REPORT = ("torch._inductor.debug", "log_ir_post_fusion")
"""Is called with the scheduler's nodes after fusion; torch's own place for those who look."""

COMPILE = ("torch._inductor.graph", "GraphLowering.compile_to_module")
"""Makes the generated module. Without caches torch forgets it and its file before the graph is done."""

PURPOSE = "reading what a graph was lowered to"


@dataclass(frozen=True, eq=False)
class Buffer:
    """One that the scheduler's nodes write: its name, Inductor's object, and the buffers that its writing changes."""

    name: str
    ir: Any
    mutates: tuple[str, ...]


@dataclass(eq=False)
class ScheduledGraph:
    """One graph as it was scheduled; a graph of Dynamo's has one, and one for each graph nested in it.

    Attributes:
        handler: Inductor's `GraphLowering`, which owns buffers and operations.
        nodes: the scheduler's after fusion.
        buffers: what they write, in order.
        fx: the FX nodes that were lowered, after all passes.
    """

    handler: Any
    nodes: tuple[IRNode, ...]
    buffers: tuple[Buffer, ...]
    fx: tuple[Node, ...]
    _values: dict[str, Node] | None = None

    def values(self) -> dict[str, Node]:
        """By buffer, the FX node whose value it holds; a buffer that is not there has the value of none.

        A buffer that another one changes has its node's value only then: the last that changes it holds it.

        Raises:
            UnsupportedTorchError: buffers of this torch do not tell.
        """
        if self._values is None:
            last = {changed: buffer.name for buffer in self.buffers for changed in buffer.mutates}
            own = {buffer.name: _origin(buffer.ir) for buffer in self.buffers}
            self._values = {}
            for buffer in self.buffers:
                if buffer.name in last:
                    continue
                changed = (own.get(name) for name in buffer.mutates if last[name] == buffer.name)
                node = own[buffer.name] or next((node for node in changed if node is not None), None)
                if node is not None:
                    self._values[buffer.name] = node
        return self._values


@dataclass
class Lowering:
    """What one watcher has seen so far.

    Attributes:
        parts: in the order in which they were scheduled.
        modules: by `id` of the handler, the generated module and its text; none where no Python was generated.
        error: the first that came up while reading.
    """

    parts: list[ScheduledGraph] = field(default_factory=list)
    modules: dict[int, tuple[ModuleType, str]] = field(default_factory=dict)
    error: Exception | None = None
    done: Callable[[ScheduledGraph, ModuleType, str], None] | None = None


class _LoweringTap:
    """One a process, in place for as long as somebody watches."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.patches = PatchSet()
        self.everywhere: list[Lowering] = []
        self.users = 0


class _Own(threading.local):
    def __init__(self) -> None:
        self.stack: list[Lowering] = []


_tap = _LoweringTap()
_own = _Own()


@contextlib.contextmanager
def watched(
    *, all_threads: bool = False, done: Callable[[ScheduledGraph, ModuleType, str], None] | None = None
) -> Iterator[Lowering]:
    """Collect what is lowered in this block; caches must be off, since a hit lowers nothing.

    Of blocks that are nested on one thread, the inner one sees it.

    Args:
        all_threads: whichever thread lowers; else this one only.
        done: is told of a graph once its module is there; what it raises goes to the compile.

    Raises:
        UnsupportedTorchError: torch has no such places to look at.
    """
    for module, name in (REPORT, COMPILE):
        require(module, name, purpose=PURPOSE)
    found = Lowering(done=done)
    place = _tap.everywhere if all_threads else _own.stack
    with _tap.lock:
        if not _tap.users:
            import torch._inductor.debug as debug
            import torch._inductor.graph as graph

            _tap.patches.apply(debug, Patch("lowered_nodes", *REPORT, _reporting))
            _tap.patches.apply(graph, Patch("lowered_module", *COMPILE, _compiling))
        _tap.users += 1
        place.append(found)
    try:
        yield found
    finally:
        with _tap.lock:
            place[:] = [other for other in place if other is not found]
            _tap.users -= 1
            if not _tap.users:
                _tap.patches.undo()


def _watchers() -> list[Lowering]:
    return [*_tap.everywhere, *_own.stack[-1:]]


def _reporting(original: Callable[..., Any]) -> Callable[..., Any]:
    def log_ir_post_fusion(nodes: Any) -> Any:
        for found in _watchers():
            try:
                found.parts.append(_part(nodes))
            except Exception as error:  # the compile must not see our faults
                found.error = found.error or error
        return original(nodes)

    return log_ir_post_fusion


def _compiling(original: Callable[..., Any]) -> Callable[..., Any]:
    def compile_to_module(self: Any, *args: Any, **kwargs: Any) -> Any:
        with unseen:
            module = original(self, *args, **kwargs)
        for found in _watchers():
            if isinstance(module, ModuleType):
                _keep(found, self, module)
        return module

    return compile_to_module


def _keep(found: Lowering, handler: Any, module: ModuleType) -> None:
    try:
        code = Path(str(module.__file__)).read_text("utf-8")
    except OSError as error:
        found.error = found.error or error
        return
    found.modules[id(handler)] = (module, code)
    part = next((part for part in found.parts if part.handler is handler), None)
    if found.done is not None and part is not None:
        found.done(part, module, code)


def _part(nodes: Any) -> ScheduledGraph:
    from torch._inductor.virtualized import V

    buffers = [
        Buffer(str(out.get_name()), out.node, tuple(map(str, out.get_mutations())))
        for node in nodes
        for out in node.get_outputs()
    ]
    module: Any = V.graph.module
    return ScheduledGraph(V.graph, ir_graph(nodes).nodes, tuple(buffers), tuple(module.graph.nodes))


def _origin(buffer: Any) -> Node | None:
    """The FX node that a buffer of Inductor's IR stands for, or None.

    Raises:
        UnsupportedTorchError: neither `get_origin_node` nor `origin_node` is there.
    """
    found: Node | None
    if hasattr(buffer, "get_origin_node"):
        found = buffer.get_origin_node()
        return found
    if hasattr(buffer, "origin_node"):
        found = buffer.origin_node
        return found
    raise UnsupportedTorchError(
        f"torch {torch.__version__}: a {type(buffer).__name__} of Inductor's IR does not tell its FX node",
        hint=SUPPORTED_HINT,
    )
