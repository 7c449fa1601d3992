"""Reads the nodes of a run's graphs from its records, and writes a node as torch prints it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

EVENT_KINDS = ("graph", "pass", "failure", "ir")


class NodeOperator(NamedTuple):
    """What a node calls: `aten`, `addmm`, `default`; of a function of Python `operator` and `add`."""

    domain: str
    name: str
    overload: str = ""


class GraphNode(NodeFacts, frozen=True, kw_only=True):
    """A node with its target and its source."""

    target: NodeTarget
    source: NodeSource | None = None

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
        return index if isinstance(index, int) and not isinstance(index, bool) else None

    def expression(self, rename: Callable[[str], str] = str) -> str:
        """What computes it, as torch prints it, with other names for nodes; `placeholder` for an input."""
        if self.op == "placeholder":
            return "placeholder"
        args = [shown_argument(value, rename) for value in self.args]
        target = self.target.name
        if self.op == "output":
            return ", ".join(args)
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
    facts = {name: getattr(line, name) for name in NodeFacts.__struct_fields__}
    source = None if line.source is None else records.sources[line.source]
    return GraphNode(target=records.targets[line.target], source=source, **facts)


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


def graphs_of(run: Run, event: Event) -> tuple[Graph, ...]:
    """The graphs of the event's file; none where it shows none, or the run has no records of them."""
    found = run.graph_records(event)
    if found is None:
        return ()
    graphs, records = found
    return tuple(
        Graph(
            one.path,
            tuple(node_from_line(line, records) for first, n in one.nodes for line in records.nodes[first : first + n]),
        )
        for one in graphs
    )


class RunGraph(msgspec.Struct, frozen=True):
    """One file of a run that is a graph.

    Attributes:
        address: as `show` takes it.
        event: with the file's path.
        graphs: the graph first, then those nested in it; empty for a backend's own graph in another form.
    """

    address: str
    event: Event
    graphs: tuple[Graph, ...]


def run_graphs(run: Run, left_out: list[str], *, only: str | None = None) -> Iterator[RunGraph]:
    """The graphs of a run in order, each file once; `left_out` names those whose records are missing.

    Args:
        only: an address, or what `Run.find` takes for one.

    Raises:
        ArtifactNotFoundError: `only` is no graph of the run.
    """
    wanted = None if only is None else run.find(only)
    if wanted is not None and wanted.kind not in EVENT_KINDS:
        raise ArtifactNotFoundError(f"{only} is no graph: {wanted.path}", hint="graphprobe ls lists the graphs")
    seen: set[str | None] = set()
    for address, event in run.artifacts().items():
        if event.kind not in EVENT_KINDS or (wanted is not None and event.path != wanted.path) or event.path in seen:
            continue
        seen.add(event.path)
        graphs = graphs_of(run, event)
        if not graphs and event.kind != "ir":
            left_out.append(f"{address}: the run has no record of its nodes")
            continue
        yield RunGraph(address, event, graphs)
