"""The program with a change, in a child process: whether it is right, and how long a call of it takes."""

from __future__ import annotations

import contextlib
import os
import statistics
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch

from graphprobe.diagnose import steps
from graphprobe.diagnose.program import Program, tensors_of
from graphprobe.diagnose.rungs import RungReport
from graphprobe.diagnose.settings import Compilation
from graphprobe.diagnose.workarounds.candidates import WayAround, changed, put_in_force
from graphprobe.internals import after_fork
from graphprobe.judge.stage_table import Graphs

WARM, MOST_CALLS, MEASURED_S = 3, 101, 2.0
"""Calls before any is measured; how many are, and how long that may take."""

LONG_S, MOST_REPEATS = 1e-3, 100
"""What is measured takes so long at least: a shorter call is made several times, but no more often than that."""

RESTED_S = 0.003
"""What a process waits before its call: threads of OpenMP go on for a while behind the call of the other one."""

MOST_TIMES, LEAST_S = 1.1, 1e-4
"""A change may make a call so many times as long as it was, and so much longer: small programs are mostly guards."""


def tried(
    program: Program,
    compilation: Compilation,
    change: list[WayAround],
    *,
    point: Graphs | None = None,
    renewed: bool = True,
) -> RungReport:
    """The program with a change, compiled as its user does, or run on the graphs of a point of the pipeline.

    `renewed`: torch's graph caches have nothing from before.
    """
    put_in_force(change)
    compilation = changed(compilation, change)
    if point is not None:
        return steps.upto(program, compilation, point)
    return steps.plain(program, compilation, renewed=renewed)


class Price(msgspec.Struct, frozen=True):
    """Median seconds of a call: uncompiled, compiled as it is (None: that does not run), and with a change."""

    uncompiled: float
    compiled: float | None
    changed: float

    @property
    def is_too_high(self) -> bool:
        """Whether nothing is gained by compiling: it takes longer than uncompiled, and than compiled as it is."""
        return self.changed > MOST_TIMES * max(self.uncompiled, self.compiled or 0.0) + LEAST_S


def priced(program: Program, compilation: Compilation, change: list[WayAround]) -> Price:
    """How long calls take uncompiled, compiled, and with a change, one in turn with the other; needs a fork.

    Raises:
        OSError, struct.error: the program with the change does not come to its end.
    """
    asked, ask = os.pipe()
    reader, writer = os.pipe()
    child = after_fork.fork()
    if child == 0:  # what a change does is for good: it has a process of its own
        try:
            os.close(ask)
            put_in_force(change)
            call = _caller(program, changed(compilation, change), compiled=True)
            while os.read(asked, 1):
                os.write(writer, struct.pack("d", call()))
        finally:
            os._exit(0)
    os.close(asked)
    os.close(writer)

    def other() -> float:
        os.write(ask, b"1")
        (seconds,) = struct.unpack("d", os.read(reader, 8))
        return float(seconds)

    try:
        calls = [_caller(program, compilation, compiled=False)]
        with contextlib.suppress(Exception):  # it crashes, for which there is a workaround
            calls.append(_caller(program, compilation, compiled=True))
        *medians, way = _medians([*calls, other])
        return Price(medians[0], medians[1] if len(medians) > 1 else None, way)
    finally:
        os.close(ask)
        os.waitpid(child, 0)
        os.close(reader)


def _caller(program: Program, compilation: Compilation, *, compiled: bool) -> Callable[[], float]:
    """What makes the last call of the program again and again, with its backward, and returns the seconds of one.

    Raises:
        ValueError: the call changes the shape of an argument, so that each one is another call.
    """
    fn: Any = compilation.compiled(program.fn) if compiled else program.fn
    args, kwargs = program.calls[-1]
    shapes = [tensor.shape for tensor in tensors_of((args, kwargs))]

    def call() -> float:
        run()
        began = time.perf_counter()
        for _ in range(repeats):
            run()
        return (time.perf_counter() - began) / repeats

    def run() -> None:
        with torch.no_grad() if program.grad is False else contextlib.nullcontext():
            result = fn(*args, **kwargs)
        for found in program.starts(result):
            torch.autograd.backward(found, [torch.ones_like(t) for t in found])

    repeats = 1
    with compilation.configured():
        for _ in range(WARM):
            call()
    repeats = max(1, min(MOST_REPEATS, int(LONG_S / call())))
    if shapes != [tensor.shape for tensor in tensors_of((args, kwargs))]:
        raise ValueError("the program changes the shape of an argument")
    return call


def _medians(calls: Sequence[Callable[[], float]]) -> list[float]:
    """The median of each, one measured after the other until the time is over."""
    times: list[list[float]] = [[] for _ in calls]
    until = time.monotonic() + MEASURED_S
    while len(times[-1]) < MOST_CALLS and (len(times[-1]) < WARM or time.monotonic() < until):
        for call, taken in zip(calls, times, strict=True):
            time.sleep(RESTED_S)
            taken.append(call())
    return [statistics.median(taken) for taken in times]
