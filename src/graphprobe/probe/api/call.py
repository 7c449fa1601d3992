"""One call while it runs: what it was given, taken before it begins; what it gave, taken when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from graphprobe.internals.operators.autograd_edges import Edge, edge_of, sequence_number
from graphprobe.probe.api.arguments import INPUTS, output_name, take
from graphprobe.probe.api.backward import Head, watch_backward
from graphprobe.probe.api.values import PLAIN
from graphprobe.store.api_jobs import Slot
from graphprobe.store.api_records import ApiSlot
from graphprobe.store.calls import CompiledRegion, SlotRole

if TYPE_CHECKING:
    from graphprobe.probe.api.session import ApiSession


class OpenCall:
    """A call that has begun.

    Attributes:
        head: what the record begins with.
        slots: so far.
        notes: what a reader should know.
        compiled: of compiled code, what is known of its inside.
    """

    __slots__ = (
        "_doubts", "_edges", "_gradients", "_outputs", "_results", "_sequence", "_session", "_tensors",
        "changes", "compiled", "head", "notes", "only_backward", "slots",
    )  # fmt: skip

    def __init__(self, session: ApiSession, head: Head, *, changes: bool, only_backward: bool) -> None:
        self.head = head
        self.slots: list[Slot] = []
        self.notes: list[str] = []
        self.compiled: CompiledRegion | None = None
        self.changes = changes
        self.only_backward = only_backward
        self._session = session
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
            if type(value) in PLAIN:
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
            return self._session.values.slot(name, role, tensor)
        except Exception as error:  # one value is missing, and the dump goes on
            return ApiSlot(name, role, missing=f"it could not be looked at: {type(error).__name__}: {error}")

    def doubt(self, name: str) -> None:
        """This input may be written to where its version counter does not see it: it is looked at again."""
        self._doubts.add(name)

    def doubt_all(self) -> None:
        """The same of every tensor but those that a gradient is of, which autograd would not let pass."""
        self._doubts.update(name for name, tensor, _ in self._tensors if not tensor.requires_grad)

    def take_results(self, result: Any) -> bool:
        """What it returned, and which of its inputs it has changed; whether there was a tensor among that."""
        self._results = []
        if type(result) in PLAIN:
            self._add_result("output.0", "output", result)
        else:
            results = result if isinstance(result, list | tuple) else (result,)
            for number, value in enumerate(results):
                take(output_name(number), "output", value, self.slots, self._add_result)
        for name, tensor, version in self._tensors:
            if tensor._version != version if version is not None else self.changes and name == "input.0":
                self._changed(name, tensor)
            elif name in self._doubts and self._differs(name, tensor):
                self._changed(name, tensor)
        return bool(self._results)

    def close(self) -> None:
        """Hand in the record, and watch for the backward."""
        session = self._session
        if not self.only_backward:
            session.submit(self.head, "forward", self.slots, tuple(self.notes), compiled=self.compiled)
        if self._outputs and session.plan.mode != "stack":
            watch_backward(session, self.head, self._edges, self._outputs, self._sequence, self._backward_notes())
        self._tensors, self._results, self._outputs, self._edges = [], [], [], []

    def raised(self, error: BaseException) -> None:
        """Hand in what there is of a call that raised."""
        self.notes.append(f"raised {type(error).__name__}")
        if not self.only_backward:
            self._session.submit(self.head, "forward", self.slots, tuple(self.notes))
        self._tensors, self._edges = [], []

    def _backward_notes(self) -> tuple[str, ...]:
        return ("of the forward that torch.utils.checkpoint ran again",) if self.only_backward else ()

    def _add_result(self, name: str, role: SlotRole, tensor: torch.Tensor) -> None:
        self._results.append(tensor)
        if not self.only_backward:
            self.slots.append(self._slot(name, role, tensor))
        if self._gradients and tensor.requires_grad:
            self._outputs.append((name, tensor))

    def _differs(self, name: str, tensor: torch.Tensor) -> bool:
        self._session.values.forget(tensor)
        before = next((slot for slot in self.slots if slot.name == name), None)
        now = self._session.values.slot(name, "output", tensor)
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
        """The tensors among its inputs."""
        return [tensor for _, tensor, _ in self._tensors]

    def take_all_again(self) -> None:
        """Each input as it is now is a result, for calls that write where no version counter sees it."""
        for name, tensor, _ in self._tensors:
            self._add_result(f"output.{name}", "output", tensor)
