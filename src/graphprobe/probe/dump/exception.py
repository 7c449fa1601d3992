"""The observer of exceptions: keeps what the op that failed has read, and the traceback. The error goes on as it is."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphprobe.dump_plan import DumpPlan
from graphprobe.internals.quiet import quiet
from graphprobe.probe.dump.running import GraphCall, GraphOp, OpExecution
from graphprobe.probe.dump.side_files import FindingObserver, described, facts_of_op
from graphprobe.probe.dump.tensors import is_tensor
from graphprobe.store.dump_records import Side
from graphprobe.store.dump_writer import DumpWriter

DOCUMENT = "exception.json"
MAX_TRACEBACK = 64 * 1024
"""Characters of a traceback that are kept, the last ones."""
_OWN = str(Path(__file__).parents[2])


class ExceptionObserver(FindingObserver):
    """On an exception out of an op, dumps its inputs and the traceback."""

    kind, happened = "exception", "raised"

    def __init__(self, plan: DumpPlan, writer: Callable[[], DumpWriter]) -> None:
        super().__init__(plan, writer)
        self._last: dict[GraphCall, GraphOp] = {}
        self._told: dict[GraphCall, int] = {}

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
        path = self.document(self.place(call), DOCUMENT, document)
        self.finding(text, model=call.graph.model.name, step=call.step, document=path, **facts)


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
