"""Ops that record, put into an FX graph: which values they get, and in which slots these belong."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate, map_arg

from graphprobe.internals.operators.operators import operator_of, value_of, writes_to
from graphprobe.probe.dump.facts import DATA_OPS
from graphprobe.probe.dump.session import GraphOp, Values
from graphprobe.store.dump_slots import slots_from_inputs, slots_from_outputs

INPUTS, OUTPUTS, BOTH = 1, 2, 3
"""What a recording op is given: before an op that writes into its inputs, after it, or all of it afterwards."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Stands for one of the tensors that the recording op is given."""

    position: int


@dataclass(frozen=True, slots=True)
class _Number:
    """Stands for one of its numbers: a size that is known only when the program runs."""

    position: int


@dataclass(slots=True)
class Template:
    """The slots of one recording op, with a stand-in for each value that it gets when it runs."""

    inputs: list[tuple[str, Any]] = field(default_factory=list)
    outputs: list[tuple[str, Any]] = field(default_factory=list)

    def fill(self, tensors: Sequence[Any], numbers: Sequence[int]) -> tuple[Values, Values]:
        """Inputs and outputs, live."""

        def value(stand_in: Any) -> Any:
            if isinstance(stand_in, _Tensor):
                return tensors[stand_in.position]
            return numbers[stand_in.position] if isinstance(stand_in, _Number) else stand_in

        def slots(template: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
            return [(name, map_aggregate(stand_in, value)) for name, stand_in in template]

        return slots(self.inputs), slots(self.outputs)


@dataclass(slots=True)
class Inserted:
    """What was put into a graph: by index of an op and what is recorded there, the template."""

    templates: dict[tuple[int, int], Template] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def insert_recorders(gm: GraphModule, record: Any, ops: Mapping[Node, GraphOp], wanted: Collection[int]) -> Inserted:
    """Put a call of `record(tensors, numbers, index, what)` behind each op that is wanted, graph inputs excepted.

    An op that may write into what it reads gets one in front of it as well, for the inputs. The others get one for both
    sides, since nothing keeps a compiler from running two such calls in the other order.

    Returns:
        The templates; `left_out` names ops without any tensor. When an error is raised the graph is as it was.
    """
    inserted = Inserted()
    new: list[Node] = []
    try:
        for node in list(gm.graph.nodes):
            op = ops.get(node)
            if op is None or op.index not in wanted or node.op == "placeholder":
                continue
            parts = (BOTH,) if not may_write(node) else (INPUTS, OUTPUTS)
            made = [_insert(gm, node, what, record, op.index, inserted, new) for what in parts]
            if not any(made) and node.op not in DATA_OPS:  # a constant without a tensor is a nested graph
                inserted.left_out.append(node.name)
        if new:
            gm.graph.lint()
            gm.recompile()
    except Exception:
        for node in reversed(new):
            gm.graph.erase_node(node)
        gm.recompile()
        raise
    return inserted


def may_write(node: Node) -> bool:
    """Whether an op changes what it reads: by its schema, or because it has none, such as a call of a Triton kernel."""
    if node.op in DATA_OPS:
        return False
    found = operator_of(node.target)
    return bool(writes_to(node)) or (found is not None and found.namespace == "higher_order")


def _insert(
    gm: GraphModule, node: Node, what: int, record: Any, index: int, inserted: Inserted, new: list[Node]
) -> bool:
    """One recording op; False when there is no tensor to record."""
    template, tensors, numbers = Template(), list[Node](), list[Node]()
    take = _taking(tensors, numbers)
    with gm.graph.inserting_before(node if what == INPUTS else node.next):
        if what & INPUTS and node.op not in DATA_OPS:
            args, kwargs = _map((node.args, node.kwargs), lambda read: _spread(gm, read, new))
            for name, _, value in slots_from_inputs(args, kwargs, is_tensor=_is_tensor):
                template.inputs.append((name, _map(value, take)))
        if what & OUTPUTS:
            for name, _, value in slots_from_outputs(_spread(gm, node, new), is_tensor=_is_tensor):
                template.outputs.append((name, _map(value, take)))
            if not tensors and (index, INPUTS) in inserted.templates:
                # It gives nothing, or numbers. What it has read says that this comes after it.
                map_arg((node.args, node.kwargs), take)
        if not tensors:
            return False
        call = gm.graph.call_function(record, (tensors, numbers, index, what))
    call.meta["val"] = None
    new.append(call)
    inserted.templates[index, what] = template
    return True


def _map(value: Any, change: Callable[[Node], Any]) -> Any:
    return map_arg(value, change)


def _taking(tensors: list[Node], numbers: list[Node]) -> Callable[[Node], Any]:
    def take(node: Node) -> Any:
        value = value_of(node)
        if isinstance(value, torch.Tensor):
            tensors.append(node)
            return _Tensor(len(tensors) - 1)
        if isinstance(value, int | torch.SymInt) and not isinstance(value, bool):
            numbers.append(node)
            return _Number(len(numbers) - 1)
        return node.name  # a nested graph, a symbolic float: its name has to do

    return take


def _is_tensor(value: object) -> bool:
    return isinstance(value, Node) and isinstance(value_of(value), torch.Tensor)


def _spread(gm: GraphModule, node: Node, new: list[Node]) -> Any:
    """The node; or, if its result is a list, what is in that, each part taken out by a node of its own."""
    result = value_of(node)
    if not isinstance(result, list | tuple) or not _holds_tensor(result):
        return node
    parts: list[Any] = []
    for index, value in enumerate(result):
        if isinstance(value, torch.Tensor | torch.SymInt) or _holds_tensor(value):
            part = gm.graph.call_function(operator.getitem, (node, index))
            part.meta["val"] = value
            new.append(part)
            parts.append(_spread(gm, part, new))
        else:
            parts.append(value)
    return tuple(parts)


def _holds_tensor(value: object) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(v, torch.Tensor) or _holds_tensor(v) for v in value)
