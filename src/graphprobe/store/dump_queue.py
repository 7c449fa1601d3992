"""The thread that writes a dump beside the program; what waits for it is bounded in bytes.

Memory for copies of values is used again: fresh pages cost more than the copy itself.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Generic, Literal, Protocol, TypeVar

import numpy as np

from graphprobe.errors import UsageError
from graphprobe.settings import text_from_size
from graphprobe.store.dump_dtypes import Array
from graphprobe.store.manifest import DumpedManifest, LiveWriter

_SMALLEST_BYTES = 64 * 1024
"""What is smaller comes from the heap, which does this by itself."""

_POOL_BYTES = 128 * 1024 * 1024
"""What is kept where there is no queue."""

BATCH = 64
"""Most items that the writing thread writes together."""

LARGE_BYTES = 16 * 1024
"""An item of so many bytes is the last of those that are written together."""

INTERVAL_S = 0.2
"""What waits is written after this long at the latest, however little it is."""

LINGER_S = 0.002
"""How long the thread waits for more once it is woken, so that the program and it do not take turns."""

_forks = 0
"""How often this process has become another one by a fork: cheaper to look at than its number."""

DumpManifestT = TypeVar("DumpManifestT", bound=DumpedManifest)


class CopyPool:
    """Keeps at most `max_bytes` of arrays that nobody uses; the size that was not asked for longest goes first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.idle_bytes = 0
        self._idle: OrderedDict[int, list[Array]] = OrderedDict()
        self._lock = threading.RLock()

    def copy(self, view: memoryview) -> Array:
        """A copy of `view`, which is not empty: uint8, 1-d."""
        source = np.frombuffer(view, dtype=np.uint8)
        target = None
        if source.size >= _SMALLEST_BYTES:
            with self._lock:
                target = self._drop_one(source.size) if source.size in self._idle else None
        if target is None:
            return source.copy()
        np.copyto(target, source)
        return target

    def give_back(self, arrays: Sequence[Array]) -> None:
        """Take arrays that `copy` made and that nobody looks at any more."""
        with self._lock:
            for array in arrays:
                if _SMALLEST_BYTES <= array.size <= self.max_bytes:
                    self._idle.setdefault(array.size, []).append(array)
                    self._idle.move_to_end(array.size)
                    self.idle_bytes += array.size
            while self.idle_bytes > self.max_bytes:
                self._drop_one(next(iter(self._idle)))

    def clear(self) -> None:
        with self._lock:
            self._idle.clear()
            self.idle_bytes = 0

    def _drop_one(self, size_bytes: int) -> Array:
        array = self._idle[size_bytes].pop()
        if not self._idle[size_bytes]:
            del self._idle[size_bytes]
        self.idle_bytes -= size_bytes
        return array


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class BudgetReachedError(Exception):
    """Nothing more is written."""


class Sized(Protocol):
    """What can wait to be written: it says how many bytes it takes meanwhile."""

    @property
    def size_bytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


