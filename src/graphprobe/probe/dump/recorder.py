"""The observer that writes: values or statistics of the ops that the plan selects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from graphprobe.dump_plan import Chosen, DumpPlan, ModelEntry, OpChooser
from graphprobe.probe.dump.memo import StatsMemo
from graphprobe.probe.dump.model import DumpGraph, DumpModel
from graphprobe.probe.dump.ops import GraphOp, OpExecution, Values
from graphprobe.probe.dump.running import GraphCall, place_of
from graphprobe.probe.dump.tensors import dump_value, is_tensor, stream_of
from graphprobe.store.dump_pool import CopyPool
from graphprobe.store.dump_records import Argument, DumpValue, Place, Side
from graphprobe.store.dump_slots import argument_from_value
from graphprobe.store.dump_writer import QUEUE_BYTES, DumpWriter

_WHOLE = Chosen(matches=(), blacklists=((),))
"""An op that is dumped because another one is, or because the program marked it."""


class Recorder:
    """Writes what the ops that the plan selects read and wrote. Implements `OpObserver`."""

    def __init__(self, plan: DumpPlan, writer: Callable[[], DumpWriter]) -> None:
        """`writer` gives the writer of this process."""
        self._plan = plan
        self._writer = writer
        self._stats = plan.data == "stats"
        self._pool = CopyPool(QUEUE_BYTES)
        self._choosers: dict[tuple[ModelEntry, ...], OpChooser] = {}
        self._models: dict[DumpModel, int] = {}
        self._chosen: dict[DumpGraph, list[Chosen | None]] = {}
        self._whole: set[DumpGraph] = set()
        self._due = False
        self._lock = threading.Lock()

    # -- OpObserver ---------------------------------------------------------------------------------------------------

    def wants(self, graph: DumpGraph) -> frozenset[int]:
        entries = self._plan.entries_for(*graph.model.names)
        with self._lock:
            self._models.setdefault(graph.model, 0)
            chosen = self._choose(entries, graph.ops)
            self._models[graph.model] += sum(found is not None for found in chosen)
            self._chosen[graph] = chosen
            if None not in chosen:
                self._whole.add(graph)
        return frozenset(index for index, found in enumerate(chosen) if found is not None)

    def due(self, graph: DumpGraph, step: int) -> bool:
        due = self._plan.due(step)
        self._due = self._due or due
        return due and self._writer().accepts

    def before(self, execution: OpExecution) -> None:
        if self._plan.mode != "output":
            execution.state[self] = self._kept(execution, "input", execution.inputs)

    def after(self, execution: OpExecution) -> None:
        memo = self._memo(execution)
        if memo is not None:
            changed = [value for slot, value in execution.inputs if slot in execution.op.traits.mutates]
            memo.written([*changed, *(value for _, value in execution.outputs or ())])
        values, arguments = execution.state.pop(self, ([], []))
        # An op of data has nothing but its value; it is there in every mode.
        if self._plan.mode != "input" or execution.op.data:
            written, rest = self._kept(execution, "output", execution.outputs or ())
            values, arguments = values + written, arguments + rest
        self._writer().submit(
            execution.op.info,
            self._place(execution.call),
            values,
            arguments=arguments,
            notes=execution.op.notes,
            stream_id=self._stream(execution),
        )

    def raised(self, execution: OpExecution, error: BaseException) -> None:
        """What an op that raised has read is the exception scene's."""

    def call_ends(self, call: GraphCall, error: BaseException | None) -> None:
        pass

    def close(self) -> list[str]:
        """Why there is less than was asked for: names that mean nothing, steps that never came."""
        plan = self._plan
        found = [line for chooser in self._choosers.values() for line in chooser.complaints()]
        names = tuple(dict.fromkeys(name for model in self._models for name in model.names))
        if not self._models:
            return ["nothing was dumped: no model was compiled with this backend", *found]
        for entry in plan.unmatched_models(names):
            found.append(f"{entry.where}: no model is named {entry.model_name!r}; there were {_listed(names)}")
        called = [model for model in self._models if model.called]
        if not called:
            found.append("nothing was dumped: no model that was compiled has run")
        elif plan.steps is not None and not self._due:
            steps = max(model.counter.steps for model in called)
            found.append(f"nothing was dumped: dump_step selects none of the steps 0 to {steps - 1}, which were all")
        elif not any(self._models.values()):
            found.append("nothing was dumped: no op is selected in any graph")
        return found

    # -- inside -------------------------------------------------------------------------------------------------------

    def _choose(self, entries: tuple[ModelEntry, ...], ops: Sequence[GraphOp]) -> list[Chosen | None]:
        scoped = any(op.scoped for op in ops)
        if not entries and not scoped:
            return [None] * len(ops)
        if scoped and not self._plan.narrowed:
            chosen: list[Chosen | None] = [None] * len(ops)  # the marks select, where nothing else does
        else:
            chooser = self._choosers.setdefault(entries, OpChooser(entries))
            chosen = chooser.choose([op.facts for op in ops])
        for op in ops:
            if op.scoped and chosen[op.index] is None:
                chosen[op.index] = _WHOLE
        feeding = {index for op in ops if chosen[op.index] is not None for index in op.reads_data}
        return [_WHOLE if found is None and index in feeding else found for index, found in enumerate(chosen)]

    def _kept(self, execution: OpExecution, side: Side, slots: Values) -> tuple[list[DumpValue], list[Argument]]:
        """The tensors and the other arguments of one side, without what the plan leaves out."""
        chosen = self._chosen[execution.graph][execution.op.index] or _WHOLE
        narrowed = any(chosen.blacklists)
        memo = self._memo(execution)
        values, arguments = [], []
        for name, value in slots:
            if narrowed and not chosen.keeps(side, _position(name)):
                continue
            if not is_tensor(value):
                arguments.append(argument_from_value(name, value))
            elif memo is not None:
                make = partial(dump_value, name, side, value, stats=True, pool=self._pool)
                values.append(memo.value(name, side, value, make))
            else:
                values.append(dump_value(name, side, value, stats=self._stats, pool=self._pool))
        return values, arguments

    def _memo(self, execution: OpExecution) -> StatsMemo | None:
        """What is known of the values of this call; None where writes of ops that are not dumped would be missed."""
        if not self._stats or execution.graph not in self._whole:
            return None
        found: StatsMemo = execution.call.state.setdefault(self, StatsMemo())
        return found

    def _place(self, call: GraphCall) -> Place:
        return place_of(call, by_step=self._plan.steps is not None)

    def _stream(self, execution: OpExecution) -> int:
        tensor = next((v for _, v in (*(execution.outputs or ()), *execution.inputs) if is_tensor(v)), None)
        return 0 if tensor is None else stream_of(tensor)


def _position(slot: str) -> int | None:
    """The number of an input or output by its slot: 2 of `input.2.1`; None of a keyword argument."""
    side, _, rest = slot.partition(".")
    number = rest.partition(".")[0]
    return int(number) if side in ("input", "output") and number.isdecimal() else None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
