"""Pieces of ONNX models: types, attributes, unique names. `onnx` is imported when a model is made, not before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

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

    def __init__(self, domains: set[str] | None = None, taken: set[str] | None = None) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.infos: list[onnx.ValueInfoProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.domains: set[str] = set() if domains is None else domains
        self.taken: set[str] = set() if taken is None else taken
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
    if isinstance(value, (float, str)):
        return helper.make_attribute(key, value)
    if isinstance(value, onnx.GraphProto):
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
