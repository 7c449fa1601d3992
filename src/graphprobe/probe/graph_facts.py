"""Writes the nodes of a model's live graphs as records: `graphs.jsonl`, each node once, however many graphs have it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import fx

from graphprobe.engine.naming import module_of, name_of
from graphprobe.engine.subgraph import attribute
from graphprobe.internals.ir.records import place_in
from graphprobe.internals.operators.operators import operator_of
from graphprobe.internals.quiet import is_fake
from graphprobe.probe.formats.fx_text import node_marks
from graphprobe.records import (
    Argument,
    GraphArgument,
    GraphRuns,
    GraphsLine,
    NodeLine,
    NodeSource,
    NodeTarget,
    NodeValue,
)
from graphprobe.report.graph_nodes import SHORT_DTYPES, Graph, GraphNode, shown_value
from graphprobe.store import layout
from graphprobe.store.schema import json_line
from graphprobe.store.writer import RunWriter, WrittenFile

NO_SOURCE = ("placeholder", "output")
"""Nodes that stem from no line: an input comes from outside, an output computes nothing."""

Runs = tuple[GraphRuns, ...]

_place = lru_cache(maxsize=4096)(place_in)


def graphs_in(gm: fx.GraphModule) -> list[tuple[str, fx.GraphModule]]:
    """The graph module and those nested in it, each with its path."""
    root = type(gm).__name__
    return [
        (f"{root}/{path.replace('.', '/')}" if path else root, module)
        for path, module in gm.named_modules()
        if isinstance(module, fx.GraphModule)
    ]


def graphs_from(gm: fx.GraphModule) -> tuple[Graph, ...]:
    """The graph and those nested in it, as a reader of a run gets them."""
    return tuple(
        Graph(path, tuple(node_from(one, inner) for one in inner.graph.nodes)) for path, inner in graphs_in(gm)
    )


def node_from(node: fx.Node, gm: fx.GraphModule) -> GraphNode:
    """A node of the graph module."""
    values, several = _values(node) if node.op != "output" else ((), False)
    return GraphNode(
        name=node.name,
        op=node.op,
        target=_target(node, gm),
        source=_source(node) if node.op not in NO_SOURCE else None,
        args=tuple(map(_argument, node.args)),
        kwargs={key: _argument(value) for key, value in node.kwargs.items()},
        values=values,
        several=several,
    )


def _target(node: fx.Node, gm: fx.GraphModule) -> NodeTarget:
    target: Any = node.target
    if not isinstance(target, str):
        return _function(target)
    if node.op != "call_module":
        return NodeTarget(target)
    return NodeTarget(target, module=type(attribute(gm, target)).__name__)


def _source(node: fx.Node) -> NodeSource | None:
    file, line, function, code = _place(node.stack_trace or "")
    module = module_of(node) or ""
    return NodeSource(file, line, function, code, module) if file or module else None


def _argument(value: Any) -> Argument:
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value  # type: ignore[no-any-return]
    if isinstance(value, fx.Node):
        return GraphArgument(node=value.name)
    if (kind is int and -(2**63) <= value < 2**63) or (kind is float and math.isfinite(value)):
        return value  # type: ignore[no-any-return]
    if isinstance(value, (tuple, list)):
        name = kind.__name__ if hasattr(value, "_fields") else "tuple" if isinstance(value, tuple) else "list"
        return GraphArgument(kind=name, items=tuple(map(_argument, value)))
    if isinstance(value, dict):
        return GraphArgument(kind="dict", items=tuple(map(_argument, value.values())), keys=tuple(map(str, value)))
    if isinstance(value, slice):
        return GraphArgument(kind="slice", items=tuple(map(_argument, (value.start, value.stop, value.step))))
    return GraphArgument(text=_constant(value))


def _constant(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"torch.Tensor(size={list(value.shape)}, dtype={str(value.dtype).removeprefix('torch.')})"
    if operator_of(value) is not None:
        return _function(value).name
    try:
        return repr(value)
    except Exception:  # of the program's own
        return type(value).__name__


def _values(node: fx.Node) -> tuple[tuple[NodeValue, ...], bool]:
    """What torch has noted of what it gives, and whether that is a tuple or list."""
    meta = node.meta
    found = meta.get("val", meta.get("tensor_meta", meta.get("example_value")))
    if isinstance(found, (tuple, list)) and not hasattr(found, "dtype"):
        return tuple(map(_value, found)), True
    return ((_value(found),), False) if found is not None else ((), False)


def _value(value: Any) -> NodeValue:
    try:
        if isinstance(value, torch.Tensor):
            return _tensor(value)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            name = {torch.SymInt: "int64", torch.SymFloat: "float64"}.get(type(value), "bool")
            return NodeValue(name, text=f"Sym({value})")
        if hasattr(value, "dtype") and hasattr(value, "shape"):  # torch's TensorMetadata
            return NodeValue(str(value.dtype).removeprefix("torch."), _sizes(value.shape))
    except Exception:  # a symbol of a shape environment that is gone, a subclass of the program's own
        return NodeValue(text=type(value).__name__)
    kinds = {bool: "bool", int: "int64", float: "float64"}
    return NodeValue(kinds.get(type(value), ""), text="None" if value is None else type(value).__name__)


def _tensor(value: torch.Tensor) -> NodeValue:
    dtype = str(value.dtype).removeprefix("torch.")
    strided = value.layout is torch.strided
    found = NodeValue(dtype, _sizes(value.shape), _sizes(value.stride()) if strided else (), str(value.device))
    if (type(value) in (torch.Tensor, torch.nn.Parameter) or is_fake(value)) and dtype in SHORT_DTYPES:
        return found
    return NodeValue(dtype, found.shape, found.strides, found.device, f"{type(value).__name__}({shown_value(found)})")


def _sizes(sizes: Any) -> tuple[int | str, ...]:
    return tuple([n if type(n) is int else str(n) for n in sizes])


def _function(target: Any) -> NodeTarget:
    operator = operator_of(target)
    if operator is None:
        return NodeTarget(name_of(target).removeprefix("builtins."))
    return NodeTarget(f"torch.ops.{name_of(target)}", operator.arguments)


class GraphFacts:
    """The records of one model. Thread-safe.

    A node is told from others by the mark that the fingerprint of its graph has of it, so that of a graph that a pass
    has changed only the new nodes are looked at. Once a line could not be written, no further one is: its numbers would
    be wrong, and readers take the texts.
    """

    def __init__(self, writer: RunWriter, model: int, note: Callable[[str], None]) -> None:
        self._writer = writer
        self._file = layout.graphs_file(model)
        self._note = note
        self._lock = threading.Lock()
        self._numbers: dict[tuple[str, str | None], int] = {}
        self._targets: dict[NodeTarget, int] = {}
        self._sources: dict[NodeSource, int] = {}
        self._nodes: list[NodeLine] = []
        """New since the last line, as are targets and sources from `_told` on."""
        self._told = (0, 0)
        self._lost = False

    def take(self, gm: Any, marks: Mapping[int, list[str]] | None = None) -> Runs:
        """The graph as it is now, and those nested in it; `marks` are those that `node_marks` gives."""
        known = node_marks(gm) if marks is None else marks
        with self._lock:
            try:
                return () if self._lost else tuple(self._graph(path, inner, known) for path, inner in graphs_in(gm))
            except Exception as error:
                self._lost = True
                self._note(f"{self._file} ends early, what follows is in the texts: {type(error).__name__}: {error}")
                return ()

    def write(self, file: WrittenFile | None, graphs: Runs) -> None:
        """Say that the graphs are what a file shows."""
        with self._lock:
            if file is None or not graphs or self._lost:
                return
            targets, sources = self._told
            line = GraphsLine(
                file.path, graphs, tuple(self._targets)[targets:], tuple(self._sources)[sources:], tuple(self._nodes)
            )
            self._told = len(self._targets), len(self._sources)
            self._nodes = []
            self._lost = not self._writer.append_text(self._file, json_line(line))

    def _graph(self, path: str, gm: Any, known: Mapping[int, list[str]]) -> GraphRuns:
        marks = known.get(id(gm)) or node_marks(gm)[id(gm)]
        runs: list[tuple[int, int]] = []
        first = end = 0
        for node, mark in zip(gm.graph.nodes, marks, strict=True):
            key = (mark, node.stack_trace if node.op not in NO_SOURCE else None)
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self._numbers)
                self._nodes.append(self._line(node_from(node, gm)))
            if number != end:
                if end > first:
                    runs.append((first, end - first))
                first = number
            end = number + 1
        return GraphRuns(path, (*runs, (first, end - first)) if end > first else tuple(runs))

    def _line(self, node: GraphNode) -> NodeLine:
        source = node.source
        return NodeLine(
            name=node.name,
            op=node.op,
            target=self._targets.setdefault(node.target, len(self._targets)),
            source=None if source is None else self._sources.setdefault(source, len(self._sources)),
            args=node.args,
            kwargs=node.kwargs,
            values=node.values,
            several=node.several,
        )
