"""Finds the step of the compiler that began last and did not end, in a run or in a plain log of torch."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import msgspec

from graphprobe.analysis.log_lines import LogRecord
from graphprobe.errors import ArtifactNotFoundError
from graphprobe.store import layout
from graphprobe.store.reader import Run, State
from graphprobe.store.step_file import StepRecord, read_steps

COMPONENTS = {
    "dynamo": "Dynamo",
    "backend": "the backend",
    "aot": "AOTAutograd",
    "inductor": "Inductor",
    "run": "the compiled code",
}
"""What `StepRecord.component` stands for."""

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


class StepReport(msgspec.Struct, kw_only=True):
    """What the steps say.

    Attributes:
        state: of the run; None for a plain log, which does not say how its program ended.
        open: steps that began and did not end, the outermost first; the last one is where the program was.
        elsewhere: the same of other threads.
        failed: the step that was left by the exception with which the program ended.
        last: the step that ended last, where none is open.
        steps: how many began.
        end_ns: when the program ended, or gave its last sign of life; wall clock, None where the log has no times.
        end_is: what `end_ns` is: `end`, `last sign of life`, `now`, or `last line`.
        notes: what could not be read, and what to know about the answer.
    """

    state: State | None = None
    open: list[StepRecord] = []
    elsewhere: list[StepRecord] = []
    failed: StepRecord | None = None
    last: StepRecord | None = None
    steps: int = 0
    end_ns: int | None = None
    end_is: str = "end"
    notes: list[str] = []

    @property
    def culprit(self) -> StepRecord | None:
        """The step to look at: the innermost open one, else the failed one."""
        return self.open[-1] if self.open else self.failed

    @property
    def found(self) -> bool:
        """Whether a step was not ended though the program is over."""
        return self.culprit is not None and self.state != "running"

    def before_end_s(self, step: StepRecord) -> float | None:
        """How long before the end the step began, seconds; None without times."""
        if self.end_ns is None or not step.begin_ns:
            return None
        return max(0.0, (self.end_ns - step.begin_ns) / 1e9)


def report_from_run(run: Run, *, now_ns: int | None = None) -> StepReport:
    """What the steps of a run say; `now_ns` is the wall clock, for a run that goes on."""
    state = run.state
    report = StepReport(state=state)
    try:
        steps = read_steps(run)
    except ArtifactNotFoundError as error:
        if run.manifest.models:
            report.notes.append(f"{error}: {error.hint}")
        steps = []
    report.end_ns, report.end_is = _end(run, state, now_ns)
    conclude(report, steps)
    if state == "failed" and not report.open:
        report.failed = _left_by(steps, run.manifest.exception or "")
    # Logs and steps are lost alike when the disk is full.
    report.notes += [f"missing: {entry}" for entry in run.manifest.missing if "log piece" in entry]
    report.notes += run.problems
    return report


def conclude(report: StepReport, steps: Sequence[StepRecord]) -> None:
    """Fill in `open`, `elsewhere`, `last` and `steps`."""
    report.steps = len(steps)
    open_ = [step for step in steps if step.end_ns is None]
    if open_:
        thread = open_[-1].thread
        report.open = [step for step in open_ if step.thread == thread]
        report.elsewhere = [step for step in open_ if step.thread != thread]
    ended = [step for step in steps if step.end_ns is not None]
    # Of several that end together the outermost: it says most.
    report.last = max(ended, key=lambda step: (step.end_ns or 0, -step.step), default=None)


def described(step: StepRecord) -> str:
    """`Inductor: compile C++ /tmp/…/x.so (model__0 forward, compile 0/0)`."""
    where = [] if step.model is None else [layout.model_folder(step.model)]
    if step.direction is not None:
        where.append(step.direction)
    inside = " ".join(where)
    if step.compile_id is not None:
        inside = f"{inside}, compile {step.compile_id}" if inside else f"compile {step.compile_id}"
    detail = f" {step.detail}" if step.detail else ""
    return f"{COMPONENTS.get(step.component, step.component)}: {step.name}{detail}{f' ({inside})' if inside else ''}"


def _end(run: Run, state: State, now_ns: int | None) -> tuple[int, str]:
    if run.manifest.ended_ns is not None:
        return run.manifest.ended_ns, "end"
    if state == "running":
        return time.time_ns() if now_ns is None else now_ns, "now"
    latest = run.manifest.started_ns
    for path in (*run.tool_dir.glob("*"), *(run.tool_dir / layout.LOGS).glob("*")):
        try:
            latest = max(latest, path.stat().st_mtime_ns)
        except OSError:
            continue
    return latest, "last sign of life"


def _left_by(steps: Sequence[StepRecord], exception: str) -> StepRecord | None:
    """The innermost step that the program's last exception left; torch wraps errors, and quotes what it wraps."""
    failed = [step for step in steps if step.error is not None]
    if not failed:
        return None
    latest = max(failed, key=lambda step: (step.end_ns or 0, step.step))
    last = max(step.begin_ns for step in steps)
    # Several steps are left one after the other, from the inside outwards; nothing begins in between.
    group = [step for step in failed if (step.end_ns or 0) >= last]
    kind = (latest.error or "").partition(":")[0]
    if not group or not any((step.error or "").partition(":")[0] in exception for step in group) or not kind:
        return None
    return max(group, key=lambda step: step.step)


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
