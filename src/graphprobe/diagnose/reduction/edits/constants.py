"""Numbers that go in, or are computed from sizes, are written into the graph; constants in it become 0.0 and 1.0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.fx import GraphModule

from graphprobe.diagnose.reduction.edits.base import (
    EditBase,
    EditPass,
    NotApplicable,
    is_number,
    placeholders,
    runnable,
)
from graphprobe.diagnose.reduction.edits.literals import CALLS, calls, literals, put, set_constant
from graphprobe.diagnose.reduction.edits.measure import constant_rank
from graphprobe.engine.interpret import run_graph

Number = bool | int | float


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


class InlineNumber(EditBase, frozen=True):
    """Inputs that are numbers become constants of the graph.

    Attributes:
        inputs: positions.
        values: what they are, in the same order; a call where they are others does not fit.
    """

    inputs: tuple[int, ...]
    values: tuple[Number, ...]

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        """Write the constants and drop the placeholders."""
        nodes = placeholders(graph)
        for i, value in zip(self.inputs, self.values, strict=True):
            if i >= len(inputs) or not _same(inputs[i], value):
                raise NotApplicable(f"{self}: input {i} is no {value!r}")
            set_constant(nodes[i], value)
            graph.graph.erase_node(nodes[i])
        return [v for i, v in enumerate(inputs) if i not in self.inputs]


class FoldNumber(EditBase, frozen=True):
    """Calls that give a number, as those of sizes do, become constants.

    Attributes:
        nodes: their names.
        values: what they give, in the same order; a call where they give something else does not fit.
    """

    nodes: tuple[str, ...]
    values: tuple[Number, ...]

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        """Write the constants, into what is returned too, and drop the calls."""
        numbers = _numbers(graph, inputs)
        found = {node.name: node for node in graph.graph.nodes}
        for name, value in zip(self.nodes, self.values, strict=True):
            if name not in found or not _same(numbers.get(name), value):
                raise NotApplicable(f"{self}: {name} gives no {value!r}")
            set_constant(found[name], value)
        for name in reversed(self.nodes):
            if not found[name].users:
                graph.graph.erase_node(found[name])
        return inputs


def _numbers(graph: GraphModule, inputs: list[Any]) -> dict[str, Number]:
    """What each call that gives a number gives."""
    values = run_graph(runnable(graph), inputs).values
    foldable = [n for n in graph.graph.nodes if n.op in CALLS and is_number(values.get(n.name))]
    return {node.name: values[node.name] for node in foldable}


def _static(graph: GraphModule, inputs: list[Any]) -> Iterator[EditBase]:
    found = [i for i, value in enumerate(inputs) if is_number(value)]
    if len(found) > 1:
        yield InlineNumber(tuple(found), tuple(inputs[i] for i in found))
    yield from (InlineNumber((i,), (inputs[i],)) for i in found)
    numbers = _numbers(graph, inputs)
    if len(numbers) > 1:
        yield FoldNumber(tuple(numbers), tuple(numbers.values()))
    yield from (FoldNumber((name,), (value,)) for name, value in numbers.items())


class SetScalar(EditBase, frozen=True):
    """A floating-point constant of a call becomes another.

    Attributes:
        node: name of the call.
        path: of the argument, e.g. `args.1` or `kwargs.eps`.
    """

    node: str
    path: str
    value: float

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        """Write the constant."""
        node = next((n for n in calls(graph) if n.name == self.node), None)
        if node is None or not isinstance(dict(literals(node)).get(self.path), float):
            raise NotApplicable(f"{self}: there is no such constant")
        put(node, {self.path: self.value})
        return inputs


def _plainer(graph: GraphModule, inputs: list[Any]) -> Iterator[EditBase]:
    for node in calls(graph):
        for path, value in literals(node):
            for new in (0.0, 1.0):
                if isinstance(value, float) and constant_rank(new) < constant_rank(value):
                    yield SetScalar(node.name, path, new)


STATIC = EditPass("static", _static)
SCALARS = EditPass("scalars", _plainer)
