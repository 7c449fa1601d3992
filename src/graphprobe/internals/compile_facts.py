"""What torch knows of the compile under way, and of all compiles of the process: guards, times, graph breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphprobe.internals.require import require

PURPOSE = "explaining a compile"


def guard_reader() -> Callable[[], list[dict[str, Any]]]:
    """Reads the guards that the compile under way on this thread has by now; call the reader once it has ended.

    Only then do guards have their code. Guards that torch adds after the backend has returned are not among them.
    """
    tracing = require("torch._guards", "TracingContext", purpose=PURPOSE).try_get()
    guards = getattr(getattr(tracing, "guards_context", None), "dynamo_guards", None)
    kept = sorted(guards or ())  # torch empties its own set at the end of the compile
    return lambda: [_describe(guard) for guard in kept]


def _describe(guard: Any) -> dict[str, Any]:
    stack = getattr(guard, "user_stack", None)
    kind = guard.create_fn_name() if hasattr(guard, "create_fn_name") else None
    return {
        "source": str(guard.name() if callable(guard.name) else guard.name),
        "kind": None if kind is None else str(kind),
        "code": [str(code) for code in guard.code_list or ()],
        "where": f"{stack[-1].filename}:{stack[-1].lineno}" if stack else None,
    }


def compile_times_s() -> dict[str, float]:
    """Seconds spent by now in each phase of compiling, over the whole process."""
    compile_times = require("torch._dynamo.utils", "compile_times", purpose=PURPOSE)
    names, seconds = compile_times(repr="csv", aggregate=True)
    return {str(name): float(value) for name, value in zip(names, seconds, strict=True)}


def graph_breaks() -> dict[str, int]:
    """Graph breaks by now, over the whole process, by reason: also those before which there was no graph."""
    counters = require("torch._dynamo.utils", "counters", purpose=PURPOSE)
    return {str(reason): int(count) for reason, count in counters.get("graph_break", {}).items()}
