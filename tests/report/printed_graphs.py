"""Graphs in the simple forms of these tests: from their printed text, and written into a run with their records."""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from graphprobe.records import (
    Argument,
    GraphArgument,
    GraphRuns,
    GraphsLine,
    NodeFacts,
    NodeLine,
    NodeSource,
    NodeTarget,
    NodeValue,
)
from graphprobe.report.graph_nodes import Graph, GraphNode
from graphprobe.store import RunWriter, WrittenFile, layout

__all__ = ["Graph", "listed", "node", "printed", "several", "written"]

SOURCE = re.compile(r"# File: (.*):(\d+) in (\w+), code: (.*)")


def written(writer: RunWriter, path: str, text: str, graphs: Sequence[Graph] = ()) -> WrittenFile | None:
    """The text of a graph, and the records of its nodes: those of `graphs`, or of what is printed in the text."""
    file = writer.tool_dir / layout.graphs_file(0)
    lines = file.read_bytes().splitlines() if file.exists() else []
    first = sum(len(msgspec.json.decode(line, type=GraphsLine).nodes) for line in lines)
    runs, nodes = list[GraphRuns](), list[GraphNode]()
    for graph in graphs or printed(text):
        runs.append(GraphRuns(graph.path, ((first + len(nodes), len(graph.nodes)),)))
        nodes += graph.nodes
    rows = [
        NodeLine(target=at, source=at, **{name: getattr(node, name) for name in NodeFacts.__struct_fields__})
        for at, node in enumerate(nodes, first)
    ]
    sources = tuple(node.source or NodeSource("", 0, "", "") for node in nodes)
    line = GraphsLine(path, tuple(runs), tuple(node.target for node in nodes), sources, tuple(rows))
    writer.append_text(layout.graphs_file(0), msgspec.json.encode(line).decode() + "\n")
    return writer.write_text(path, text)


def printed(text: str) -> tuple[Graph, ...]:
    """The graphs of a text as torch prints it, in the simple forms of these tests; none of any other text."""
    try:
        return tuple(_graphs(ast.parse(text).body, "", text.splitlines()))
    except SyntaxError:
        return ()


def _graphs(body: list[ast.stmt], path: str, lines: list[str]) -> Iterator[Graph]:
    for part in body:
        if isinstance(part, ast.FunctionDef):
            yield Graph(path or part.name, tuple(_nodes(part, lines)))
        elif isinstance(part, ast.ClassDef):
            yield from _graphs(part.body, f"{path}/{part.name}".lstrip("/"), lines)


def _nodes(forward: ast.FunctionDef, lines: list[str]) -> Iterator[GraphNode]:
    known = set[str]()

    def argument(value: ast.expr) -> Argument:
        if isinstance(value, ast.Tuple):
            return GraphArgument(kind="tuple", items=tuple(map(argument, value.elts)))
        if isinstance(value, ast.Constant):
            return value.value  # type: ignore[return-value]
        plain = isinstance(value, ast.Name) and value.id in known
        return GraphArgument(node=ast.unparse(value)) if plain else GraphArgument(text=ast.unparse(value))

    def node(name: str, op: str, target: str, type_: ast.expr | None = None, **more: Any) -> GraphNode:
        known.add(name)
        values = (NodeValue(text=type_.value),) if isinstance(type_, ast.Constant) else ()  # type: ignore[arg-type]
        return GraphNode(name=name, op=op, target=NodeTarget(target), values=values, **more)

    for arg in forward.args.args[1:]:
        yield node(arg.arg, "placeholder", arg.arg, arg.annotation)
    for line in forward.body:
        if isinstance(line, ast.Return) and line.value is not None:
            yield node("output", "output", "output", args=(argument(line.value),))
        elif isinstance(line, (ast.Assign, ast.AnnAssign)) and isinstance(line.value, ast.Call):
            target = line.target if isinstance(line, ast.AnnAssign) else line.targets[0]
            args, call = tuple(map(argument, line.value.args)), ast.unparse(line.value.func)
            kwargs = {keyword.arg or "": argument(keyword.value) for keyword in line.value.keywords}
            type_ = getattr(line, "annotation", None)
            yield node(
                ast.unparse(target), "call_function", call, type_,
                source=_source(lines, line.lineno - 1), args=args, kwargs=kwargs,
            )  # fmt: skip


def _source(lines: list[str], at: int) -> NodeSource | None:
    """Of the comment above a line, with no empty line in between."""
    while at and lines[at - 1].strip():
        at -= 1
        if found := SOURCE.search(lines[at]):
            return NodeSource(found[1], int(found[2]), found[3], found[4])
    return None


def node(name: str, target: str, *args: Any, value: NodeValue | None = None, op: str = "call_function") -> GraphNode:
    found = tuple(GraphArgument(node=one) if isinstance(one, str) else one for one in args)
    values = () if value is None else (value,)
    return GraphNode(name=name, op=op, target=NodeTarget(target), args=found, values=values)


def listed(kind: str, *names: str | None) -> GraphArgument:
    return GraphArgument(kind=kind, items=tuple(GraphArgument(node=name) if name else None for name in names))


def several(node: GraphNode, *values: NodeValue) -> GraphNode:
    return msgspec.structs.replace(node, values=values, several=True)
