"""Gradients of one call: hooks on its nodes look at what comes in and at its own share of what goes out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from graphprobe.internals.operators.autograd_edges import Edge, NodePlan, graph_task, only_node, plans_between, unseen
from graphprobe.internals.quiet import quiet
from graphprobe.store.api_jobs import Slot
from graphprobe.store.calls import CallKind, SlotRole

if TYPE_CHECKING:
    from graphprobe.probe.api.session import ApiSession

Wanted = list[tuple[int, int]]
"""(place among the gradients of a node, slot)."""
Named = tuple[int, str, SlotRole]
"""(place among the gradients of a node, name and role of the slot)."""
Gradients = Sequence[torch.Tensor | None]

_ROLES: dict[str, SlotRole] = {"parameter": "grad_parameter", "output": "grad_output"}


class Head(msgspec.Struct, gc=False):
    """What a backward has in common with its forward."""

    step: int
    kind: CallKind
    api: str
    label: str
    number: int
    module: str
    source: str
    stack: tuple[str, ...]
    thread: str


def watch_backward(
    session: ApiSession,
    head: Head,
    inputs: Sequence[tuple[str, Edge]],
    outputs: Sequence[tuple[str, torch.Tensor]],
    first_sequence: int,
    notes: tuple[str, ...] = (),
) -> bool:
    """Hook the nodes between `inputs` and `outputs`; False when the call made none.

    Args:
        head: of the call.
        inputs: slot name and edge of what required a gradient before it.
        outputs: slot name and tensor of what requires one after it.
        first_sequence: number of the next node, before the call.
    """
    if len(outputs) == 1:
        name, tensor = outputs[0]
        only = only_node(inputs, tensor, first_sequence)
        if only is not None:
            node, places = only
            first = (tensor.output_nr, *gradient_name(name))
            rest = tuple([(place, *gradient_name(inputs[number][0])) for place, number in places])
            node.register_hook(_OnlyNode(session, head, first, rest, notes))
            return True
    plans = plans_between(
        [(number, edge) for number, (_, edge) in enumerate(inputs)],
        [(len(inputs) + number, tensor) for number, (_, tensor) in enumerate(outputs)],
        first_sequence,
    )
    if not plans:
        return False
    names = [gradient_name(name) for name, _ in inputs] + [gradient_name(name) for name, _ in outputs]
    call = BackwardCall(session, head, names, len(inputs), plans, notes)
    for plan in plans:
        # Not the plan itself: it holds the node, and a node that holds itself is never freed.
        plan.node.register_hook(_Node(call, plan.outputs, plan.late, plan.inputs))
    return True


_NO_SLOTS: frozenset[int] = frozenset()
_ONE_EACH: dict[int, int] = {}
_NOTHING: dict[int, Any] = {}
"""Never added to: before a backward begins and after it is over."""


@functools.cache
def gradient_name(slot: str) -> tuple[str, SlotRole]:
    """`input.0` -> `grad_input.0`, `kwarg.bias` -> `grad_kwarg.bias`, and the role."""
    return f"grad_{slot}", _ROLES.get(slot.partition(".")[0], "grad_input")


class _OnlyNode(msgspec.Struct, gc=False):
    """The hook of a call that made one node: there is nothing to wait for and nothing to add up.

    Hooks live as long as the graph. The garbage collector need not look at them: they hold no node and no tensor.
    """

    session: ApiSession
    head: Head
    output: Named
    inputs: tuple[Named, ...]
    notes: tuple[str, ...]
    passes: int = 0

    def __call__(self, grad_inputs: Gradients, grad_outputs: Gradients) -> None:
        """The node has run. Never raises, and changes no gradient."""
        session = self.session
        if not session.on:
            return
        try:
            with unseen():
                self.passes += 1
                slot_of, slots = session.values.slot, []
                place, name, role = self.output
                grad = grad_outputs[place]
                if grad is not None:
                    slots.append(slot_of(name, role, grad))
                for place, name, role in self.inputs:
                    grad = grad_inputs[place]
                    if grad is not None:
                        slots.append(slot_of(name, role, grad))
                if slots:
                    notes = self.notes if self.passes == 1 else (*self.notes, _again(self.passes))
                    session.submit(self.head, "backward", slots, notes)
        except Exception as error:
            session.fail("backward", error)


class _Node(msgspec.Struct, gc=False):
    """The hook of one node of several, as a plan has it; the places are those of the node's gradients."""

    call: BackwardCall
    outputs: Wanted
    late: Wanted
    inputs: Wanted

    def __call__(self, grad_inputs: Gradients, grad_outputs: Gradients) -> None:
        """A node has run. Never raises, and changes no gradient."""
        session = self.call.session
        if not session.on:
            return
        try:
            with unseen():
                self.call.fired(self, grad_inputs, grad_outputs)
        except Exception as error:
            session.fail("backward", error)


