"""A process that judges one case after another: crashes, hangs and memory stay in it, and a new one takes its place.

The child's side of a warm worker: reads jobs, runs them, writes back what became of them.
"""

from __future__ import annotations

import contextvars
import ctypes
import faulthandler
import io
import os
import resource
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import IO, Any

import msgspec

from graphprobe.errors import Raised, raised_from

PR_SET_PDEATHSIG = 1
"""Of `prctl`: the signal that a process gets when the thread that made it ends."""

LENGTH = 8
"""Bytes, little-endian, that precede a message and give its length."""

TAKEN = b"\x06"
"""Goes back as soon as a whole job was read: a process that ends before has not begun it."""

Handle = Callable[[bytes], bytes]
Settings = Callable[[], Iterable[Callable[[], Any]]]


class Done(msgspec.Struct, frozen=True):
    """What goes back: what the handler returned, or what it raised."""

    value: bytes | None = None
    raised: Raised | None = None


def serve(
    handle: Handle, jobs: int, replies: int, output: int, on_start: Callable[[], None] | None, settings: Settings | None
) -> None:
    """Be the child: never returns. Ends when its parent does, or closes the pipe.

    Args:
        handle: runs a job.
        jobs: file descriptor to read from.
        replies: file descriptor to write to.
        output: file descriptor that takes what is printed.
        on_start: called before the first job, in the thread that runs them.
        settings: called in the thread that forked; what it returns is called in the thread that runs the jobs.
    """
    code = 1
    try:
        os.setsid()  # in a group of its own: out of reach of Ctrl-C, and killed as a whole
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        for stream in (1, 2):
            os.dup2(output, stream)
        # The objects may be others than the interpreter's: a notebook's, a test runner's.
        raw = io.FileIO(1, "w", closefd=False)
        sys.stdout = sys.stderr = io.TextIOWrapper(raw, errors="backslashreplace", line_buffering=True)
        faulthandler.enable(file=2, all_threads=False)  # where it crashed goes to what is kept of the output
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        carried = list(settings()) if settings is not None else []
        # OpenMP's threads do not survive a fork but start anew for a new thread, which inherits no context variables.
        work = contextvars.copy_context().run
        thread = threading.Thread(target=work, args=(_loop, handle, jobs, replies, on_start, carried), daemon=True)
        thread.start()
        thread.join()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _loop(
    handle: Handle,
    jobs: int,
    replies: int,
    on_start: Callable[[], None] | None,
    carried: list[Callable[[], Any]],
) -> None:
    failed: Raised | None = None
    try:
        for apply in carried:
            apply()
        if on_start is not None:
            on_start()
    except BaseException as error:
        failed = raised_from(error)
    while (job := _read(jobs)) is not None:
        os.write(replies, TAKEN)
        done = Done(raised=failed) if failed is not None else _attempt(handle, job)
        sys.stdout.flush()
        data = msgspec.msgpack.encode(done)
        view = memoryview(len(data).to_bytes(LENGTH, "little") + data)
        while view:
            view = view[os.write(replies, view) :]


def _attempt(handle: Handle, job: bytes) -> Done:
    try:
        value = handle(job)
        if not isinstance(value, bytes):
            raise TypeError(f"the handler of a worker returned {type(value).__qualname__}; it must return bytes")
        return Done(value)
    except BaseException as error:
        return Done(raised=raised_from(error))


def _read(jobs: int) -> bytes | None:
    """The next job; None at the end of the pipe."""
    head = _exactly(jobs, LENGTH)
    return None if head is None else _exactly(jobs, int.from_bytes(head, "little"))


