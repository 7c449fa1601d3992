"""What differs between two graphs, node by node: not which lines, but what was computed otherwise; and prints it."""

from __future__ import annotations

import difflib
from collections import defaultdict
from typing import IO, Literal

import msgspec

from graphprobe.compare.align import ascending
from graphprobe.records import Event
from graphprobe.report.graph_nodes import Graph, GraphNode, graphs_of, lines_of, shown_source
from graphprobe.report.terminal import Console, Text, console_for
from graphprobe.store.reader import Run


class Node(msgspec.Struct, frozen=True):
    """A node as a diff shows it.

    Attributes:
        name: its name; `output` for the graph's output.
        type: dtype, shape, stride and device as printed: `f32[2, 3][3, 1]cpu`; empty when there is none.
        expression: what computes it, as printed; `placeholder` for an input.
        source: where it stems from, e.g. `File: x.py:12 in forward, code: y = x + 1`; empty when that is not known.
        line: line in the text, from 1.
        place: the `x.py:12` of the source.
    """

    name: str
    type: str
    expression: str
    source: str
    line: int
    place: str = ""


class NodePair(msgspec.Struct, frozen=True):
    """The same node on both sides."""

    before: Node
    after: Node


class NodeDiff(msgspec.Struct, frozen=True):
    """The differences within one graph.

    `changed` nodes keep their name but compute something else, take other arguments, or have another type; `renamed`
    ones differ in nothing but names; `moved` ones are the fewest that explain another order of otherwise paired nodes.
    """

    graph: str
    removed: tuple[Node, ...] = ()
    added: tuple[Node, ...] = ()
    changed: tuple[NodePair, ...] = ()
    renamed: tuple[NodePair, ...] = ()
    moved: tuple[NodePair, ...] = ()
    unchanged: int = 0

    @property
    def different(self) -> bool:
        """Whether there is any difference, renames and moves included."""
        return bool(self.removed or self.added or self.changed or self.renamed or self.moved)


class GraphDiff(msgspec.Struct, frozen=True):
    """The differences between two texts: by node where both are graphs, else the lines, as a unified diff."""

    kind: Literal["graphs", "text"]
    graphs: tuple[NodeDiff, ...] = ()
    lines: tuple[str, ...] = ()

    @property
    def different(self) -> bool:
        """Whether there is any difference."""
        return bool(self.lines) or any(graph.different for graph in self.graphs)


class DiffSide(msgspec.Struct, frozen=True):
    """One of the two that are compared: what it is called, its text, its graphs."""

    name: str
    text: str
    graphs: tuple[Graph, ...] = ()


def side_of(run: Run, event: Event, name: str = "") -> DiffSide:
    """A file of a run. Raises ArtifactNotFoundError when it is gone."""
    return DiffSide(name or str(event.path), run.text(event), graphs_of(run, event))


def diff_sides(before: DiffSide, after: DiffSide) -> GraphDiff:
    """Compare by node where both have graphs, else by line."""
    if not all(any(graph.nodes for graph in side.graphs) for side in (before, after)):
        texts = before.text.splitlines(), after.text.splitlines()
        return GraphDiff("text", lines=tuple(difflib.unified_diff(*texts, before.name, after.name, lineterm="")))
    pairs = _paired_graphs(_shown(before), _shown(after))
    return GraphDiff("graphs", graphs=tuple(diff_nodes(one, other) for one, other in pairs))


class _Shown(msgspec.Struct):
    """A graph with its nodes as a diff shows them, and, in the same order, as they are."""

    path: str
    nodes: tuple[Node, ...] = ()
    facts: tuple[GraphNode, ...] = ()


def _shown(side: DiffSide) -> list[_Shown]:
    lines = lines_of(side.text, side.graphs)
    return [_Shown(one.path, tuple(map(_node, one.nodes, lines)), one.nodes) for one in side.graphs]


def _node(node: GraphNode, line: int) -> Node:
    place = "" if node.source is None else node.source.place
    return Node(node.name, node.type, node.expression(), shown_source(node.source), line, place)


def diff_nodes(before: _Shown, after: _Shown) -> NodeDiff:
    """Compare two graphs node by node.

    A node is first sought under its own name with the same computation, then under any name with the same computation
    on the same (already paired) arguments: a rename. What is left over pairs by name as changed, or is added, removed.
    """
    names = _NamePairs(before, after)
    same, renamed = _pair_equal(names)
    left = {node.name: node for node in before.nodes if names.is_free(node)}
    new = [node for node in after.nodes if node.name not in names.old_name]
    changed = [NodePair(left.pop(node.name), node) for node in new if node.name in left]
    paired = same + renamed + changed
    known = {pair.after.name for pair in changed}
    return NodeDiff(
        graph=after.path or before.path,
        removed=tuple(left.values()),
        added=tuple(node for node in new if node.name not in known),
        changed=tuple(changed),
        renamed=tuple(renamed),
        moved=tuple(_moved(before, after, paired)),
        unchanged=len(same),
    )


