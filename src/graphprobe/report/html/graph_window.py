"""The graph around the accused node as a section: from a dossier's `window.json`, or from its smallest graph's text.

A directed graph in layers, from top to bottom: which layer, which order, which place, and the edges as polylines.

The method of Sugiyama, Tagawa and Toda (1981) in its plainest form: layers by the longest path, a place holder in each
layer that an edge passes through, sweeps that put each node at the mean place of its neighbours, and last the places
themselves. It is made for some sixty nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from graphprobe.report.document import Section
from graphprobe.report.graph_nodes import GraphNode, parse_graphs
from graphprobe.report.html.sources import Sources
from graphprobe.store.files import read_file
from graphprobe.store.schema import UNREADABLE

SWEEPS = 8
GAP_X, GAP_Y = 26.0, 54.0
"""Between boxes of one layer, and between layers."""

THIN = 14.0
"""Width of an edge that passes through a layer."""

Point = tuple[float, float]


class Placed(msgspec.Struct, frozen=True):
    """Where everything is, in pixels from the upper left corner.

    Attributes:
        centres: of each node's box; y is its middle.
        edges: for each edge, in the given order, the points of its line, from the upper box to the lower.
        width, height: of the whole.
    """

    centres: tuple[Point, ...]
    edges: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def layout(widths: Sequence[float], height: float, edges: Sequence[tuple[int, int]]) -> Placed:
    """Place the nodes 0 … n-1 of an acyclic graph.

    Args:
        widths: of each node's box; all boxes are `height` high.
        edges: from upper to lower node; an edge of a node to itself, or against the order of the numbers, is an error.

    Raises:
        ValueError: the numbers are no topological order.
    """
    if any(not 0 <= a < b < len(widths) for a, b in edges):
        raise ValueError("nodes are numbered in topological order: an edge goes from a lower number to a higher")
    layer = _layers(len(widths), edges)
    chains = _chains(layer, edges, len(widths))
    size = [*widths, *([THIN] * (sum(len(chain) for chain in chains) - 2 * len(chains)))]
    below: list[list[int]] = [[] for _ in size]
    above: list[list[int]] = [[] for _ in size]
    layer_of = dict(enumerate(layer))
    for (a, _), chain in zip(edges, chains, strict=True):
        for step, (upper, lower) in enumerate(itertools.pairwise(chain)):
            below[upper].append(lower)
            above[lower].append(upper)
            layer_of[upper] = layer[a] + step
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for node in sorted(range(len(size)), key=lambda n: (layer_of[n], n)):
        rows[layer_of[node]].append(node)
    _order(rows, above, below)
    x = _places(rows, size, above, below)
    left = min((x[n] - size[n] / 2 for n in range(len(size))), default=0.0)
    x = [place - left for place in x]

    def y(node: int) -> float:
        return layer_of[node] * (height + GAP_Y) + height / 2

    lines = tuple(_line(chain, x, y, size, height, above, below) for chain in chains)
    return Placed(
        centres=tuple((round(x[n], 1), y(n)) for n in range(len(widths))),
        edges=lines,
        width=max((x[n] + size[n] / 2 for n in range(len(size))), default=0.0),
        height=len(rows) * (height + GAP_Y) - GAP_Y if rows else 0.0,
    )


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """By the longest path from above, and then as low as that costs no length of edges: inputs stand by their users."""
    layer = [0] * count
    above = [0] * count
    below: list[list[int]] = [[] for _ in range(count)]
    for a, b in sorted(edges):
        layer[b] = max(layer[b], layer[a] + 1)
        above[b] += 1
        below[a].append(b)
    for node in range(count - 1, -1, -1):
        if below[node] and len(below[node]) >= above[node]:
            layer[node] = min(layer[b] for b in below[node]) - 1
    return layer


def _chains(layer: Sequence[int], edges: Sequence[tuple[int, int]], count: int) -> list[list[int]]:
    """For each edge the nodes that it runs through: its ends, and place holders numbered from `count`."""
    chains = []
    for a, b in edges:
        between = layer[b] - layer[a] - 1
        chains.append([a, *range(count, count + between), b])
        count += between
    return chains


def _order(rows: list[list[int]], above: Sequence[list[int]], below: Sequence[list[int]]) -> None:
    """Fewer crossings: down and up in turns, each node goes to the mean place of its neighbours."""
    best, least = [list(row) for row in rows], _crossings(rows, below)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else rows[::-1]:
            places = {node: i for other in rows for i, node in enumerate(other)}
            near = above if down else below
            means = {
                node: sum(places[n] for n in near[node]) / len(near[node]) if near[node] else places[node]
                for node in row
            }
            row.sort(key=lambda node: (means[node], places[node]))
        found = _crossings(rows, below)
        if found < least:
            best, least = [list(row) for row in rows], found
    rows[:] = best


def _crossings(rows: list[list[int]], below: Sequence[list[int]]) -> int:
    total = 0
    for row, under in itertools.pairwise(rows):
        place = {node: i for i, node in enumerate(under)}
        ends = [place[n] for node in row for n in sorted(below[node], key=place.__getitem__)]
        total += sum(left > right for i, left in enumerate(ends) for right in ends[i + 1 :])
    return total


def _places(
    rows: list[list[int]], size: Sequence[float], above: Sequence[list[int]], below: Sequence[list[int]]
) -> list[float]:
    """Places in their rows: as near to the neighbours as the order and the gaps allow."""
    x = [0.0] * len(size)
    for row in rows:
        at = 0.0
        for node in row:
            x[node] = at + size[node] / 2
            at += size[node] + GAP_X
    for turn in range(12):
        down = turn % 2 == 0
        for row in rows if down else rows[::-1]:
            near = above if down else below
            wanted = [sum(x[n] for n in near[node]) / len(near[node]) if near[node] else x[node] for node in row]
            for node, place in zip(row, _apart(row, wanted, size), strict=True):
                x[node] = place
    return x


def _apart(row: list[int], wanted: list[float], size: Sequence[float]) -> list[float]:
    """The places nearest to the wanted ones without overlap: neighbours that would overlap are moved as one block."""
    blocks: list[tuple[float, int, list[float]]] = []  # sum of the offsets' wishes, how many, offsets from the first
    for i in range(len(row)):
        blocks.append((wanted[i], 1, [0.0]))
        while len(blocks) > 1:
            (left_sum, left_n, left), (right_sum, right_n, right) = blocks[-2:]
            first = i - right_n + 1
            gap = (size[row[first - 1]] + size[row[first]]) / 2 + GAP_X
            if left_sum / left_n + left[-1] + gap <= right_sum / right_n:
                break
            shift = left[-1] + gap
            merged = [*left, *(shift + offset for offset in right)]
            blocks[-2:] = [(left_sum + right_sum - shift * right_n, left_n + right_n, merged)]
    return [total / count + offset for total, count, offsets in blocks for offset in offsets]


def _line(
    chain: list[int],
    x: Sequence[float],
    y: Callable[[int], float],
    size: Sequence[float],
    height: float,
    above: Sequence[list[int]],
    below: Sequence[list[int]],
) -> tuple[Point, ...]:
    """From the lower side of the first box, through the place holders, to the upper side of the last."""
    first, last = chain[0], chain[-1]
    start = _attached(first, chain[1], below[first], x, size)
    end = _attached(last, chain[-2], above[last], x, size)
    points = [(start, y(first) + height / 2)]
    for node in chain[1:-1]:
        points += [(x[node], y(node) - height / 2), (x[node], y(node) + height / 2)]
    points.append((end, y(last) - height / 2))
    return tuple((round(px, 1), round(py, 1)) for px, py in points)


def _attached(node: int, other: int, others: Sequence[int], x: Sequence[float], size: Sequence[float]) -> float:
    """Where along the side of its box an edge begins: edges are spread in the order of what they lead to."""
    order = sorted(dict.fromkeys(others), key=x.__getitem__)
    share = (order.index(other) + 1) / (len(order) + 1)
    return x[node] + (share - 0.5) * size[node] * 0.7


WINDOW, TEXTS = "window.json", ("graph_before.txt", "graph.txt")
SCHEMA = 1

MOST_NODES = 60
LETTER, PADDING, HEIGHT, NARROWEST, WIDEST = 7.3, 24.0, 62.0, 132.0, 268.0
"""Of the boxes, in pixels; a letter of the view's font is so wide."""


