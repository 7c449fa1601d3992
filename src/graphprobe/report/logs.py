"""What `graphprobe logs` says: the last step that did not end, and the lines around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from graphprobe.analysis.log_lines import LogRecord
from graphprobe.analysis.steps import StepReport, described
from graphprobe.store.steps import StepRecord


def step_lines(report: StepReport) -> Iterator[str]:
    """The conclusion in words."""
    ended = {"finished": "the program has finished", "failed": "the program was ended by an exception"}
    state = {"killed": "the process was killed or crashed", "running": "the process is running"} | ended
    if report.state is not None:
        yield f"{state[report.state]}; {report.steps} steps began"
    if report.open:
        yield f"last step begun and not ended: {described(report.open[-1])}"
        yield from _when(report, report.open[-1])
        for outer in reversed(report.open[:-1]):
            yield f"  inside: {described(outer)}"
        for other in report.elsewhere:
            yield f"  open in another thread: {described(other)}"
    elif report.failed is not None:
        yield f"last step that the exception left: {described(report.failed)}"
        yield f"  {report.failed.error}"
        yield from _when(report, report.failed)
    elif report.last is not None:
        yield "no step is open: every step that began has ended"
        yield f"  the last to end: {described(report.last)}"
        if report.state == "killed":
            yield "  so it was in code that is not watched: the program's own, or a compiled graph after its first call"
    yield from (f"note: {note}" for note in report.notes)


def log_lines(records: Iterable[LogRecord]) -> Iterator[str]:
    """The records as they stand in the file, line by line."""
    for record in records:
        yield from record.raw.split("\n")


def document(report: StepReport, records: Iterable[LogRecord], *, source: str, component: str | None) -> dict[str, Any]:
    """The same as JSON: times in nanoseconds since the epoch (of torch's format, only differences mean something)."""
    return {
        "source": source,
        "state": report.state,
        "open": [_step(report, step) for step in report.open],
        "elsewhere": [_step(report, step) for step in report.elsewhere],
        "failed": None if report.failed is None else _step(report, report.failed),
        "last_ended": None if report.last is None else _step(report, report.last),
        "steps": report.steps,
        "end_ns": report.end_ns,
        "end_is": report.end_is,
        "notes": report.notes,
        "component": component,
        "lines": [msgspec.to_builtins(record) for record in records],
    }


def _step(report: StepReport, step: StepRecord) -> dict[str, Any]:
    return {**msgspec.to_builtins(step), "text": described(step), "before_end_s": report.before_end_s(step)}


def _when(report: StepReport, step: StepRecord) -> Iterator[str]:
    before = report.before_end_s(step)
    if before is None:
        return
    what = {"now": f"begun {before:.1f} s ago", "end": f"begun {before:.1f} s before the end of the program"}
    yield "  " + what.get(report.end_is, f"begun {before:.1f} s before the {report.end_is}")
