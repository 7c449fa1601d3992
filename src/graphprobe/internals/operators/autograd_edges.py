"""The autograd graph around one call: which nodes it made, and on which of their edges the gradients of its inputs lie.

Nothing here keeps a tensor: edges are found by identity while the call runs, and what is left are hooks on nodes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any, TypeVar, cast

import msgspec
import torch

from graphprobe.internals.names import require

_PURPOSE = "recording gradients of calls"

unseen: Callable[[], AbstractContextManager[None]] = require("torch._C", "DisableTorchFunction", purpose=_PURPOSE)
"""A block that no mode sees; cheap, and to be around whatever is done from within a hook."""
sequence_number: Callable[[], int] = require("torch._C._autograd", "_get_sequence_nr", purpose=_PURPOSE)
"""Number that the next node made by this thread gets."""
graph_task: Callable[[], int] = require("torch._C", "_current_graph_task_id", purpose=_PURPOSE)
"""Number of the backward that runs in this thread, -1 without one."""
_current_node: Callable[[], Any] = require("torch._C", "_current_autograd_node", purpose=_PURPOSE)
_engine = require("torch.autograd", "Variable._execution_engine", purpose=_PURPOSE)
_set_strategy = require("torch._C._dynamo.eval_frame", "set_code_exec_strategy", purpose=_PURPOSE)
_strategy = require("torch._C._dynamo.eval_frame", "_FrameExecStrategy", purpose=_PURPOSE)
_ACCUMULATE: type = require("torch._C", "_functions.AccumulateGrad", purpose=_PURPOSE)
_skip = require("torch._C._dynamo.eval_frame", "_FrameAction.SKIP", purpose=_PURPOSE)
_default = require("torch._C._dynamo.eval_frame", "_FrameAction.DEFAULT", purpose=_PURPOSE)

_COMPILED_BACKWARD = "CompiledFunctionBackward"
"""Name of the node in which AOTAutograd runs a compiled backward, and compiles it the first time."""

Edge = tuple[Any, int]
"""A node, and which of its results; of a leaf, the tensor itself and -1."""


F = TypeVar("F", bound=Callable[..., Any])

_NEVER = 2**64 - 1
"""Sequence number of the nodes that add gradients to leaves."""

_function_modes: Callable[[], list[Any]] = require(
    "torch.overrides", "_get_current_function_mode_stack", purpose="ending the overflow check"
)
_OF_A_LEAF = 1 << 63
"""What gathers the gradient of a leaf has the largest number there is."""


def uncompiled(function: F, *, alone: bool = False) -> F:
    """Keep Dynamo from compiling a hook, and what the hook calls unless `alone`, where compiled code runs it."""
    _set_strategy(cast(FunctionType, function).__code__, _strategy(_skip, _default if alone else _skip))
    return function


class NodePlan(msgspec.Struct, gc=False):
    """What the hook of one node is to look at. For a moment only: it holds the node.

    Attributes:
        node: a node of the graph.
        outputs: (which gradient that comes in, slot of the output it is of).
        late: the same, for an output whose own node may never run: in place operations replace a view's node.
        inputs: (which gradient that goes out, slot of the input it contributes to).
    """

    node: Any
    outputs: list[tuple[int, int]]
    late: list[tuple[int, int]]
    inputs: list[tuple[int, int]]


def edge_of(tensor: torch.Tensor) -> Edge:
    """Where the gradient with respect to a tensor that requires one arrives, in a form to look up by."""
    node = tensor.grad_fn
    return (id(tensor), -1) if node is None else (node, tensor.output_nr)


def plans_between(
    inputs: Sequence[tuple[int, Edge]], outputs: Sequence[tuple[int, torch.Tensor]], first_sequence: int
) -> list[NodePlan]:
    """The nodes that a call made and that have to be hooked.

    Args:
        inputs: slot and edge of each tensor that required a gradient before the call.
        outputs: slot and tensor of each that requires one after it.
        first_sequence: `sequence_number()` before the call: older nodes are not the call's.
    """
    targets: dict[Edge, list[int]] = {}
    for slot, edge in inputs:
        targets.setdefault(edge, []).append(slot)
    plans: dict[Any, NodePlan] = {}
    pending: list[Any] = []
    views: list[tuple[Any, int]] = []
    for slot, tensor in outputs:
        node = tensor.grad_fn
        if node is None or (node, tensor.output_nr) in targets or node._sequence_nr() < first_sequence:
            continue
        plan = plans.get(node)
        if plan is None:
            plan = plans[node] = NodePlan(node, [], [], [])
            pending.append(node)
        plan.outputs.append((tensor.output_nr, slot))
        if tensor._is_view():
            views.append((node, slot))
    if targets:
        _assign(plans, _walk(pending, targets, first_sequence), targets)
    for node, slot in views:
        _add_late(plans, node, slot, targets, first_sequence)
    return [plan for plan in plans.values() if plan.outputs or plan.inputs or plan.late]


def only_node(
    inputs: Sequence[tuple[str, Edge]], output: torch.Tensor, first_sequence: int
) -> tuple[Any, list[tuple[int, int]]] | None:
    """The node of a call that made just one, as most do, and on which of its edges which inputs lie, by input.

    None where it takes more than a look to tell: then `plans_between` does.
    """
    node: Any = output.grad_fn
    if node is None or node._sequence_nr() < first_sequence:
        return None
    targets: dict[Any, int] = {edge: number for number, (_, edge) in enumerate(inputs)}
    if len(targets) != len(inputs):
        return None
    found: list[tuple[int, int]] = []
    for place, edge in enumerate(node.next_functions):
        behind = edge[0]
        if behind is None:
            continue
        number = targets.pop(edge, None)
        if number is None:
            if type(behind) is not _ACCUMULATE:
                return None
            leaf = (id(getattr(behind, "variable", None)), -1)
            number = targets.pop(leaf, None)
            if number is None:
                if any(edge == leaf for _, edge in inputs):
                    return None
                continue
        found.append((place, number))
    if len(found) > 1:
        found.sort(key=operator.itemgetter(1))
    return node, found


def _walk(pending: list[Any], targets: dict[Edge, list[int]], first_sequence: int) -> dict[Edge, list[tuple[Any, int]]]:
    """The call's own edges that lead out of it to each target, outermost node first."""
    edges: dict[Edge, list[tuple[Any, int]]] = {}
    seen = set(pending)
    while pending:
        node = pending.pop()
        for place, edge in enumerate(node.next_functions):
            behind = edge[0]
            if behind is None:
                continue
            if edge not in targets:
                leaf = getattr(behind, "variable", None) if type(behind) is _ACCUMULATE else None
                if leaf is None:
                    if behind not in seen and first_sequence <= behind._sequence_nr() < _NEVER:
                        seen.add(behind)
                        pending.append(behind)
                    continue
                edge = (id(leaf), -1)
                if edge not in targets:
                    continue
            edges.setdefault(edge, []).append((node, place))
    return edges


