"""The child's side of a warm worker: reads jobs, runs them, writes back what became of them."""

from __future__ import annotations

import contextvars
import ctypes
import faulthandler
import io
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from typing import Any

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
