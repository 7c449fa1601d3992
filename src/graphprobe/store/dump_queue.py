"""The queue between the program and the writing thread, bounded in bytes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class ByteQueue(Generic[T]):
    """First in, first out; holds `max_bytes` and `max_items` at most, the item being worked on included.

    An item that is larger than the whole queue gets in alone. Safe from any thread, and from a destructor or signal
    handler that runs inside one of the calls.
    """

    def __init__(self, max_bytes: int, max_items: int) -> None:
        self.max_bytes = max_bytes
        self.max_items = max_items
        self.blocked_ns = 0
        self.peak_bytes = 0
        self._used_bytes = 0
        self._used_items = 0
        self._items: deque[tuple[T, int]] = deque()
        self._closed = False
        lock = threading.RLock()
        self._room = threading.Condition(lock)
        self._work = threading.Condition(lock)

    def reserve(self, size_bytes: int, *, wait: bool) -> bool:
        """Make room for an item that `put` or `give_back` follows on; False when there is none, or after `close`."""
        with self._room:
            if not self._has_room(size_bytes):
                if not wait:
                    return False
                began_ns = time.perf_counter_ns()
                self._room.wait_for(lambda: self._closed or self._has_room(size_bytes))
                self.blocked_ns += time.perf_counter_ns() - began_ns
            if self._closed:
                return False
            self._used_bytes += size_bytes
            self._used_items += 1
            self.peak_bytes = max(self.peak_bytes, self._used_bytes)
            return True

    def put(self, make: Callable[[], T], size_bytes: int) -> T | None:
        """Add what `make` returns, which is called under the lock, and return it; None after `close`."""
        with self._work:
            if self._closed:
                self.give_back(size_bytes)
                return None
            item = make()
            self._items.append((item, size_bytes))
            self._work.notify()
            return item

    def get(self) -> tuple[T, int] | None:
        """The next item and its size, when there is one; None when the queue is closed and empty."""
        with self._work:
            self._work.wait_for(lambda: self._items or self._closed)
            return self._items.popleft() if self._items else None

    def give_back(self, size_bytes: int) -> None:
        """Free what an item took, once it is dealt with."""
        with self._room:
            self._used_bytes -= size_bytes
            self._used_items -= 1
            self._room.notify_all()

    def wait_until_empty(self, timeout_s: float | None) -> bool:
        """Wait until everything is dealt with; False when that took longer."""
        with self._room:
            return self._room.wait_for(lambda: self._used_items == 0, timeout_s)

    def close(self) -> None:
        """Let nothing in any more; what is inside can still be got."""
        with self._room:
            self._closed = True
            self._room.notify_all()
            self._work.notify_all()

    def abandon(self) -> int:
        """Drop what nobody has got yet, and say how many items that were."""
        with self._room:
            dropped = len(self._items)
            while self._items:
                self.give_back(self._items.popleft()[1])
            return dropped

    def _has_room(self, size_bytes: int) -> bool:
        if self._used_items == 0:
            return True
        return self._used_bytes + size_bytes <= self.max_bytes and self._used_items < self.max_items