def _assign(
    plans: dict[Any, NodePlan], edges: dict[Edge, list[tuple[Any, int]]], targets: dict[Edge, list[int]]
) -> None:
    """One edge to one slot where there are as many of both (`x * x`); else all to the first, to be added up."""
    for edge, places in edges.items():
        slots = targets[edge]
        single = len(slots) == len(places)
        for number, (node, place) in enumerate(places):
            plan = plans.get(node)
            if plan is None:
                plan = plans[node] = NodePlan(node, [], [], [])
            plan.inputs.append((place, slots[number if single else 0]))


def _add_late(
    plans: dict[Any, NodePlan], node: Any, slot: int, targets: dict[Edge, list[int]], first_sequence: int
) -> None:
    """An in-place operation on a view replaces its node; the node of its base still runs."""
    inner = [edge for edge in node.next_functions if edge[0] is not None]
    if len(inner) != 1 or inner[0] in targets or not first_sequence <= inner[0][0]._sequence_nr() < _NEVER:
        return
    behind, number = inner[0]
    plan = plans.get(behind)
    if plan is None:
        plan = plans[behind] = NodePlan(behind, [], [], [])
    plan.late.append((number, slot))


def at_end_of_backward(function: Callable[[], None]) -> None:
    """Call `function` when the backward that runs in this thread is over. Raises RuntimeError when none runs."""
    _engine.queue_callback(function)


def in_compiled_backward() -> bool:
    """Whether a compiled backward runs in this thread, or is being compiled: calls are its own, not the program's."""
    if graph_task() < 0:
        return False
    node = _current_node()
    return node is not None and node.name() == _COMPILED_BACKWARD


def running_node() -> tuple[str, int] | None:
    """Name of the node that runs, and the number that it got in the forward, -1 if none; None outside a backward."""
    node = _current_node()
    if node is None:
        return None
    number = int(node._sequence_nr())
    return str(node.name()), number if number < _OF_A_LEAF else -1


def innermost_function_mode() -> Any:
    """The mode that sees calls of torch's functions first; None without one."""
    modes = _function_modes()
    return modes[-1] if modes else None
