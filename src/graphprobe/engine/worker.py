"""A process that answers one question after another: it stays warm, and a new one takes its place when it dies."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe

import msgspec

from graphprobe.engine.forked_child import attempt, descendants, end_group, forked, in_fresh_thread
from graphprobe.errors import Raised

POLL_S = 0.1
"""How often it is looked whether the process has ended while something that it has started keeps its pipe open."""

READY = b""
"""What the process sends before it waits for its first job, and again when it has one: from then on it works on it."""


class Reply(msgspec.Struct, frozen=True):
    """What became of a job. One of the three says how it ended.

    Attributes:
        value: what the handler returned.
        raised: the exception that ended the handler; the worker lives on.
        end: how the process ended instead, in words.
    """

    value: bytes | None = None
    raised: Raised | None = None
    end: str = ""


class Worker:
    """Runs jobs in a forked process, which is kept for the next job and replaced when it dies.

    The process is forked at the first job, so it holds what this process holds then. It leads a group of its own; the
    group is killed with it. It must be used by one thread, since the child ends with the thread that forked it.
    """

    def __init__(
        self, handle: Callable[[bytes], bytes], *, timeout_s: float, on_start: Callable[[], None] = lambda: None
    ) -> None:
        """Nothing is started yet.

        Args:
            handle: runs a job in the child, always in the same fresh thread of it.
            timeout_s: of one job; `on_start` counts towards the first.
            on_start: called in a new child before its first job, in the thread that runs the jobs.
        """
        self._handle, self._timeout_s, self._on_start = handle, timeout_s, on_start
        self._child: int | None = None
        self._channel: Connection | None = None
        self._closed = False

    def ask(self, job: bytes) -> Reply:
        """Run a job and say what became of it.

        Raises:
            RuntimeError: after `close`.
        """
        if self._closed:
            raise RuntimeError("the worker is closed")
        known = self._child is not None
        reply, taken = self._ask(job)
        if known and not taken:  # it ended between two jobs: no fault of this one
            reply, _ = self._ask(job)
        return reply

    def _ask(self, job: bytes) -> tuple[Reply, bool]:
        """What became of a job, and whether the child took it."""
        deadline = time.monotonic() + self._timeout_s
        new = self._child is None
        channel = self._start() if new else self._channel
        assert channel is not None
        answer, taken, end = None, False, ""
        try:
            with contextlib.suppress(EOFError, OSError):  # of a child that is gone
                if not new or self._heard(channel, deadline) is not None:
                    channel.send_bytes(job)
                    taken = self._heard(channel, deadline) is not None
                    answer = self._heard(channel, deadline) if taken else None
        finally:  # after Ctrl-C too: an answer that comes late would be taken for that to the next job
            if answer is None:
                end = self._stop(late=time.monotonic() >= deadline)
        return (Reply(end=end) if answer is None else msgspec.msgpack.decode(answer, type=Reply)), taken

    def close(self) -> None:
        """Kill the child and its group. May be called more than once."""
        self._closed = True
        self._stop()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> Connection:
        self._channel, channel = Pipe()
        null = os.open(os.devnull, os.O_RDWR)
        try:
            self._child = forked(null)
            if self._child == 0:
                try:
                    self._channel.close()
                    os.dup2(null, 0)
                    in_fresh_thread(lambda: _serve(self._handle, self._on_start, channel)).join()
                finally:
                    os._exit(0)
        finally:
            os.close(null)
            channel.close()
        return self._channel

    def _heard(self, channel: Connection, deadline: float) -> bytes | None:
        """The next message of the child; None where it ends, or its time does, before there is one."""
        assert self._child is not None
        ended = False
        while not channel.poll(0 if ended else max(0.0, min(POLL_S, deadline - time.monotonic()))):
            if ended or time.monotonic() >= deadline:
                return None
            ended = os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        return channel.recv_bytes()

    def _stop(self, *, late: bool = False) -> str:
        """Kill the group and take in the child. How it ended, in words, and whether that was for its time."""
        child, self._child = self._child, None
        if child is None or self._channel is None:
            return ""
        self._channel.close()
        end_group(child, started=descendants(child))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if late:
            return f"it did not end within {self._timeout_s:g} s"
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _serve(handle: Callable[[bytes], bytes], on_start: Callable[[], None], channel: Connection) -> None:
    """Be the child: ends when the parent closes the channel."""
    _, failed = attempt(on_start)
    channel.send_bytes(READY)
    while True:
        try:
            job = channel.recv_bytes()
        except (EOFError, OSError):
            return
        channel.send_bytes(READY)
        value, raised = (None, failed) if failed is not None else attempt(functools.partial(handle, job))
        channel.send_bytes(msgspec.msgpack.encode(Reply(value, raised)))
