"""Any set of a graph's calls as a graph of its own, with the values that it is to be called with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from graphprobe.diagnose.reduction.edits.base import NotApplicable
from graphprobe.diagnose.reduction.recording import ORIGINAL, Recording, Storages
from graphprobe.engine.replay import computed, restore
from graphprobe.engine.subgraph import CALLS, attribute, origin_of, output_node
from graphprobe.engine.values import CapturedValues, why_opaque

Path = tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """Where the value of a placeholder comes from: a node's snapshot, by number for each call, and the place in it."""

    name: str
    numbers: tuple[int, ...]
    path: Path
    written: bool


class Piece:
    """The calls named in `keep` as a graph; what they take from the rest becomes placeholders, numbers are written in.

    It returns what nothing in it uses, and what the whole graph returns of it.

    Attributes:
        sources: where the values of its placeholders come from.

    Raises:
        NotApplicable: the calls cannot stand alone: one takes a value from outside that cannot be saved.
    """

    def __init__(self, gm: GraphModule, keep: Collection[str], recordings: Sequence[Recording]) -> None:
        self._gm, self._recordings = gm, recordings
        position, names = {n: i for i, n in enumerate(gm.graph.nodes)}, set(keep)
        kept = {n: None for n in position if n.op in CALLS and n.name in names}
        self._written = {name for r in recordings for n in kept for name in r.writes.get(n.name, ())}
        self.sources: list[Source] = []
        self._graph = Graph()
        made: dict[Node, Any] = {}
        first: dict[Node, Node] = {}
        for user in kept:
            for source in user.all_input_nodes:
                if source not in kept:
                    first.setdefault(source, user)
        # Placeholders come first in a graph, before graphs that are read from the module.
        for source in sorted(first, key=lambda n: (self._is_module(n), position[n])):
            made[source] = self._stand_in(source, position[first[source]])
        for node in kept:
            made[node] = self._graph.node_copy(node, made.__getitem__)
            made[node].meta = origin_of(node)
        returned = set(output_node(gm).all_input_nodes)
        shown = [n for n in kept if n in returned or not any(u in kept for u in n.users)]
        self._graph.output(tuple(made[n] for n in shown if self._returnable(n)))
        self.graph = GraphModule(gm, self._graph)

    def _is_module(self, node: Node) -> bool:
        return node.op == "get_attr" and not isinstance(attribute(self._gm, node.target), torch.Tensor)

    def _stand_in(self, node: Node, position: int) -> Any:
        if self._is_module(node):
            return self._graph.get_attr(str(node.target))
        try:
            numbers = tuple(r.number(node.name, position) for r in self._recordings)
            records = [r.record(node.name, k) for r, k in zip(self._recordings, numbers, strict=True)]
        except (KeyError, ValueError) as error:
            raise NotApplicable(f"{node.name} has no recorded value") from error
        return self._value(node, numbers, records, ())

    def _value(self, node: Node, numbers: tuple[int, ...], records: Sequence[Mapping[str, Any]], path: Path) -> Any:
        kinds = {record["kind"] for record in records}
        if len(kinds) != 1:
            raise NotApplicable(f"{node.name} is of another kind in another call: {', '.join(sorted(kinds))}")
        kind = kinds.pop()
        if kind in ("list", "tuple"):
            rows = list(zip(*(record["items"] for record in records), strict=True))
            items = [self._value(node, numbers, row, (*path, i)) for i, row in enumerate(rows)]
            return items if kind == "list" else tuple(items)
        if kind == "opaque":
            raise NotApplicable(f"{node.name}: {records[0]['reason']}")
        # An int that the graph is given may be a symbol, with which a fault of dynamic shapes goes.
        given = kind == "int" and node.op == "placeholder"
        if kind == "tensor" or given or any(record != records[0] for record in records):
            return self._placeholder(node, numbers, path)
        return restore(records[0], {}, {})

    def _placeholder(self, node: Node, numbers: tuple[int, ...], path: Path) -> Node:
        made = self._graph.placeholder("_".join([node.name, *map(str, path)]))
        made.meta = origin_of(node)
        self.sources.append(Source(node.name, numbers, path, node.name in self._written))
        return made

    def _returnable(self, node: Node) -> bool:
        """Not what is no data, such as None, or the mark of a context that was entered."""
        recording = self._recordings[0]
        record = recording.first(node)
        return node.name == recording.failed if record is None else record["kind"] != "none" and not why_opaque(record)

    def described(self, source: Source, call: int) -> tuple[Mapping[str, Any], CapturedValues]:
        """The description of a placeholder's value in one call, and the capture that it belongs to."""
        recording, number = self._recordings[call], source.numbers[call]
        record: Any = recording.record(source.name, number)
        for i in source.path:
            record = record["items"][i]
        return record, recording.inputs if number == ORIGINAL else recording.values

    def inputs(self, call: int, *, fresh: bool = True) -> list[Any]:
        """The values of the placeholders in one call.

        Args:
            fresh: in memory of their own, on their devices. Otherwise on the CPU in the memory of the recording, to
                look at only.
        """
        recording = self._recordings[call]
        storages = {id(c): Storages(c) if fresh else c.tensors for c in (recording.inputs, recording.values)}
        found = []
        for source in self.sources:
            record, captured = self.described(source, call)
            value = restore(record, storages[id(captured)], captured.doc)
            # In the middle of a program a value is no leaf of autograd, which matters when it is written to.
            if fresh and source.written and captured is recording.values and getattr(value, "requires_grad", False):
                value = computed(value)
            found.append(value)
        return found
