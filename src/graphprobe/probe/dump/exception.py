"""The observer of exceptions: keeps what the op that failed has read, and the traceback. The error goes on as it is."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphprobe.dump_plan import DumpPlan
from graphprobe.internals.quiet import quiet
from graphprobe.probe.dump.running import DumpGraph, DumpModel, GraphCall, GraphOp, OpExecution, why_no_call
from graphprobe.probe.dump.side_files import SideFiles, described, facts_of_op
from graphprobe.probe.dump.tensors import dump_value, is_tensor
from graphprobe.store import dump_records
from graphprobe.store.dump_queue import CopyPool
from graphprobe.store.dump_records import argument_from_value
from graphprobe.store.dump_writer import QUEUE_BYTES, DumpWriter

DOCUMENT = "exception.json"
MAX_TRACEBACK = 64 * 1024
"""Characters of a traceback that are kept, the last ones."""
_OWN = str(Path(__file__).parents[2])


class ExceptionObserver:
    """On an exception out of an op, dumps its inputs and the traceback. Implements `OpObserver`."""

    def __init__(self, plan: DumpPlan, writer: Callable[[], DumpWriter]) -> None:
        self._plan = plan
        self._writer = writer
        self._files = SideFiles(plan, writer, "exception")
        self._pool = CopyPool(QUEUE_BYTES)
        self._last: dict[GraphCall, GraphOp] = {}
        self._told: dict[GraphCall, int] = {}
        self._models: set[DumpModel] = set()
        self._seen = 0

    def wants(self, graph: DumpGraph) -> frozenset[int]:
        self._models.add(graph.model)
        return frozenset(op.index for op in graph.ops if not op.data)

    def due(self, graph: DumpGraph, step: int) -> bool:
        return self._plan.due(step) and self._writer().accepts

    def before(self, execution: OpExecution) -> None:
        """Copies of what the op may write into: it may have begun to when it fails."""
        written = [(slot, value) for slot, value in execution.inputs if execution.op.traits.may_write(slot)]
        if written:
            with quiet():
                execution.state[self] = {slot: value.clone() for slot, value in written if is_tensor(value)}

    def after(self, execution: OpExecution) -> None:
        execution.state.pop(self, None)
        self._last[execution.call] = execution.op

    def raised(self, execution: OpExecution, error: BaseException) -> None:
        call, op = execution.call, execution.op
        self._told[call] = id(error)
        kept = execution.state.pop(self, {})
        text = f"{described(op)} raised {_one_line(error)} in step {call.step}, {call.graph.direction}"
        notes = (
            *op.notes,
            f"exception: {_one_line(error)}",
            *(f"{slot} is a copy from before the op" for slot in kept),
        )
        values, arguments = [], []
        for slot, live in execution.inputs:
            value = kept.get(slot, live)
            if is_tensor(value):
                stats = self._plan.data == "stats"
                values.append(dump_value(slot, "input", value, stats=stats, pool=self._pool))
            else:
                arguments.append(argument_from_value(slot, value))
        place, time_ns, writer = self._files.place(call), time.time_ns(), self._writer()
        seq = writer.submit(op.info, place, values, arguments=arguments, notes=notes, time_ns=time_ns)
        file = ""
        if seq is not None:
            name = dump_records.op_file(op.info.op_type, op.info.op_name, seq, time_ns // 1000)
            file = f"{dump_records.data_folder(place)}/{dump_records.STATS if self._plan.data == 'stats' else name}"
        self._write(call, text, error, {**facts_of_op(op), "file": file})

    def call_ends(self, call: GraphCall, error: BaseException | None) -> None:
        self._seen += 1
        told, last = self._told.pop(call, None), self._last.pop(call, None)
        if error is None or told == id(error):
            return
        after = f"after {described(last)}" if last is not None else "before its first op"
        text = f"{call.graph} raised {_one_line(error)} outside of its ops, {after}, in step {call.step}"
        self._write(call, text, error, {"op": None, "after": last.info.op_name if last is not None else None})

    def close(self) -> list[str]:
        if not self._seen:
            return [f"no exception was looked for: {why_no_call(self._plan, self._models)}"]
        if self._files.count:
            return [f"exceptions found: {self._files.count}, see findings.jsonl"]
        return [f"nothing was dumped: no op raised in {self._seen} calls of graphs"]

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
        path = self._files.document(self._files.place(call), DOCUMENT, document)
        self._files.finding(text, model=call.graph.model.name, step=call.step, document=path, **facts)


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
