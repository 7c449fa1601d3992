"""The graphs of a run as ONNX models in protobuf text, for Netron: made from its files, without torch.

Structure only: the operators keep their names in domains of their own, and nothing here can be executed as ONNX.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphprobe.export.fx_expression import Argument, Operation, meta_of, operation_of, results_of
from graphprobe.export.onnx_graph import Builder, text_of
from graphprobe.export.run_graphs import RunGraph, run_graphs
from graphprobe.report.graph_text import GraphText, Node
from graphprobe.store.files import replace_file
from graphprobe.store.reader import Run

if TYPE_CHECKING:
    import onnx


def export_onnx_text(run: Run, folder: Path, left_out: list[str], *, only: str | None = None) -> list[Path]:
    """Write one `.pbtxt` for each graph of the run, in the tree of the run's files; returns the files.

    A backend's own graph that was kept as `pbtxt` is copied; in another form it is left out, and `left_out` says so.
    """
    written: list[Path] = []
    irs: list[str] = []
    for graph in run_graphs(run, left_out, only=only):
        assert graph.event.path is not None
        path = (folder / graph.event.path).with_suffix(".pbtxt")
        if graph.event.path.endswith(".pbtxt"):
            text = graph.text
        elif graph.graphs:
            text = text_of(model_from(graph))
        elif graph.event.kind == "ir":
            irs.append(graph.address)
            continue
        else:
            left_out.append(f"{graph.address}: {graph.event.path} holds no FX graph")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode())
        written.append(path)
    if irs:
        left_out.append(
            f"{', '.join(irs)}: the backend's own graph, of which the run has a listing; "
            "graphprobe run --graph-dump pbtxt keeps it as ONNX"
        )
    return written


def model_from(graph: RunGraph) -> onnx.ModelProto:
    """The ONNX model of one file of a run; it passes `onnx.checker.check_model`.

    An operator with several results has as many outputs, with the names of the nodes that pick them. Graphs of
    higher-order operators are attributes of the node that calls them.
    """
    build = Builder()
    nested = {inner.path: inner for inner in graph.graphs}
    _Translation(graph.graphs[0], nested, build, "").fill()
    return build.model(graph.address)


class _Translation:
    """One graph; those nested in it become attributes."""

    def __init__(self, graph: GraphText, nested: Mapping[str, GraphText], build: Builder, prefix: str) -> None:
        self.graph, self.nested, self.build, self.prefix = graph, nested, build, prefix
        self.known = frozenset(node.name for node in graph.nodes)
        self.operations = {
            node.name: operation_of(node, self.known)
            for node in graph.nodes
            if node.expression != "placeholder" and node.name != "output"
        }
        self.values: dict[str, list[str]] = {}
        """Names of what each node makes: several for a tuple, none for a nested graph."""
        self.picks = self._picks()

    def fill(self) -> None:
        for node in self.graph.nodes:
            operation = self.operations.get(node.name)
            if node.expression == "placeholder":
                self.values[node.name] = [self._made(node.name)]
                self.build.inputs.append(self._info(self.values[node.name][0], node))
            elif operation is None:
                for i, name in enumerate(results_of(node, self.known)):
                    for value in self.values.get(name, []):
                        self.build.output(value, f"{self.prefix}output_{i}")
            elif operation.name == "alias" and operation.domain == "operator":
                self.values[node.name] = list(self.values.get(operation.target, []))
            elif operation.index is not None and operation.nodes() and operation.nodes()[0] in self.picks:
                source = self.values[operation.nodes()[0]]
                self.values[node.name] = [source[operation.index]]
            elif self._nested(node.name) is not None:
                self.values[node.name] = []
            else:
                self._add(node, operation)

    def _picks(self) -> dict[str, dict[int, str]]:
        """Nodes that give a tuple, and which node picks which of its items; only those that all users pick from."""
        users: dict[str, list[tuple[int | None, str]]] = {}
        for name, operation in self.operations.items():
            for read in operation.nodes():
                users.setdefault(read, []).append((operation.index, name))
        for node in self.graph.nodes:
            if node.name == "output":
                for read in results_of(node, self.known):
                    users.setdefault(read, []).append((None, "output"))
        typed = {node.name for node in self.graph.nodes if node.type or node.expression == "placeholder"}
        return {
            name: {index: user for index, user in found if index is not None}
            for name, found in users.items()
            if name not in typed and all(index is not None and index >= 0 for index, _ in found)
        }

    def _add(self, node: Node, operation: Operation) -> None:
        picks = self.picks.get(node.name)
        names = [node.name] if picks is None else [picks.get(i, f"{node.name}.{i}") for i in range(max(picks) + 1)]
        made = [self._made(name) for name in names]
        by_name = {other.name: other for other in self.graph.nodes}
        self.build.infos += [self._info(value, by_name.get(name)) for name, value in zip(names, made, strict=True)]
        inputs, attributes = self._arguments(operation.arguments)
        attributes |= {"overload": operation.overload} if operation.overload else {}
        attributes |= {"target": operation.target}
        attributes |= {"source": node.source} if node.source else {}
        metas = [meta_of(by_name[name]) if name in by_name else None for name in names]
        strides = [f"({', '.join(meta.strides)})" for meta in metas if meta is not None]
        attributes |= {"strides": strides} if strides else {}
        self.build.add(
            operation.domain, operation.name, inputs, made, self.prefix + node.name, attributes, node.expression
        )
        self.values[node.name] = made

    def _arguments(self, arguments: tuple[Argument, ...]) -> tuple[list[str], dict[str, Any]]:
        inputs: list[str] = []
        of: list[str] = []
        attributes: dict[str, Any] = {}
        for argument in arguments:
            inner = self._nested(argument.text)
            if inner is not None:
                build = Builder(self.build.domains, self.build.taken)
                prefix = f"{self.prefix}{argument.text}/"
                _Translation(inner, self.nested, build, prefix).fill()
                attributes[argument.text] = build.graph(prefix.rstrip("/"))
                continue
            names = [value for name in argument.nodes for value in self.values.get(name, [])]
            inputs += names
            of += [argument.label] * len(names)
            if argument.nodes != (argument.text,):
                attributes[argument.label] = argument.text
        return inputs, ({"argument_names": of} if of else {}) | attributes

    def _nested(self, name: str) -> GraphText | None:
        """The nested graph that a node of this name fetches from the module."""
        operation = self.operations.get(name)
        if operation is None or operation.name != "get_attr":
            return None
        return self.nested.get(f"{self.graph.path}/{operation.target.removeprefix('self.')}")

    def _made(self, name: str) -> str:
        return self.build.fresh(self.prefix + name)

    def _info(self, value: str, node: Node | None) -> onnx.ValueInfoProto:
        meta = None if node is None else meta_of(node)
        return self.build.info(value, meta.dtype if meta else None, meta.shape if meta else None)
