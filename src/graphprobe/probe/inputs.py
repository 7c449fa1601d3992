"""Keeps what a compiled graph was first called with, and what came out, so that its artifacts replay."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from graphprobe.engine.values import CapturedValues, capture, capture_after, measure, to_bytes
from graphprobe.internals.unseen import unseen
from graphprobe.probe.step_log import StepLog
from graphprobe.records import Kind, Where
from graphprobe.store import layout
from graphprobe.store.writer import RunWriter


class Owner(Protocol):
    """What the recorders of a model need of its session.

    `predict` is told how many bytes saving will take, and says whether the budget holds them.
    """

    writer: RunWriter
    steps: StepLog

    def predict(self, size_bytes: int) -> bool: ...

    def failed_with(self, what: str, error: BaseException) -> None: ...


class InputSaver:
    """Saves the first call of one compiled graph: `inputs.*` before it, `outputs.*` after it, in the graph's folder."""

    def __init__(self, owner: Owner, where: Where, *, donated: Sequence[int] = ()) -> None:
        """`donated` are inputs that the graph may use up as scratch memory: what is left in them means nothing."""
        self._owner, self._writer = owner, owner.writer
        self._where = where
        self._donated = tuple(donated)
        self._folder = layout.graph_folder(where)
        self._lock = threading.Lock()
        self._done = False

    def wrap(
        self, compiled: Callable[..., Any], *, boxed: bool | None = None, finished: Callable[[], None] | None = None
    ) -> Callable[..., Any]:
        """`compiled` with its calling convention kept.

        `boxed` says that it takes one list, which it empties, instead of plain arguments; None goes by its own mark.
        `finished` is called once there is nothing more to save.
        """
        boxed = bool(getattr(compiled, "_boxed_call", False)) if boxed is None else boxed

        @functools.wraps(compiled)
        def run(*args: Any, **kwargs: Any) -> Any:
            if self._done or not self._mine():
                with unseen:
                    return compiled(*args, **kwargs)
            given = list(args[0]) if boxed else list(args)
            before = self._before(given)
            with unseen:
                outputs = compiled(*args, **kwargs)
            if before is not None:
                self._after(before, outputs, given)
            if finished is not None:
                finished()
            return outputs

        return run

    def _mine(self) -> bool:
        """True for one caller only."""
        with self._lock:
            mine, self._done = not self._done, True
            return mine

    def _before(self, given: Sequence[object]) -> CapturedValues | None:
        try:
            if self._writer.closed:
                return None
            # Outputs are not known yet; about as much as the inputs is the best guess there is.
            if not self._owner.predict(2 * measure(given)):
                return None
            captured = capture(given)
            self._write("inputs", captured)
            return captured
        except Exception as error:
            self._owner.failed_with("save inputs", error)
            return None

    def _after(self, before: CapturedValues, outputs: object, given: Sequence[object]) -> None:
        try:
            flat = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
            self._write("outputs", capture_after(before, flat, given, donated=self._donated))
        except Exception as error:
            self._owner.failed_with("save outputs", error)

    def _write(self, stem: Kind, captured: CapturedValues) -> None:
        values, records = to_bytes(captured)
        where = msgspec.structs.replace(self._where, phase="run", step=0)
        for suffix, data in (("safetensors", values), ("json", records)):
            file = self._writer.write_bytes(f"{self._folder}/{stem}.{suffix}", data)
            if file is not None:
                self._writer.event(where=where, kind=stem, name=f"{stem}.{suffix}", file=file)
