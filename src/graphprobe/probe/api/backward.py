"""Gradients of one call: hooks on its nodes look at what comes in and at its own share of what goes out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from graphprobe.internals.autograd_edges import Edge, NodePlan, graph_task, plans_between, unseen
from graphprobe.internals.quiet import quiet
from graphprobe.store.api_jobs import RawSlot
from graphprobe.store.calls import CallKind, SlotRole

if TYPE_CHECKING:
    from graphprobe.probe.api.session import ApiSession

Wanted = list[tuple[int, int]]
"""(place among the gradients of a node, slot)."""

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
    plans = plans_between(
        [(number, edge) for number, (_, edge) in enumerate(inputs)],
        [(len(inputs) + number, tensor) for number, (_, tensor) in enumerate(outputs)],
        first_sequence,
    )
    if not plans:
        return False
    names = [gradient_name(name) for name, _ in inputs] + [gradient_name(name) for name, _ in outputs]
    call = BackwardCall(session, head, names, len(inputs), plans, notes)
    # Not the plan itself: it holds the node, and a node that holds itself is never freed.
    if len(plans) == 1 and not plans[0].late and len(plans[0].inputs) <= 1:
        only = plans[0]
        only.node.register_hook(partial(call.fire_alone, only.outputs, only.inputs))
        return True
    for plan in plans:
        plan.node.register_hook(partial(call.fire, plan.outputs, plan.late, plan.inputs))
    return True


@functools.cache
def gradient_name(slot: str) -> tuple[str, SlotRole]:
    """`input.0` -> `grad_input.0`, `kwarg.bias` -> `grad_kwarg.bias`, and the role."""
    return f"grad_{slot}", _ROLES.get(slot.partition(".")[0], "grad_input")


class BackwardCall:
    """The backward of one call. Held by the graph through the hooks; holds no node and, once done, no tensor."""

    __slots__ = (
        "_alone", "_expected", "_fired", "_found", "_head", "_inputs", "_names", "_notes", "_passes", "_said",
        "_session", "_shares", "_sums", "_task",
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
        self._session = session
        self._head = head
        self._names = names
        self._inputs = inputs
        self._notes = notes
        self._expected = len(plans)
        # Outputs whose node has nothing else to tell; it may be replaced, and then never runs.
        self._alone = {plan.outputs[0][1] for plan in plans if len(plan.outputs) == 1 and not plan.inputs}
        self._shares: dict[int, int] = {}
        for plan in plans:
            for _, slot in plan.inputs:
                self._shares[slot] = self._shares.get(slot, 0) + 1
        self._task = -1
        self._passes = 0
        self._fired = 0
        self._found: dict[int, RawSlot] = {}
        self._sums: dict[int, tuple[torch.Tensor, int]] = {}
        self._said: list[str] = []

    def fire(
        self,
        outputs: Wanted,
        late: Wanted,
        inputs: Wanted,
        grad_inputs: Sequence[torch.Tensor | None],
        grad_outputs: Sequence[torch.Tensor | None],
    ) -> None:
        """A node has run. Never raises, and changes no gradient."""
        session = self._session
        if not session.on:
            return
        try:
            with unseen():
                self._fire(outputs, late, inputs, grad_inputs, grad_outputs)
        except Exception as error:
            session.fail("backward", error)

    def fire_alone(
        self,
        outputs: Wanted,
        inputs: Wanted,
        grad_inputs: Sequence[torch.Tensor | None],
        grad_outputs: Sequence[torch.Tensor | None],
    ) -> None:
        """The only node of the call has run, as of most calls: there is nothing to wait for and nothing to add up."""
        session = self._session
        if not session.on:
            return
        try:
            with unseen():
                self._passes += 1
                names, slot_of, slots = self._names, session.values.slot, []
                for place, slot in outputs:
                    grad = grad_outputs[place]
                    if grad is not None:
                        slots.append(slot_of(*names[slot], grad))
                for place, slot in inputs:
                    grad = grad_inputs[place]
                    if grad is not None:
                        slots.append(slot_of(*names[slot], grad))
                if slots:
                    notes = self._notes if self._passes == 1 else (*self._notes, _again(self._passes))
                    session.submit(self._head, "backward", slots, notes)
        except Exception as error:
            session.fail("backward", error)

    def _fire(
        self,
        outputs: Wanted,
        late: Wanted,
        inputs: Wanted,
        grad_inputs: Sequence[torch.Tensor | None],
        grad_outputs: Sequence[torch.Tensor | None],
    ) -> None:
        task = graph_task()
        if task != self._task:
            self._begin(task)
        for place, slot in outputs:
            self._take(slot, grad_outputs[place])
        for place, slot in late:
            if slot not in self._found:
                self._take(slot, grad_outputs[place])
                self._said.append(f"{self._names[slot][0]}: of its base, since it was changed in place afterwards")
                self._fired += slot in self._alone
        for place, slot in inputs:
            grad = grad_inputs[place]
            if self._shares[slot] == 1:
                self._take(slot, grad)
            else:
                self._add(slot, grad)
        self._fired += 1
        if self._fired >= self._expected:
            self._session.backward_done(task, self)
            self.finish()

    def finish(self) -> None:
        """Hand in what was found; the same nodes may run again."""
        for slot, (tensor, _) in self._sums.items():
            self._take(slot, tensor)
        found, self._found, self._sums = self._found, {}, {}
        self._fired, self._task = 0, -1
        notes, self._said = self._said, []
        if self._passes > 1:
            notes.append(_again(self._passes))
        if not found:
            return
        first = self._inputs
        order = [slot for slot in found if slot >= first] + sorted(slot for slot in found if slot < first)
        self._session.submit_backward(self._head, [found[slot] for slot in order], (*self._notes, *notes))

    def _begin(self, task: int) -> None:
        self._task = task
        self._passes += 1
        self._fired = 0
        self._found, self._sums, self._said = {}, {}, []
        if self._expected > 1:
            self._session.backward_began(task, self)

    def _take(self, slot: int, grad: torch.Tensor | None) -> None:
        if grad is not None:
            name, role = self._names[slot]
            self._found[slot] = self._session.values.slot(name, role, grad)

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
