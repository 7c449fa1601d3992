"""Writes down when a step of the compiler begins and ends, one line each, so that a crash leaves its trace."""

from __future__ import annotations

import threading
import time
from typing import Any

from graphprobe.internals.context import Frame
from graphprobe.internals.dynamo.dynamo_taps import current_compile_id
from graphprobe.store import layout
from graphprobe.store.schema import json_line
from graphprobe.store.step_file import StepLine
from graphprobe.store.writer import RunWriter


class StepLog:
    """The steps of one run. Steps of a thread lie inside each other: the end of one ends those inside it."""

    def __init__(self, writer: RunWriter) -> None:
        self._writer = writer
        self._lock = threading.Lock()
        self._next = 0
        self._open: dict[int, list[int]] = {}
        """By thread, the outermost first."""

    def begin(self, component: str, name: str, detail: str = "", **where: Any) -> int | None:
        """A step begins on this thread; its number, None where nothing is written. `where`: fields of `StepLine`."""
        if self._writer.forked or self._writer.closed:
            return None
        thread = threading.get_native_id()
        with self._lock:
            step, self._next = self._next, self._next + 1
            self._open.setdefault(thread, []).append(step)
        line = StepLine(step, time.time_ns(), component, name, detail, **where, thread=thread)
        self._writer.append_text(layout.STEPS, json_line(line))
        return step

    def end(self, step: int | None, error: BaseException | None = None) -> None:
        """The step is over, and with it every step inside it that has not told of its end."""
        if step is None or self._writer.forked:
            return
        thread = threading.get_native_id()
        with self._lock:
            inside = self._open.get(thread, [])
            if step not in inside:
                return
            ended = inside[inside.index(step) :]
            del inside[inside.index(step) :]
            if not inside:
                del self._open[thread]
        text = None if error is None else _described(error)
        now = time.time_ns()
        lines = [json_line(StepLine(one, now, error=text)) for one in reversed(ended)]
        self._writer.append_text(layout.STEPS, "".join(lines))


def begin(steps: StepLog, component: str, name: str, detail: str, frame: Frame | None) -> int | None:
    """A step of what is being compiled on this thread."""
    model: Any = frame.token if frame is not None else None
    where = getattr(model, "where", None)
    return steps.begin(
        component,
        name,
        detail,
        model=getattr(model, "number", None),
        direction=frame.direction if frame is not None else None,
        compile_id=where.compile_id if where is not None else current_compile_id(),
    )


def _described(error: BaseException) -> str:
    """The first paragraph on one line; the traceback is in the failure's file."""
    try:
        text = " ".join(str(error).strip().partition("\n\n")[0].split())
    except Exception:  # its own __str__ raises
        text = "<exception str() failed>"
    return f"{type(error).__name__}: {text}"[:500]
