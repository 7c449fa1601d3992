"""Pieces of FX graphs as graphs of their own, and graphs that show their intermediate values."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from graphprobe.engine.interpret import copied
from graphprobe.internals.operators.operators import value_of, writes_to

CALLS = ("call_function", "call_method", "call_module")
ORIGIN = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack")


def ancestors(nodes: Collection[Node], depth: int) -> set[Node]:
    """The nodes and the calls that feed them, up to `depth` steps back."""
    found, edge = set(nodes), set(nodes)
    for _ in range(depth):
        edge = {n for node in edge for n in node.all_input_nodes if n.op in CALLS and n not in found}
        if not edge:
            break
        found |= edge
    return found


def is_item(node: Node) -> bool:
    """Whether the node picks one of the results of another call, or one of a list of values."""
    picks = node.op == "call_function" and node.target is operator.getitem
    return picks and isinstance(node.args[0], (Node, list, tuple))


def producer(node: Node) -> Node:
    """The call that made what an item picks: one of its results, or of the list that it wrote to; else the node."""
    if not is_item(node):
        return node
    if isinstance(node.args[0], Node):
        return node.args[0]
    before = node.prev
    while before.op != "root" and not (before.args[:1] == node.args[:1] and writes_to(before)):
        before = before.prev
    return node if before.op == "root" else before


def with_producers(keep: Collection[Node]) -> set[Node]:
    """`keep`, and the calls whose results its items are picked from."""
    found = set(keep)
    for node in keep:
        while (made_by := producer(node)) is not node and made_by.op in CALLS:
            node = made_by
            found.add(node)
    return found


def extract(gm: GraphModule, keep: Collection[Node], values: Mapping[str, Any]) -> tuple[GraphModule, list[Any]]:
    """The calls `keep` of a graph as a graph of their own, with the values it is to be called with.

    What they take from the rest of the graph becomes a placeholder when it is a tensor, and is written into the graph
    when it is a number. Graphs that operators take stay attributes.

    Args:
        values: of every node of `gm` by name, from a run.

    Returns:
        `(graph, inputs)`; the graph returns a tuple of what nothing in it uses.
    """
    keep = with_producers(keep)
    piece, made = _Piece(gm, values), dict[Node, Any]()
    order = [n for n in gm.graph.nodes if n in keep]
    for node in gm.graph.nodes:
        if node not in keep and any(u in keep for u in node.users):
            made[node] = piece.take(node, node.name)
    for node in order:
        made[node] = piece.call(node, made)
    return piece.returning([made[n] for n in order if not any(u in keep for u in n.users)])


def isolated_calls(
    gm: GraphModule, nodes: Sequence[Node], values: Mapping[str, Any]
) -> tuple[GraphModule, list[Any], list[tuple[Node, int]]]:
    """A graph in which each of `nodes` is called on inputs of its own, as recorded, and returned.

    Returns:
        `(graph, inputs, owners)`: `owners` has, for each of them in order, the node and how many of the inputs are its.
        What a node returns is one item of the graph's outputs, in the same order.
    """
    piece, owners, taken = _Piece(gm, values), list[tuple[Node, int]](), list[dict[Node, Any]]()
    for node in nodes:
        first = len(piece.inputs)
        taken.append({source: piece.take(source, f"{node.name}_{source.name}") for source in node.all_input_nodes})
        owners.append((node, len(piece.inputs) - first))
    graph, inputs = piece.returning([piece.call(node, made) for node, made in zip(nodes, taken, strict=True)])
    return graph, inputs, owners


class _Piece:
    """A graph that is made of calls of another one, and what it is to be called with."""

    def __init__(self, gm: GraphModule, values: Mapping[str, Any]) -> None:
        self._gm, self._values = gm, values
        self._graph = Graph()
        self.inputs: list[Any] = []

    def take(self, node: Node, name: str) -> Any:
        """The stand-in for the value of a node outside: a placeholder for a tensor, an attribute for a graph."""
        value = attribute(self._gm, node.target) if node.op == "get_attr" else self._values.get(node.name)
        if isinstance(value, GraphModule):
            return self._graph.get_attr(str(node.target))
        if not isinstance(value, torch.Tensor):
            return value
        self.inputs.append(copied(value))
        made = self._graph.placeholder(name)
        made.meta = origin_of(node)
        return made

    def call(self, node: Node, made: Mapping[Node, Any]) -> Node:
        """The call of a node, on the stand-ins of the nodes that it takes."""
        found = self._graph.node_copy(node, made.__getitem__)
        found.meta = origin_of(node)
        return found

    def returning(self, results: Sequence[Node]) -> tuple[GraphModule, list[Any]]:
        """The graph, which returns these, and its inputs."""
        self._graph.output(tuple(results))
        return GraphModule(self._gm, self._graph), self.inputs


def origin_of(node: Node) -> dict[str, Any]:
    """What is known of where a node comes from, without the values of its tracing."""
    return {key: value for key, value in node.meta.items() if key in ORIGIN}


def attribute(module: Any, target: object) -> Any:
    """An attribute by its dotted path; None where there is none."""
    found = module
    for part in str(target).split("."):
        found = getattr(found, part, None)
    return found


def output_node(gm: GraphModule) -> Node:
    """The node that ends the graph."""
    found: Node = next(n for n in reversed(gm.graph.nodes) if n.op == "output")
    return found


def exposed(gm: GraphModule, nodes: Sequence[Node]) -> None:
    """Make `gm` return, after what it returns, the values of `nodes`. What it notes of its outputs is extended."""
    output = output_node(gm)
    before = list(output.args[0]) if isinstance(output.args[0], (list, tuple)) else [output.args[0]]
    output.args = ((*before, *nodes),)
    strides = output.meta.get("original_output_strides")
    if strides is not None:
        output.meta["original_output_strides"] = [*strides, *([None] * len(nodes))]
    gm.recompile()


def showable(gm: GraphModule) -> list[Node]:
    """The calls whose value a graph can return unchanged: tensors that nothing writes to later, not returned already.

    Values that share memory with one that is written to later are left out.
    """
    written: set[Node] = set()
    for node in gm.graph.nodes:
        written |= set(writes_to(node))
    roots: dict[Node, Node] = {}
    for node in gm.graph.nodes:
        base = node.args[0] if node.op == "call_function" and is_view(node) and node.args else None
        roots[node] = roots.get(base, base) if isinstance(base, Node) else node
    spoiled = {roots[n] for n in written}
    already = set(output_node(gm).all_input_nodes)
    return [
        n
        for n in gm.graph.nodes
        if n.op == "call_function"
        and isinstance(value_of(n), torch.Tensor)
        and n not in already
        and roots[n] not in spoiled
        and not writes_to(n)
    ]


def is_view(node: Node) -> bool:
    """Whether a result of the call may share memory with an argument."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return True  # getitem and the like: assume the worst
    return any(r.alias_info is not None for r in schema.returns)
