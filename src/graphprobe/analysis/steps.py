"""Finds the step of the compiler that began last and did not end, in a run or a log, and the log's lines on it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from graphprobe.errors import ArtifactNotFoundError, UsageError
from graphprobe.store import layout
from graphprobe.store.files import read_or_refuse
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

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}

LOGGERS = {
    "dynamo": ("torch._dynamo", "torch.fx.experimental"),
    "aot": ("torch._functorch",),
    "inductor": ("torch._inductor",),
    "fx": ("torch.fx",),
}
"""Which loggers of `debug.log` belong to a component, for a run without a file of its own for it."""

_OWN = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) ([A-Z]+) (\S+) (\S+:\d+)\] (?:\[(!?[\d/_-]+)\] )?(.*)", re.S)
_TORCH = re.compile(
    r"(?:\[rank(\d+)\]:)?([VIWEC])(\d{4} \d\d:\d\d:\d\d)\.(\d{6}) (\d+) (\S+):(\d+)\]"
    r"(?: \[(!?[\d/_-]+)\])?(?: \[__(\w+)\])? ?(.*)",
    re.S,
)
_LETTERS = {"V": "debug", "I": "info", "W": "warning", "E": "error", "C": "critical"}

_STEP = re.compile(r"\bStep \d+: (.*)")
_SIGNS = (
    ("dynamo", "trace", r"torchdynamo start tracing (.+)"),
    ("backend", "compile", r"calling compiler function (.+)"),
    ("inductor", "compile", r"torchinductor compiling (.+)"),
    ("dynamo", None, r"torchdynamo done tracing"),
    ("backend", None, r"done compiler function"),
    ("inductor", None, r"torchinductor done compiling"),
)
"""Component, name of the step that begins, None where it ends, and what the log says."""

_OVER = ("Restarting analysis due to", "produce_guards", "put_code_state", "run_gc_after_compile")
_EXIT = ("TorchDynamo attempted to trace the following frames", "TorchDynamo compilation metrics")
_DYNAMO_FAILED = re.compile(r"torch[./]_dynamo[./](exc\.|convert_frame|symbolic_convert|output_graph)")


class LogRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record; `text` may have several lines.

    Attributes:
        line: number of its first line, from 1.
        text: the message, without what stands before it.
        raw: as it stands in the file.
        level: `debug` to `critical`, None for text that is no log line.
        logger: the logger, or of torch's format the source file.
        time_ns: wall clock; a log of torch says no year, so only differences mean something. None without a time.
        process: rank and process id, as far as the line says.
        compile_id: torch's id of the compile, with `_N` behind it for another attempt.
        artifact: of torch's format, the artifact.
    """

    line: int
    text: str
    raw: str
    level: str | None = None
    logger: str | None = None
    time_ns: int | None = None
    process: str = ""
    compile_id: str | None = None
    artifact: str | None = None


def records_from_text(text: str) -> list[LogRecord]:
    """The records of a log; lines that begin none belong to the one before, or are a record of their own."""
    found: list[LogRecord] = []
    for number, line in enumerate(text.splitlines(), start=1):
        record = _begun(number, line)
        before = found[-1] if found else None
        if record is None and before is not None and (before.level is None or _OWN.match(before.raw)):
            found[-1] = msgspec.structs.replace(before, text=f"{before.text}\n{line}", raw=f"{before.raw}\n{line}")
        else:
            found.append(record or LogRecord(number, line, line))
    return found


def records_from_file(path: Path, *, below: Path | None = None) -> list[LogRecord]:
    """The records of a log; raises UsageError where it cannot be read, or is a link that leads out of `below`."""
    return records_from_text(read_or_refuse(path, UsageError, below=below).decode("utf-8", "replace"))


def component_records(run: Run, component: str | None) -> list[LogRecord]:
    """The records of one component of a run, from its file or else from `debug.log`; of all for None.

    Raises:
        UsageError: the run has no such log; the message lists those it has.
    """
    if component is not None:
        path = run.tool_dir / layout.log_file(component)
        if path.is_file():
            return records_from_file(path, below=run.tool_dir)
        if component not in LOGGERS:
            known = sorted({*LOGGERS, *(path.stem for path in (run.tool_dir / layout.LOGS).glob("*.log"))})
            raise UsageError(
                f"the run has no log {component!r}",
                hint=f"it has {', '.join(known)}; graphprobe run --logs +NAME collects another",
            )
    main = run.tool_dir / layout.LOG
    records = records_from_file(main, below=run.tool_dir) if main.exists() else []
    return [record for record in records if component is None or _is_of(record, component)]


def text_records(records: Iterable[LogRecord], component: str) -> list[LogRecord]:
    """The records of one component or artifact in a log of torch."""
    return [
        record
        for record in records
        if record.artifact == component or (record.artifact is None and _is_of(record, component))
    ]


def at_least(records: Iterable[LogRecord], level: str) -> Iterator[LogRecord]:
    """Those of `level` or worse; text that is no log line is none."""
    return (record for record in records if record.level and LEVELS.get(record.level, 0) >= LEVELS[level])


