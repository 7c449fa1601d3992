"""Read a graph back from its printed form, as `GraphModule.print_readable` and the run's snapshots write it."""

from __future__ import annotations

import re

import msgspec

_CLASS = re.compile(r"^(\s*)class ([^\s(:]+)\b.*:\s*$")
_FORWARD = re.compile(r"^\s*def forward\((?P<args>.*)\)(?:\s*->.*)?:\s*$")
_NODE = re.compile(r'^\s*(?P<name>[^\W\d]\w*)(?:: (?P<type>"[^"]*"|[^=]+?))? = (?P<rest>.+)$')
_RETURN = re.compile(r"^\s*return\b\s*(?P<rest>.*)$")
_FREED = re.compile(r";\s+(?:\w+ = )+None\s*(?=#|$)")
_ARGUMENT = re.compile(r'(?P<name>[^\W\d]\w*)(?:\s*:\s*(?P<type>"[^"]*"|[^,"]+))?\s*(?:,|$)')
_TYPED = re.compile(r'(?P<name>[^\W\d]\w*): "(?P<type>[^"]*)";')
_TYPES = re.compile(r'(?:[^\W\d]\w*: "[^"]*";\s*)+$')
_FLATTENED = re.compile(r"(?P<names>(?:\w+,\s*)+)= fx_pytree\.tree_flatten_spec\(")
_UNFLATTENED = re.compile(r"pytree\.tree_unflatten\((?P<values>.*), self\._out_spec\)$")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Node(msgspec.Struct, frozen=True):
    """One node of a printed graph.

    Attributes:
        name: its name; `output` for the graph's output.
        type: dtype, shape, stride and device as printed: `f32[2, 3][3, 1]cpu`; empty when there is none.
        expression: what computes it, as printed, without the freeing of arguments; `placeholder` for an input.
        source: the comment above it, e.g. `File: x.py:12 in forward, code: y = x + 1`; empty when there is none.
        line: line in the text, from 1.
    """

    name: str
    type: str
    expression: str
    source: str
    line: int


class GraphText(msgspec.Struct, frozen=True):
    """One graph of a text: `path` is the class name, below that of the graph it is nested in: `GraphModule/body_0`."""

    path: str
    nodes: tuple[Node, ...]


class ParsedText(msgspec.Struct, frozen=True):
    """The graphs of a text and the lines that are neither nodes nor comments, as they stand."""

    graphs: tuple[GraphText, ...]
    other: tuple[str, ...]


def parse_graphs(text: str) -> ParsedText:
    """Every graph in `text`. A text without one gives no graphs, and all of its lines in `other`."""
    graphs: dict[str, list[Node]] = {}
    open_classes: list[tuple[int, str]] = []
    other: list[str] = []
    nodes: list[Node] | None = None
    types: dict[str, str] = {}
    source = ""
    for number, line in enumerate(_ANSI.sub("", text).splitlines(), start=1):
        stripped = line.strip()
        if not stripped:
            # An empty line ends what a comment is about.
            source = ""
            continue
        if stripped.startswith("#"):
            source = stripped.lstrip("# ").rstrip()
            continue
        opened = _CLASS.match(line)
        if opened is not None:
            depth = len(opened[1])
            open_classes = [item for item in open_classes if item[0] < depth] + [(depth, opened[2])]
            nodes, source = None, ""
            continue
        signature = _FORWARD.match(line)
        if signature is not None:
            path = _unused("/".join(name for _, name in open_classes) or "forward", graphs)
            nodes, types = graphs.setdefault(path, []), {}
            nodes += _inputs(signature["args"], number)
            continue
        if nodes is not None and _take_flattened(stripped, nodes, types, number):
            continue
        node = None if nodes is None else _node(line, source, number)
        if node is None or nodes is None:
            other.append(line)
        else:
            nodes.append(node)
    return ParsedText(
        graphs=tuple(GraphText(path, tuple(found)) for path, found in graphs.items()),
        other=tuple(other),
    )


def _node(line: str, source: str, number: int) -> Node | None:
    returned = _RETURN.match(line)
    if returned is not None:
        return Node("output", "", _without_freed(returned["rest"]), source, number)
    match = _NODE.match(line)
    if match is None:
        return None
    return Node(match["name"], (match["type"] or "").strip('"'), _without_freed(match["rest"]), source, number)


def _inputs(arguments: str, number: int) -> list[Node]:
    found = [
        Node(match["name"], (match["type"] or "").strip().strip('"'), "placeholder", "", number)
        for match in _ARGUMENT.finditer(arguments)
    ]
    return [node for node in found if node.name != "self"]


def _take_flattened(stripped: str, nodes: list[Node], types: dict[str, str], number: int) -> bool:
    """Whether the line only says how nested inputs (a joint graph's primals and tangents) become placeholders.

    Such a graph first lists the types, then takes the inputs apart; these replace the ones of the signature.
    """
    if _TYPES.match(stripped):
        types.update((match["name"], match["type"]) for match in _TYPED.finditer(stripped))
        return True
    match = _FLATTENED.match(stripped)
    if match is None:
        return False
    names = [name.strip() for name in match["names"].split(",") if name.strip()]
    nodes[:] = [Node(name, types.get(name, ""), "placeholder", "", number) for name in names]
    return True


def _without_freed(expression: str) -> str:
    expression = _FREED.sub("", expression).rstrip().rstrip(";")
    unflattened = _UNFLATTENED.match(expression)
    return unflattened["values"] if unflattened else expression


def _unused(path: str, taken: dict[str, list[Node]]) -> str:
    """`path`, with a number when the text holds two graphs of that name."""
    name, number = path, 1
    while name in taken:
        number += 1
        name = f"{path}#{number}"
    return name
