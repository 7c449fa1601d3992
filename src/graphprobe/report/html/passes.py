"""The data of the view `passes`: what each pass of each graph took and changed, with the diffs that fit in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from graphprobe.errors import ArtifactNotFoundError
from graphprobe.records import Event
from graphprobe.report.document import Note, Section
from graphprobe.report.graph_diff import GraphDiff, Node, diff_sides, side_of
from graphprobe.report.html.sources import Sources
from graphprobe.store.address import addresses_from_events
from graphprobe.store.reader import Model, Run

MOST_BYTES = 24 << 20
"""Text of graphs that is read for diffs in all: some tens of seconds at the most."""

MOST_NODES = 60
"""Nodes of one kind (added, removed, …) that a diff shows."""

MOST_TEXT = 400
"""Letters of one node's expression."""


def passes_section(run: Run, models: Sequence[Model], sources: Sources) -> Section | None:
    """The timeline of every graph; None where no pass ran."""
    differ = _Differ(run, sources)
    graphs = []
    changed = ran = 0
    for model in models:
        addresses = {event.seq: address for address, event in addresses_from_events(model.events).items()}
        for direction, events in model.directions().items():
            rows = [_row(event, addresses, differ) for event in events if _is_pass(event)]
            if rows:
                graphs.append({"title": f"model__{model.number} {direction}", "begin": _begin(events), "passes": rows})
                ran += len(rows)
                changed += sum(bool(row["changed"]) for row in rows)
    if not graphs:
        return None
    # The graph on which most was done is the one to begin with.
    first = max(range(len(graphs)), key=lambda index: sum(bool(row["changed"]) for row in graphs[index]["passes"]))  # type: ignore[attr-defined]
    left = ""
    if differ.left:
        left = f"{differ.left} passes that changed a graph are without their diff: it would be too much for one file. "
        left += "graphprobe diff RUN --pass NAME shows it."
    data = {"graphs": graphs, "first": first}
    return Section("passes", "Passes", "passes", data, Note(left), f"{changed} of {ran} changed a graph")


def _is_pass(event: Event) -> bool:
    return event.kind in ("pass", "failure")


def _begin(events: Sequence[Event]) -> int:
    """Wall clock at which the first pass of a graph began, ns."""
    return min((event.time_ns - (event.elapsed_ns or 0) for event in events if _is_pass(event)), default=0)


def _row(event: Event, addresses: dict[int, str], differ: _Differ) -> dict[str, Any]:
    took = event.elapsed_ns or 0
    row: dict[str, Any] = {
        "name": event.where.pass_name or event.name,
        "phase": event.subsystem or event.where.phase or "",
        "at": event.time_ns - took,
        "took": event.elapsed_ns,
        "changed": event.changed is True,
        "before": event.nodes_before,
        "after": event.nodes_after,
        "added": len(event.added),
        "removed": len(event.removed),
    }
    if event.where.subgraph:
        row["subgraph"] = event.where.subgraph
    if event.kind == "failure":
        row["failed"] = event.message or "it raised"
    if event.changed:
        row["address"] = addresses.get(event.seq, "")
        row["diff"] = differ.diff(event)
    return row


class _Differ:
    """Diffs of passes, until the text that was read for them comes to `MOST_BYTES`."""

    def __init__(self, run: Run, sources: Sources) -> None:
        self.left = 0
        self._run, self._sources = run, sources
        self._by_path = {event.path: event for event in run.events() if event.path}
        self._read = 0

    def diff(self, event: Event) -> dict[str, Any] | None:
        """What the pass changed; None where it does not fit in, or a file is gone."""
        before = self._by_path.get(event.before or "")
        if before is None or event.path is None:
            return None
        size = (event.size_bytes or 0) + (before.size_bytes or 0)
        if self._read + size > MOST_BYTES:
            self.left += 1
            return None
        self._read += size
        try:
            sides = side_of(self._run, before), side_of(self._run, event)
        except ArtifactNotFoundError:
            return None
        return self._plain(diff_sides(*sides))

    def _plain(self, diff: GraphDiff) -> dict[str, Any]:
        graphs = []
        for graph in diff.graphs:
            if not graph.different:
                continue
            made: dict[str, Any] = {"graph": graph.graph, "unchanged": graph.unchanged}
            for name in ("removed", "added"):
                nodes = getattr(graph, name)
                made[name] = [self._node(node) for node in nodes[:MOST_NODES]]
                made[f"{name}_left"] = max(0, len(nodes) - MOST_NODES)
            pairs = graph.changed
            made["changed"] = [[self._node(pair.before), self._node(pair.after)] for pair in pairs[:MOST_NODES]]
            made["changed_left"] = max(0, len(pairs) - MOST_NODES)
            made["renamed"] = [[pair.before.name, pair.after.name] for pair in graph.renamed[:MOST_NODES]]
            made["renamed_left"] = max(0, len(graph.renamed) - MOST_NODES)
            made["moved"] = len(graph.moved)
            graphs.append(made)
        lines = list(_short(diff.lines))
        return {"graphs": graphs, "lines": lines, "lines_left": len(diff.lines) - len(lines)}

    def _node(self, node: Node) -> list[str]:
        """Name, type, expression and place."""
        place = self._sources.short(node.place)
        self._sources.link(place)
        text = node.expression
        return [node.name, node.type, text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} …", place]


def _short(lines: Sequence[str]) -> Iterator[str]:
    for line in lines[: MOST_NODES * 2]:
        yield line[:MOST_TEXT]
