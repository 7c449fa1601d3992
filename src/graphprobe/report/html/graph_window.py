"""The graph around the accused node as a section: from a dossier's `window.json`, or from its smallest graph's text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from graphprobe.report.document import Section
from graphprobe.report.graph_nodes import GraphNode
from graphprobe.report.graph_text import parse_graphs
from graphprobe.report.html.graph_layout import layout
from graphprobe.report.html.sources import Sources
from graphprobe.store.files import read_file
from graphprobe.store.schema import UNREADABLE

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
