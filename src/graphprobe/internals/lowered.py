"""Keeps what Inductor made of a graph: its IR, its scheduler's nodes, and the module that it generated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch._inductor import ir
from torch._inductor.virtualized import V

from graphprobe.errors import UnsupportedTorchError
from graphprobe.internals.inductor_ir import ir_graph
from graphprobe.internals.ir_eval_buffers import Buffers
from graphprobe.internals.ir_eval_index import NotEvaluated, numbers
from graphprobe.internals.ir_records import IRNode
from graphprobe.internals.quiet import quiet
from graphprobe.internals.require import require

PURPOSE = "looking into generated kernels"


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

    def __init__(self, handler: Any, module: ModuleType) -> None:
        self.ir = handler
        self.final: Any = handler.module
        self.module = module
        self.code = Path(str(module.__file__)).read_text("utf-8")
        self.inputs = tuple(str(name) for name in handler.graph_input_names)
        with V.set_graph_handler(handler):
            self.nodes: tuple[IRNode, ...] = ir_graph(handler.scheduler.nodes).nodes
        self._changes = {out.name: out.mutates for node in self.nodes for out in node.outputs if out.mutates}

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
        changed = {name: by for by, names in self._changes.items() for name in names}
        if buffer in changed:
            return None  # it gets the value of its node by being changed
        own = self._origin(buffer)
        of_changed = (self._origin(name) for name in self._changes.get(buffer, ()) if changed[name] == buffer)
        return own or next((node for node in of_changed if node is not None), None)

    def _origin(self, buffer: str) -> Any:
        found = self.ir.try_get_buffer(buffer)
        return None if found is None or isinstance(found, torch.Tensor) else origin_of(found)

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


def origin_of(buffer: Any) -> Any:
    """The FX node that a buffer of Inductor's IR stands for, or None.

    Raises:
        UnsupportedTorchError: neither `get_origin_node` nor `origin_node` is there.
    """
    if hasattr(buffer, "get_origin_node"):
        return buffer.get_origin_node()
    if hasattr(buffer, "origin_node"):
        return buffer.origin_node
    raise UnsupportedTorchError(
        f"torch {torch.__version__}: a {type(buffer).__name__} of Inductor's IR does not tell its FX node",
        hint="graphprobe supports torch 2.11 to 2.15",
    )


@contextmanager
def watched_lowering() -> Iterator[list[LoweredGraph]]:
    """The graphs that Inductor compiles to Python modules in this block, in order; caches must be off.

    Raises:
        UnsupportedTorchError: torch has no such place to look at.
    """
    lowering = require("torch._inductor.graph", "GraphLowering", purpose=PURPOSE)
    original: Callable[..., Any] = require("torch._inductor.graph", "GraphLowering.compile_to_module", purpose=PURPOSE)
    found: list[LoweredGraph] = []

    def compile_to_module(self: Any, *args: Any, **kwargs: Any) -> Any:
        module = original(self, *args, **kwargs)
        if isinstance(module, ModuleType):
            found.append(LoweredGraph(self, module))
        return module

    lowering.compile_to_module = compile_to_module
    try:
        yield found
    finally:
        lowering.compile_to_module = original
