"""A call of an API while it runs: its inputs and results, the hooks of its backward, and what takes their records."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch

from graphprobe.internals.operators.autograd_edges import (
    Edge,
    NodePlan,
    at_end_of_backward,
    edge_of,
    graph_task,
    only_node,
    plans_between,
    sequence_number,
    uncompiled,
    unseen,
)
from graphprobe.internals.quiet import quiet
from graphprobe.internals.tensors import PLAIN_TYPES
from graphprobe.probe.api.plan import ApiPlan
from graphprobe.probe.api.value_slots import INPUTS, Values, take
from graphprobe.store.api_writer import ApiWriter, Head, RawCall, Slot
from graphprobe.store.calls import CallDirection, CompiledRegion, SlotRole, WrittenSlot

logger = logging.getLogger("graphprobe")

Wanted = list[tuple[int, int]]
"""(place among the gradients of a node, slot)."""
Named = tuple[int, str, SlotRole]
"""(place among the gradients of a node, name and role of the slot)."""
Gradients = Sequence[torch.Tensor | None]

_ROLES: dict[str, SlotRole] = {"parameter": "grad_parameter", "output": "grad_output"}

MAX_FAILURES = 16
"""Failures of the observers before they are detached."""
_SLOT_BYTES = 400
"""What a slot without values takes in the queue, roughly."""

_NO_SLOTS: frozenset[int] = frozenset()
_ONE_EACH: dict[int, int] = {}
_NOTHING: dict[int, Any] = {}
"""Never added to: before a backward begins and after it is over."""


class ThreadState(threading.local):
    """What belongs to one thread.

    Attributes:
        off: how many reasons there are not to watch: an optimizer's step, compiled code.
        modules: the running modules, outermost first: the module, its path, and its call where it is recorded.
        hides: how often the hooks of modules had been out when `modules` was last looked through.
        compiled: it runs compiled code.
        name: of the thread; empty for the one that began the dump.
    """

    def __init__(self, owner: int, threads: set[int | None]) -> None:
        thread = threading.current_thread()
        threads.add(thread.ident)
        self.off = 0
        self.modules: list[tuple[torch.nn.Module, str, OpenCall | None]] = []
        self.hides = 0
        self.compiled = False
        self.name = "" if thread.ident == owner else thread.name


class Collector:
    """Takes the records of calls and of their backwards. `on` says whether anything is collected now.

    Attributes:
        state: of the calling thread.
        threads: those that have been watched.
        broken: its observers have failed too often; nothing more is collected.
    """

    def __init__(self, plan: ApiPlan, writer: ApiWriter) -> None:
        self.plan = plan
        self.writer = writer
        self.values = Values(keep=plan.data == "tensor" and plan.mode != "stack", sample=plan.sample, writer=writer)
        self.threads = set[int | None]()
        self.state = ThreadState(threading.get_ident(), self.threads)
        self.on = False
        self.broken = False
        self._failures = 0
        self._pid = os.getpid()
        self._tasks: dict[int, dict[Callable[[], None], None]] = {}

    def submit(
        self,
        head: Head,
        direction: CallDirection,
        slots: list[Slot],
        notes: tuple[str, ...] = (),
        *,
        compiled: CompiledRegion | None = None,
    ) -> None:
        values = self.values
        if values.notes:
            notes, values.notes = (*notes, *values.notes), []
        thread = head.thread if direction == "forward" else self.state.name
        slots = slots if self.plan.mode != "stack" else []
        self.writer.hand_in(RawCall(head, direction, thread, slots, notes, _SLOT_BYTES * (len(slots) + 1), compiled))

    def backward_began(self, task: int, finish: Callable[[], None]) -> None:
        """Some nodes of a call have run in this backward, and others may never: then its end calls `finish`."""
        waiting = self._tasks.get(task)
        if waiting is None:
            waiting = self._tasks[task] = {}
            at_end_of_backward(functools.partial(self._end_backward, task))
        waiting[finish] = None

    def backward_done(self, task: int, finish: Callable[[], None]) -> None:
        """All nodes of a call have run."""
        self._tasks.get(task, {}).pop(finish, None)

    def fail(self, observer: str, error: BaseException) -> None:
        """An observer failed: a record is missing, and the dump says so; the program goes on, after many failures
        without the observers."""
        if self.broken:
            return
        self._failures += 1
        why = f"{type(error).__name__}: {error}"
        if self._failures < MAX_FAILURES:
            reason = f"the observer of {observer} failed, and a record is missing: {why}"
        else:
            self.broken, self.on = True, False
            reason = f"the observer of {observer} failed {self._failures} times and was detached: {why}"
            self.writer.stop(reason)
        self.writer.missing(reason)
        if os.getpid() == self._pid and (self.broken or self._failures == 1):
            told = "nothing more is dumped" if self.broken else "the dump goes on"
            logger.warning("graphprobe: %s; %s", reason, told, exc_info=error)

    @uncompiled
    def _end_backward(self, task: int) -> None:
        for finish in self._tasks.pop(task, {}):
            if self.on:
                finish()


def watch_backward(
    session: Collector,
    head: Head,
    inputs: Sequence[tuple[str, Edge]],
    outputs: Sequence[tuple[str, torch.Tensor]],
    first_sequence: int,
    notes: tuple[str, ...] = (),
) -> bool:
    """Hook the nodes between `inputs` and `outputs`; False when the call made none.

    Args:
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


