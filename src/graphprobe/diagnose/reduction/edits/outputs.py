"""Fewer outputs, and calls whose results nothing uses are dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.fx import GraphModule, Node

from graphprobe.diagnose.reduction.edits.base import EditBase, EditPass, NotApplicable
from graphprobe.diagnose.reduction.edits.literals import calls
from graphprobe.engine.subgraph import output_node
from graphprobe.internals.operators.operators import writes_to


class KeepOutputs(EditBase, frozen=True):
    """The graph returns fewer values, as a tuple.

    Attributes:
        keep: positions of the outputs that stay; at least one.
    """

    keep: tuple[int, ...]

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        """Rewrite what is returned."""
        output = output_node(graph)
        values = _values(output)
        if not self.keep or max(self.keep) >= len(values):
            raise NotApplicable(f"{self}: the graph returns {len(values)} values")
        output.args = (tuple(values[i] for i in self.keep),)
        return inputs


class DropCalls(EditBase, frozen=True):
    """Calls that nothing uses, or only others of these, are removed.

    Attributes:
        nodes: their names.
    """

    nodes: tuple[str, ...]

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        """Erase them, the last one first."""
        found = [node for node in calls(graph) if node.name in self.nodes]
        if len(found) != len(self.nodes):
            raise NotApplicable(f"{self}: not all of them are calls of the graph")
        for node in reversed(found):
            if node.users:
                raise NotApplicable(f"{self}: {node.name} is used")
            graph.graph.erase_node(node)
        return inputs


def _values(output: Node) -> list[Any]:
    given = output.args[0]
    return list(given) if isinstance(given, (list, tuple)) else [given]


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
    values = _values(output_node(graph))
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
    for node in reversed(list(calls(graph))):
        if is_pure(node) and all(user in dead for user in node.users):
            dead[node] = None
    if len(dead) > 1:
        yield DropCalls(tuple(node.name for node in dead))
    yield from (DropCalls((node.name,)) for node in dead if not node.users)


PASS = EditPass("outputs", _outputs)
DEAD = EditPass("dead_calls", _dead)