class WindowNode(msgspec.Struct, kw_only=True):
    """A node of `window.json`; docs/formats/diagnosis.md has the fields."""

    name: str
    kind: str = "call_function"
    op: str = ""
    type: str = ""
    source: str | None = None
    module: str | None = None
    accused: bool = False
    involved: bool = False
    answer: str = "not_compared"
    z: float | str | None = None
    reason: str = ""
    more_inputs: int = 0
    more_users: int = 0


class Window(msgspec.Struct, kw_only=True):
    """`window.json`."""

    schema: int = SCHEMA
    stage: str = ""
    direction: str = ""
    culprit: str = ""
    graph_nodes: int = 0
    nodes: list[WindowNode] = []
    edges: list[tuple[str, str]] = []


def window_section(
    folder: Path | None, sources: Sources, *, culprit: str | None = None, suffix: str = ""
) -> Section | None:
    """The graph around the accused node of a dossier; None where the dossier tells of no graph.

    Args:
        culprit: name of the accused node, where the dossier has only the text of its smallest graph.
        suffix: of the section's id and, in words, of its title, where a report has several.
    """
    window = _read(folder) if folder is not None else None
    title = "The graph around the culprit"
    if window is None and folder is not None:
        window = _from_text(folder, culprit)
        title = "The smallest graph that fails"
    if window is None or len(window.nodes) < 2:
        return None
    if suffix:
        title += f" of fault {suffix.lstrip('-')}"
    shown = f"{len(window.nodes)} of {window.graph_nodes} nodes"
    if len(window.nodes) >= window.graph_nodes:
        shown = f"{len(window.nodes)} nodes"
    return Section(f"graph{suffix}", title, "graph", graph_data(window, sources, label=title), summary=shown)


