"""Graphs that operators take are written into the graph that calls them, so that what is inside can be reduced."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from graphprobe.diagnose.reduction.edits.base import EditBase, EditPass, NotApplicable, runnable, set_attribute
from graphprobe.diagnose.reduction.edits.literals import calls
from graphprobe.diagnose.reduction.edits.measure import is_higher_order
from graphprobe.engine.interpret import run_graph
from graphprobe.engine.subgraph import attribute
from graphprobe.internals.operators.operators import operator_of


class InlineBranch(EditBase, frozen=True):
    """A call of an operator that takes graphs becomes the calls of one of these.

    Attributes:
        node: name of the call.
        branch: which graph among the call's arguments: of `cond` 0 is the one for true, 1 the one for false.
    """

    node: str
    branch: int = 0

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        """Copy the body to where it was called."""
        call = next((n for n in calls(graph) if n.name == self.node), None)
        if call is None or not is_higher_order(call):
            raise NotApplicable(f"{self}: there is no such call")
        taken = _bodies(graph, call)
        if self.branch >= len(taken):
            raise NotApplicable(f"{self}: it takes {len(taken)} graphs")
        body = attribute(graph, taken[self.branch].target)
        formal = [n for n in body.graph.nodes if n.op == "placeholder"]
        actual = _operands(graph, call)
        if len(actual) != len(formal):
            raise NotApplicable(f"{self}: {len(actual)} operands for {len(formal)} placeholders")
        with graph.graph.inserting_before(call):
            values = _copy_body(graph, body, dict(zip(formal, actual, strict=True)))
        _hand_over(graph.graph, call, values)
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


def _copy_body(graph: GraphModule, body: GraphModule, made: dict[Node, Any]) -> Sequence[Any]:
    """Copy the calls of a body to the insertion point; `made` has what stands for its placeholders, and gets the rest.

    Returns:
        What the body returns.
    """
    for node in body.graph.nodes:
        if node.op == "output":
            returned = node.args[0]
            values = returned if isinstance(returned, (list, tuple)) else [returned]
            return [made[v] if isinstance(v, Node) else v for v in values]
        if node.op in ("get_attr", "call_module"):
            own = attribute(body, node.target)
            target = _free_name(graph, str(node.target))
            if isinstance(own, torch.nn.Module):
                graph.add_submodule(target, own)
            else:
                set_attribute(graph, target, own)
            made[node] = graph.graph.node_copy(node, lambda n: made[n])
            made[node].target = target
        elif node.op != "placeholder":
            made[node] = _copy_call(graph.graph, node, made)
    raise NotApplicable("the body returns nothing")


def _copy_call(graph: Graph, node: Node, made: dict[Node, Any]) -> Node:
    """As `Graph.node_copy`, where a placeholder may stand for a constant."""
    copied = graph.create_node(node.op, node.target, (), {}, node.name)
    copied.args = map_arg(node.args, lambda n: made[n])
    copied.kwargs = map_arg(node.kwargs, lambda n: made[n])
    copied.meta = dict(node.meta)
    return copied


def _free_name(graph: GraphModule, target: str) -> str:
    base = target.replace(".", "_")
    name, count = base, 0
    while hasattr(graph, name):
        count += 1
        name = f"{base}_{count}"
    return name


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


def _candidates(graph: GraphModule, inputs: list[Any]) -> Iterator[EditBase]:
    found = [node for node in calls(graph) if is_higher_order(node)]
    values = run_graph(runnable(graph), inputs).values if found else {}
    for node in found:
        count = len(_bodies(graph, node))
        branches = list(range(count))
        if count > 1 and isinstance(node.args[0], Node):
            taken = values.get(node.args[0].name, True)
            branches = branches if bool(taken) else branches[::-1]
        yield from (InlineBranch(node.name, branch) for branch in branches)


PASS = EditPass("graphs", _candidates)
