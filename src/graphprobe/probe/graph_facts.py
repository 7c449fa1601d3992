"""Write the nodes of a model's graphs as records: `graphs.jsonl`, each node once, however many graphs have it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from graphprobe.probe.formats.fx_nodes import NO_SOURCE, graphs_in, node_from
from graphprobe.probe.formats.fx_text import node_marks
from graphprobe.records import GraphRuns, GraphsLine, NodeLine, NodeSource, NodeTarget
from graphprobe.report.graph_nodes import GraphNode
from graphprobe.store import layout
from graphprobe.store.schema import json_from_value
from graphprobe.store.writer import RunWriter, WrittenFile

Runs = tuple[GraphRuns, ...]


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
                file.path,
                graphs,
                tuple(self._targets)[targets:],
                tuple(self._sources)[sources:],
                tuple(self._nodes),
            )
            self._told = len(self._targets), len(self._sources)
            self._nodes = []
            self._lost = not self._writer.append_text(self._file, json_from_value(line).decode() + "\n")

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