def graph_data(window: Window, sources: Sources, *, label: str) -> dict[str, Any]:
    """What `assets/view_graph.js` takes; its head describes the format."""
    number = {node.name: i for i, node in enumerate(window.nodes)}
    edges = list(dict.fromkeys((number[a], number[b]) for a, b in window.edges if a in number and b in number))
    widths = [_width(node) for node in window.nodes]
    placed = layout(widths, HEIGHT, edges)
    nodes = []
    for node, width, (x, y) in zip(window.nodes, widths, placed.centres, strict=True):
        source = sources.short(node.source)
        sources.link(source)
        tone, word = _tone(node)
        nodes.append(
            {
                "name": node.name,
                "op": node.op or {"placeholder": "input", "get_attr": "weight or constant"}.get(node.kind, node.kind),
                "kind": node.kind,
                "type": node.type,
                "source": source,
                "module": node.module or "",
                "tone": tone,
                "word": word,
                "z": node.z,
                "reason": node.reason,
                "accused": node.accused,
                "more": [node.more_inputs, node.more_users],
                "box": [round(x - width / 2, 1), round(y - HEIGHT / 2, 1), round(width, 1), HEIGHT],
            }
        )
    return {
        "label": label,
        "culprit": number.get(window.culprit, 0),
        "total": window.graph_nodes,
        "width": round(placed.width, 1),
        "height": round(placed.height, 1),
        "nodes": nodes,
        "edges": [{"from": a, "to": b, "points": line} for (a, b), line in zip(edges, placed.edges, strict=True)],
    }


def _tone(node: WindowNode) -> tuple[str, str]:
    """The colour class, 0 to 4 or empty where nothing was measured, and the verdict in words."""
    if node.accused:
        return "4", "wrong"
    if node.involved and node.answer != "worse":
        return "2", "belongs to it"
    if node.answer == "worse":
        return "3", "wrong, too"
    if node.answer == "ok":
        small = not isinstance(node.z, str) and (node.z or 0.0) <= 1.0
        return ("0" if small else "1"), "right"
    if node.answer == "better":
        return "1", "right; uncompiled is the less exact one"
    if node.answer == "unsure":
        return "", "could not be judged"
    return "", "not compared"


def _width(node: WindowNode) -> float:
    # The third line is in smaller letters; a node that was measured has its error there.
    third = 24 if node.accused else 14 if node.z is not None else 0.92 * len(node.type)
    longest = max(len(node.name), len(node.op), third)
    return min(WIDEST, max(NARROWEST, longest * LETTER + PADDING))


def _read(folder: Path) -> Window | None:
    try:
        window = msgspec.json.decode(read_file(folder / WINDOW), type=Window)
    except (OSError, *UNREADABLE):
        return None  # a dossier of an older graphprobe, or one whose graph could not be told
    if window.schema != SCHEMA or len({node.name for node in window.nodes}) != len(window.nodes):
        return None
    order = {node.name: i for i, node in enumerate(window.nodes)}
    if any(order.get(a, -1) >= order.get(b, len(order)) for a, b in window.edges):
        return None
    return window


def _from_text(folder: Path, culprit: str | None) -> Window | None:
    """The nodes of the dossier's graph; of a larger one those up to the accused, the nearest first in the text."""
    for name in TEXTS:
        try:
            text = read_file(folder / name, below=folder).decode("utf-8", "replace")
        except OSError:
            continue
        graphs = parse_graphs(text).graphs
        if not graphs:
            continue
        listed = [node for node in graphs[0].nodes if node.name]
        names = [node.name for node in listed]
        at = names.index(culprit) if culprit in names else len(names) - 1
        first = max(0, min(at - MOST_NODES // 2, len(listed) - MOST_NODES))
        chosen = listed[first : first + MOST_NODES]
        known: set[str] = set()
        nodes, edges = [], []
        for node in chosen:
            edges += [(name, node.name) for name in dict.fromkeys(node.reads) if name in known and name != node.name]
            known.add(node.name)
            nodes.append(_node_of(node, accused=node.name == culprit))
        return Window(culprit=culprit or "", graph_nodes=len(listed), nodes=nodes, edges=edges)
    return None


def _node_of(node: GraphNode, *, accused: bool) -> WindowNode:
    operator = node.target.name.removeprefix("torch.ops.")
    return WindowNode(
        name=node.name,
        kind=node.op,
        op=operator if node.op.startswith("call_") else "",
        type=node.type,
        source=node.source.place or None if node.source is not None else None,
        accused=accused,
    )
