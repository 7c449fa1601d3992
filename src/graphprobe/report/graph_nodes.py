"""The nodes of a graph, as the records of a run or a printed text have them, and how torch prints them.

The graphs of a run: from its records, or, of an older run and of other texts, read back from their printed form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from graphprobe.errors import ArtifactNotFoundError
from graphprobe.records import Argument, Event, GraphArgument, NodeFacts, NodeLine, NodeSource, NodeTarget, NodeValue
from graphprobe.store.reader import GraphRecords, Run

SHORT_DTYPES = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "bool": "b8",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "complex32": "c32", "complex64": "c64", "complex128": "c128",
    "float8_e4m3fn": "f8e4m3fn", "float8_e4m3fnuz": "f8e4m3fnuz", "float8_e5m2": "f8e5m2",
    "float8_e5m2fnuz": "f8e5m2fnuz", "float8_e8m0fnu": "f8e8m0fnu", "float4_e2m1fn_x2": "f4e2m1fnx2",
}  # fmt: skip
"""torch's abbreviations in printed graphs by its names of dtypes."""

SYMBOLS = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "truediv": "{} / {}", "floordiv": "{} // {}",
    "mod": "{} % {}", "pow": "{} ** {}", "matmul": "{} @ {}", "lshift": "{} << {}", "rshift": "{} >> {}",
    "and_": "{} & {}", "or_": "{} | {}", "xor": "{} ^ {}", "eq": "{} == {}", "ne": "{} != {}", "lt": "{} < {}",
    "gt": "{} > {}", "le": "{} <= {}", "ge": "{} >= {}", "pos": "+{}", "neg": "-{}", "invert": "~{}",
    "getitem": "{}[{}]",
}  # fmt: skip
"""How Python writes functions of its module `operator`."""


class NodeOperator(NamedTuple):
    """What a node calls: `aten`, `addmm`, `default`; of a function of Python `operator` and `add`."""

    domain: str
    name: str
    overload: str = ""


class GraphNode(NodeFacts, frozen=True, kw_only=True):
    """A node with its target and its source.

    Of one that is `printed`, which is read back from a text, the arguments are the pieces of what computes it: nodes,
    and the text around them.
    """

    target: NodeTarget
    source: NodeSource | None = None
    printed: bool = False

    @property
    def type(self) -> str:
        """What it gives, as torch prints it: `f32[2, 3][3, 1]cpu`; empty where that is not known."""
        shown = [shown_value(value) for value in self.values]
        return f"({', '.join(shown)})" if self.several and any(shown) else shown[0] if shown else ""

    @property
    def reads(self) -> tuple[str, ...]:
        """The nodes it reads, in order, one that is read twice twice."""
        return tuple(name for value in (*self.args, *self.kwargs.values()) for name in nodes_in(value))

    @property
    def operator(self) -> NodeOperator:
        """The parts of what it calls."""
        name = self.target.name
        if self.op == "get_attr":
            return NodeOperator("torch", "get_attr")
        if self.op == "call_method":
            return NodeOperator("torch.Tensor", name)
        if self.op == "call_module":
            return NodeOperator("module", self.target.module or name.rpartition(".")[2])
        parts = name.removeprefix("torch.ops.").split(".")
        if name.startswith("torch.ops.") and len(parts) > 1:
            return NodeOperator(parts[0], parts[1], ".".join(parts[2:]))
        return NodeOperator(parts[0].lstrip("_") if len(parts) > 1 else "python", parts[-1])

    @property
    def index(self) -> int | None:
        """Of `x[2]`, the 2; None for all others."""
        if self.target.name != "operator.getitem" or len(self.args) != 2:
            return None
        index = self.args[1]
        if self.printed and isinstance(index, GraphArgument):
            digits = index.text.strip("[]")
            return int(digits) if digits.removeprefix("-").isdecimal() and len(digits) < 10 else None
        return index if isinstance(index, int) and not isinstance(index, bool) else None

    def expression(self, rename: Callable[[str], str] = str) -> str:
        """What computes it, as torch prints it, with other names for nodes; `placeholder` for an input."""
        if self.op == "placeholder":
            return "placeholder"
        args = [shown_argument(value, rename) for value in self.args]
        target = self.target.name
        if self.op == "output" or self.printed:
            return "".join(args) if self.printed else ", ".join(args)
        if self.op == "get_attr":
            return _attribute(target)
        symbol = SYMBOLS.get(target.removeprefix("operator.")) if target.startswith("operator.") else None
        if symbol is not None and symbol.count("{}") == len(args) and not self.kwargs:
            return symbol.format(*args)
        if target == "getattr" and len(self.args) == 2 and isinstance(self.args[1], str):
            return f"{args[0]}.{self.args[1]}"
        if self.op == "call_method" and args:
            target = f"{args.pop(0)}.{target}"
        elif self.op == "call_module":
            target = _attribute(target)
        args += [f"{key} = {shown_argument(value, rename)}" for key, value in self.kwargs.items()]
        return f"{target}({', '.join(args)})"