def _exactly(source: int, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        part = os.read(source, min(count - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)


TAIL = 4000
"""Bytes kept of what the child printed during a job."""

POLL_S = 0.1
"""How often time, memory and the life of the child are looked at while it works."""


class Reply(msgspec.Struct, frozen=True):
    """What became of a job. Exactly one of the first six says how it ended.

    Attributes:
        value: what the handler returned.
        raised: the exception that ended the handler; the worker lives on.
        signal: name of the signal that killed the process, e.g. `SIGSEGV`.
        exit_code: with which the process ended on its own.
        timed_out: it was killed after its time.
        over_memory: it was killed because its group of processes held too much.
        output: the end of what it printed during the job.
        seconds: wall time. That of the first job of a process includes `on_start`.
        peak_bytes: most resident memory seen of its group; None unless there is a limit on it.
    """

    value: bytes | None = None
    raised: Raised | None = None
    signal: str | None = None
    exit_code: int | None = None
    timed_out: bool = False
    over_memory: bool = False
    output: str = ""
    seconds: float = 0.0
    peak_bytes: int | None = None

    @property
    def died(self) -> bool:
        """Whether the process is gone."""
        return self.value is None and self.raised is None


class Worker:
    """Runs jobs in a forked process, which is kept for the next job and replaced when it dies.

    The process is forked at the first job, so it holds what this process holds then. It leads a group of its own; the
    group is killed with it. It must be used by one thread, since the child ends with the thread that forked it.

    Attributes:
        starts: processes that were forked so far.
    """

    def __init__(
        self,
        handle: Handle,
        *,
        timeout_s: float,
        memory_bytes: int | None = None,
        max_asks: int | None = None,
        on_start: Callable[[], None] | None = None,
        settings: Settings | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            handle: runs a job in the child, always in the same fresh thread of it.
            timeout_s: of one job; `on_start` counts towards the first.
            memory_bytes: limit on the resident memory of the child and all processes of its group, added up. Memory
                shared with this process counts. It is looked at every 0.1 s, so that a short peak may go unseen.
            max_asks: jobs after which the process is replaced; None keeps it.
            on_start: called in a new child before its first job, in the thread that runs the jobs.
            settings: called in a new child in the thread that forked, and what it returns in the one that runs the
                jobs: to carry over what belongs to a thread.
        """
        if timeout_s <= 0:
            raise ValueError(f"timeout_s must be positive, got {timeout_s!r}")
        if max_asks is not None and max_asks < 1:
            raise ValueError(f"max_asks must be at least 1, got {max_asks!r}")
        self._handle = handle
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._max_asks = max_asks
        self._on_start = on_start
        self._settings = settings
        self._child: int | None = None
        self._jobs = self._replies = -1
        self._output: IO[bytes] | None = None
        self._asks = 0
        self._asked_before = False
        self._closed = False
        self.starts = 0

    def ask(self, job: bytes) -> Reply:
        """Run a job and say what became of it.

        Raises:
            RuntimeError: after `close`.
        """
        if self._closed:
            raise RuntimeError("the worker is closed")
        reply, taken = self._ask(job)
        if not taken and reply.died and self._asked_before:  # it ended between two jobs: no fault of this one
            reply, _ = self._ask(job)
        return reply

    def _ask(self, job: bytes) -> tuple[Reply, bool]:
        """What became of a job, and whether the child took it."""
        self._asked_before = self._child is not None and self._asks > 0
        if self._child is None:
            self._start()
        assert self._output is not None
        self._output.truncate(0)
        started = time.monotonic()
        exchange = Exchange(job, self._jobs, self._replies)
        keep = False
        try:
            how, peak = self._wait(exchange, started + self._timeout_s)
            keep = how is None
        finally:  # after Ctrl-C too: an answer that comes late would be taken for that to the next job
            seconds = time.monotonic() - started
            status = None if keep else self._stop()
        reply = Reply(seconds=seconds, peak_bytes=peak, output=self._tail())
        self._asks += 1
        if how is None:
            done = msgspec.msgpack.decode(exchange.reply, type=Done)
            if self._asks == self._max_asks:
                self._stop()
            return msgspec.structs.replace(reply, value=done.value, raised=done.raised), True
        if how:
            return msgspec.structs.replace(reply, **{how: True}), True
        assert status is not None
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            return msgspec.structs.replace(reply, signal=name), exchange.taken
        return msgspec.structs.replace(reply, exit_code=os.waitstatus_to_exitcode(status)), exchange.taken

    def close(self) -> None:
        """Kill the child and its group. May be called more than once."""
        self._closed = True
        self._stop()
        if self._output is not None:
            self._output.close()
            self._output = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        if self._output is None:
            self._output = tempfile.TemporaryFile("a+b", buffering=0)  # noqa: SIM115 - `close` closes it
        jobs, self._jobs = os.pipe()
        self._replies, replies = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(self._jobs)
            os.close(self._replies)
            serve(self._handle, jobs, replies, self._output.fileno(), self._on_start, self._settings)
        os.close(jobs)
        os.close(replies)
        os.set_blocking(self._jobs, False)
        self._child = child
        self._asks = 0
        self.starts += 1

    def _wait(self, exchange: Exchange, deadline: float) -> tuple[str | None, int | None]:
        """None if there is a whole reply, "" if the child ended, else the attribute of `Reply` that is true; and the
        most memory seen.
        """
        assert self._child is not None
        peak = 0 if self._memory_bytes is not None else None
        look = 0.0
        while True:
            now = time.monotonic()
            if exchange.step(max(0.0, min(POLL_S, deadline - now))):
                return None, peak
            now = time.monotonic()
            if self._ended(self._child):
                while exchange.step(0.0) is False and exchange.moved:
                    pass
                return (None if exchange.whole else ""), peak
            if peak is not None and self._memory_bytes is not None and now >= look:
                peak = max(peak, resident_bytes(self._child))
                look = now + POLL_S
                if peak > self._memory_bytes:
                    return "over_memory", peak
            if now >= deadline:
                return "timed_out", peak

    @staticmethod
    def _ended(child: int) -> bool:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def _stop(self) -> int | None:
        """Kill the group and take in the child. Its wait status; None if there was none."""
        child, self._child = self._child, None
        if child is None:
            return None
        os.close(self._jobs)
        os.close(self._replies)
        for kill in (os.killpg, os.kill):
            try:
                kill(child, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        return os.waitpid(child, 0)[1]

    def _tail(self) -> str:
        assert self._output is not None
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), TAIL, max(0, size - TAIL)).decode("utf-8", "replace")


class Exchange:
    """One job on its way to the child and the reply on its way back.

    Attributes:
        whole: whether the reply is complete.
        moved: whether the latest step read or wrote something.
    """

    def __init__(self, job: bytes, jobs: int, replies: int) -> None:
        self.whole = False
        self.moved = False
        self._left = memoryview(len(job).to_bytes(LENGTH, "little") + job)
        self._data = bytearray()
        self._jobs = jobs
        self._replies = replies
        self._ended = False

    @property
    def reply(self) -> bytes:
        """Without its length."""
        return bytes(self._data[len(TAKEN) + LENGTH :])

    @property
    def taken(self) -> bool:
        """Whether the child has read the whole job."""
        return len(self._data) > 0

    def step(self, wait_s: float) -> bool:
        """Move what can be moved, after waiting at most so many seconds. Whether the reply is complete."""
        self.moved = False
        reading = [] if self._ended else [self._replies]
        ready, writable, _ = select.select(reading, [self._jobs] if self._left else [], [], wait_s)
        if writable:
            try:
                self._left = self._left[os.write(self._jobs, self._left[: 1 << 20]) :]
                self.moved = True
            except BlockingIOError:
                pass
            except BrokenPipeError:  # the child is gone, or about to be
                self._left = self._left[:0]
        if ready:
            part = os.read(self._replies, 1 << 20)
            self._data += part
            self._ended = not part
            self.moved |= bool(part)
        head = len(TAKEN) + LENGTH
        if len(self._data) >= head:
            self.whole = len(self._data) - head >= int.from_bytes(self._data[len(TAKEN) : head], "little")
        return self.whole


def resident_bytes(group: int) -> int:
    """Resident memory of all processes of a group, added up; pages that they share count once for each. 0 if none."""
    pages = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[2]) == group:
            pages += int(fields[21])
    return pages * os.sysconf("SC_PAGE_SIZE")
