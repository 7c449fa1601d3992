"""What torch knows of the compile under way, and of all compiles of the process: guards, times, graph breaks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from graphprobe.internals.dynamo.frame_names import calling_line
from graphprobe.internals.names import require

PURPOSE = "explaining a compile"

GENERATOR = "Attempt to trace generator"
"""What Dynamo says of each generator that it is called with."""


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


def graphs_made() -> int:
    """Graphs that Dynamo has made by now, over the whole process."""
    counters = require("torch._dynamo.utils", "counters", purpose=PURPOSE)
    return int(counters["stats"]["unique_graphs"])


def given_up() -> dict[str, int]:
    """What Dynamo gave up a whole function for by now, over the whole process, by reason.

    Generators are left out: Dynamo meets them in DistributedDataParallel, too, where it does not even try the module.
    """
    counters = require("torch._dynamo.utils", "counters", purpose=PURPOSE)
    reasons = counters.get("unimplemented", {}).items()
    return {str(reason): int(count) for reason, count in reasons if not str(reason).startswith(GENERATOR)}


def graph_breaks() -> dict[str, int]:
    """Graph breaks by now, over the whole process, by reason: also those before which there was no graph."""
    counters = require("torch._dynamo.utils", "counters", purpose=PURPOSE)
    return {str(reason): int(count) for reason, count in counters.get("graph_break", {}).items()}


def calls_of(gm: Any) -> Iterator[Any]:
    """The nodes of an FX graph that call something, those of a nested graph where it is first named."""
    seen: set[str] = set()
    for node in gm.graph.nodes:
        if node.op in ("call_function", "call_method", "call_module"):
            yield node
        elif node.op == "get_attr" and node.target not in seen:
            seen.add(node.target)
            child = getattr(gm, node.target, None)
            if hasattr(child, "graph"):
                yield from calls_of(child)


def begins_at(calls: Iterable[Any]) -> str | None:
    """`file:line in function` of the first of a graph's calls; of a graph that torch's code alone has made, the line of
    the program that calls it, which is asked for while Dynamo compiles."""
    made = next(filter(None, map(place_of, calls)), None)
    if made is not None:
        return made
    caller = calling_line(sys._getframe(1))
    return None if caller is None else str(caller)


def on_cpu(gm: Any) -> bool:
    """Whether all the tensors that a graph of Dynamo's names are on the CPU."""
    values = [node.meta.get("example_value", node.meta.get("val")) for node in gm.graph.nodes]
    devices = {value.device.type for value in values if hasattr(value, "device")}
    return bool(devices) and devices == {"cpu"}


def place_of(node: Any) -> str | None:
    """`file:line in function` of the program's innermost line that made the node, None when it is not known."""
    trace = (getattr(node, "stack_trace", None) or "").splitlines()
    lines = [line.strip() for line in trace if line.strip().startswith("File ")]
    if not lines:
        return None
    return lines[-1].removeprefix("File ").replace('"', "").replace(", line ", ":").replace(", in ", " in ")
