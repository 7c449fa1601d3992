"""Plainer constants in the graph: 0.0 and 1.0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.fx import GraphModule

from graphprobe.diagnose.reduction.edits.base import EditBase, EditPass, NotApplicable
from graphprobe.diagnose.reduction.edits.literals import calls, literals, put
from graphprobe.diagnose.reduction.edits.measure import constant_rank


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


def _candidates(graph: GraphModule, inputs: list[Any]) -> Iterator[EditBase]:
    for node in calls(graph):
        for path, value in literals(node):
            for new in (0.0, 1.0):
                if isinstance(value, float) and constant_rank(new) < constant_rank(value):
                    yield SetScalar(node.name, path, new)


PASS = EditPass("scalars", _candidates)
