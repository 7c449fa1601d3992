"""Reads what Inductor makes of a graph while it does: nodes, buffers, code, and IR that runs in plain torch."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import msgspec
import torch
from torch._inductor import ir
from torch._inductor.virtualized import V
from torch.fx import GraphModule, Node

from graphprobe.internals.bus import Advice, PatchSet, advised
from graphprobe.internals.caches import bypassed
from graphprobe.internals.inductor.stages import compile_kernels
from graphprobe.internals.ir.buffers import Buffers
from graphprobe.internals.ir.index import NotEvaluated, numbers
from graphprobe.internals.ir.records import IRNode
from graphprobe.internals.ir.scheduler_nodes import ir_graph
from graphprobe.internals.names import require
from graphprobe.internals.quiet import quiet

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

    @cached_property
    def values(self) -> dict[str, Node]:
        """By buffer, the FX node whose value it holds; a buffer that is not there has the value of none.

        A buffer that another one changes has its node's value only then: the last that changes it holds it.
        """
        last = {changed: buffer.name for buffer in self.buffers for changed in buffer.mutates}
        own: dict[str, Node | None] = {buffer.name: buffer.ir.get_origin_node() for buffer in self.buffers}
        found: dict[str, Node] = {}
        for buffer in self.buffers:
            if buffer.name in last:
                continue
            changed = (own.get(name) for name in buffer.mutates if last[name] == buffer.name)
            node = own[buffer.name] or next((node for node in changed if node is not None), None)
            if node is not None:
                found[buffer.name] = node
        return found


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


class _Here(threading.local):
    innermost: Lowering | None = None


_here = _Here()


@contextmanager
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
    found, outer, patches = Lowering(done=done), _here.innermost, PatchSet()

    def log_ir_post_fusion(nodes: Any) -> Advice:
        if all_threads or _here.innermost is found:
            try:
                found.parts.append(_part(nodes))
            except Exception as error:  # the compile must not see our faults
                found.error = found.error or error
        yield

    def compile_to_module(handler: Any, *args: Any, **kwargs: Any) -> Advice:
        module, _ = yield
        if isinstance(module, ModuleType) and (all_threads or _here.innermost is found):
            _keep(found, handler, module)

    for module, name in (REPORT, COMPILE):
        require(module, name, purpose=PURPOSE)
    _here.innermost = outer if all_threads else found
    try:
        patches.apply(sys.modules[REPORT[0]], advised("lowered", *REPORT, log_ir_post_fusion))
        patches.apply(sys.modules[COMPILE[0]], advised("lowered", *COMPILE, compile_to_module))
        yield found
    finally:
        patches.undo()
        _here.innermost = outer


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
    buffers = [
        Buffer(str(out.get_name()), out.node, tuple(map(str, out.get_mutations())))
        for node in nodes
        for out in node.get_outputs()
    ]
    module: Any = V.graph.module
    return ScheduledGraph(V.graph, ir_graph(nodes).nodes, tuple(buffers), tuple(module.graph.nodes))


@dataclass(frozen=True)
class BufferLayout:
    """Sizes, strides and offset of a buffer in its memory, in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    def view(self, memory: torch.Tensor) -> torch.Tensor:
        """The buffer that begins where `memory` does, of its own dtype."""
        found = memory
        if memory.dtype != self.dtype:
            found = memory.as_strided((), (), memory.storage_offset()).view(self.dtype)
        return found.as_strided(self.size, self.stride, found.storage_offset() + self.offset)

    def empty(self) -> torch.Tensor:
        """Memory of its own, not filled."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)


class LoweredGraph:
    """One graph that was lowered and generated in this process.

    Attributes:
        ir: Inductor's handler of the graph, which owns its buffers and operations.
        final: the FX graph that was lowered.
        nodes: the scheduler's nodes after fusion.
        module: the generated module.
        code: its text.
        inputs: names of the graph's inputs in generated code.
    """

    def __init__(self, part: ScheduledGraph, module: ModuleType, code: str) -> None:
        handler = part.handler
        self.ir = handler
        self.final: Any = handler.module
        self.module = module
        self.code = code
        self.inputs = tuple(str(name) for name in handler.graph_input_names)
        self.nodes: tuple[IRNode, ...] = part.nodes
        self._part = part
        self._changes = {buffer.name: buffer.mutates for buffer in part.buffers if buffer.mutates}

    def outputs(self) -> frozenset[str]:
        """Names of the buffers that leave the graph: what it returns and what it writes to."""
        names = [str(name) for name in self.ir.get_output_names()]
        return frozenset([*names, *map(str, self.ir.mutated_buffers), *map(str, self.ir.mutated_inputs)])

    def is_constant(self, name: str) -> bool:
        """Whether a name of the generated code is a constant of the graph."""
        return name in self.ir.constants

    def origin(self, buffer: str) -> Any:
        """The node of `final` whose value a buffer is, of a graph input its placeholder; None where there is none."""
        if buffer in self.inputs:
            places = [node for node in self.final.graph.nodes if node.op == "placeholder"]
            return places[self.inputs.index(buffer)]
        return self._part.values.get(buffer)

    def memory_of(self, buffer: str) -> str:
        """The buffer or graph input whose memory a buffer writes into; itself where it has its own."""
        layout = self._layout(buffer)
        if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
            return self.memory_of(str(layout.get_buffer().get_name()))
        if not isinstance(layout, ir.Layout) and len(self._changes.get(buffer, ())) == 1:
            return self.memory_of(self._changes[buffer][0])  # what stands for a buffer once a call has changed it
        return buffer

    def layout(self, buffer: str, symbols: Mapping[Any, Any]) -> BufferLayout | None:
        """How a buffer lies in its memory; None for what is unknown or no tensor.

        Args:
            symbols: see `symbols`.
        """
        layout = self._layout(self.memory_of(buffer))
        if not isinstance(layout, ir.Layout):
            return None
        size, stride = numbers(layout.size, symbols), numbers(layout.stride, symbols)
        (offset,) = numbers([layout.offset], symbols)
        return BufferLayout(tuple(size), tuple(stride), offset, layout.dtype, layout.device)

    def is_scalar(self, buffer: str) -> bool:
        """Whether a buffer holds one number, which the generated code may look at."""
        layout = self._layout(buffer)
        return isinstance(layout, ir.Layout) and not list(layout.size)

    def lies_in_another(self, buffer: str) -> bool:
        """Whether a buffer is a part of another, of a concatenation for one."""
        return isinstance(self._layout(buffer), ir.NonOwningLayout)

    def _layout(self, buffer: str) -> Any:
        found = self.ir.try_get_buffer(buffer)
        return found.get_output_spec() if found is not None and hasattr(found, "get_output_spec") else None

    def symbols(self, variables: Mapping[str, Any]) -> dict[Any, Any]:
        """What the graph's symbols stand for, from the variables of the generated code at this moment."""
        values = {symbol: variables.get(symbol.name) for symbol in self._symbols}
        return {symbol: value for symbol, value in values.items() if isinstance(value, (int, float))}

    @cached_property
    def _symbols(self) -> set[Any]:
        return {symbol for expr in self._expressions() for symbol in getattr(expr, "free_symbols", ())}

    def _expressions(self) -> Iterator[Any]:
        yield from self.ir.graph_inputs.values()
        for node in self.final.graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, (torch.SymInt, torch.SymFloat)):
                yield value.node.expr
        for buffer in self.ir.buffers:
            layout = buffer.get_output_spec()
            yield from getattr(layout, "size", ())
        for operation in self.ir.operations:
            with suppress(Exception):  # of a kind that does not tell
                yield from operation.get_free_symbol_uses(unbacked_only=False)

    def evaluate(
        self, nodes: Sequence[str], given: Mapping[str, torch.Tensor], symbols: Mapping[Any, Any]
    ) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """Run the IR of some of the scheduler's nodes in plain torch.

        Args:
            nodes: names of scheduler nodes, in order.
            given: values of the buffers that they read, by name; copied.

        Returns:
            the values of the buffers that they write, by name; where that is memory of another, what all of it holds in
            one dimension; and the buffers without a value, and why.
        """
        buffers = Buffers(self.ir)
        buffers.env.update(symbols)
        for name, value in given.items():
            buffers.bind(name, value)
        wanted: dict[str, Any] = {}
        by_name = {node.name: node for node in self.nodes}
        with torch.no_grad(), quiet(), V.set_graph_handler(self.ir):
            with mock.patch.object(ir.FlexibleLayout, "allow_indexing", True):
                for node in nodes:
                    for member in by_name[node].members or (node,):
                        self._run(member, buffers, wanted)
                return self._values(buffers, wanted)

    def _run(self, member: str, buffers: Buffers, wanted: dict[str, Any]) -> None:
        operation = self.ir.name_to_op[member]
        outs = operation.get_outputs()
        try:
            buffers.run(operation)
        except Exception as error:
            reason = str(error) if isinstance(error, NotEvaluated) else f"{type(error).__name__}: {error}"
            for out in outs:
                for name in (out.get_name(), *out.get_mutation_names()):
                    buffers.lost[str(name)] = reason.split("\n")[0]
        wanted.update({str(out.get_name()): out for out in outs})

    def _values(self, buffers: Buffers, wanted: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        values: dict[str, torch.Tensor] = {}
        lost = dict(buffers.lost)
        for name, out in wanted.items():
            memory = self.memory_of(name)
            try:
                value = buffers.flat(memory).clone() if memory != name else buffers.value(out)
            except NotEvaluated as error:
                lost.setdefault(name, str(error))
                continue
            if isinstance(value, torch.Tensor) and name not in lost:
                values[name] = value
        return values, lost


@contextmanager
def watched_lowering() -> Iterator[list[LoweredGraph]]:
    """The graphs that Inductor compiles to Python modules in this block, in order; caches must be off.

    Raises:
        UnsupportedTorchError: torch has no such place to look at.
    """
    found: list[LoweredGraph] = []

    def keep(part: ScheduledGraph, module: ModuleType, code: str) -> None:
        found.append(LoweredGraph(part, module, code))

    with watched(all_threads=True, done=keep) as lowering:
        yield found
    if lowering.error is not None:
        raise lowering.error


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
        for name, node in part.values.items():
            result.values.setdefault(name, node.name)
    return result