class _NamePairs:
    """Both graphs with the names paired so far."""

    def __init__(self, before: _Shown, after: _Shown) -> None:
        self.before = before
        self.after = after
        self.old = {node.name: node for node in before.nodes}
        self.new = {node.name: node for node in after.nodes}
        self._facts = {node.name: facts for node, facts in zip(after.nodes, after.facts, strict=True)}
        self.old_name: dict[str, str] = {}
        self._taken: set[str] = set()

    def pair(self, before: Node, after: Node) -> NodePair:
        self.old_name[after.name] = before.name
        self._taken.add(before.name)
        return NodePair(before, after)

    def is_free(self, before: Node) -> bool:
        return before.name not in self._taken

    def key(self, before: Node) -> tuple[str, str]:
        """What a node of the first graph computes."""
        return before.type, before.expression

    def key_in_old_names(self, after: Node) -> tuple[str, str]:
        """What a node of the second graph computes, in the names of the first."""
        return after.type, self._facts[after.name].expression(self._old)

    def _old(self, name: str) -> str:
        if name not in self.new:
            return name
        if name in self.old_name:
            return self.old_name[name]
        # Not paired (yet): it stands for itself, unless the first graph's node of that name is another one.
        return f"{name}'" if name in self._taken else name


def _pair_equal(names: _NamePairs) -> tuple[list[NodePair], list[NodePair]]:
    by_key: dict[tuple[str, str], list[Node]] = defaultdict(list)
    for node in names.before.nodes:
        by_key[names.key(node)].append(node)
    same: list[NodePair] = []
    renamed: list[NodePair] = []
    for node in names.after.nodes:
        key = names.key_in_old_names(node)
        own = names.old.get(node.name)
        if own is not None and names.is_free(own) and names.key(own) == key:
            same.append(names.pair(own, node))
            continue
        candidates = [old for old in by_key.get(key, ()) if names.is_free(old)]
        # Better a node whose name is gone than one whose name another node still has.
        gone = [old for old in candidates if old.name not in names.new]
        shifted = [
            old
            for old in candidates
            if old.name in names.new and names.key_in_old_names(names.new[old.name]) != names.key(old)
        ]
        renamed += [names.pair(old, node) for old in (gone or shifted)[:1]]
    return same, renamed


def _moved(before: _Shown, after: _Shown, pairs: list[NodePair]) -> list[NodePair]:
    """The paired nodes outside the longest run of pairs that both graphs have in the same order."""
    old, new = ({node.name: at for at, node in enumerate(graph.nodes)} for graph in (before, after))
    ordered = sorted(pairs, key=lambda pair: new[pair.after.name])
    kept = {i for i, _ in ascending([(i, old[pair.before.name]) for i, pair in enumerate(ordered)])}
    return [pair for i, pair in enumerate(ordered) if i not in kept]


def _paired_graphs(old: list[_Shown], new: list[_Shown]) -> list[tuple[_Shown, _Shown]]:
    """By path; two texts of one graph each belong together whatever the class is called."""
    if len(old) == 1 and len(new) == 1:
        return [(old[0], new[0])]
    befores, afters = ({graph.path: graph for graph in graphs} for graphs in (old, new))
    return [(befores.get(path, _Shown(path)), afters.get(path, _Shown(path))) for path in afters | befores]


def print_diff(diff: GraphDiff, *, before_name: str, after_name: str, file: IO[str] | None = None) -> None:
    """A diff by node, each with its source line; the lines of a text diff as they are."""
    console = console_for(file)
    if not diff.different:
        console.print(Text(f"no difference between {before_name} and {after_name}"))
        return
    if diff.kind == "graphs":
        console.print(Text(f"--- {before_name}", "bold"))
        console.print(Text(f"+++ {after_name}", "bold"))
        for graph in diff.graphs:
            if graph.different:
                _print_nodes(console, graph)
    for line in diff.lines:
        style = "cyan" if line.startswith("@@") else {"-": "red", "+": "green"}.get(line[:1], "")
        console.print(Text(line, style))


def _print_nodes(console: Console, graph: NodeDiff) -> None:
    counts = (
        f"{len(graph.removed)} removed, {len(graph.added)} added, {len(graph.changed)} changed, "
        f"{len(graph.renamed)} renamed, {len(graph.moved)} moved, {graph.unchanged} unchanged"
    )
    console.print(Text(f"@@ {graph.graph}: {counts}", "cyan"))
    # In the order of the graphs, so that what belongs together stands together.
    entries: list[tuple[int, str, Node]] = [(node.line, "-", node) for node in graph.removed]
    entries += [(node.line, "+", node) for node in graph.added]
    for pair in graph.changed:
        entries += [(pair.after.line, "-~", pair.before), (pair.after.line, "+~", pair.after)]
    source = ""
    for _, sign, node in sorted(entries, key=lambda entry: entry[0]):
        if node.source and node.source != source:
            console.print(Text(f"  # {node.source}", "dim"))
        source = node.source
        console.print(Text(f"{sign:<3}{_node_text(node)}", "red" if sign[0] == "-" else "green"))
    told = [(f"= {pair.before.name} -> {pair.after.name}", pair) for pair in graph.renamed]
    told += [(f"> {p.after.name} moved from line {p.before.line} to {p.after.line}", p) for p in graph.moved]
    for text, pair in told:
        console.print(Text(f"{text}  # {pair.after.source}" if pair.after.source else text, "yellow"))


def _node_text(node: Node) -> str:
    if node.name == "output":
        return f"return {node.expression}"
    return f'{node.name}: "{node.type}" = {node.expression}' if node.type else f"{node.name} = {node.expression}"
