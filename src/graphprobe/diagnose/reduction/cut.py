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
from graphprobe.engine.subgraph import CALLS, attribute, output_node
from graphprobe.engine.values import CapturedValues

Path = tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """Where the value of a placeholder comes from: a node's snapshot, by number for each call, and the place in it."""

    name: str
    numbers: tuple[int, ...]
    path: Path
    written: bool


@dataclass(frozen=True)
class Piece:
    """A graph of its own; `sources` tells the values of its placeholders."""

    graph: GraphModule
    sources: tuple[Source, ...]


def cut(gm: GraphModule, keep: Collection[str], recordings: Sequence[Recording]) -> Piece:
    """The calls named in `keep` as a graph; what they take from the rest becomes placeholders, numbers are written in.

    It returns what nothing in it uses, and what the whole graph returns of it.

    Raises:
        NotApplicable: the calls cannot stand alone: one takes a value from outside that cannot be saved.
    """
    return _Cutter(gm, keep, recordings).piece()


class _Cutter:
    def __init__(self, gm: GraphModule, keep: Collection[str], recordings: Sequence[Recording]) -> None:
        self.gm, self.recordings = gm, recordings
        nodes = list(gm.graph.nodes)
        self.position = {n: i for i, n in enumerate(nodes)}
        self.kept = [n for n in nodes if n.op in CALLS and n.name in keep]
        self.keep = set(self.kept)
        self.graph, self.root = Graph(), torch.nn.Module()
        self.made: dict[Node, Any] = {}
        self.sources: list[Source] = []
        self.written = {name for r in recordings for n in self.kept for name in r.writes.get(n.name, ())}

    def piece(self) -> Piece:
        first: dict[Node, Node] = {}
        for user in self.kept:
            for source in user.all_input_nodes:
                if source not in self.keep:
                    first.setdefault(source, user)
        # Placeholders come first in a graph, before graphs that are read from the module.
        for source in sorted(first, key=lambda n: (self._is_module(n), self.position[n])):
            self.made[source] = self._stand_in(source, self.position[first[source]])
        for node in self.kept:
            if node.op == "call_module":
                attach(self.root, str(node.target), self.gm.get_submodule(str(node.target)))
            self.made[node] = self.graph.node_copy(node, self.made.__getitem__)
            self.made[node].meta = clean_meta(node.meta)
        returned = set(output_node(self.gm).all_input_nodes)
        shown = [n for n in self.kept if n in returned or not any(u in self.keep for u in n.users)]
        self.graph.output(tuple(self.made[n] for n in shown if self._returnable(n)))
        return Piece(GraphModule(self.root, self.graph), tuple(self.sources))

    def _is_module(self, node: Node) -> bool:
        return node.op == "get_attr" and not isinstance(attribute(self.gm, node.target), torch.Tensor)

    def _stand_in(self, node: Node, position: int) -> Any:
        if self._is_module(node):
            attach(self.root, str(node.target), attribute(self.gm, node.target))
            return self.graph.get_attr(str(node.target))
        try:
            numbers = tuple(r.number(node.name, position) for r in self.recordings)
            records = [r.record(node.name, k) for r, k in zip(self.recordings, numbers, strict=True)]
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
        made = self.graph.placeholder("_".join([node.name, *map(str, path)]))
        made.meta = clean_meta(node.meta)
        self.sources.append(Source(node.name, numbers, path, node.name in self.written))
        return made

    def _returnable(self, node: Node) -> bool:
        """Not what is no data, such as None, or the mark of a context that was entered."""
        snapshots = self.recordings[0].snapshots.get(node.name)
        if snapshots is None:
            return node.name == self.recordings[0].failed
        record = self.recordings[0].record(node.name, snapshots[0][1])
        return record["kind"] != "none" and not is_opaque(record)


def is_opaque(record: Mapping[str, Any]) -> bool:
    """Whether a value, or part of it, cannot be saved."""
    if record["kind"] == "opaque":
        return True
    items = record.get("items", ())
    return any(is_opaque(item) for item in (items.values() if isinstance(items, dict) else items))


def record_of(source: Source, recordings: Sequence[Recording], call: int) -> tuple[Mapping[str, Any], CapturedValues]:
    """The description of a placeholder's value in one call, and the capture that it belongs to."""
    recording, number = recordings[call], source.numbers[call]
    record: Any = recording.record(source.name, number)
    for i in source.path:
        record = record["items"][i]
    return record, recording.inputs if number == ORIGINAL else recording.values


def inputs_of(piece: Piece, recordings: Sequence[Recording], call: int, *, fresh: bool = True) -> list[Any]:
    """The values of a piece's placeholders in one call.

    Args:
        fresh: in memory of their own, on their devices. Otherwise on the CPU in the memory of the recording, to look
            at only.
    """
    recording = recordings[call]
    storages = {id(c): Storages(c) if fresh else c.tensors for c in (recording.inputs, recording.values)}
    found = []
    for source in piece.sources:
        record, captured = record_of(source, recordings, call)
        value = restore(record, storages[id(captured)], captured.doc)
        # In the middle of a program a value is no leaf of autograd, which matters when it is written to.
        if fresh and source.written and captured is recording.values and getattr(value, "requires_grad", False):
            value = computed(value)
        found.append(value)
    return found


def attach(root: torch.nn.Module, target: str, value: Any) -> None:
    """Set an attribute by its dotted path, with modules on the way."""
    *folders, leaf = target.split(".")
    for folder in folders:
        if not hasattr(root, folder):
            root.add_module(folder, torch.nn.Module())
        root = getattr(root, folder)
    setattr(root, leaf, value)


def clean_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of a node's origin, without the values of its tracing."""
    return {key: meta[key] for key in ("stack_trace", "nn_module_stack", "fwd_nn_module_stack") if key in meta}
