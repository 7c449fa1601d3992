"""Runs a step in a child process, where crashes, hangs and side effects stay, and shows what it is doing."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import io
import mmap
import os
import random
import re
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import msgspec
import torch

from graphprobe.engine.memory import peak
from graphprobe.errors import Raised, raised_from
from graphprobe.internals import after_fork
from graphprobe.settings.limits import Alarm

SIZE = 256
"""Bytes of a text; a longer one is cut off."""

TOLD_EVERY_S = 1.0
"""How often it is told what a step is doing."""

_board: ContextVar[Board | None] = ContextVar("board", default=None)

TAIL = 4000
"""Characters kept of what the child printed."""

POLL_S = 0.2
"""How often it is looked whether the child has ended while something that it has started keeps its pipe open."""

LOOK_S = 3.0
"""What a step that is late gets beyond its time to say where it stands."""

STUCK_S = 8.0
"""A step of a forked child that does nothing for so long but wait for a lock is begun again."""

TRIES = 3
"""How often a step is begun that waits for a lock."""

STUCK = "LockOfAnotherThread"
"""In the place of the class of an exception: how each try of a step has ended."""

PR_SET_PDEATHSIG = 1
"""Of `prctl`: the signal that a process gets when its parent ends."""

COMPILERS = re.compile(
    r"(\S*-)?(c\+\+|g\+\+|gcc|cc|cc1|cc1plus|clang|clang\+\+|as|ld|lld|icpx|nvcc|ptxas|collect2)([-.]\S*)?"
)
"""Names of programs that write what `-o` says; a linker that is killed leaves it empty or cut off."""


class Board:
    """A text in memory that processes share. The last one written is what is read.

    Args:
        descriptor: of the board of another process; None makes a new one, which those that are forked have, too.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None and sys.platform == "linux":  # memory, so that a full disk does no harm
            self._file: Any = os.fdopen(os.memfd_create("board"), "r+b")
        else:
            self._file = tempfile.TemporaryFile() if descriptor is None else os.fdopen(descriptor, "r+b")  # noqa: SIM115
        self.descriptor: int = self._file.fileno()
        if descriptor is None:
            self._file.truncate(SIZE + 1)
        self._memory = mmap.mmap(self.descriptor, SIZE + 1)

    def write(self, text: str) -> None:
        """Put up a text; nobody waits, and half of one that is read meanwhile is drawn over a second later."""
        data = text.encode()[:SIZE]
        self._memory[: SIZE + 1] = data + bytes(SIZE + 1 - len(data))

    def read(self) -> str:
        """The text; empty at first."""
        return bytes(self._memory[:SIZE]).split(b"\0")[0].decode("utf-8", "ignore")


@contextlib.contextmanager
def told_on(board: Board) -> Iterator[None]:
    """`doing` writes to this board, here and in the steps that are run from here."""
    before = _board.set(board)
    try:
        yield
    finally:
        _board.reset(before)


def doing(what: str) -> None:
    """Say what is being done, e.g. `op 34 of 512`; where nobody listens, nothing happens."""
    board = _board.get()
    if board is not None:
        board.write(what)


class Outcome(msgspec.Struct, frozen=True):
    """How a step ended.

    Attributes:
        value: what it returned, decoded from JSON's types and bytes; None unless it returned. Of a step that was late
            what was seen in the frames where it stood.
        raised: the exception, if one ended it.
        signal: name of the signal that killed it, e.g. `SIGSEGV`.
        timed_out: it was stopped after its time.
        stack: where it stood then, as a traceback; empty where Python could not tell.
        output: the end of what it printed.
        seconds: wall time.
        grown: by how many bytes of memory its process grew at the most; 0 where it did not come to tell.
    """

    value: Any = None
    raised: Raised | None = None
    signal: str | None = None
    timed_out: bool = False
    stack: str = ""
    output: str = ""
    seconds: float = 0.0
    grown: int = 0

    @property
    def died(self) -> bool:
        """Whether the process was killed by a signal or for its time."""
        return self.signal is not None or self.timed_out

    @property
    def stuck(self) -> bool:
        """Whether it waited for a lock that a thread of its parent had: that says nothing of it."""
        return self.raised is not None and self.raised.type == STUCK

    @property
    def short_of_memory(self) -> bool:
        """Whether somebody else has ended it, which the system does where memory is short: that says nothing of it."""
        return self.signal == "SIGKILL"

    @property
    def end(self) -> str:
        """How a process that died ended, the exception in C++ that ended it, and where it stood if that is known."""
        if self.signal is not None:
            short = ", as the system does where memory is short" if self.short_of_memory else ""
            said = re.findall(r"^ *what\(\): *(.+)$", self.output, re.MULTILINE)
            return f"the process was ended by {self.signal}{short}{f': {said[-1]:.200}' if said else ''}"
        where = _place(self.stack)
        return f"it did not end within {self.seconds:.0f} s{'.' if where else ''}{where}"


