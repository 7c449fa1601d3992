"""Goes back to an earlier step: forked copies of the program sleep, and one wakes up to run on to the step that failed.

What wakes up must do no harm: no file or connection of the program is its own any more, what it prints is dropped, and
the kernel lets it write nowhere but into a folder of its own (Landlock).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import re
import select
import signal
import stat
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import torch

from graphprobe.engine.forked_child import end_with_parent
from graphprobe.internals import after_fork
from graphprobe.probe.api.overflow import OverflowWatch
from graphprobe.store.watch_file import FirstOperation, StepObservation
from graphprobe.watch.step_calls import FirstOperations, ModuleNames

NO_FORK = "CUDA or another device is in use, or threads of autograd run"
NO_LANDLOCK = "this kernel cannot keep a copy of the program from writing files (Landlock)"
RANKS = "the program has several ranks, whose messages cannot be repeated"

CREATE_RULESET, RESTRICT_SELF = 444, 446
NO_NEW_PRIVILEGES = 38
ALL_WRITES = 0x2 | 0x10 | 0x20 | 0x1FC0 | 0x2000 | 0x4000
"""Landlock's rights to write, remove, make, move and truncate files."""
ANY_TCP, ANY_SIGNAL = 0x3, 0x3

OPENMP = re.compile(r"\S*/lib(?:gomp|iomp5|omp)\S*\.so\S*$", re.MULTILINE)


class Woken(msgspec.Struct, kw_only=True):
    """What a copy of the program tells when it has come to the step that failed.

    Attributes:
        seen: its observations of each step, all parameters included.
        operations: that made values that are not finite of finite ones, in the last step, which ran uncompiled.
        runs: of `drift`, what each run of the step from here has come to; None of one that did not come to its end.
    """

    seen: list[StepObservation] = []
    operations: list[FirstOperation] = []
    runs: list[dict[str, bytes] | None] = []


@dataclass
class Rerun:
    """The life of a copy that was woken: it runs on to step `until`, tells what it saw, and ends."""

    until: int
    reply: int
    woken: Woken = field(default_factory=Woken)
    _look: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def stepped(self, step: int) -> None:
        """A step is over: the last one runs uncompiled, and each of its operations is looked at."""
        if step == self.until - 1:
            torch.compiler.set_stance("force_eager")
            found = FirstOperations(self.woken.operations, None)
            self._look.enter_context(OverflowWatch(found, within=ModuleNames().innermost))

    def saw(self, seen: StepObservation) -> None:
        """Take note of a step; of the last one, tell all of it and end this process."""
        self.woken.seen.append(seen)
        if seen.step >= self.until:
            self.end()

    def end(self) -> NoReturn:
        """Tell what was seen, and end this process, whatever the program would do."""
        try:
            with os.fdopen(self.reply, "wb") as pipe:
                pipe.write(msgspec.msgpack.encode(self.woken))
        finally:
            os._exit(0)


@dataclass(frozen=True)
class _Sleeper:
    process: int
    step: int
    wake: int
    reply: int

    def end(self) -> None:
        for descriptor in (self.wake, self.reply):
            os.close(descriptor)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)


