"""The queue between the program and the writing thread, bounded in bytes.

Memory for copies of values, used again: fresh pages cost more than the copy itself.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

Array = np.ndarray[Any, Any]

_SMALLEST_BYTES = 64 * 1024
"""What is smaller comes from the heap, which does this by itself."""


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
        target = self._take(source.size) if source.size >= _SMALLEST_BYTES else None
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
        """Let go of everything."""
        with self._lock:
            self._idle.clear()
            self.idle_bytes = 0

    def _take(self, size_bytes: int) -> Array | None:
        with self._lock:
            return self._drop_one(size_bytes) if size_bytes in self._idle else None

    def _drop_one(self, size_bytes: int) -> Array:
        array = self._idle[size_bytes].pop()
        if not self._idle[size_bytes]:
            del self._idle[size_bytes]
        self.idle_bytes -= size_bytes
        return array


T = TypeVar("T")

BATCH = 64
"""Most items that the writing thread writes together."""

SMALL_BYTES = 16 * 1024
"""What is larger is written at once, and by itself."""

PATIENCE_S = 0.2
"""How long patient items wait for `drain`, in seconds, before the writing thread takes them."""


class ByteQueue(Generic[T]):
    """First in, first out; holds `max_bytes` and `max_items` at most, the item being worked on included.

    An item that is larger than the whole queue gets in alone. One that is patient wakes nobody up: it waits for
    `drain`, for others, or for `PATIENCE_S`. Safe from any thread, and from a destructor or signal handler that runs
    inside one of the calls.
    """

    def __init__(self, max_bytes: int, max_items: int) -> None:
        self.max_bytes = max_bytes
        self.max_items = max_items
        self.blocked_ns = 0
        self.peak_bytes = 0
        self._used_bytes = 0
        self._used_items = 0
        self._items: deque[tuple[T, int, bool]] = deque()
        """With their sizes, and whether they are patient."""
        self._closed = False
        self._lock = lock = threading.RLock()
        self._room = threading.Condition(lock)
        self._work = threading.Condition(lock)
        self._more = threading.Condition(lock)
        self._waiting = 0
        """Threads that want the queue to get empty, or for which there is no room: no reason to linger."""
        self._large = 0
        """Items in the queue that are not small: no reason to linger either."""
        self._urgent = 0
        """Items in the queue that are not patient."""
        self._drainer: int | None = None
        """The thread inside of `drain`."""

    def reserve(self, size_bytes: int, *, wait: bool) -> bool:
        """Make room for an item that `put` or `give_back` follows on; False when there is none, or after `close`."""
        with self._room:
            if not self._has_room(size_bytes):
                if not wait or self._drainer == threading.get_ident():  # it would wait for itself
                    return False
                began_ns = time.perf_counter_ns()
                self._wait_for(lambda: self._closed or self._has_room(size_bytes), None)
                self.blocked_ns += time.perf_counter_ns() - began_ns
            if self._closed:
                return False
            self._used_bytes += size_bytes
            self._used_items += 1
            if self._used_bytes > self.peak_bytes:
                self.peak_bytes = self._used_bytes
            return True

    def add(self, make: Callable[[], T], size_bytes: int, *, wait: bool, patient: bool = False) -> T | None:
        """`reserve` and `put` in one; None where either would have failed."""
        with self._lock:
            if not self._closed and self._has_room(size_bytes):
                self._used_bytes += size_bytes
                self._used_items += 1
                if self._used_bytes > self.peak_bytes:
                    self.peak_bytes = self._used_bytes
                return self._append(make, size_bytes, patient)
            return self.put(make, size_bytes, patient=patient) if self.reserve(size_bytes, wait=wait) else None

    def put(self, make: Callable[[], T], size_bytes: int, *, patient: bool = False) -> T | None:
        """Add what `make` returns, which is called under the lock, and return it; None after `close`."""
        with self._lock:
            if self._closed:
                self.give_back(size_bytes)
                return None
            return self._append(make, size_bytes, patient)

    def _append(self, make: Callable[[], T], size_bytes: int, patient: bool) -> T:
        item = make()
        self._items.append((item, size_bytes, patient))
        if patient:
            return item
        self._urgent += 1
        self._large += size_bytes > SMALL_BYTES
        if self._urgent == 1:
            self._work.notify()
        if size_bytes > SMALL_BYTES or len(self._items) == BATCH:
            self._more.notify()
        return item

    def drain(self, write: Callable[[list[T]], None], *, at_least: int = 1) -> None:
        """Have all that waits dealt with by `write`, on this thread: then no other one has to wake up for it.

        Only where that is all of it, all of it is patient, and there are so many; and not after `close`. What is handed
        in meanwhile waits, and so does the writing thread.
        """
        items: list[tuple[T, int, bool]] = []
        try:
            with self._lock:
                waiting = len(self._items)
                if self._urgent or self._closed or waiting != self._used_items or waiting < at_least:
                    return
                self._drainer = threading.get_ident()
                items += self._items
                self._items.clear()
            write([item for item, _, _ in items])
        finally:
            if items:
                with self._lock:
                    self._drainer = None
                    self._work.notify()
                    self.give_back(sum(size for _, size, _ in items), len(items))

    def get(self) -> tuple[T, int] | None:
        """The next item and its size, when there is one; None when the queue is closed and empty."""
        with self._work:
            self._wait_for_work()
            return self._pop() if self._items else None

    def get_batch(self, linger_s: float) -> list[tuple[T, int]]:
        """The next items when there are some; none when the queue is closed and empty.

        An item that is not small comes alone. Of small ones, those that come within `linger_s` after the first are
        waited for, up to `BATCH`, unless somebody waits for the queue.
        """
        with self._work:
            self._wait_for_work()
            if linger_s and self._lingers():
                self._more.wait_for(lambda: not self._lingers(), linger_s)
            found: list[tuple[T, int]] = []
            while self._items and len(found) < BATCH:
                if found and self._items[0][1] > SMALL_BYTES:
                    break
                found.append(self._pop())
                if found[-1][1] > SMALL_BYTES:
                    break
            return found

    def give_back(self, size_bytes: int, items: int = 1) -> None:
        """Free what an item took, or several together, once it is dealt with."""
        with self._room:
            self._used_bytes -= size_bytes
            self._used_items -= items
            self._room.notify_all()

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for room, or for the queue to get empty."""
        return self._waiting > 0 or self._closed

    def wait_until_empty(self, timeout_s: float | None) -> bool:
        """Wait until everything is dealt with; False when that took longer."""
        with self._room:
            return self._wait_for(lambda: self._used_items == 0, timeout_s)

    def close(self) -> None:
        """Let nothing in any more; what is inside can still be got."""
        with self._room:
            self._closed = True
            if self._drainer == threading.get_ident():  # a signal handler, which waits for the writing thread now
                self._drainer = None
            self._room.notify_all()
            self._work.notify_all()
            self._more.notify_all()

    def abandon(self) -> int:
        """Drop what nobody has got yet, and say how many items that were."""
        with self._room:
            dropped = len(self._items)
            while self._items:
                self.give_back(self._pop()[1])
            return dropped

    def _wait_for(self, done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait for room, without a writer that lingers meanwhile."""
        self._waiting += 1
        self._more.notify_all()
        self._work.notify_all()
        try:
            return self._room.wait_for(done, timeout_s)
        finally:
            self._waiting -= 1

    def _pop(self) -> tuple[T, int]:
        item, size_bytes, patient = self._items.popleft()
        if not patient:
            self._urgent -= 1
            self._large -= size_bytes > SMALL_BYTES
        return item, size_bytes

    def _wait_for_work(self) -> None:
        """Until there is something to do, or nothing any more: the queue is closed and empty."""
        late = False
        while self._drainer is not None or not (
            self._urgent or self._closed or (self._items and (late or self._waiting))
        ):
            late = not self._work.wait(PATIENCE_S)

    def _lingers(self) -> bool:
        return not (self._closed or self._waiting or self._large) and self._urgent > 0 and len(self._items) < BATCH

    def _has_room(self, size_bytes: int) -> bool:
        if self._used_items == 0:
            return True
        return self._used_bytes + size_bytes <= self.max_bytes and self._used_items < self.max_items
