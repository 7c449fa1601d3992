"""The graphs of a run: from its records, or, of an older run and of other texts, read back from their printed form."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

import msgspec

from graphprobe.errors import ArtifactNotFoundError
from graphprobe.records import Event, GraphArgument, NodeSource, NodeTarget, NodeValue
from graphprobe.report.graph_nodes import SHORT_DTYPES, SYMBOLS, Graph, GraphNode, node_from_line
from graphprobe.store.reader import Run

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
_TYPE = re.compile(r"^(?P<dtype>[a-z]\w*)\[(?P<shape>[^\]]*)\](?:\[(?P<strides>[^\]]*)\])?(?P<device>.*)$")
_BETWEEN_SIZES = re.compile(r",(?![^(]*\))")
_SOURCE = re.compile(r"File: (?P<file>.+):(?P<line>\d{1,9}) in (?P<function>[^,]*)(?:, code: (?P<code>.*))?$")
_TOKEN = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\W\d]\w*(?:\.\w+)*""")
_CALL = re.compile(r"(?P<target>[^\W\d]\w*(?:\.\w+)*)(?P<opened>[(\[]?)")

DTYPES = {short: name for name, short in SHORT_DTYPES.items()}
"""torch's names of dtypes by the abbreviations of printed graphs."""

_FUNCTIONS = {form: name for name, form in SYMBOLS.items()}
"""Functions of the module `operator` by how Python writes them."""


class ParsedText(msgspec.Struct, frozen=True):
    """The graphs of a text and the lines that are neither nodes nor comments, as they stand."""

    graphs: tuple[Graph, ...]
    other: tuple[str, ...]


def graphs_of(run: Run, event: Event) -> tuple[Graph, ...]:
    """The graphs of the event's file; none where it shows none.

    Raises:
        ArtifactNotFoundError: the run has no records of them, and the file is gone.
    """
    found = run.graph_records(event)
    if found is not None:
        graphs, records = found
        return tuple(
            Graph(
                one.path,
                tuple(
                    node_from_line(line, records) for first, n in one.nodes for line in records.nodes[first : first + n]
                ),
            )
            for one in graphs
        )
    if event.path is None or not event.path.endswith(".txt"):
        return ()
    return parse_graphs(run.text(event)).graphs


KINDS = ("graph", "pass", "failure", "ir")


class RunGraph(msgspec.Struct, frozen=True):
    """One file of a run that is a graph.

    Attributes:
        address: as `show` takes it.
        event: with the file's path.
        graphs: the graph first, then those nested in it; empty where the run has only another form, such as `pbtxt`.
    """

    address: str
    event: Event
    graphs: tuple[Graph, ...]


def run_graphs(run: Run, left_out: list[str], *, only: str | None = None) -> Iterator[RunGraph]:
    """The graphs of a run in order, each file once; what cannot be read is told in `left_out`.

    Args:
        only: an address, or what `Run.find` takes for one.

    Raises:
        ArtifactNotFoundError: `only` is no graph of the run.
    """
    wanted = None if only is None else run.find(only)
    if wanted is not None and wanted.kind not in KINDS:
        raise ArtifactNotFoundError(f"{only} is no graph: {wanted.path}", hint="graphprobe ls lists the graphs")
    seen: set[str | None] = set()
    for address, event in run.artifacts().items():
        if event.kind not in KINDS or (wanted is not None and event.path != wanted.path) or event.path in seen:
            continue
        seen.add(event.path)
        try:
            graphs = graphs_of(run, event)
        except ArtifactNotFoundError as error:
            left_out.append(f"{address}: {error}")
            continue
        yield RunGraph(address, event, graphs)


class _Line(msgspec.Struct):
    """A node as it is printed: `expression` is `placeholder` for an input; `source` the comment above it."""

    name: str
    type: str
    expression: str
    source: str = ""


def parse_graphs(text: str) -> ParsedText:
    """Every graph in `text`. A text without one gives no graphs, and all of its lines in `other`."""
    graphs: dict[str, list[_Line]] = {}
    open_classes: list[tuple[int, str]] = []
    other: list[str] = []
    nodes: list[_Line] | None = None
    types: dict[str, str] = {}
    source = ""
    for line in _ANSI.sub("", text).splitlines():
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
            nodes += _inputs(signature["args"])
            continue
        if nodes is not None and _take_flattened(stripped, nodes, types):
            continue
        node = None if nodes is None else _line(line, source)
        if node is None or nodes is None:
            other.append(line)
        else:
            nodes.append(node)
    return ParsedText(tuple(Graph(path, _nodes(lines)) for path, lines in graphs.items()), tuple(other))


def _line(line: str, source: str) -> _Line | None:
    returned = _RETURN.match(line)
    if returned is not None:
        return _Line("output", "", _without_freed(returned["rest"]))
    match = _NODE.match(line)
    if match is None:
        return None
    return _Line(match["name"], (match["type"] or "").strip('"'), _without_freed(match["rest"]), source)


