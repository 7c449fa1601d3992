"""One value that is watched: what its producer wrote, and whether that still lies there."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

from graphprobe.engine.device_stats import stats_async
from graphprobe.engine.tensor_stats import readable, stats_of
from graphprobe.errors import UsageError
from graphprobe.internals.quiet import quiet
from graphprobe.internals.tensors.weak_storage import WeakMemory, span_of, version_of
from graphprobe.probe.dump.session import GraphOp

COPY_BYTES = 256 << 20
"""Copies of watched values; of what is over, digests are kept, which tell that something changed and not where."""


class CopyBudget:
    """How many bytes of copies are kept at this moment."""

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self, size_bytes: int) -> bool:
        """Whether there was room, which is then taken."""
        if size_bytes > self._left:
            return False
        self._left -= size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """The copy is gone."""
        self._left += size_bytes


@dataclass(frozen=True, slots=True)
class Change:
    """What differs from what the producer wrote: elements of the value in row-major order, None when only a digest was
    kept."""

    count: int | None
    first: int | None
    last: int | None
    of: int


class WatchedValue:
    """An output of an op from when it was written until it is dead. Does not keep the program's memory alive.

    Attributes:
        op: its producer.
        slot, name: which output, and its name in the graph or the code.
        step: when it was written.
        memory, begin, end: address of the storage, and of the bytes it may lie on.
        checked: the last op after which it was intact.
        elements: how many it has.
    """

    def __init__(self, op: GraphOp, slot: str, name: str, step: int, tensor: torch.Tensor, budget: CopyBudget) -> None:
        """Raises RuntimeError or UsageError for what has no memory to be read."""
        self.op, self.slot, self.name, self.step = op, slot, name, step
        self.memory, self.begin, self.end = span_of(tensor)
        self.checked: GraphOp | None = op
        self.elements = tensor.numel()
        self._budget = budget
        self._where = WeakMemory(tensor)
        self._meta = (tensor.dtype, tuple(tensor.shape))
        self._object: weakref.ref[torch.Tensor] | None = None
        self._version: int | None = None
        self._copied_bytes = 0
        self._keep(readable(tensor))

    def refresh(self) -> None:
        """What lies there now is right: it was written on purpose."""
        self._drop()
        now = self._where.tensor()
        if now is not None:
            self._keep(now)

    def hold(self, result: torch.Tensor) -> None:
        """The graph has returned it as `result`: it is watched for as long as its memory lives."""
        self._object = weakref.ref(result)
        self._version = version_of(result)

    def changed_by_program(self) -> bool | None:
        """Whether an operator of the program has changed it in place since `hold`; None when that cannot be told."""
        result = self._object() if self._object is not None else None
        if result is None or self._version is None:
            return None
        now = version_of(result)
        if now == self._version:
            return False
        self._version = now
        return True

    @property
    def gone(self) -> bool:
        """Whether its memory was freed."""
        return self._where.gone

    def overlaps(self, memory: int, begin: int, end: int) -> bool:
        """Whether the bytes from `begin` to `end` of a storage may be some of its own."""
        return memory == self.memory and begin < self.end and self.begin < end

    def now(self) -> torch.Tensor | None:
        """What lies there now; None when its memory was freed."""
        return self._where.tensor()

    @property
    def before(self) -> torch.Tensor | None:
        """What its producer wrote; None when only a digest was kept."""
        with quiet():
            return None if self._copy is None else self._copy.view(self._meta[0]).reshape(self._meta[1])

    @property
    def on_cpu(self) -> bool:
        """Whether it can be looked at without waiting for a device."""
        return self._where.device.type == "cpu"

    def compare(self) -> Change | torch.Tensor | None:
        """What has changed, or None. Of what is on a device, numbers for `change_from_row`, without waiting for it."""
        now = self._where.tensor()
        if now is None:
            return None
        with quiet():
            if self._copy is None:
                if self.on_cpu:
                    same = stats_of(now).digest == self._digest
                    return None if same else Change(None, None, None, self.elements)
                differs = (stats_async(now) != self._digest).any().to(torch.int64)
                return torch.stack([-differs, differs - 1, differs - 1])
            bits = _bytes(now)
            if self.on_cpu and torch.equal(bits, self._copy):
                return None
            row = _row(bits, self._copy, now.element_size())
            return change_from_row(row.tolist(), self.elements) if self.on_cpu else row

    def close(self) -> None:
        """It is watched no longer."""
        self._drop()

    def _keep(self, tensor: torch.Tensor) -> None:
        with quiet():
            size_bytes = tensor.numel() * tensor.element_size()
            self._copy: torch.Tensor | None = None
            self._digest: Any = None
            if self._budget.take(size_bytes):
                self._copied_bytes = size_bytes
                self._copy = _bytes(tensor).clone()
            else:
                self._digest = stats_of(tensor).digest if self.on_cpu else stats_async(tensor)

    def _drop(self) -> None:
        self._budget.give_back(self._copied_bytes)
        self._copied_bytes, self._copy = 0, None


def change_from_row(row: list[int], elements: int) -> Change | None:
    """What the numbers of `WatchedValue.compare` say, once they are on the host."""
    count, first, last = row
    if not count:
        return None
    return Change(count, first, last, elements) if count > 0 else Change(None, None, None, elements)


def watch(
    op: GraphOp, slot: str, name: str, step: int, tensor: torch.Tensor, budget: CopyBudget
) -> WatchedValue | None:
    """Begin to watch; None for what has no memory of its own: sparse, empty, a subclass."""
    try:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            return None
        if not tensor.numel():
            return None
        return WatchedValue(op, slot, name, step, tensor, budget)
    except (RuntimeError, UsageError):
        return None


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of the elements in row-major order."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _row(now: torch.Tensor, before: torch.Tensor, item_bytes: int) -> torch.Tensor:
    """How many elements differ, the first and the last of them."""
    differs = (now != before).reshape(-1, item_bytes).any(dim=1)
    where = torch.arange(len(differs), device=differs.device)
    first = torch.where(differs, where, len(differs)).amin()
    last = torch.where(differs, where, -1).amax()
    return torch.stack([differs.sum(), first, last])
