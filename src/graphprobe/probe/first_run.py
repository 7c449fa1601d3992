"""The first call of a compiled graph as a step, and each launch in it as a step inside that."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from graphprobe.internals.launches.launches import Launching, LaunchTap
from graphprobe.internals.unseen import unseen
from graphprobe.probe.steps import StepLog
from graphprobe.records import Where

COMPONENT = "run"


def first_run(
    compiled: Callable[..., Any],
    finished: Callable[[], None],
    module: tuple[ModuleType, str] | None,
    steps: StepLog,
    where: Where,
    failed: Callable[[str, BaseException], None],
) -> Callable[..., Any]:
    """`compiled`, its first call watched.

    Args:
        compiled: Inductor's callable for one graph.
        finished: called when the first call has ended, however it did: `compiled` itself can take over.
        module: the generated module and its code, whose launches are told too; None to leave them alone.
        failed: gets what our own part raised.
    """
    first = threading.Lock()

    def begin(name: str, detail: str) -> int | None:
        try:
            facts = {"model": where.model, "direction": where.direction, "compile_id": where.compile_id}
            return steps.begin(COMPONENT, name, detail, **facts)  # type: ignore[arg-type]
        except Exception as error:
            failed("step of a launch", error)
            return None

    def around(launching: Launching) -> Any:
        step = begin("launch", f"{launching.name} (output_code.py:{launching.line})")
        try:
            result = launching.run()
        except BaseException as error:
            steps.end(step, error)
            raise
        steps.end(step)
        return result

    def run(*args: Any, **kwargs: Any) -> Any:
        if not first.acquire(blocking=False):
            with unseen:
                return compiled(*args, **kwargs)
        tap = None if module is None else LaunchTap(*module, around=around)
        step = begin("first call", "of the compiled graph")
        try:
            with unseen, contextlib.nullcontext() if tap is None else tap.recording():
                result = compiled(*args, **kwargs)
        except BaseException as error:
            steps.end(step, error)
            raise
        else:
            steps.end(step)
            return result
        finally:
            finished()

    run.__dict__.update(getattr(compiled, "__dict__", {}))
    return run
