"""Fewer outputs, calls that nothing uses are dropped, and graphs that operators take are written out.

What is inside of such a graph can be reduced only then.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

from torch.fx import Graph, GraphModule, Node

from graphprobe.diagnose.reduction.edits.base import (
    EditBase,
    EditPass,
    NotApplicable,
    copied_graph,
    placeholders,
    runnable,
    set_attribute,
)
from graphprobe.diagnose.reduction.edits.measure import calls, outputs_of
from graphprobe.engine.interpret import run_graph
from graphprobe.engine.subgraph import attribute, output_node
from graphprobe.internals.aot_backends import is_higher_order
from graphprobe.internals.operators.operators import operator_of, writes_to


class KeepOutputs(EditBase, frozen=True):
    """The graph returns fewer values, as a tuple."""

    keep: tuple[int, ...]  # positions of the outputs that stay; at least one

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        values = outputs_of(graph)
        if not self.keep or max(self.keep) >= len(values):
            raise NotApplicable(f"{self}: the graph returns {len(values)} values")
        output_node(graph).args = (tuple(values[i] for i in self.keep),)
        return inputs


class DropCalls(EditBase, frozen=True):
    """Calls that nothing uses, or only others of these, are removed."""

    nodes: tuple[str, ...]  # their names

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        found = [node for node in calls(graph) if node.name in self.nodes]
        if len(found) != len(self.nodes):
            raise NotApplicable(f"{self}: not all of them are calls of the graph")
        for node in reversed(found):
            if node.users:
                raise NotApplicable(f"{self}: {node.name} is used")
            graph.graph.erase_node(node)
        return inputs


def is_pure(node: Node) -> bool:
    """Whether a call does nothing, it seems, but give its result: it writes to no argument and has no known effect."""
    if node.op == "call_module" or node.is_impure() or writes_to(node) or "out" in node.kwargs:
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    plain = str(name).partition(".")[0]
    return (
        plain != "setitem"
        and not plain.startswith(("_enter", "_exit"))
        and (not plain.endswith("_") or plain.endswith("__"))
    )


def _outputs(graph: GraphModule, inputs: list[Any]) -> Iterator[EditBase]:
    values = outputs_of(graph)
    every = tuple(range(len(values)))
    real = tuple(i for i in every if isinstance(values[i], Node))
    choices: list[tuple[int, ...]] = [] if len(real) > 8 else [(i,) for i in real]
    parts = 2
    while parts < 2 * len(real):
        size = -(-len(real) // parts)
        pieces = [real[i : i + size] for i in range(0, len(real), size)]
        choices += pieces
        choices += [tuple(i for i in real if i not in piece) for piece in pieces]
        parts *= 2
    choices.append(real)
    yield from (KeepOutputs(keep) for keep in dict.fromkeys(choices) if keep and keep != every)


def _dead(graph: GraphModule, inputs: list[Any]) -> Iterator[EditBase]:
    dead: dict[Node, None] = {}
    for node in reversed(calls(graph)):
        if is_pure(node) and all(user in dead for user in node.users):
            dead[node] = None
    if len(dead) > 1:
        yield DropCalls(tuple(node.name for node in dead))
    yield from (DropCalls((node.name,)) for node in dead if not node.users)


OUTPUTS = EditPass("outputs", _outputs)
DEAD = EditPass("dead_calls", _dead)


class InlineBranch(EditBase, frozen=True):
    """A call of an operator that takes graphs becomes the calls of one of these."""

    node: str  # name of the call
    branch: int = 0  # which graph among the call's arguments: of `cond` 0 is the one for true, 1 the one for false

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        call = next((n for n in calls(graph) if n.name == self.node), None)
        if call is None or not is_higher_order(call.target):
            raise NotApplicable(f"{self}: there is no such call")
        taken = _bodies(graph, call)
        if self.branch >= len(taken):
            raise NotApplicable(f"{self}: it takes {len(taken)} graphs")
        body = copied_graph(attribute(graph, taken[self.branch].target))
        formal = placeholders(body)
        actual = _operands(graph, call)
        if len(actual) != len(formal):
            raise NotApplicable(f"{self}: {len(actual)} operands for {len(formal)} placeholders")
        for node in body.graph.nodes:
            if node.op in ("get_attr", "call_module"):
                own, node.target = attribute(body, node.target), _free_name(graph, str(node.target))
                set_attribute(graph, node.target, own)
        values = outputs_of(body)
        made: dict[Node, Any] = dict(zip(formal, actual, strict=True))
        with graph.graph.inserting_before(call):
            graph.graph.graph_copy(body.graph, made)
        _hand_over(graph.graph, call, [made[v] if isinstance(v, Node) else v for v in values])
        return inputs


def _bodies(graph: GraphModule, call: Node) -> list[Node]:
    """The arguments that are graphs, in order."""
    return [
        arg
        for arg in (*call.args, *call.kwargs.values())
        if isinstance(arg, Node) and arg.op == "get_attr" and isinstance(attribute(graph, arg.target), GraphModule)
    ]


def _operands(graph: GraphModule, call: Node) -> list[Any]:
    """What the call hands to its graph.

    Raises:
        NotApplicable: the operator is none whose graphs can be written out.
    """
    found = operator_of(call.target)
    name = found.name if found is not None else ""
    if name == "cond":
        operands = call.args[3] if len(call.args) > 3 else ()
        return list(operands) if isinstance(operands, (list, tuple)) else []
    if name == "invoke_subgraph":
        return list(call.args[2:])
    graphs = _bodies(graph, call)
    if (name.startswith("wrap") or "checkpoint" in name) and len(graphs) == 1 and graphs[0] in call.args:
        return list(call.args[call.args.index(graphs[0]) + 1 :])
    raise NotApplicable(f"{name} is not written out")


def _free_name(graph: GraphModule, target: str) -> str:
    base = target.replace(".", "_")
    names = itertools.chain([base], (f"{base}_{count}" for count in itertools.count(1)))
    return next(name for name in names if not hasattr(graph, name))


def _hand_over(graph: Graph, call: Node, values: Sequence[Any]) -> None:
    """Let the users of the call, which pick items of its result, use the values themselves; erase the call."""
    for user in list(call.users):
        if user.op == "call_function" and user.target is operator.getitem and isinstance(user.args[1], int):
            value = values[user.args[1]]
            if isinstance(value, Node):
                user.replace_all_uses_with(value)
                graph.erase_node(user)
                continue
        if len(values) == 1 and isinstance(values[0], Node):  # a wrapper that returns the bare value
            user.replace_input_with(call, values[0])
            continue
        raise NotApplicable(f"{user.name} uses the result of {call.name} as a whole")
    graph.erase_node(call)


def _branches(graph: GraphModule, inputs: list[Any]) -> Iterator[EditBase]:
    found = [node for node in calls(graph) if is_higher_order(node.target)]
    values = run_graph(runnable(graph), inputs).values if found else {}
    for node in found:
        count = len(_bodies(graph, node))
        branches = list(range(count))
        if count > 1 and isinstance(node.args[0], Node):
            taken = values.get(node.args[0].name, True)
            branches = branches if bool(taken) else branches[::-1]
        yield from (InlineBranch(node.name, branch) for branch in branches)


GRAPHS = EditPass("graphs", _branches)