class Sleepers:
    """The copies of a program that sleep, the newest last; they end with it, whatever ends it."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._asleep: list[_Sleeper] = []

    def why_not(self) -> str:
        """Why no copy can be made of this program, in words; empty if one can."""
        if after_fork.ranks() > 1:
            return RANKS
        if not after_fork.can_fork():
            return NO_FORK
        return "" if _landlock_version() > 0 else NO_LANDLOCK

    def take(self, step: int) -> Rerun | None:
        """Put a copy of the program to sleep, behind this step. None; in a copy that wakes up what it is to do."""
        for old in self._asleep[: len(self._asleep) + 1 - self._keep]:
            old.end()
            self._asleep.remove(old)
        wake, wakes = os.pipe()
        reads, reply = os.pipe()
        files, drawn, parent = dict(_files()), random.getstate(), os.getpid()
        rest_openmp()
        process = after_fork.fork()
        if process:
            os.close(wake)
            os.close(reply)
            self._asleep.append(_Sleeper(process, step, wakes, reads))
            return None
        try:
            end_with_parent(parent)
            os.setsid()
            _let_go(files, keep=(wake, reply))
            until = os.read(wake, 8)
            if len(until) < 8:
                os._exit(0)
            _write_nowhere()
            random.setstate(drawn)
            os.close(wake)
        except BaseException:
            os._exit(1)
        self._asleep.clear()
        return Rerun(struct.unpack("q", until)[0], reply)

    def wake(self, until: int, *, before: int, timeout_s: float) -> Woken | None:
        """What the newest copy from before a step tells of the steps up to `until`; None where none comes to that."""
        chosen = next((one for one in reversed(self._asleep) if one.step < before), None)
        if chosen is None:
            return None
        deadline, parts = time.monotonic() + timeout_s, list[bytes]()
        with contextlib.suppress(BrokenPipeError):
            os.write(chosen.wake, struct.pack("q", until))
        while select.select([chosen.reply], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = os.read(chosen.reply, 1 << 20)
            if not part:
                break
            parts.append(part)
        self._asleep.remove(chosen)
        chosen.end()
        try:
            return msgspec.msgpack.decode(b"".join(parts), type=Woken)
        except msgspec.MsgspecError:
            return None

    def close(self) -> None:
        """End all of them."""
        for one in self._asleep:
            one.end()
        self._asleep.clear()


def _files() -> Iterator[tuple[int, tuple[int, int]]]:
    """Flags and position of each regular file that is open, -1 for the position of anything else but a device."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            number = int(name)
            mode = os.fstat(number).st_mode
            if stat.S_ISREG(mode):
                yield number, (fcntl.fcntl(number, fcntl.F_GETFL), os.lseek(number, 0, os.SEEK_CUR))
            elif not (stat.S_ISCHR(mode) or stat.S_ISDIR(mode)) or number in (1, 2):
                yield number, (os.O_WRONLY, -1)


def _let_go(files: dict[int, tuple[int, int]], *, keep: tuple[int, ...]) -> None:
    """Share no position with the program: files to read are opened anew, all others lead to nowhere."""
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
    except PermissionError:  # in a copy of a copy, what is printed leads there already
        nowhere = os.dup(1)
    for number, (flags, position) in files.items():
        if number in keep:
            continue
        with contextlib.suppress(OSError):
            if flags & os.O_ACCMODE == os.O_RDONLY and position >= 0:
                own = os.open(f"/proc/self/fd/{number}", os.O_RDONLY)
                os.lseek(own, position, os.SEEK_SET)
                os.dup2(own, number, inheritable=os.get_inheritable(number))
                os.close(own)
            else:
                os.dup2(nowhere, number, inheritable=os.get_inheritable(number))
    for standard in (1, 2):
        os.dup2(nowhere, standard)


def rest_openmp() -> None:
    """Have OpenMP end its threads, which start anew where they are needed: a copy that forks would wait for them."""
    for path in set(OPENMP.findall(Path("/proc/self/maps").read_text("utf-8"))):
        library: Any = ctypes.CDLL(path.strip())
        if hasattr(library, "omp_pause_resource_all"):
            library.omp_pause_resource_all(1)


def _landlock_version() -> int:
    if sys.platform != "linux":
        return 0
    return int(ctypes.CDLL(None).syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1))


def _write_nowhere() -> None:
    """Have the kernel refuse this process all that would change files, and all it would send to others.

    Raises:
        OSError: the kernel cannot.
    """
    system, version = ctypes.CDLL(None, use_errno=True), _landlock_version()
    rights = ALL_WRITES if version >= 3 else ALL_WRITES & ~0x4000
    rights = rights if version >= 2 else rights & ~0x2000
    rules = struct.pack("QQQ", rights, ANY_TCP if version >= 4 else 0, ANY_SIGNAL if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = system.syscall(CREATE_RULESET, ctypes.c_char_p(rules), ctypes.c_size_t(size), 0)
    system.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if ruleset < 0 or system.syscall(RESTRICT_SELF, ruleset, 0):
        raise OSError(ctypes.get_errno(), "Landlock")
