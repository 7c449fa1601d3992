"""A profile as a Chrome trace, for chrome://tracing and ui.perfetto.dev."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from graphprobe.analysis.timing_records import Profile, Span

PID = 1


def trace_from(profile: Profile) -> dict[str, Any]:
    """The document of the Trace Event Format: complete events (`ph: X`), times in microseconds.

    Each thread is a row. Spans of one thread nest, so that viewers draw them below each other.
    """
    events: list[dict[str, Any]] = [_meta("process_name", 0, profile.program or "graphprobe profile")]
    events += [_meta("thread_name", tid, name) for tid, name in enumerate(profile.threads)]
    events += [_event(span) for span in profile.spans]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"graphprobe": profile.graphprobe, "torch": profile.torch, "program": profile.program},
    }


def write_trace(profile: Profile, path: str | Path) -> None:
    """Write the trace as JSON; whatever lies at `path` is replaced."""
    Path(path).write_bytes(msgspec.json.encode(trace_from(profile)) + b"\n")


def _meta(name: str, tid: int, value: str) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": PID, "tid": tid, "args": {"name": value}}


def _event(span: Span) -> dict[str, Any]:
    args: dict[str, Any] = {"cpu_ms": span.cpu_ns / 1e6}
    if span.compile_id is not None:
        args["compile_id"] = span.compile_id
    if span.detail:
        args["detail"] = span.detail
    if span.unfinished:
        args["unfinished"] = True
    return {
        "name": f"import {span.name}" if span.kind == "import" else span.name,
        "cat": span.kind,
        "ph": "X",
        "ts": span.begin_ns / 1e3,
        "dur": (span.end_ns - span.begin_ns) / 1e3,
        "pid": PID,
        "tid": span.thread,
        "args": args,
    }
