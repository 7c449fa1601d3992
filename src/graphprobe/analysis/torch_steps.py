"""The steps that a plain log of torch tells of: its `Step N` lines, and signs that a step without an end is over."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from graphprobe.analysis.log_lines import LogRecord
from graphprobe.analysis.steps import StepReport, conclude
from graphprobe.store.steps import StepRecord

_STEP = re.compile(r"\bStep \d+: (.*)")
_BEGINS = (
    ("dynamo", "trace", re.compile(r"torchdynamo start tracing (.+)")),
    ("backend", "compile", re.compile(r"calling compiler function (.+)")),
    ("inductor", "compile", re.compile(r"torchinductor compiling (.+)")),
)
_ENDS = (
    ("dynamo", re.compile(r"torchdynamo done tracing")),
    ("backend", re.compile(r"done compiler function")),
    ("inductor", re.compile(r"torchinductor done compiling")),
)
_OVER = ("Restarting analysis due to", "produce_guards", "put_code_state", "run_gc_after_compile")
_EXIT = ("TorchDynamo attempted to trace the following frames", "TorchDynamo compilation metrics")
_DYNAMO_FAILED = re.compile(r"torch[./]_dynamo[./](exc\.|convert_frame|symbolic_convert|output_graph)")


class _Open(msgspec.Struct):
    record: StepRecord
    implied: bool = False
    """Ended by a sign, not by its own line."""
    failed: bool = False
    """A traceback speaks of it."""


class _Process:
    """The steps of one process, in order."""

    def __init__(self, name: str, thread: int) -> None:
        self.name, self.thread = name, thread
        self.all: list[_Open] = []

    def begin(self, step: int, component: str, name: str, detail: str, record: LogRecord) -> None:
        if component == "dynamo":
            self.imply(None, record)  # Dynamo traces one function at a time
        begun = StepRecord(
            step, component, name, detail, None, None, record.compile_id, self.thread, record.time_ns or 0
        )
        self.all.append(_Open(begun))

    def end(self, component: str, record: LogRecord) -> None:
        """The innermost open step of the component, and what is inside it."""
        open_ = self.open()
        for at in range(len(open_) - 1, -1, -1):
            if open_[at].record.component == component:
                for one in open_[at:]:
                    self._close(one, record)
                return

    def imply(self, compile_id: str | None, record: LogRecord) -> None:
        """Tracing is over, unless a backend is at work inside it; torch says so only where a function returns."""
        open_ = self.open()
        if open_ and (compile_id is None or open_[-1].record.compile_id == compile_id):
            innermost = open_[-1]
            if innermost.record.component == "dynamo" or compile_id is None:
                innermost.implied = True
                self._close(innermost, record)
                if compile_id is None:
                    self.imply(None, record)

    def dynamo_failed(self) -> None:
        """A traceback out of Dynamo: what seemed over was left by an exception."""
        last = self.all[-1] if self.all else None
        if last is not None and last.implied and last.record.component == "dynamo":
            last.record = msgspec.structs.replace(last.record, end_ns=None)
            last.failed = True

    def leave_tracing(self, record: LogRecord) -> None:
        """The program ends in good order; what a backend has open is left open, for an exception may have done it."""
        open_ = self.open()
        if open_ and open_[-1].record.component == "dynamo" and not open_[-1].failed:
            self.imply(open_[-1].record.compile_id, record)

    def open(self) -> list[_Open]:
        return [one for one in self.all if one.record.end_ns is None]

    def _close(self, one: _Open, record: LogRecord) -> None:
        one.record = msgspec.structs.replace(one.record, end_ns=record.time_ns or one.record.begin_ns or 1)


def report_from_records(records: Sequence[LogRecord]) -> StepReport:
    """What the `Step` lines of a log say; several processes in one log are told apart by their ids."""
    processes: dict[str, _Process] = {}
    count = 0
    current: _Process | None = None
    for record in records:
        if record.level is None and not _STEP.search(record.text):
            if current is not None and _DYNAMO_FAILED.search(record.text):
                current.dynamo_failed()
            continue
        current = processes.setdefault(record.process, _Process(record.process, len(processes)))
        count += _take(current, record, count)
    times = [record.time_ns for record in records if record.time_ns is not None]
    steps = [one.record for process in processes.values() for one in process.all]
    report = StepReport(end_ns=max(times, default=None), end_is="last line")
    conclude(report, sorted(steps, key=lambda step: step.step))
    if not steps:
        report.notes.append(
            "no `Step` line is in it: they are written at the level INFO, e.g. TORCH_LOGS=dynamo,aot,inductor"
        )
    if len(processes) > 1:
        names = {process.thread: process.name or "unnamed" for process in processes.values()}
        report.notes.append(f"lines of {len(processes)} processes: {', '.join(names.values())}")
        if report.open:
            report.notes.append(f"the open step is that of {names[report.open[-1].thread or 0]}")
    return report


def _take(process: _Process, record: LogRecord, count: int) -> int:
    """Follow one record; 1 where a step began."""
    said = _STEP.search(record.text)
    text = said[1] if said else record.text
    if said:
        for component, name, pattern in _BEGINS:
            match = pattern.match(text)
            if match:
                process.begin(count, component, name, match[1].partition("\n")[0], record)
                return 1
        for component, pattern in _ENDS:
            if pattern.match(text):
                process.end(component, record)
        return 0
    if text.startswith(_OVER) and record.compile_id is not None:
        process.imply(record.compile_id, record)
    elif text.startswith(_EXIT):
        process.leave_tracing(record)
    return 0