def _inputs(arguments: str) -> list[_Line]:
    found = [
        _Line(match["name"], (match["type"] or "").strip().strip('"'), "placeholder")
        for match in _ARGUMENT.finditer(arguments)
    ]
    return [node for node in found if node.name != "self"]


def _take_flattened(stripped: str, nodes: list[_Line], types: dict[str, str]) -> bool:
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
    nodes[:] = [_Line(name, types.get(name, ""), "placeholder") for name in names]
    return True


def _without_freed(expression: str) -> str:
    expression = _FREED.sub("", expression).rstrip().rstrip(";")
    unflattened = _UNFLATTENED.match(expression)
    return unflattened["values"] if unflattened else expression


def _unused(path: str, taken: Collection[str]) -> str:
    """`path`, with a number when the text holds two graphs of that name."""
    name, number = path, 1
    while name in taken:
        number += 1
        name = f"{path}#{number}"
    return name


def _nodes(lines: Sequence[_Line]) -> tuple[GraphNode, ...]:
    inputs = {line.name: line for line in lines if line.expression == "placeholder"}
    # `l_x_ = L_x_` gives the argument of the function the name that it has as a node.
    named = {line.expression: line.name for line in lines if line.expression in inputs}
    kept = [line for line in lines if line.expression not in inputs]
    known = {named.get(line.name, line.name) for line in kept}
    nodes = [_node(line, named.get(line.name, line.name), known) for line in kept]
    return tuple(_with_items(nodes))


def _with_items(nodes: list[GraphNode]) -> list[GraphNode]:
    """With what a node gives of which nothing is printed, where all that reads it picks one of several."""
    picks: dict[str, dict[int | None, NodeValue]] = {}
    for node in nodes:
        for name in node.reads:
            index = node.index if node.index is not None and node.index >= 0 else None
            picks.setdefault(name, {})[index] = node.values[0] if node.values else NodeValue()
    result = []
    for node in nodes:
        items = picks.get(node.name, {None: NodeValue()})
        if not node.values and node.op != "placeholder" and None not in items:
            count = max(index for index in items if index is not None) + 1
            values = tuple(items.get(i, NodeValue()) for i in range(min(count, len(nodes))))
            node = msgspec.structs.replace(node, values=values, several=True)
        result.append(node)
    return result


def _node(line: _Line, name: str, known: Collection[str]) -> GraphNode:
    source = _SOURCE.search(line.source)
    text = line.expression.strip()
    pieces, last = [], 0
    for token in _TOKEN.finditer(text):
        word = token[0].partition(".")[0]
        if word in known:
            pieces += [GraphArgument(text=text[last : token.start()]), GraphArgument(node=word)]
            last = token.start() + len(word)
    pieces = [piece for piece in (*pieces, GraphArgument(text=text[last:])) if piece.node or piece.text]
    op, target = ("output", "output") if name == "output" else _called(text, known)
    return GraphNode(
        name=name,
        op=op,
        target=NodeTarget(line.name if op == "placeholder" else target),
        source=NodeSource(source["file"], int(source["line"]), source["function"], source["code"] or "")
        if source
        else None,
        args=() if op == "placeholder" else tuple(pieces),
        values=(_value(line.type),) if line.type else (),
        printed=op != "placeholder",
    )


def _called(text: str, known: Collection[str]) -> tuple[str, str]:
    """A node's `op` and target, from what computes it."""
    if text == "placeholder":
        return text, ""
    call = _CALL.match(text)
    target, opened = (call["target"], call["opened"]) if call else ("", "")
    first, _, rest = target.partition(".")
    if first == "self" and (opened == "(" or target == text):
        return "call_module" if opened else "get_attr", rest
    if opened == "(":
        return ("call_method", rest.rpartition(".")[2]) if first in known and rest else ("call_function", target)
    if opened == "[" and first in known and not rest:
        return "call_function", "operator.getitem"
    if first in known and target == text and rest:
        return "call_function", "getattr"
    words = text.split(" ")
    form = f"{{}} {words[1]} {{}}" if len(words) == 3 else f"{text[:1]}{{}}"
    return "call_function", f"operator.{_FUNCTIONS[form]}" if form in _FUNCTIONS else "graphprobe.expression"


def _value(text: str) -> NodeValue:
    if text.startswith("Sym("):
        return NodeValue("bool" if any(sign in text for sign in "<>=") else "int64", text=text)
    match = _TYPE.match(text)
    if match is None or match["dtype"] not in DTYPES:
        return NodeValue(text=text)
    return NodeValue(DTYPES[match["dtype"]], _sizes(match["shape"]), _sizes(match["strides"] or ""), match["device"])


def _sizes(text: str) -> tuple[int | str, ...]:
    """`s0, Max(1, u0)` has two."""
    sizes = [part.strip() for part in _BETWEEN_SIZES.split(text) if part.strip()]
    return tuple(int(size) if size.isdecimal() and len(size) < 19 else size for size in sizes)
