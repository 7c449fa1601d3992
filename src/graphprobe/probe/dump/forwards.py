"""Which step a call of a graph belongs to: forward calls are counted, a backward finds the forward it belongs to."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from graphprobe.internals.tensors import WeakStorages, storage_ids

REMEMBERED = 64
"""Forward calls whose backward may still come; older ones are forgotten."""


class StepCounter:
    """Counts calls of one function as Dynamo sees it: its recompilations are the same function."""

    def __init__(self) -> None:
        self._next = 0
        self._lock = threading.Lock()

    @property
    def steps(self) -> int:
        """How many steps there were."""
        return self._next

    def advance(self) -> int:
        """Begin a step, and return its number, from 0."""
        with self._lock:
            step, self._next = self._next, self._next + 1
            return step


class Forward:
    """One forward call of a model.

    Attributes:
        step: its number.
        data_index: number of the folder, None when nothing of the step was dumped yet.
        memory: of what it returned, for a backward to find it by.
        consumed: whether a backward has found it.
    """

    __slots__ = ("consumed", "data_index", "memory", "step")

    def __init__(self, step: int) -> None:
        self.step = step
        self.data_index: int | None = None
        self.memory = WeakStorages(())
        self.consumed = False


class Forwards:
    """The latest forward calls of one model.

    A backward gets what its forward saved. So it belongs to the forward that returned most of its inputs; of equals, to
    the latest that no backward has found yet.
    """

    def __init__(self) -> None:
        self._calls: deque[Forward] = deque(maxlen=REMEMBERED)

    def add(self, call: Forward, outputs: Iterable[object]) -> None:
        """A forward call is over."""
        call.memory = WeakStorages(outputs)
        self._calls.append(call)

    def of_backward(self, inputs: Iterable[object]) -> Forward | None:
        """The forward of a backward that is called with `inputs`; None when there was none."""
        calls = list(self._calls)
        if not calls:
            return None
        ids = storage_ids(inputs)
        best = max(range(len(calls)), key=lambda i: (calls[i].memory.shared(ids), not calls[i].consumed, i))
        calls[best].consumed = True
        return calls[best]
