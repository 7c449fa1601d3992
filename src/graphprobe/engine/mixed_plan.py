"""By what a launch of generated code can be replaced: the piece of the FX graph that it was made from, if there is one.

A launch writes buffers, and each buffer that later launches need has to be the value of one FX node. From these nodes
back, the graph has to end at values that the launch reads. Where it does not (values that a lowering made on its way,
or memory that is written to), Inductor's IR of the launch takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from graphprobe.engine.naming import op_of
from graphprobe.internals.inductor.lowered_graph import LoweredGraph
from graphprobe.internals.launches.launch_io import LaunchIO, Use
from graphprobe.internals.operators.operators import value_of, writes_to

DRAWS = torch.Tag.nondeterministic_seeded
COPY = "aten.copy_.default"


class NoGraph(Exception):
    """There is no such piece of the graph, and why."""


@dataclass(frozen=True)
class LaunchPiece:
    """A piece of the FX graph that computes what a launch computes.

    Attributes:
        graph: takes the values of `takes`, in order, and returns those of `gives`.
        takes: what the launch reads.
        gives: what the launch writes and others need.
        nodes: names of the FX nodes in it.
        numbers: expressions of the symbolic numbers that the piece takes after `takes`.
    """

    graph: GraphModule
    takes: tuple[Use, ...]
    gives: tuple[Use, ...]
    nodes: tuple[str, ...]
    numbers: tuple[Any, ...]


def piece_of(lowered: LoweredGraph, launch: LaunchIO, needed: Sequence[Use]) -> LaunchPiece:
    """The piece of the final graph behind a launch.

    Args:
        needed: what the launch writes and others need.

    Raises:
        NoGraph: see the message.
    """
    sources = _sources(lowered, launch)
    goals: list[Node] = []
    for use in needed:
        node = _goal(lowered, use)
        if node in sources:
            raise NoGraph(f"{use.value} is {node.name}, which it reads")
        goals.append(node)
    if not goals:
        raise NoGraph("it writes nothing that others need")
    nodes, numbers = _between(goals, set(sources))
    used = {n for node in nodes for n in node.all_input_nodes}
    missed = [str(use.value) for node, use in sources.items() if node not in used]
    if missed:
        raise NoGraph(f"it reads {', '.join(missed)}, which the graph has no need of here")
    return _piece(lowered.final, sources, needed, goals, nodes, numbers)


def _sources(lowered: LoweredGraph, launch: LaunchIO) -> dict[Node, Use]:
    """The FX nodes whose values the launch gets."""
    found: dict[Node, Use] = {}
    for use in launch.reads:
        name = str(use.value)
        if lowered.is_constant(name):
            continue  # the graph has it as well
        if name != use.name and name in lowered.inputs:
            raise NoGraph(f"{use.name} took over the memory of {name}")
        node = lowered.origin(name)
        if node is None:
            raise NoGraph(f"it reads {name}, which is no value of the graph")
        if node.op == "call_function" and writes_to(node):
            raise NoGraph(f"it reads {name}, into which {node.name} wrote")
        if not isinstance(value_of(node), torch.Tensor):
            raise NoGraph(f"it reads {name}, which is several values or none")
        found.setdefault(node, use)
    return found


def _goal(lowered: LoweredGraph, use: Use) -> Node:
    """The FX node whose value a buffer holds at the end."""
    node: Node | None = lowered.origin(str(use.value))
    if node is None:
        raise NoGraph(f"it writes {use.value}, which is no value of the graph")
    if node.op != "call_function":
        raise NoGraph(f"it writes {use.value}, which is {node.op} {node.name}")
    if op_of(node) == COPY and isinstance(node.args[1], Node):
        source, target = node.args[1], node.args[0]
        if isinstance(target, Node) and _form(source) == _form(target):
            return source  # a write into an input at the very end
    if writes_to(node):
        raise NoGraph(f"{node.name} writes into {use.value}")
    if not isinstance(value_of(node), torch.Tensor):
        raise NoGraph(f"it writes {use.value}, which is several values or none")
    return node


def _form(node: Node) -> Any:
    value = value_of(node)
    return (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else node


def _between(goals: Sequence[Node], sources: set[Node]) -> tuple[list[Node], list[Node]]:
    """Calls and attributes from `sources` to `goals`, in any order, and the symbolic numbers that they take."""
    found: dict[Node, None] = {}
    numbers: dict[Node, None] = {}
    waiting = list(goals)
    while waiting:
        node = waiting.pop()
        if node in found or node in sources or node in numbers:
            continue
        if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool)):
            numbers[node] = None
            continue
        if node.op == "placeholder":
            raise NoGraph(f"{node.name} is needed, which it does not read")
        if node.op == "call_function" and writes_to(node):
            raise NoGraph(f"{node.name} writes to its argument")
        if DRAWS in getattr(node.target, "tags", ()) and "attention" not in str(node.target):
            raise NoGraph(f"{node.name} draws random numbers")
        if "inductor_random" in str(node.target) or "inductor_seed" in str(node.target):
            raise NoGraph(f"{node.name} draws random numbers")
        found[node] = None
        waiting += node.all_input_nodes
    return list(found), list(numbers)


def _piece(
    final: GraphModule,
    sources: dict[Node, Use],
    needed: Sequence[Use],
    goals: Sequence[Node],
    nodes: Sequence[Node],
    numbers: Sequence[Node],
) -> LaunchPiece:
    graph = Graph()
    made: dict[Node, Node] = {}
    for node in [*sources, *numbers]:
        made[node] = graph.placeholder(node.name)
    inside = set(nodes)
    for node in final.graph.nodes:
        if node in inside:
            made[node] = graph.node_copy(node, lambda n: made[n])
    graph.output(tuple(made[node] for node in goals))
    names = tuple(node.name for node in final.graph.nodes if node in inside)
    expressions = tuple(node.meta["val"].node.expr for node in numbers)
    return LaunchPiece(GraphModule(final, graph), tuple(sources.values()), tuple(needed), names, expressions)
