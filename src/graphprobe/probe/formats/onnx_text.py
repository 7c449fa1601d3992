"""Graphs as ONNX models in protobuf text: they open in Netron. Structure only, nothing here can be executed as ONNX."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from graphprobe.export.onnx_graph import Builder, text_of
from graphprobe.internals.ir.records import IRBuffer, IRGraph, IRNode, source_line
from graphprobe.internals.operators.operators import operator_of


def ir_pbtxt(ir: IRGraph, name: str) -> str:
    """Scheduler IR: a node each, domain `aten` with the aten name, or `inductor` for fused and other kernels.

    Buffers that are written again get versioned names (`buf3.v2`); a read that no earlier node wrote becomes a graph
    input. The model passes `onnx.checker.check_model`.

    Raises:
        ImportError: `onnx` is not installed.
    """
    build = Builder()
    current: dict[str, str] = {}
    for buffer in ir.inputs:
        current[buffer.name] = build.fresh(buffer.name)
        build.inputs.append(build.info(current[buffer.name], buffer.dtype, buffer.shape))
    for node in ir.nodes:
        reads = []
        for read in node.inputs:
            if read not in current:
                current[read] = build.fresh(read)
                build.inputs.append(build.info(current[read], None, None, "read before any node here wrote it"))
            reads.append(current[read])
        writes = []
        for buffer in node.outputs:
            made = build.fresh(buffer.name)
            build.infos.append(build.info(made, buffer.dtype, buffer.shape))
            writes.append((buffer, made))
        domain, op_type = _ir_name(node)
        outputs = [made for _, made in writes] or [build.fresh(f"{node.name}.done")]
        build.add(domain, op_type, reads, outputs, node.name, _ir_attributes(node), node.text)
        for buffer, made in writes:
            current[buffer.name] = made
            current.update(dict.fromkeys(buffer.mutates, made))
    for i, value in enumerate(ir.outputs):
        build.output(current.get(value, value), f"output_{i}")
    return text_of(build.model(name))


def _ir_name(node: IRNode) -> tuple[str, str]:
    names = [origin.target for origin in node.origins]
    aten = [name.removeprefix("aten.").split(".")[0] for name in names if name.startswith("aten.")]
    if node.kind in ("fused", "foreach", "grouped", "template"):
        return "inductor", "_".join([node.kind, *dict.fromkeys(aten)])
    kernel = (node.kernel or node.kind).split(".")
    if not aten and kernel[0] == "aten":
        aten = kernel[1:2]
    return ("aten", aten[-1]) if aten else ("inductor", kernel[-1] or "op")


def _ir_attributes(node: IRNode) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": node.kind, "type": node.type}
    if node.origins:
        found["origins"] = [f"{origin.name}={origin.target}" for origin in node.origins]
        lines = list(dict.fromkeys(origin.source for origin in node.origins if origin.source))
        found |= {"source": lines} if lines else {}
    if node.members:
        found["members"] = list(node.members)
    if node.ranges is not None:
        found |= {"ranges": list(node.ranges[0]), "reduction_ranges": list(node.ranges[1])}
    if node.kernel:
        found["kernel"] = node.kernel
    found["strides"] = [f"{out.name}: ({', '.join(out.stride)})" for out in node.outputs if out.stride is not None]
    found |= _memory(node.outputs)
    return found


def _memory(outputs: Sequence[IRBuffer]) -> dict[str, list[str]]:
    mutates = [f"{out.name}: {name}" for out in outputs for name in out.mutates]
    aliases = [f"{out.name}: {name}" for out in outputs for name in out.aliases]
    return ({"mutates": mutates} if mutates else {}) | ({"aliases": aliases} if aliases else {})


def fx_pbtxt(gm: fx.GraphModule, name: str) -> str:
    """An FX graph: operators keep their names in a domain of their own (`aten`, `torch`, …), scalars are attributes.

    An operator with several results has as many outputs; the `getitem` nodes that pick them give them their names. A
    missing (None) argument between others is an empty input name. Nested graph modules are graph attributes of the
    node that calls them. The model passes `onnx.checker.check_model`.

    Raises:
        ImportError: `onnx` is not installed.
    """
    build = Builder()
    _FxGraph(gm, build, "").fill()
    return text_of(build.model(name))


class _FxGraph:
    """Translates one graph module; nested ones go into attributes."""

    def __init__(self, gm: fx.GraphModule, build: Builder, prefix: str) -> None:
        self.gm, self.build, self.prefix = gm, build, prefix
        self.values: dict[fx.Node, list[str]] = {}
        """Names of what each node makes: several for a tuple, none for a nested graph module."""

    def fill(self) -> None:
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                made = self.build.fresh(self.prefix + node.name)
                self.build.inputs.append(self._info(made, _value(node)))
                self.values[node] = [made]
            elif node.op == "output":
                for i, value in enumerate(self._names(node.args)):
                    self.build.output(value, f"{self.prefix}output_{i}")
            elif node.target is operator.getitem and self._picked(node) is not None:
                self.values[node] = [str(self._picked(node))]
            elif node.op == "get_attr" and isinstance(self._attribute(node), fx.GraphModule):
                self.values[node] = []
            else:
                self._call(node)

    def _picked(self, node: fx.Node) -> str | None:
        source, index = node.args
        made = self.values.get(source) if isinstance(source, fx.Node) else None
        several = isinstance(source, fx.Node) and isinstance(_value(source), (tuple, list))
        return made[index] if made and several and isinstance(index, int) and -len(made) <= index < len(made) else None

    def _call(self, node: fx.Node) -> None:
        value = _value(node)
        if isinstance(value, (tuple, list)) and value:
            picks = {user.args[1]: user.name for user in node.users if user.target is operator.getitem}
            names = [picks.get(i, f"{node.name}.{i}") for i in range(len(value))]
            made = [self.build.fresh(self.prefix + name) for name in names]
            self.build.infos += [self._info(name, item) for name, item in zip(made, value, strict=True)]
        else:
            made = [self.build.fresh(self.prefix + node.name)]
            self.build.infos.append(self._info(made[0], value))
        domain, op_type, overload = self._operator(node)
        inputs, attributes = self._arguments(node)
        attributes |= {"overload": overload} if overload else {}
        attributes |= {"target": node.target} if isinstance(node.target, str) else {}
        attributes |= {"source": line} if (line := source_line(node)) else {}
        several = value if isinstance(value, (tuple, list)) else [value]
        strides = [str(tuple(v.stride())) for v in several if _strided(v)]
        attributes |= {"strides": strides} if strides else {}
        self.build.add(domain, op_type, inputs, made, self.prefix + node.name, attributes)
        self.values[node] = made

    def _operator(self, node: fx.Node) -> tuple[str, str, str]:
        target = node.target
        if node.op == "get_attr":
            return "torch", "get_attr", ""
        if node.op == "call_method":
            return "torch.Tensor", str(target), ""
        if node.op == "call_module":
            return "module", type(self._attribute(node)).__name__, ""
        if (known := operator_of(target)) is not None:
            return known.namespace, known.name, known.overload or ""
        module = str(getattr(target, "__module__", None) or "torch").split(".")[0].lstrip("_")
        return module or "python", str(getattr(target, "__name__", target)), ""

    def _attribute(self, node: fx.Node) -> object:
        found: object = self.gm
        for part in str(node.target).split("."):
            found = getattr(found, part, None)
        return found

    def _names(self, value: Any) -> list[str]:
        if isinstance(value, fx.Node):
            return self.values.get(value, [])
        if isinstance(value, (list, tuple)):
            return [name for item in value for name in self._names(item)]
        if isinstance(value, dict):
            return [name for item in value.values() for name in self._names(item)]
        return []

    def _arguments(self, node: fx.Node) -> tuple[list[str], dict[str, Any]]:
        known = operator_of(node.target)
        labels = known.arguments if known is not None else ()
        pairs = [(labels[i] if i < len(labels) else f"arg{i}", value) for i, value in enumerate(node.args)]
        inputs: list[str] = []
        of: list[str] = []
        attributes: dict[str, Any] = {}
        for label, value in [*pairs, *node.kwargs.items()]:
            nested = self._nested(value)
            names = self._names(value)
            if nested is not None:
                inner = Builder(self.build.domains, self.build.taken)
                _FxGraph(nested, inner, f"{self.prefix}{label}/").fill()
                attributes[label] = inner.graph(f"{self.prefix}{label}")
            elif names:
                inputs += names
                of += [label] * len(names)
                if not isinstance(value, fx.Node):
                    attributes[label] = str(value)
            elif value is None and label in dict(pairs):
                inputs.append("")
                of.append(label)
            elif not isinstance(value, fx.Node):
                attributes[label] = value
        while inputs and not inputs[-1]:
            inputs.pop()
            of.pop()
        return inputs, ({"argument_names": of} if of else {}) | attributes

    def _nested(self, value: object) -> fx.GraphModule | None:
        found = self._attribute(value) if isinstance(value, fx.Node) and value.op == "get_attr" else None
        return found if isinstance(found, fx.GraphModule) else None

    def _info(self, name: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.build.info(name, str(value.dtype).removeprefix("torch."), [str(n) for n in value.shape])
        kinds: tuple[tuple[Any, str], ...] = (
            ((bool, torch.SymBool), "bool"), ((int, torch.SymInt), "int64"), ((float, torch.SymFloat), "float64"),
        )  # fmt: skip
        kind = next((text for types, text in kinds if isinstance(value, types)), None)
        return self.build.info(name, kind, () if kind else None)


def _strided(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _value(node: fx.Node) -> Any:
    return node.meta.get("val", node.meta.get("example_value"))