@functools.cache
def gradient_name(slot: str) -> tuple[str, SlotRole]:
    """`input.0` -> `grad_input.0`, `kwarg.bias` -> `grad_kwarg.bias`, and the role."""
    return f"grad_{slot}", _ROLES.get(slot.partition(".")[0], "grad_input")


class _OnlyNode(msgspec.Struct, gc=False):
    """The hook of a call that made one node: there is nothing to wait for and nothing to add up.

    Hooks live as long as the graph. The garbage collector need not look at them: they hold no node and no tensor.
    """

    session: Collector
    head: Head
    output: Named
    inputs: tuple[Named, ...]
    notes: tuple[str, ...]
    passes: int = 0

    @uncompiled
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

    @uncompiled
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
        session: Collector,
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
            self.session.backward_done(task, self.finish)
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
        self.session.submit(self._head, "backward", [found[slot] for slot in order], notes)

    def _begin(self, task: int) -> None:
        self._task = task
        self._passes += 1
        self._fired = 0
        self._found, self._sums, self._said = {}, {}, ()
        if self._expected > 1 and task >= 0:
            self.session.backward_began(task, self.finish)

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


class OpenCall:
    """A call that has begun.

    Attributes:
        head: what the record begins with.
        slots: so far.
        notes: what a reader should know.
        compiled: of compiled code, what is known of its inside.
    """

    __slots__ = (
        "_doubts", "_edges", "_gradients", "_outputs", "_results", "_sequence", "_tensors",
        "changes", "compiled", "head", "notes", "only_backward", "session", "slots",
    )  # fmt: skip

    def __init__(self, session: Collector, head: Head, *, changes: bool, only_backward: bool) -> None:
        self.head = head
        self.slots: list[Slot] = []
        self.notes: list[str] = []
        self.compiled: CompiledRegion | None = None
        self.changes = changes
        self.only_backward = only_backward
        self.session = session
        self._tensors: list[tuple[str, torch.Tensor, int | None]] = []
        self._edges: list[tuple[str, Edge]] = []
        self._outputs: list[tuple[str, torch.Tensor]] = []
        self._results: list[torch.Tensor] = []
        self._gradients = torch.is_grad_enabled()
        self._doubts: set[str] = set()
        self._sequence = sequence_number() if self._gradients else -1

    def take_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What it was given, as it is now."""
        for number, value in enumerate(args):
            name = INPUTS[number] if number < len(INPUTS) else f"input.{number}"
            if type(value) in PLAIN_TYPES:
                self.add_tensor(name, "input", value)
            else:
                take(name, "input", value, self.slots, self.add_tensor)
        for name, value in kwargs.items():
            take(f"kwarg.{name}", "input", value, self.slots, self.add_tensor)

    def add_tensor(self, name: str, role: SlotRole, tensor: torch.Tensor) -> None:
        """A tensor that it was given, and that a gradient may be of."""
        if not self.only_backward:
            self.slots.append(self._slot(name, role, tensor))
        try:
            version = tensor._version
        except RuntimeError:  # made in inference mode
            version = None
        self._tensors.append((name, tensor, version))
        if self._gradients and tensor.requires_grad:
            self._edges.append((name, edge_of(tensor)))

    def _slot(self, name: str, role: SlotRole, tensor: torch.Tensor) -> Slot:
        try:
            return self.session.values.slot(name, role, tensor)
        except Exception as error:  # one value is missing, and the dump goes on
            return WrittenSlot(name, role, missing=f"it could not be looked at: {type(error).__name__}: {error}")

    def doubt(self, name: str) -> None:
        """This input may be written to where its version counter does not see it: it is looked at again."""
        self._doubts.add(name)

    def doubt_all(self) -> None:
        """The same of every tensor but those that a gradient is of, which autograd would not let pass."""
        self._doubts.update(name for name, tensor, _ in self._tensors if not tensor.requires_grad)

    def take_results(self, result: Any) -> bool:
        """What it returned, and which of its inputs it has changed; whether there was a tensor among that."""
        self._results = []
        if type(result) in PLAIN_TYPES:
            self._add_result("output.0", "output", result)
        else:
            results = result if isinstance(result, list | tuple) else (result,)
            for number, value in enumerate(results):
                take(f"output.{number}", "output", value, self.slots, self._add_result)
        for name, tensor, version in self._tensors:
            if tensor._version != version if version is not None else self.changes and name == "input.0":
                self._changed(name, tensor)
            elif name in self._doubts and self._differs(name, tensor):
                self._changed(name, tensor)
        return bool(self._results)

    def close(self) -> None:
        """Hand in the record, and watch for the backward."""
        session = self.session
        if not self.only_backward:
            session.submit(self.head, "forward", self.slots, tuple(self.notes), compiled=self.compiled)
        if self._outputs and session.plan.mode != "stack":
            notes = ("of the forward that torch.utils.checkpoint ran again",) if self.only_backward else ()
            watch_backward(session, self.head, self._edges, self._outputs, self._sequence, notes)
        self._tensors, self._results, self._outputs, self._edges = [], [], [], []

    def raised(self, error: BaseException) -> None:
        """Hand in what there is of a call that raised."""
        self.notes.append(f"raised {type(error).__name__}")
        if not self.only_backward:
            self.session.submit(self.head, "forward", self.slots, tuple(self.notes))
        self._tensors, self._edges = [], []

    def _add_result(self, name: str, role: SlotRole, tensor: torch.Tensor) -> None:
        self._results.append(tensor)
        if not self.only_backward:
            self.slots.append(self._slot(name, role, tensor))
        if self._gradients and tensor.requires_grad:
            self._outputs.append((name, tensor))

    def _differs(self, name: str, tensor: torch.Tensor) -> bool:
        self.session.values.forget(tensor)
        before = next((slot for slot in self.slots if slot.name == name), None)
        now = self.session.values.slot(name, "output", tensor)
        if before is None or callable(before.stats) or callable(now.stats) or before.stats is None or now.stats is None:
            return before is not None and callable(before.stats)
        return before.stats.digest != now.stats.digest

    def _changed(self, name: str, tensor: torch.Tensor) -> None:
        """An input that was written to is a result, too."""
        if not self.changes:
            self.notes.append(f"{name} was changed by the call")
        if not any(one is tensor for one in self._results):
            self._add_result(f"output.{name}", "output", tensor)

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for _, tensor, _ in self._tensors]

    def take_all_again(self) -> None:
        """Each input as it is now is a result, for calls that write where no version counter sees it."""
        for name, tensor, _ in self._tensors:
            self._add_result(f"output.{name}", "output", tensor)