def _place(stack: str) -> str:
    """The innermost frame of a stack, as a sentence."""
    places = re.findall(r'^ *File "(.+)", line (\d+), in (.+)$', stack, re.MULTILINE)
    return " It stood in {2} ({0}:{1}).".format(*places[-1]) if places else ""


def isolated(
    step: Callable[[], Any],
    *,
    timeout_s: float = 600.0,
    look: Callable[[FrameType], Any] = lambda frame: None,
    wait: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run `step` in a forked child and return what became of it; this process is left as it was.

    The child sees everything this process holds, patches included. `step` runs in a fresh thread of the child, because
    OpenMP's threads do not survive a fork but start anew for a new thread. What it returns must consist of what
    msgpack holds: None, numbers, strings, bytes, lists, dicts with string keys, and msgspec structs.

    Where the step does not end in time, `look` is called in the child with the frame in which it stands. Meanwhile this
    process calls `wait` several times a second. Ctrl-C, and any other exception here, ends the step and all that it has
    started. A child has no thread of this process but one: a step that waits for a lock of another is begun again.

    Where a fork is impossible (CUDA is in use, or not Linux) the step runs here, unprotected, and is ended as far as an
    `Alarm` can do that; `diagnose.fresh.processes` has steps of a program in another process then.
    """
    if not after_fork.can_fork():
        return _here(step, timeout_s)

    def start(reader: int, writer: int, output: int) -> int:
        alone = threading.active_count() == 1
        child = forked(output)
        if child == 0:
            _close(reader)
            answer(step, writer, timeout_s, look, alone=alone)
        return child

    for _ in range(TRIES):
        outcome = outcome_of(start, timeout_s=timeout_s, wait=wait)
        if not outcome.stuck:
            break
    return outcome


def outcome_of(
    start: Callable[[int, int, int], int], *, timeout_s: float, wait: Callable[[], None] = lambda: None
) -> Outcome:
    """What became of the step of a child process, which runs `answer`.

    Args:
        start: starts it, given the two ends of a pipe, the second of which is the child's, and where it is to print.
        timeout_s: after so long, and a little more to say where it stands, it is killed.
        wait: called several times a second.
    """
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as output:
        child = start(reader, writer, output.fileno())
        started = time.monotonic()  # a fork may have waited for other threads
        os.close(writer)
        data, timed_out = _receive(reader, child, started + timeout_s + LOOK_S, wait)
        _, status = os.waitpid(child, 0)
        output.seek(max(0, output.seek(0, os.SEEK_END) - TAIL))
        text = output.read().decode("utf-8", "replace")
    seconds = time.monotonic() - started
    if timed_out:
        return Outcome(timed_out=True, output=text, seconds=seconds)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return Outcome(signal=signal.Signals(number).name, output=text, seconds=seconds)
    if not data:
        code = os.waitstatus_to_exitcode(status)
        gone = Raised("SystemExit", f"the process ended with exit code {code}", "")
        return Outcome(raised=gone, output=text, seconds=seconds)
    value, raised, stack, grown = msgspec.msgpack.decode(data, type=tuple[Any, Raised | None, str, int])
    return Outcome(value, raised, timed_out=bool(stack), stack=stack, output=text, seconds=seconds, grown=grown)


class _Late(BaseException):
    """Ends a step that runs here."""


def _here(step: Callable[[], Any], timeout_s: float) -> Outcome:
    stood: list[str] = []

    def end() -> None:
        stood.append(_stack_text(sys._getframe(2)))  # below this function and the alarm
        raise _Late

    def watched() -> Any:
        with Alarm(timeout_s, end):
            return step()

    started = time.monotonic()
    value, raised = attempt(watched)
    seconds = time.monotonic() - started
    if raised is not None and raised.type.endswith(f".{_Late.__name__}"):
        return Outcome(timed_out=True, stack=stood[0], seconds=seconds)
    return Outcome(msgspec.msgpack.decode(msgspec.msgpack.encode(value)), raised, seconds=seconds)


def attempt(step: Callable[[], Any]) -> tuple[Any, Raised | None]:
    """What a step returns, and what it raises."""
    try:
        return step(), None
    except BaseException as error:
        return None, raised_from(error)


def forked(output: int) -> int:
    """As `os.fork`. The child has a session of its own, ends with the thread that made it, and prints to `output`."""
    sys.stdout.flush()
    sys.stderr.flush()
    drawn, parent = random.getstate(), os.getpid()
    child = after_fork.fork()
    if child == 0:
        try:
            random.setstate(drawn)  # Python seeds it anew after a fork
            os.setsid()  # in a group of its own, out of reach of what ends its parent's group
            end_with_parent(parent)
            for stream in (1, 2):
                os.dup2(output, stream)
            # The objects may be others than the interpreter's: a notebook's, a test runner's.
            raw = io.FileIO(1, "w", closefd=False)
            sys.stdout = sys.stderr = io.TextIOWrapper(raw, errors="backslashreplace", line_buffering=True)
        except BaseException:
            os._exit(1)
    return child


def end_with_parent(parent: int) -> None:
    """Have this process killed when its parent ends, where the system can do that; end it if that is so already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)


