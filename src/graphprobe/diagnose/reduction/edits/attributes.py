"""Parameters, buffers and constants become inputs, so that they can get smaller too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.fx import GraphModule

from graphprobe.diagnose.reduction.edits.base import (
    EditBase,
    EditPass,
    NotApplicable,
    placeholders,
    tensor_attributes,
)
from graphprobe.engine.interpret import copy_tensor


class Lift(EditBase, frozen=True):
    """Tensors that the graph reads from its module become inputs, behind the others, in this order.

    Each call gets a copy of what the attribute holds: what one call writes is not seen by the next.

    Attributes:
        attributes: targets, as in the graph.
    """

    attributes: tuple[str, ...]

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        """Put placeholders in the place of the nodes."""
        found = tensor_attributes(graph)
        values = list(inputs)
        for target in self.attributes:
            if target not in found:
                raise NotApplicable(f"{self}: the graph reads no tensor {target}")
            before = placeholders(graph)
            first = next(iter(graph.graph.nodes))
            spot = graph.graph.inserting_after(before[-1]) if before else graph.graph.inserting_before(first)
            with spot:
                placeholder = graph.graph.placeholder(target.replace(".", "_"))
            for node in [n for n in graph.graph.nodes if n.op == "get_attr" and n.target == target]:
                node.replace_all_uses_with(placeholder)
                graph.graph.erase_node(node)
            values.append(copy_tensor(found[target]).requires_grad_(found[target].requires_grad))
        return values


def _candidates(graph: GraphModule, inputs: list[Any]) -> Iterator[EditBase]:
    found = list(tensor_attributes(graph))
    if len(found) > 1:
        yield Lift(tuple(found))
    yield from (Lift((target,)) for target in found)


PASS = EditPass("attributes", _candidates)
