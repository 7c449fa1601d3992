"""A graph as Inductor lowered it, whose generated code and IR can be asked, and run again in plain torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch._inductor import ir
from torch._inductor.virtualized import V

from graphprobe.internals.inductor.lowering_watch import ScheduledGraph, watched
from graphprobe.internals.ir.buffers import Buffers
from graphprobe.internals.ir.index import NotEvaluated, numbers
from graphprobe.internals.ir.records import IRNode
from graphprobe.internals.quiet import quiet


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
        """The FX node of `final` whose value a buffer is; a graph input's placeholder. None where there is no such one.

        Raises:
            UnsupportedTorchError: buffers of this torch do not tell.
        """
        if buffer in self.inputs:
            places = [node for node in self.final.graph.nodes if node.op == "placeholder"]
            return places[self.inputs.index(buffer)]
        return self._part.values().get(buffer)

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
        found: dict[Any, Any] = {}
        for symbol in self._symbols():
            value = variables.get(symbol.name)
            if isinstance(value, (int, float)):
                found[symbol] = value
        return found

    def _symbols(self) -> set[Any]:
        if not hasattr(self, "_known_symbols"):
            self._known_symbols = set()
            for expr in self._expressions():
                self._known_symbols |= set(getattr(expr, "free_symbols", ()))
        return self._known_symbols

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
        self, nodes: Sequence[str], given: Mapping[str, torch.Tensor], symbols: Mapping[Any, Any], *, wide: bool = False
    ) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """Run the IR of some of the scheduler's nodes in plain torch.

        Args:
            nodes: names of scheduler nodes, in order.
            given: values of the buffers that they read, by name; copied.
            wide: compute and keep floating-point values in float64.

        Returns:
            the values of the buffers that they write, by name; where that is memory of another, what all of it holds in
            one dimension; and the buffers without a value, and why.
        """
        buffers = Buffers(self.ir, wide)
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