def in_fresh_thread(work: Callable[[], None]) -> threading.Thread:
    """Run `work` in a thread with the settings of this one: OpenMP's threads, which a fork ends, start anew for it."""
    settings = _thread_settings()

    def run() -> None:
        for apply in settings:
            apply()
        work()

    # torch keeps changed settings in context variables, which a new thread does not inherit.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True)
    thread.start()
    return thread


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)


def answer(
    step: Callable[[], Any],
    writer: int,
    timeout_s: float,
    look: Callable[[FrameType], Any],
    *,
    fresh: bool = False,
    alone: bool = True,
) -> NoReturn:
    """Run the step of this child process, tell its parent what became of it, and end.

    The step of a `fresh` process runs in its main thread, where an `Alarm` can end what it runs with `isolated`. The
    parent of one that is not `alone` had other threads.
    """
    before, ended = peak(), threading.Event()
    result: list[bytes] = []

    def work() -> None:
        try:
            after_fork.prepare()
            value, raised = attempt(step)
            try:
                result.append(msgspec.msgpack.encode((value, raised, "", peak() - before)))
            except Exception as error:
                result.append(msgspec.msgpack.encode((None, raised_from(error), "", 0)))
        finally:
            ended.set()

    def tell(worker: threading.Thread) -> NoReturn:
        try:
            stuck = not alone and _sticks(worker, ended, timeout_s)
            late = stuck or not ended.wait(timeout_s if alone else 0.0)
            frame = sys._current_frames().get(worker.ident or 0) if late else None
            if frame is not None and stuck:
                stack = _stack_text(frame)
                why = f"it waits for a lock that is not released in a child process.{_place(stack)}"
                result.append(msgspec.msgpack.encode((None, Raised(STUCK, why, stack), "", 0)))
            elif frame is not None:
                seen, _ = attempt(lambda: look(frame))
                result.append(msgspec.msgpack.encode((seen, None, _stack_text(frame), peak() - before)))
            sys.stdout.flush()
            sys.stderr.flush()
            view = memoryview(result[0] if result else b"")
            while view:
                view = view[os.write(writer, view) :]
            os.close(writer)
        finally:
            os._exit(0)

    try:
        if not fresh:
            tell(in_fresh_thread(work))
        threading.Thread(target=tell, args=(threading.current_thread(),)).start()
        work()
        threading.Event().wait()  # what is told ends the process
    finally:
        os._exit(0)


def _sticks(worker: threading.Thread, ended: threading.Event, timeout_s: float) -> bool:
    """Whether a step comes to wait for a lock that nobody in its process will release; it, or its time, may end first.

    So it seems where its thread waits for a lock all the while, and no thread and no process that it started works.
    """
    now = worked = time.monotonic()
    deadline, used = now + timeout_s, time.process_time()
    while now < deadline:
        if ended.wait(min(POLL_S, deadline - now)):
            return False
        now, before, used = time.monotonic(), used, time.process_time()
        if used - before > POLL_S / 20 or not _waits_for_lock(worker):
            worked = now
        elif now - worked >= STUCK_S and not descendants(os.getpid()):
            return True
    return False


