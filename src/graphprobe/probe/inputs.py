"""Watches the first calls of a compiled graph, and keeps what it was given and returned, so that artifacts replay."""

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


class FirstCalls:
    """Watches calls of a compiled graph until it is `done`, one at a time: those of other threads run as ever."""

    def __init__(self) -> None:
        self.done = False
        self._watching = threading.Lock()

    def wrap(self, compiled: Callable[..., Any], finished: Callable[[], None] = lambda: None) -> Callable[..., Any]:
        """`compiled`, watched; `finished` is called once there is nothing more to learn."""

        @functools.wraps(compiled)
        def run(*args: Any, **kwargs: Any) -> Any:
            def go() -> Any:
                with unseen:
                    return compiled(*args, **kwargs)

            with unseen:
                if self.done or not self._watching.acquire(blocking=False):
                    return go()
                try:
                    return self.watch(go, args)
                finally:
                    self._watching.release()
                    if self.done:
                        finished()

        return run

    def watch(self, run: Callable[[], Any], args: tuple[Any, ...]) -> Any:
        """Run the graph, and return what it returns; its exceptions go on to the program."""
        raise NotImplementedError


class InputSaver(FirstCalls):
    """Saves the first call of one compiled graph: `inputs.*` before it, `outputs.*` after it, in the graph's folder."""

    def __init__(self, owner: Owner, where: Where, *, boxed: bool, donated: Sequence[int] = ()) -> None:
        """`boxed`: the graph takes one list, which it empties, and no plain arguments. `donated` are inputs that it may
        use up as scratch memory: what is left in them means nothing."""
        super().__init__()
        self._owner, self._writer = owner, owner.writer
        self._where = where
        self._donated = tuple(donated)
        self._boxed = boxed
        self._folder = layout.graph_folder(where)

    def watch(self, run: Callable[[], Any], args: tuple[Any, ...]) -> Any:
        self.done = True
        given = list(args[0]) if self._boxed else list(args)
        before = self._before(given)
        outputs = run()
        if before is not None:
            self._after(before, outputs, given)
        return outputs

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
