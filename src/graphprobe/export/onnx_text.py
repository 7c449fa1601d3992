"""FX graphs as ONNX models in protobuf text, for Netron: from the records of a run, or of a live graph. Without torch.

Structure only: the operators keep their names in domains of their own, and nothing here can be executed as ONNX. `onnx`
is imported when a model is made, not before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphprobe.records import Argument, GraphArgument, NodeValue
from graphprobe.report.graph_nodes import Graph, GraphNode, nodes_in, run_graphs, shown_argument, shown_source
from graphprobe.store.files import replace_file
from graphprobe.store.reader import Run

if TYPE_CHECKING:
    import onnx


IR_VERSION = 10
OPSET = 21
ELEMENT_TYPES = {
    "float32": "FLOAT", "float64": "DOUBLE", "float16": "FLOAT16", "bfloat16": "BFLOAT16", "bool": "BOOL",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "uint8": "UINT8", "uint16": "UINT16",
    "uint32": "UINT32", "uint64": "UINT64", "complex64": "COMPLEX64", "complex128": "COMPLEX128",
    "float8_e4m3fn": "FLOAT8E4M3FN", "float8_e4m3fnuz": "FLOAT8E4M3FNUZ", "float8_e5m2": "FLOAT8E5M2",
    "float8_e5m2fnuz": "FLOAT8E5M2FNUZ",
}  # fmt: skip


class Builder:
    """Collects the nodes of one ONNX graph, keeps every name unique, and knows which domains were used."""

    def __init__(self, outer: Builder | None = None) -> None:
        """`outer`: of the graph that this one is nested in."""
        self.nodes: list[onnx.NodeProto] = []
        self.infos: list[onnx.ValueInfoProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.domains: set[str] = set() if outer is None else outer.domains
        self.taken: set[str] = set() if outer is None else outer.taken
        """Names that exist; shared with nested graphs, since ONNX forbids a nested graph to shadow an outer name."""
        self.types: dict[str, onnx.ValueInfoProto] = {}

    def fresh(self, name: str) -> str:
        """`name`, or `name.v2`, `name.v3`, … when it is taken: a buffer written again is a new value."""
        unique, version = name, 1
        while unique in self.taken:
            version += 1
            unique = f"{name}.v{version}"
        self.taken.add(unique)
        return unique

    def info(self, name: str, dtype: str | None, shape: Sequence[object] | None, note: str = "") -> onnx.ValueInfoProto:
        """Type of a value; a dtype that ONNX lacks is given as UINT8 with the true one in the documentation string."""
        from onnx import TensorProto, helper

        element = ELEMENT_TYPES.get(dtype or "")
        if element is None:
            note = f"dtype {dtype}" + (f"; {note}" if note else "")
        # The checker wants a shape of graph inputs and outputs; one dimension of unknown size says that it is unknown.
        sizes = ["?"] if shape is None else [_size(n) for n in shape]
        number = int(getattr(TensorProto, element or "UINT8"))
        found = helper.make_tensor_value_info(name, number, sizes, doc_string=note)
        self.types[name] = found
        return found

    def add(
        self,
        domain: str,
        op_type: str,
        inputs: Iterable[str],
        outputs: Sequence[str],
        name: str,
        attributes: dict[str, Any],
        doc: str = "",
    ) -> None:
        from onnx import helper

        self.domains.add(domain)
        made = helper.make_node(op_type or "op", list(inputs), list(outputs), name=name, domain=domain)
        made.doc_string = doc
        for key, value in attributes.items():
            made.attribute.append(attribute(key, value))
        self.nodes.append(made)

    def output(self, value: str, name: str) -> None:
        """Makes `value` an output of the graph; one that is an input or output already goes through an alias node."""
        import onnx

        used = {info.name for info in self.outputs} | {info.name for info in self.inputs}
        source = self.types.get(value)
        target = value
        if value in used or value not in self.taken:
            target = self.fresh(name)
            known = value in self.taken
            op_type = "ReturnAlias" if known else "NotABuffer"
            self.add("graphprobe", op_type, [value] if known else [], [target], target, {"value": value})
        info = onnx.ValueInfoProto()
        info.CopyFrom(source if source is not None else self.info(target, None, None))
        info.name = target
        self.outputs.append(info)

    def graph(self, name: str) -> onnx.GraphProto:
        from onnx import helper

        ends = {info.name for info in self.outputs} | {info.name for info in self.inputs}
        inner = [info for info in self.infos if info.name not in ends]
        return helper.make_graph(self.nodes, name or "graph", self.inputs, self.outputs, value_info=inner)

    def model(self, name: str) -> onnx.ModelProto:
        import onnx
        from onnx import helper

        opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(d, 1) for d in sorted(self.domains) if d)]
        model = helper.make_model(self.graph(name), opset_imports=opsets, producer_name="graphprobe")
        model.ir_version = IR_VERSION
        onnx.checker.check_model(model)
        return model


def _size(value: object) -> int | str:
    text = str(value)
    return int(text) if text.isdecimal() and len(text) < 19 else text


def attribute(key: str, value: Any) -> onnx.AttributeProto:
    """An attribute; what ONNX has no kind for (mixed lists, dtypes, slices) is kept as text."""
    import onnx
    from onnx import helper

    if isinstance(value, (bool, int)) and -(2**63) <= value < 2**63:
        return helper.make_attribute(key, int(value), attr_type=onnx.AttributeProto.INT)
    if isinstance(value, (float, str, onnx.GraphProto)):
        return helper.make_attribute(key, value)
    if isinstance(value, (list, tuple)):
        for kind, proto in ((int, onnx.AttributeProto.INTS), (float, onnx.AttributeProto.FLOATS)):
            if value and all(type(item) is kind and (kind is float or -(2**63) <= item < 2**63) for item in value):
                return helper.make_attribute(key, list(value), attr_type=proto)
        if all(isinstance(item, str) for item in value):
            return helper.make_attribute(key, list(value), attr_type=onnx.AttributeProto.STRINGS)
    return helper.make_attribute(key, str(value))


def text_of(model: Any) -> str:
    """Protobuf text of an ONNX model."""
    from google.protobuf import text_format  # type: ignore[import-untyped]

    return str(text_format.MessageToString(model))


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
            text = run.text(graph.event)
        elif graph.graphs:
            text = text_of(model_from(graph.graphs, graph.address))
        else:
            irs.append(graph.address)
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


def model_from(graphs: Sequence[Graph], name: str) -> onnx.ModelProto:
    """The ONNX model of a graph and those nested in it, which come behind it; it passes `onnx.checker.check_model`.

    An operator with several results has as many outputs, with the names of the nodes that pick them. A missing (None)
    argument between others is an empty input name, and plain numbers are attributes. Graphs of higher-order operators
    are attributes of the node that calls them.
    """
    build = Builder()
    _Translation(graphs[0], {inner.path: inner for inner in graphs}, build, "").fill()
    return build.model(name)


class _Translation:
    """One graph; those nested in it become attributes."""

    def __init__(self, graph: Graph, nested: Mapping[str, Graph], build: Builder, prefix: str) -> None:
        self.graph, self.nested, self.build, self.prefix = graph, nested, build, prefix
        self.inner = {node.name: nested[path] for node in graph.nodes if (path := graph.inner(node) or "") in nested}
        """Nested graphs by the node that fetches them."""
        self.several = {node.name: len(node.values) for node in graph.nodes if node.several and node.values}
        self.picks = {(node.reads[0], node.index): node.name for node in graph.nodes if self._picks(node)}
        self.values: dict[str, list[str]] = {}
        """Names of what each node makes: several for a tuple, none for a nested graph."""

    def fill(self) -> None:
        for node in self.graph.nodes:
            if node.op == "placeholder":
                self.values[node.name] = [self._made(node.name)]
                value = node.values[0] if node.values and not node.several else None
                self.build.inputs.append(self._info(self.values[node.name][0], value))
            elif node.op == "output":
                for i, name in enumerate(self._values(node.reads)):
                    self.build.output(name, f"{self.prefix}output_{i}")
            elif self._picks(node):
                self.values[node.name] = [self.values[node.reads[0]][node.index or 0]]
            elif node.name in self.inner:
                self.values[node.name] = []
            else:
                self._add(node)

    def _picks(self, node: GraphNode) -> bool:
        """Whether the node takes one of the values of another."""
        several = self.several.get(node.reads[0], 0) if node.index is not None and node.reads else 0
        return node.index is not None and -several <= node.index < several

    def _add(self, node: GraphNode) -> None:
        several = self.several.get(node.name)
        names = [self.picks.get((node.name, i), f"{node.name}.{i}") for i in range(several or 0)] or [node.name]
        values: list[NodeValue | None] = list(node.values) if several or not node.several else []
        values += [None] * (len(names) - len(values))
        made = [self._made(name) for name in names]
        self.build.infos += [self._info(name, value) for name, value in zip(made, values, strict=True)]
        domain, op_type, overload = node.operator
        inputs, attributes = self._arguments(node)
        attributes |= {"overload": overload} if overload else {}
        attributes |= {"target": node.target.name.removeprefix("torch.ops.")}
        attributes |= {"source": shown_source(node.source)} if node.source is not None and node.source.file else {}
        strides = [f"({', '.join(map(str, value.strides))})" for value in values if value is not None and value.device]
        attributes |= {"strides": strides} if strides else {}
        self.build.add(domain, op_type, inputs, made, self.prefix + node.name, attributes, node.expression())
        self.values[node.name] = made

    def _arguments(self, node: GraphNode) -> tuple[list[str], dict[str, Any]]:
        labels = ("self",) if node.op == "call_method" else node.target.labels
        named = [(labels[i] if i < len(labels) else f"arg{i}", value) for i, value in enumerate(node.args)]
        inputs: list[str] = []
        of: list[str] = []
        attributes: dict[str, Any] = {}
        for at, (label, value) in enumerate([*named, *node.kwargs.items()]):
            single = value.node if isinstance(value, GraphArgument) else ""
            if single in self.inner:
                build = Builder(self.build)
                prefix = f"{self.prefix}{single}/"
                _Translation(self.inner[single], self.nested, build, prefix).fill()
                attributes[single] = build.graph(prefix.rstrip("/"))
                continue
            names = [""] if value is None and at < len(named) else self._values(nodes_in(value))
            inputs += names
            of += [label] * len(names)
            if not single and value is not None:
                attributes[label] = _plain(value)
        while inputs and not inputs[-1]:
            inputs.pop()
            of.pop()
        return inputs, ({"argument_names": of} if of else {}) | attributes

    def _values(self, names: Iterable[str]) -> list[str]:
        return [value for name in names for value in self.values.get(name, [])]

    def _made(self, name: str) -> str:
        return self.build.fresh(self.prefix + name)

    def _info(self, name: str, value: NodeValue | None) -> onnx.ValueInfoProto:
        if value is None or not value.dtype:
            return self.build.info(name, None, None)
        return self.build.info(name, value.dtype, value.shape or ())


def _plain(value: Argument) -> Any:
    """A constant as it is, a list of them too; what holds anything else as text."""
    if not isinstance(value, GraphArgument):
        return value
    flat = (
        value.kind in ("list", "tuple")
        and not value.text
        and not any(isinstance(i, GraphArgument) for i in value.items)
    )
    return list(value.items) if flat else shown_argument(value)