def _waits_for_lock(thread: threading.Thread) -> bool:
    """Whether a thread of this process sleeps in a futex; where the kernel hides in what, whether it sleeps."""
    task = f"/proc/self/task/{thread.native_id}"
    with contextlib.suppress(OSError), open(f"{task}/stat", "rb") as stat, open(f"{task}/wchan", "rb") as where:
        place = where.read()
        return stat.read().rpartition(b")")[2].split()[0] == b"S" and (place == b"0" or b"futex" in place)
    return False


def _stack_text(frame: FrameType) -> str:
    """The stack as a traceback, without what this module has put below the step."""
    frames = traceback.extract_stack(frame)
    own = [i for i, summary in enumerate(frames) if summary.filename == __file__]
    return "Stack (most recent call last):\n" + "".join(traceback.format_list(frames[own[-1] + 1 if own else 0 :]))


def _thread_settings() -> list[Callable[[], Any]]:
    """What gives another thread this thread's number of threads, gradient mode and autocast."""
    found: list[Callable[[], Any]] = [
        partial(torch.set_num_threads, torch.get_num_threads()),
        partial(torch.set_grad_enabled, torch.is_grad_enabled()),
        partial(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled()),
    ]
    for device in ("cpu", "cuda"):
        found.append(partial(torch.set_autocast_enabled, device, torch.is_autocast_enabled(device)))
        found.append(partial(torch.set_autocast_dtype, device, torch.get_autocast_dtype(device)))
    return found


def _receive(reader: int, child: int, deadline: float, wait: Callable[[], None]) -> tuple[bytes, bool]:
    """What the child sent until it closed its end or ended. At the deadline, or on an exception, it is killed.

    What it has started is killed in any case.
    """
    parts: list[bytes] = []
    done = False
    try:
        while True:
            ready, _, _ = select.select([reader], [], [], max(0.0, min(POLL_S, deadline - time.monotonic())))
            part = os.read(reader, 1 << 20) if ready else b""
            parts.append(part)
            if not ready:
                wait()
            if done or (ready and not part):
                done = True
                return b"".join(parts), False
            if not ready and time.monotonic() >= deadline:
                return b"", True
            done = not ready and os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    finally:
        os.close(reader)
        if done:
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        end_group(child, started=[] if done else descendants(child))


def end_group(child: int, *, started: Sequence[int]) -> None:
    """Kill a child that has a session, all that is in it, and what it has `started` in groups of their own."""
    # A child that ended by itself has left what it started to others.
    left = started or [process for process, _, session in _processes() if session == child != process]
    unfinished = [path for process in left if (path := compiled_to(process)) is not None]
    for kill in (os.killpg, os.kill):
        _kill(kill, child)
    for process in started:
        _kill(os.kill, process)
    for path in unfinished:  # nobody may take it for a whole one
        with contextlib.suppress(OSError):
            os.unlink(path)


def _kill(kill: Callable[[int, int], None], process: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        kill(process, signal.SIGKILL)


def compiled_to(process: int) -> str | None:
    """The file that a process writes if it is a compiler or linker; None for others, and where nothing tells."""
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            name, *args = os.fsdecode(file.read()).rstrip("\0").split("\0")
        if not COMPILERS.fullmatch(os.path.basename(name)) or "-o" not in args[:-1]:
            return None
        path = os.path.join(os.readlink(f"/proc/{process}/cwd"), args[args.index("-o") + 1])
        return path if os.path.isfile(path) else None  # not /dev/null, which a compiler's trial run writes
    except OSError:
        return None


def descendants(process: int) -> list[int]:
    """The processes that a process has started, and what those have; none where the system does not say."""
    children: dict[int, list[int]] = {}
    for one, parent, _ in _processes():
        children.setdefault(parent, []).append(one)
    found = [process]
    for one in found:  # grows meanwhile
        found += children.get(one, ())
    return found[1:]


def _processes() -> Iterator[tuple[int, int, int]]:
    """Each process with its parent and its session."""
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                yield int(name), int(fields[1]), int(fields[3])
