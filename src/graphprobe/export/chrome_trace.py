"""Chrome traces of a run, of the ops of a dump or of a profile, for ui.perfetto.dev and chrome://tracing.

In the trace of a run each model is a process, so that a viewer gives it a track of its own. Below it each thread that
worked on it has a row, with the steps of the compiler inside each other, and the launches of each direction have one.
Times are in microseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from graphprobe.analysis.recompiles import function_name
from graphprobe.analysis.steps import COMPONENTS
from graphprobe.analysis.timing import Profile, Span
from graphprobe.errors import ArtifactNotFoundError
from graphprobe.records import Event
from graphprobe.store import layout
from graphprobe.store.dump_reader import GraphCalls
from graphprobe.store.files import replace_file
from graphprobe.store.reader import Model, Run
from graphprobe.store.schema import UNREADABLE
from graphprobe.store.step_file import StepRecord, read_steps

LAUNCH_ROW = 1
"""Rows of launches come before those of threads, which have the native ids as numbers."""

PROFILED = 1
"""Number of the only process in the trace of a profile."""

FORMAT = "graphprobe export"


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


def export_run(run: Run, file: Path, left_out: list[str]) -> int:
    """Write the trace of a run; returns the number of its events."""
    return _write(file, list(_RunTrace(run, left_out).events()), {"format": FORMAT, "run": run.run_dir.name})


def export_dump(dump: GraphCalls, file: Path) -> int:
    """Write the ops of a graph dump, an instant each: when it was handed in is known, how long it took is not."""
    ops = [(folder, op.record) for folder in dump.folders for op in folder.ops()]
    origin_us = min((record.time_us for _, record in ops), default=0)
    events: list[dict[str, Any]] = []
    named_rows: dict[tuple[int, str], int] = {}
    for folder, record in ops:
        rank = 0 if folder.manifest is None else folder.manifest.rank
        row = f"{record.place.model_name} {record.place.model_id} {record.op.direction or ''}".rstrip()
        if (rank, row) not in named_rows:
            if not any(known_rank == rank for known_rank, _ in named_rows):
                events.append(named("process_name", rank, 0, f"rank {rank}"))
            named_rows[rank, row] = len(named_rows) + 1
            events.append(named("thread_name", rank, named_rows[rank, row], row))
        args = known(
            seq=record.seq,
            target=record.op.target,
            module=record.op.module,
            source=record.op.source,
            fx_nodes=list(record.op.fx_nodes),
            slots=[f"{s.name} {s.meta.dtype}{list(s.meta.shape)}" for s in record.slots if s.meta is not None],
            step=record.place.step,
        )
        at_us, tid = record.time_us - origin_us, named_rows[rank, row]
        events.append(instant(record.op.op_name, record.op.engine, at_us, pid=rank, tid=tid, args=args))
    return _write(file, events, {"format": FORMAT, "time": "when the op was handed to the dump"})


def export_profile(profile: Profile, file: Path) -> int:
    """Write the spans of a profile, a row for each thread; returns how many."""
    names = [named("process_name", PROFILED, 0, profile.program or "graphprobe profile")]
    names += [named("thread_name", PROFILED, tid, name) for tid, name in enumerate(profile.threads)]
    other = {"graphprobe": profile.graphprobe, "torch": profile.torch, "program": profile.program}
    return _write(file, [*names, *map(_span, profile.spans)], other) - len(names)


def _span(span: Span) -> dict[str, Any]:
    name = f"import {span.name}" if span.kind == "import" else span.name
    unfinished = True if span.unfinished else None
    args = known(cpu_ms=span.cpu_ns / 1e6, compile_id=span.compile_id, detail=span.detail, unfinished=unfinished)
    took_us = (span.end_ns - span.begin_ns) / 1e3
    return lasting(name, span.kind, span.begin_ns / 1e3, took_us, pid=PROFILED, tid=span.thread, args=args)


class _Launch(msgspec.Struct):
    """A complete event of `captured_ops.json`, its times in microseconds."""

    ts: float
    dur: float


class _Recorded(msgspec.Struct, rename={"events": "traceEvents"}):
    """`captured_ops.json`."""

    events: list[dict[str, Any]]


class _RunTrace:
    def __init__(self, run: Run, left_out: list[str]) -> None:
        self.run, self.left_out = run, left_out
        self.origin_ns = run.manifest.started_ns
        self.models = run.models()
        try:
            self.steps = read_steps(run)
        except ArtifactNotFoundError as error:
            left_out.append(f"steps: {error}")
            self.steps = []
        self.end_ns = max(
            [run.manifest.ended_ns or 0]
            + [event.time_ns for event in run.events()]
            + [step.end_ns or step.begin_ns for step in self.steps]
        )
        self.passes = self._passes()

    def events(self) -> Iterator[dict[str, Any]]:
        rank = f" rank {self.run.manifest.rank}" if self.run.manifest.world_size > 1 else ""
        yield named("process_name", 0, 0, f"{' '.join(self.run.manifest.argv)}{rank}")
        yield from self._names()
        for step in self.steps:
            yield self._step(step)
        matched = {id(event) for event in self.passes.values()}
        for event in self.run.events():
            if event.kind in ("pass", "failure") and id(event) not in matched:
                yield self._lone_pass(event)
            elif event.kind == "ops":
                yield from self._launches(event)
            elif event.path is not None and event.kind in ("graph", "ir", "code"):
                yield self._instant(event)
            if event.nodes_after is not None and event.where.direction is not None and event.kind in ("graph", "pass"):
                yield self._count(event)

    def _names(self) -> Iterator[dict[str, Any]]:
        for model in self.models:
            pid = _pid(model.number)
            yield named("process_name", pid, 0, _title(model))
            yield {"name": "process_sort_index", "ph": "M", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
        rows = {(self._model_of(step), step.thread or 0) for step in self.steps}
        for model_number, thread in sorted(rows, key=lambda row: (_pid(row[0]), row[1])):
            yield named("thread_name", _pid(model_number), thread, f"compiler, thread {thread}")

    def _step(self, step: StepRecord) -> dict[str, Any]:
        args = known(
            component=COMPONENTS.get(step.component, step.component),
            detail=step.detail,
            direction=step.direction,
            compile_id=step.compile_id,
            error=step.error,
            unfinished=True if step.end_ns is None else None,
        )
        event = self.passes.get(step.step)
        if event is not None:
            args |= _pass_args(event)
        took_us = max(0, (step.end_ns or self.end_ns) - step.begin_ns) / 1e3
        pid, tid = _pid(self._model_of(step)), step.thread or 0
        return lasting(step.name, step.component, self._us(step.begin_ns), took_us, pid=pid, tid=tid, args=args)

    def _lone_pass(self, event: Event) -> dict[str, Any]:
        """A pass that no step of the compiler stands for, such as one given to `observe_pass`."""
        name, took_ns = event.where.pass_name or event.name, event.elapsed_ns or 0
        args = _pass_args(event) | known(message=event.message)
        begin_us, pid = self._us(event.time_ns - took_ns), _pid(event.where.model)
        return lasting(name, event.kind, begin_us, took_ns / 1e3, pid=pid, tid=0, args=args)

    def _instant(self, event: Event) -> dict[str, Any]:
        args = known(path=event.path, bytes=event.size_bytes, nodes=event.nodes_after)
        pid = _pid(event.where.model)
        return instant(event.name, event.kind, self._us(event.time_ns), pid=pid, tid=0, args=args, scope="p")

    def _count(self, event: Event) -> dict[str, Any]:
        return {
            "name": f"nodes {event.where.direction}{'@' + event.where.subgraph if event.where.subgraph else ''}",
            "ph": "C",
            "ts": self._us(event.time_ns),
            "pid": _pid(event.where.model),
            "args": {"nodes": event.nodes_after},
        }

    def _launches(self, event: Event) -> Iterator[dict[str, Any]]:
        """What `captured_ops.json` has; its times count from the first launch, and it is written after the last."""
        try:
            recorded = msgspec.json.decode(self.run.content(event), type=_Recorded).events
            complete = [(one, msgspec.convert(one, _Launch)) for one in recorded if one.get("ph") == "X"]
        except (ArtifactNotFoundError, *UNREADABLE) as error:
            self.left_out.append(f"{event.path}: {error}")
            return
        length_us = max((launch.ts + launch.dur for _, launch in complete), default=0.0)
        pid, row = _pid(event.where.model), LAUNCH_ROW + (event.where.direction == "backward")
        yield named("thread_name", pid, row, f"launches of {event.where.direction}, call {event.where.step or 0}")
        begin_us = self._us(event.time_ns) - length_us
        for one, launch in complete:
            yield one | {"ts": begin_us + launch.ts, "pid": pid, "tid": row}

    def _passes(self) -> dict[int, Event]:
        """By step, the event of the pass that it was: both are told in the order in which passes end."""
        events: dict[tuple[object, ...], list[Event]] = defaultdict(list)
        for event in self.run.events():
            if event.kind in ("pass", "failure"):
                where = event.where
                events[where.model, where.direction, where.pass_name or event.name].append(event)
        ended = sorted((step for step in self.steps if step.end_ns is not None), key=lambda step: step.end_ns or 0)
        found: dict[int, Event] = {}
        for step in ended:
            waiting = events.get((step.model, step.direction, step.name))
            if waiting:
                found[step.step] = waiting.pop(0)
        return found

    def _model_of(self, step: StepRecord) -> int | None:
        """Of a step before its model has a number, the next model of its compile id."""
        if step.model is not None or step.compile_id is None:
            return step.model
        same = [m for m in self.models if m.compile_id == step.compile_id]
        later = [m for m in same if m.events and m.events[0].time_ns >= step.begin_ns]
        return next(iter([*later, *same[-1:]])).number if same else None

    def _us(self, time_ns: int) -> float:
        return (time_ns - self.origin_ns) / 1e3


def _pass_args(event: Event) -> dict[str, Any]:
    return known(
        changed=event.changed,
        nodes_before=event.nodes_before,
        nodes_after=event.nodes_after,
        added=len(event.added),
        removed=len(event.removed),
        path=event.path,
        subsystem=event.subsystem,
    )


def _pid(model: int | None) -> int:
    """Process 0 is for what belongs to no model."""
    return 0 if model is None else model + 1


def _title(model: Model) -> str:
    function = function_name(str(model.compile.get("function") or ""))
    place = f"{model.compile.get('file')}:{model.compile.get('line')}" if function else ""
    compiled = f"compile {model.compile_id}" if model.compile_id else ""
    return "  ".join(part for part in (layout.model_folder(model.number), function, place, compiled) if part)


def _write(file: Path, events: Iterable[dict[str, Any]], other: dict[str, Any]) -> int:
    trace = document(events, other)
    replace_file(file, msgspec.json.encode(trace) + b"\n")
    return len(trace["traceEvents"])