class Graph(msgspec.Struct, frozen=True):
    """One graph: `path` is the class name, below that of the graph it is nested in: `GraphModule/body_0`."""

    path: str
    nodes: tuple[GraphNode, ...]

    def inner(self, node: GraphNode) -> str | None:
        """The path of the nested graph that the node would fetch from the module; None for another node."""
        return f"{self.path}/{node.target.name.replace('.', '/')}" if node.op == "get_attr" else None


def node_from_line(line: NodeLine, records: GraphRecords) -> GraphNode:
    """A record with what it refers to."""
    return GraphNode(
        name=line.name,
        op=line.op,
        target=records.targets[line.target],
        source=None if line.source is None else records.sources[line.source],
        args=line.args,
        kwargs=line.kwargs,
        values=line.values,
        several=line.several,
    )


def lines_of(text: str, graphs: tuple[Graph, ...]) -> Iterator[int]:
    """The line of the text, from 1, that each node of the graphs stands in, in their order; 0 where none is found.

    An input stands in the line of its graph's arguments.
    """
    lines = [line.strip() for line in text.splitlines()]
    at = 0
    for graph in graphs:
        head = next((n for n in range(at, len(lines)) if lines[n].startswith("def forward(")), len(lines))
        at = head
        for node in graph.nodes:
            starts = ("return ", "return\n") if node.op == "output" else (f"{node.name}: ", f"{node.name} = ")
            found = next((n for n in range(at, len(lines)) if lines[n].startswith(starts)), None)
            if found is None or node.op == "placeholder":
                yield min(head + 1, len(lines)) if node.op == "placeholder" else 0
                continue
            at = found
            yield found + 1


def nodes_in(value: Argument) -> Iterator[str]:
    """Names of the nodes in an argument, in order."""
    if isinstance(value, GraphArgument):
        if value.node:
            yield value.node
        for item in value.items:
            yield from nodes_in(item)


def shown_argument(value: Argument, rename: Callable[[str], str] = str) -> str:
    """An argument as torch prints it."""
    if not isinstance(value, GraphArgument):
        return repr(value)
    if value.node or value.text:
        return rename(value.node) if value.node else value.text
    items = [shown_argument(item, rename) for item in value.items]
    if value.kind == "list":
        return f"[{', '.join(items)}]"
    if value.kind == "dict":
        return "{" + ", ".join(f"{key!r}: {item}" for key, item in zip(value.keys, items, strict=False)) + "}"
    name = "" if value.kind == "tuple" else value.kind
    return f"{name}({items[0]},)" if len(items) == 1 and value.kind != "slice" else f"{name}({', '.join(items)})"


def shown_value(value: NodeValue) -> str:
    """A value's type as torch prints it; empty where it is not known."""
    if value.text or value.shape is None:
        return value.text
    strides = f"[{', '.join(map(str, value.strides))}]" if value.device else ""
    shape = ", ".join(map(str, value.shape))
    return f"{SHORT_DTYPES.get(value.dtype, value.dtype)}[{shape}]{strides}{value.device}"


def shown_source(source: NodeSource | None) -> str:
    """The comment above a node in printed graphs: `File: x.py:12 in forward, code: y = x + 1`; empty without one."""
    if source is None or not source.file:
        return ""
    return f"File: {source.place} in {source.function}, code: {source.code}"


def _attribute(path: str) -> str:
    """`self.layers.weight`, with `getattr` around what is no name."""
    shown = "self"
    for part in path.split("."):
        shown = f"{shown}.{part}" if part.isidentifier() else f'getattr({shown}, "{part}")'
    return shown


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
