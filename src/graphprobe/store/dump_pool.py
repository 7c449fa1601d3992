"""Memory for copies of values, used again: fresh pages cost more than the copy itself."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

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