class BackwardCall:
    """The backward of one call. Held by the graph through the hooks; holds no node and, once done, no tensor."""

    __slots__ = (
        "_alone", "_expected", "_fired", "_found", "_head", "_inputs", "_names", "_notes", "_passes", "_said",
        "_shares", "_sums", "_task", "session",
    )  # fmt: skip

    def __init__(
        self,
        session: ApiSession,
        head: Head,
        names: list[tuple[str, SlotRole]],
        inputs: int,
        plans: list[NodePlan],
        notes: tuple[str, ...],
    ) -> None:
        self.session = session
        self._head = head
        self._names = names
        self._inputs = inputs
        self._notes = notes
        self._expected = len(plans)
        # Outputs whose node has nothing else to tell; it may be replaced, and then never runs.
        self._alone: frozenset[int] = _NO_SLOTS
        if any(plan.late for plan in plans):
            self._alone = frozenset(plan.outputs[0][1] for plan in plans if len(plan.outputs) == 1 and not plan.inputs)
        # How many edges lead to an input, where there are several.
        self._shares: dict[int, int] = _ONE_EACH
        slots = [slot for plan in plans for _, slot in plan.inputs]
        if len(set(slots)) < len(slots):
            self._shares = {slot: slots.count(slot) for slot in slots}
        self._task = -1
        self._passes = 0
        self._fired = 0
        self._found: dict[int, Slot] = _NOTHING
        self._sums: dict[int, tuple[torch.Tensor, int]] = _NOTHING
        self._said: Sequence[str] = ()

    def fired(self, node: _Node, grad_inputs: Gradients, grad_outputs: Gradients) -> None:
        """A node has run."""
        task = graph_task()
        if task != self._task or self._found is _NOTHING:
            self._begin(task)
        for place, slot in node.outputs:
            self._take(slot, grad_outputs[place])
        for place, slot in node.late:
            if slot not in self._found:
                self._take(slot, grad_outputs[place])
                self._said = (
                    *self._said,
                    f"{self._names[slot][0]}: of its base, since it was changed in place afterwards",
                )
                self._fired += slot in self._alone
        for place, slot in node.inputs:
            grad = grad_inputs[place]
            if self._shares.get(slot, 1) == 1:
                self._take(slot, grad)
            else:
                self._add(slot, grad)
        self._fired += 1
        if self._fired >= self._expected:
            self.session.backward_done(task, self)
            self.finish()

    def finish(self) -> None:
        """Hand in what was found; the same nodes may run again."""
        for slot, (tensor, _) in self._sums.items():
            self._take(slot, tensor)
        found, self._found, self._sums = self._found, _NOTHING, _NOTHING
        self._fired, self._task = 0, -1
        notes, self._said = (*self._notes, *self._said), ()
        if self._passes > 1:
            notes = (*notes, _again(self._passes))
        if not found:
            return
        first = self._inputs
        order = [slot for slot in found if slot >= first] + sorted([slot for slot in found if slot < first])
        self.session.submit_backward(self._head, [found[slot] for slot in order], notes)

    def _begin(self, task: int) -> None:
        self._task = task
        self._passes += 1
        self._fired = 0
        self._found, self._sums, self._said = {}, {}, ()
        if self._expected > 1 and task >= 0:
            self.session.backward_began(task, self)

    def _take(self, slot: int, grad: torch.Tensor | None) -> None:
        if grad is not None:
            name, role = self._names[slot]
            self._found[slot] = self.session.values.slot(name, role, grad)

    def _add(self, slot: int, grad: torch.Tensor | None) -> None:
        """Of several edges to one input, the sum is the call's share."""
        before = self._sums.get(slot)
        left = (self._shares[slot] if before is None else before[1]) - 1
        total: Any = grad if before is None else before[0]
        if before is not None and grad is not None:
            with quiet():
                total = before[0].detach() + grad.detach()
        if total is not None:
            self._sums[slot] = (total, left)
        if not left and total is not None:
            self._take(slot, total)
            del self._sums[slot]


def _again(number: int) -> str:
    return f"backward number {number} through this call"