class QueuedWriter(LiveWriter[DumpManifestT], Generic[DumpManifestT, T]):
    """Takes what a program hands in, from any thread and without a lock, and writes it on a thread of its own.

    Where there is no room the program waits, but not the writing thread, which would wait for itself. One item gets in
    in any case. A killed process loses what waits: what came in the last `INTERVAL_S`, or is less than a batch.

    Attributes:
        pool: memory for copies of values.
        bound: the option that gives `max_bytes`, for messages.
        wake_items, wake_bytes: the thread is woken when so much waits; to be woken for each item would cost more than
            to write it.
    """

    bound: ClassVar[str] = "max_bytes"
    wake_items: ClassVar[int]
    wake_bytes: ClassVar[int]

    def __init__(
        self, folder: Path, manifest: DumpManifestT, max_bytes: int | None, *, queue_bytes: int, queue_items: int
    ) -> None:
        """`queue_bytes` 0: there is no thread, and the writer is to write what it is given. Raises OSError."""
        super().__init__(folder, manifest, max_bytes)
        self.pool = CopyPool(queue_bytes or _POOL_BYTES)
        self._made_after = _forks
        self._queue_bytes, self._queue_items = queue_bytes, queue_items
        self._wake_items, self._wake_bytes = self.wake_items, min(self.wake_bytes, queue_bytes)
        self._items: deque[T] = deque()
        self._handed_bytes = 0
        self._done_bytes = 0
        self._blocked = 0
        self._wake = threading.Event()
        self._room = threading.Condition()
        self._writing = threading.Lock()
        """Held by whoever takes items out of the queue, until they are written."""
        self._drainer: int | None = None
        """The thread of the program that holds it."""
        self._thread: threading.Thread | None = None
        if queue_bytes:
            self._thread = threading.Thread(target=self._work, name=f"graphprobe-{self.noun}-dump", daemon=True)
            self._thread.start()

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all that was handed in is dealt with, and save the manifest; False when it took longer."""
        if self.silent:
            return True
        if self._would_wait_for_itself():
            return False
        with self._room:
            self._blocked += 1
            self._wake.set()
            done = self._room.wait_for(lambda: not self._items and not self._writing.locked(), timeout_s)
            self._blocked -= 1
        self.save()
        return done

    def close(self, state: Literal["finished", "failed"] = "finished", exception: str | None = None) -> None:
        """End the dump once all that was handed in is written. Only the first call counts."""
        if self.silent:
            return
        self.closed = True
        if self._drainer == threading.get_ident():  # a signal handler, which is to wait for the writing thread
            self._give_up_writing()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self.lock:
            if not self._own.collected_bytes and not self._own.missing:
                self._own.notes.append(f"nothing was dumped: no {self.noun} was handed in")
            self._end(state, exception)
            self.stopped = self.stopped or "the dump was closed"
            self._close_files()
        self.pool.clear()

    def hand_in(self, item: T) -> bool:
        """Put an item into the queue; nothing in it may change any more. False where nothing is written any more."""
        if self.closed or _forks != self._made_after:
            return False
        self._items.append(item)
        self._handed_bytes += item.size_bytes
        if len(self._items) >= self._wake_items or self._handed_bytes - self._done_bytes >= self._wake_bytes:
            self._relieve(item)
        return True

    def _relieve(self, item: T) -> None:
        """With this item much waits: wake the thread, and wait for room if there is none."""
        if not self._wake.is_set():
            self._wake.set()
        if self._is_full() and not self._would_wait_for_itself():
            began_ns = time.perf_counter_ns()
            with self._room:
                self._blocked += 1
                self._wake.set()
                self._room.wait_for(lambda: self.closed or not self._items or not self._is_full())
                self._blocked -= 1
                self._own.blocked_ns += time.perf_counter_ns() - began_ns

    def _would_wait_for_itself(self) -> bool:
        return threading.get_ident() in (self._drainer, self._thread and self._thread.ident)

    def _is_full(self) -> bool:
        """Whether the program is to wait; the most that ever waited is noted."""
        waiting_bytes = self._handed_bytes - self._done_bytes
        if waiting_bytes > self._own.queue_peak_bytes:
            self._own.queue_peak_bytes = waiting_bytes
        return waiting_bytes > self._queue_bytes or len(self._items) > self._queue_items

    def _work(self) -> None:
        """The writing thread."""
        while True:
            if self._wake.wait(INTERVAL_S) and not self._blocked and not self.closed:
                time.sleep(LINGER_S)
            self._wake.clear()
            last = self.closed
            with self._writing:
                self._write_all()
            with self._room:
                self._room.notify_all()
            if last and not self._items:
                return

    def _write_all(self) -> None:
        """Write what waits. Keeps nothing alive while it waits for more."""
        while self._items:
            self._is_full()
            items: list[T] = []
            while self._items and len(items) < BATCH and (not items or items[-1].size_bytes < LARGE_BYTES):
                items.append(self._items.popleft())
            try:
                self._write_items(items)
            except BaseException as error:  # MemoryError and its like: the thread must live on
                self.count(f"{type(error).__name__}: {error}", "")
            self._dealt_with(items)
        self._flush_items()

    def _dealt_with(self, items: list[T]) -> None:
        self._done_bytes += sum([item.size_bytes for item in items])
        if self._blocked:
            with self._room:
                self._room.notify_all()

    def _give_up_writing(self) -> None:
        """This thread of the program writes no longer; another one may."""
        self._drainer = None
        self._writing.release()

    def _take(self, size_bytes: int, *, ends: bool = True) -> None:
        """Take bytes from the budget. Raises BudgetReachedError where there are none; it `ends` the dump, then."""
        with self.lock:
            if self.stopped is None and self._budget.take(size_bytes):
                return
            if self.stopped is None and ends:
                self.stopped = f"{self.bound} ({text_from_size(self._budget.max_bytes or 0)}) was reached"
                self._own.stopped = self.stopped
            raise BudgetReachedError(self.stopped)

    def _reason(self, error: Exception) -> str:
        return str(error) if isinstance(error, BudgetReachedError) else super()._reason(error)

    def _write_items(self, items: list[T]) -> None:
        """Write items, or take them for `_flush_items`; raises nothing that concerns a single one."""
        raise NotImplementedError

    def _flush_items(self) -> None:
        """Nothing waits any more: put on disk what `_write_items` has kept. Raises nothing."""

    def _close_files(self) -> None:
        raise NotImplementedError


def check_bounds(least_queue_bytes: int, *, max_bytes: int | None, queue_bytes: int) -> None:
    """Raise UsageError for bounds that cannot be."""
    for name, value, least in (("max_bytes", max_bytes, 1), ("queue_bytes", queue_bytes, least_queue_bytes)):
        if value is not None and value < least:
            raise UsageError(f"{name}={value}: expected a positive number of bytes")
