"""Nested spans of time, per thread, recorded for little: two clocks are read when one begins and when it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


class OpenSpan:
    """A span that has begun; `end_ns` is -1 until it ends. Times are those of `time.perf_counter_ns`."""

    __slots__ = (
        "begin_ns",
        "compile_id",
        "cpu_ns",
        "detail",
        "end_ns",
        "kind",
        "name",
        "parent",
        "thread",
        "unfinished",
    )

    def __init__(self, name: str, kind: str, thread: int, parent: OpenSpan | None) -> None:
        self.name = name
        self.kind = kind
        self.thread = thread
        self.parent = parent
        self.compile_id: str | None = parent.compile_id if parent is not None else None
        self.detail = ""
        self.unfinished = False
        self.end_ns = -1
        self.cpu_ns = time.thread_time_ns()
        self.begin_ns = time.perf_counter_ns()


class _Thread(threading.local):
    def __init__(self) -> None:
        self.index = -1
        self.stack: list[OpenSpan] = []


class SpanRecorder:
    """Spans of all threads, in the order in which they began.

    Attributes:
        spans: grows while `on`.
        threads: names of the threads that have spans.
        failure: the first error of the recorder's own; after it nothing is recorded any more.
    """

    def __init__(self) -> None:
        self.spans: list[OpenSpan] = []
        self.threads: list[str] = []
        self.failure: str | None = None
        self.on = True
        self._local = _Thread()
        self._lock = threading.Lock()

    @property
    def inside(self) -> OpenSpan | None:
        """The innermost span that is open on this thread."""
        stack = self._local.stack
        return stack[-1] if stack else None

    def begin(self, name: str, kind: str = "phase", *, compile_id: str | None = None, detail: str = "") -> OpenSpan:
        """Open a span in the one that is open on this thread; its compile id is inherited where none is given."""
        local = self._local
        if local.index < 0:
            with self._lock:
                local.index = len(self.threads)
                self.threads.append(threading.current_thread().name)
        span = OpenSpan(name, kind, local.index, local.stack[-1] if local.stack else None)
        if compile_id is not None:
            span.compile_id = compile_id
        span.detail = detail
        local.stack.append(span)
        self.spans.append(span)
        return span

    def end(self, span: OpenSpan) -> None:
        """Close the span, and those in it that nobody has closed; nothing if it is closed already."""
        now, cpu = time.perf_counter_ns(), time.thread_time_ns()
        stack = self._local.stack
        if span not in stack:
            return
        while True:
            inner = stack.pop()
            inner.end_ns = now
            inner.cpu_ns = cpu - inner.cpu_ns
            if inner is span:
                return
            inner.unfinished = True

    def end_named(self, name: str) -> None:
        """Close the innermost open span of that name; nothing when it began before the recorder did."""
        for span in reversed(self._local.stack):
            if span.name == name:
                self.end(span)
                return

    def close(self) -> None:
        """Stop, and end what is still open, of whatever thread, in the span around it or now."""
        self.on = False
        now = time.perf_counter_ns()
        for span in self.spans:
            if span.end_ns < 0:
                outer = span.parent.end_ns if span.parent is not None else now
                # A thread's processor time cannot be read from another one.
                span.end_ns, span.cpu_ns, span.unfinished = max(outer, span.begin_ns), 0, True

    def quietly(self, call: Callable[[], Any]) -> Any:
        """`call()`, or None when recording is over or fails: the observed program must not see our faults."""
        if not self.on:
            return None
        try:
            return call()
        except Exception as error:
            self.failure = self.failure or f"{type(error).__name__}: {error}"
            self.on = False
            return None
