"""Which step of the compiler began last and did not end: of a run, and of a plain log that torch wrote."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from graphprobe.errors import ArtifactNotFoundError
from graphprobe.store import layout
from graphprobe.store.reader import Run, State
from graphprobe.store.steps import StepRecord, read_steps

COMPONENTS = {
    "dynamo": "Dynamo",
    "backend": "the backend",
    "aot": "AOTAutograd",
    "inductor": "Inductor",
    "run": "the compiled code",
}
"""What `StepRecord.component` stands for."""


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
