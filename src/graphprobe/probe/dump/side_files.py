"""What observers that look for something share, findings, documents and ops as entries; and the one of exceptions."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from graphprobe.dump_plan import DumpPlan
from graphprobe.probe.dump.running import DumpGraph, DumpModel, GraphCall, GraphOp, OpExecution, OpObserver, why_no_call
from graphprobe.probe.dump.tensors import dump_value, is_tensor, scalar_of
from graphprobe.store import dump_records
from graphprobe.store.calls import WrittenSlot
from graphprobe.store.dump_reader import FINDINGS
from graphprobe.store.dump_records import Place, Side
from graphprobe.store.dump_writer import DumpWriter
from graphprobe.store.files import replace_file
from graphprobe.store.manifest import AppendFile

logger = logging.getLogger("graphprobe")

MOST_FINDINGS = 1000
"""Findings of one kind that are written; what comes after is counted."""

DOCUMENT = "exception.json"
MAX_TRACEBACK = 64 * 1024
"""Characters of a traceback that are kept, the last ones."""
_OWN = str(Path(__file__).parents[2])


class FindingObserver(OpObserver):
    """Told of the ops that compute, and writes what it finds; `kind` goes into every finding.

    Nothing is written once the dump has stopped, e.g. because its budget was reached.
    """

    kind: ClassVar[str]
    happened: ClassVar[str] = ""
    """What no op has done where nothing is found."""

    def __init__(self, plan: DumpPlan, writer: Callable[[], DumpWriter]) -> None:
        self._plan = plan
        self._writer = writer
        self._models: set[DumpModel] = set()
        self._seen = 0
        self._count = 0
        self._said: set[object] = set()
        self._telling = threading.Lock()

    def wants(self, graph: DumpGraph) -> frozenset[int]:
        self._models.add(graph.model)
        return frozenset(op.index for op in graph.ops if not op.data)

    def due(self, graph: DumpGraph, step: int) -> bool:
        return self._plan.due(step) and self._writer().accepts

    def raised(self, execution: OpExecution, error: BaseException) -> None:
        execution.state.pop(self, None)

    def close(self) -> list[str]:
        if not self._seen:
            return [f"no {self.kind} was looked for: {why_no_call(self._plan, self._models)}"]
        if self._count:
            return [f"{self.kind}s found: {self._count}, see findings.jsonl"]
        return [f"nothing was dumped: no op {self.happened} in {self._seen} call{'s' * (self._seen != 1)} of graphs"]

    def entry(
        self,
        call: GraphCall,
        op: GraphOp,
        slots: Iterable[tuple[str, Side, Any]],
        *notes: str,
        time_ns: int | None = None,
    ) -> tuple[int | None, str]:
        """Dump an op as any other, with what lies in its slots. Returns its number and its file in the time folder."""
        writer, stats = self._writer(), self._plan.data == "stats"
        values, scalars = [], []
        for slot, side, value in slots:
            if is_tensor(value):
                values.append(dump_value(slot, side, value, stats=stats, pool=writer.pool))
            else:
                scalars.append(WrittenSlot(slot, side, scalar=scalar_of(value)))
        place, time_ns = call.place, time_ns or time.time_ns()
        seq = writer.submit(op.info, place, values, scalars=scalars, notes=(*op.notes, *notes), time_ns=time_ns)
        if seq is None:
            return None, ""
        name = dump_records.op_file(op.info.op_type, op.info.op_name, seq, time_ns // 1000)
        return seq, f"{dump_records.data_folder(place)}/{dump_records.STATS if stats else name}"

    def finding(self, text: str, *, same: object = None, **facts: Any) -> None:
        """Append a finding, and say it in the log; of those that are the `same`, the first only."""
        with self._telling:
            self._count += 1
            said, self._said = same in self._said, self._said | {same}
            if same is None or not said:
                logger.warning("dump: %s", text)
            writer = self._writer()
            if self._count > MOST_FINDINGS:
                writer.missing(f"more than {MOST_FINDINGS} findings of kind {self.kind}", noun="finding")
            elif writer.accepts:
                line = {"kind": self.kind, "text": text, **facts}
                with contextlib.closing(AppendFile(writer.time_dir / FINDINGS)) as file:
                    file.append(msgspec.json.encode(line) + b"\n")

    def document(self, place: Place, name: str, data: bytes | object) -> str:
        """Write a file into the folder of a call, over one of that name. Returns its path in the time folder."""
        path = f"{dump_records.data_folder(place)}/{name}"
        writer = self._writer()
        if writer.accepts:
            whole = writer.time_dir / path
            whole.parent.mkdir(parents=True, exist_ok=True)
            text = data if isinstance(data, bytes) else msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n"
            replace_file(whole, text)
        return path


def described(op: GraphOp) -> str:
    """An op in words: name, operator, line of the program, module."""
    info = op.info
    parts = [info.target or info.op_type]
    if len(info.fx_nodes) > 1:
        parts.append(f"nodes {', '.join(info.fx_nodes[:6])}{', …' if len(info.fx_nodes) > 6 else ''}")
    if info.module:
        parts.append(f"module {info.module}")
    if info.source:
        parts.append(f"at {info.source}")
    if op.facts.modules and not info.module:
        parts.append(f"reads {', '.join(op.facts.modules[:3])}")
    return f"{info.op_name} ({'; '.join(parts)})"


def facts_of_op(op: GraphOp) -> dict[str, Any]:
    """An op as a document has it."""
    info = op.info
    return {
        "op": info.op_name,
        "op_type": info.op_type,
        "target": info.target,
        "fx_nodes": list(info.fx_nodes),
        "direction": info.direction,
        "source": info.source,
        "sources": [f"{file}:{line}" for file, line in op.facts.sources],
        "module": info.module,
        "modules": list(op.facts.modules),
        "engine": info.engine,
        "perturbs": info.perturbs,
    }


class ExceptionObserver(FindingObserver):
    """On an exception out of an op, dumps its inputs and the traceback."""

    kind, happened = "exception", "raised"

    def __init__(self, plan: DumpPlan, writer: Callable[[], DumpWriter]) -> None:
        super().__init__(plan, writer)
        self._last: dict[GraphCall, GraphOp] = {}
        self._told: dict[GraphCall, int] = {}

    def before(self, execution: OpExecution) -> None:
        """Copies of what the op may write into: it may have begun to when it fails."""
        if execution.op.traits.mutates:
            execution.state[self] = execution.written()

    def after(self, execution: OpExecution) -> None:
        execution.state.pop(self, None)
        self._last[execution.call] = execution.op

    def raised(self, execution: OpExecution, error: BaseException) -> None:
        call, op = execution.call, execution.op
        self._told[call] = id(error)
        kept = execution.state.pop(self, {})
        text = f"{described(op)} raised {_one_line(error)} in step {call.step}, {call.graph.direction}"
        copied = [f"{slot} is a copy from before the op" for slot in kept]
        slots: list[tuple[str, Side, Any]] = [(slot, "input", kept.get(slot, live)) for slot, live in execution.inputs]
        file = self.entry(call, op, slots, f"exception: {_one_line(error)}", *copied)[1]
        self._write(call, text, error, {**facts_of_op(op), "file": file})

    def call_ends(self, call: GraphCall, error: BaseException | None) -> None:
        self._seen += 1
        told, last = self._told.pop(call, None), self._last.pop(call, None)
        if error is None or told == id(error):
            return
        after = f"after {described(last)}" if last is not None else "before its first op"
        text = f"{call.graph} raised {_one_line(error)} outside of its ops, {after}, in step {call.step}"
        self._write(call, text, error, {"op": None, "after": last.info.op_name if last is not None else None})

    def _write(self, call: GraphCall, text: str, error: BaseException, facts: dict[str, Any]) -> None:
        """Nothing of the error is kept but text: it would keep the program's frames alive."""
        trace = "".join(traceback.format_exception(error))[-MAX_TRACEBACK:]
        callers = [entry for entry in traceback.extract_stack() if not entry.filename.startswith(_OWN)]
        document = {
            "model": call.graph.model.name,
            "step": call.step,
            "direction": call.graph.direction,
            **facts,
            "error": f"{type(error).__module__}.{type(error).__qualname__}",
            "message": str(error),
            "traceback": trace,
            "callers": "".join(traceback.format_list(callers))[-MAX_TRACEBACK:],
        }
        path = self.document(call.place, DOCUMENT, document)
        self.finding(text, model=call.graph.model.name, step=call.step, document=path, **facts)


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