def _begun(number: int, line: str) -> LogRecord | None:
    own = _OWN.fullmatch(line)
    if own is not None:
        when, level, logger, _, compile_id, text = own.groups()
        moment = datetime.strptime(when, "%Y-%m-%d %H:%M:%S,%f").timestamp()
        return LogRecord(number, text, line, level.lower(), logger, int(moment * 1e9), "", compile_id)
    theirs = _TORCH.fullmatch(line)
    if theirs is None:
        return None
    rank, letter, when, micro, pid, file, _, compile_id, artifact, text = theirs.groups()
    try:
        # A leap year, so that the 29th of February is a day.
        moment = datetime.strptime(f"2000{when}", "%Y%m%d %H:%M:%S").timestamp()
    except ValueError:
        return None
    process = f"rank {rank}, process {pid}" if rank is not None else f"process {pid}"
    time_ns = int(moment) * 10**9 + int(micro) * 1000
    return LogRecord(number, text, line, _LETTERS[letter], file, time_ns, process, compile_id, artifact)


def _is_of(record: LogRecord, component: str) -> bool:
    """Whether its logger, or its file, is one of the component's."""
    name = f".{(record.logger or '').removesuffix('.py').replace('/', '.')}."
    return any(f".{family}." in name for family in LOGGERS.get(component, (component,)))


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
    model = None if step.model is None else layout.model_folder(step.model)
    compiled = None if step.compile_id is None else f"compile {step.compile_id}"
    inside = ", ".join(filter(None, (" ".join(filter(None, (model, step.direction))), compiled)))
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

    def close(self, record: LogRecord) -> None:
        self.record = msgspec.structs.replace(self.record, end_ns=record.time_ns or self.record.begin_ns or 1)


class _Process:
    """The steps of one process, among those of all."""

    def __init__(self, name: str, thread: int, all_: list[_Open]) -> None:
        self.name, self.thread, self._all = name, thread, all_

    def begin(self, component: str, name: str, detail: str, record: LogRecord) -> None:
        if component == "dynamo":
            self.imply(None, record)  # Dynamo traces one function at a time
        where = (detail, None, None, record.compile_id, self.thread, record.time_ns or 0)
        self._all.append(_Open(StepRecord(len(self._all), component, name, *where)))

    def end(self, component: str, record: LogRecord) -> None:
        """The innermost open step of the component, and what is inside it."""
        open_ = self.open()
        places = [at for at, one in enumerate(open_) if one.record.component == component]
        for one in open_[places[-1] :] if places else ():
            one.close(record)

    def imply(self, compile_id: str | None, record: LogRecord) -> None:
        """Tracing is over, unless a backend is at work inside it; torch says so only where a function returns."""
        open_ = self.open()
        if compile_id is not None:
            open_ = [
                one for one in open_[-1:] if (one.record.component, one.record.compile_id) == ("dynamo", compile_id)
            ]
        for one in open_:
            one.implied = True
            one.close(record)

    def dynamo_failed(self) -> None:
        """A traceback out of Dynamo: what seemed over was left by an exception."""
        last = next((one for one in reversed(self._all) if one.record.thread == self.thread), None)
        if last is not None and last.implied and last.record.component == "dynamo":
            last.record = msgspec.structs.replace(last.record, end_ns=None)
            last.failed = True

    def leave_tracing(self, record: LogRecord) -> None:
        """The program ends in good order; what a backend has open is left open, for an exception may have done it."""
        open_ = self.open()
        if open_ and open_[-1].record.component == "dynamo" and not open_[-1].failed:
            self.imply(open_[-1].record.compile_id, record)

    def open(self) -> list[_Open]:
        return [one for one in self._all if one.record.thread == self.thread and one.record.end_ns is None]

    def follow(self, record: LogRecord) -> None:
        """What the record says of a step."""
        said = _STEP.search(record.text)
        if said is None:
            if record.text.startswith(_OVER) and record.compile_id is not None:
                self.imply(record.compile_id, record)
            elif record.text.startswith(_EXIT):
                self.leave_tracing(record)
            return
        for component, name, pattern in _SIGNS:
            match = re.match(pattern, said[1])
            if match and name is not None:
                self.begin(component, name, match[1], record)
            elif match:
                self.end(component, record)


def report_from_records(records: Sequence[LogRecord]) -> StepReport:
    """What the `Step` lines of a log say; several processes in one log are told apart by their ids."""
    processes: dict[str, _Process] = {}
    steps: list[_Open] = []
    current: _Process | None = None
    for record in records:
        if record.level is not None or _STEP.search(record.text):
            current = processes.setdefault(record.process, _Process(record.process, len(processes), steps))
            current.follow(record)
        elif current is not None and _DYNAMO_FAILED.search(record.text):
            current.dynamo_failed()
    times = [record.time_ns for record in records if record.time_ns is not None]
    report = StepReport(end_ns=max(times, default=None), end_is="last line")
    conclude(report, [one.record for one in steps])
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
