"""The Chrome trace format, which Perfetto opens: its events, with times in microseconds, and the whole document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    """Gives a process or a thread of the trace its name; `what` is `process_name` or `thread_name`."""
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def lasting(
    name: str, category: str, begin_us: float, for_us: float, *, pid: int, tid: int, args: Mapping[str, Any]
) -> dict[str, Any]:
    """What took time; those of one thread lie inside each other."""
    at = {"ts": begin_us, "dur": for_us, "pid": pid, "tid": tid}
    return {"name": name, "cat": category, "ph": "X", **at, "args": dict(args)}


def instant(
    name: str, category: str, at_us: float, *, pid: int, tid: int, args: Mapping[str, Any], scope: str = "t"
) -> dict[str, Any]:
    """What happened at one moment; `scope` is how far its line is drawn: `t`, the thread, or `p`, the process."""
    at = {"ts": at_us, "pid": pid, "tid": tid}
    return {"name": name, "cat": category, "ph": "i", "s": scope, **at, "args": dict(args)}


def known(**args: Any) -> dict[str, Any]:
    """Those arguments that say anything."""
    return {name: value for name, value in args.items() if value not in (None, "", [])}


def document(events: Iterable[Mapping[str, Any]], other: Mapping[str, Any], *, unit: str = "ms") -> dict[str, Any]:
    """The whole trace; `other` is what is not an event, and `unit` the one that viewers show times in."""
    return {"traceEvents": list(events), "displayTimeUnit": unit, "otherData": dict(other)}
