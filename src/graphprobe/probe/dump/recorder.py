"""Writes values or statistics of the ops that the plan selects; unchanged memory is computed once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import torch

from graphprobe.dump_plan import Chosen, DumpPlan, ModelEntry, OpChooser
from graphprobe.engine.tensor_stats import Forms, TensorForm, meta_of, stats_in_memory
from graphprobe.internals.tensors import PLAIN_TYPES, is_plain
from graphprobe.probe.dump.running import (
    DumpGraph,
    DumpModel,
    GraphCall,
    GraphOp,
    OpExecution,
    OpObserver,
    Values,
    why_no_call,
)
from graphprobe.probe.dump.single_ops import MODEL
from graphprobe.probe.dump.tensors import dump_value, live_stats, scalar_of, stream_of
from graphprobe.records import TensorMeta, TensorStats
from graphprobe.store.calls import WrittenSlot
from graphprobe.store.dump_format import OpForm
from graphprobe.store.dump_records import Data, Place, Side
from graphprobe.store.dump_writer import DumpWriter

_forms = Forms()

Stats = TensorStats | Callable[[], TensorStats]

OP_SWITCH = "dump_op_switch"
"""Who asked for the entry that stands for ops outside compiled graphs."""

_WHOLE = Chosen(blacklists=((),))
"""An op that is dumped because another one is, or because the program marked it."""


class StatsMemo:
    """The statistics of one call of a graph, by the memory they are of. For one thread.

    Good only for one who is told of every op of the graph. What overwrites memory without being declared to, it does
    not see; the values themselves, and the watch mode, show that.
    """

    def __init__(self) -> None:
        # By storage; then by address, dtype and number of items of what lies there without gaps, else by address and
        # form or meta, which is held so that no other one gets its id. A kind stands for its dtype.
        self._known: dict[int, dict[tuple[Any, ...], tuple[Stats, TensorForm | TensorMeta]]] = {}

    def written(self, values: Iterable[Any]) -> None:
        """These tensors have been, or may have been, written to: what is known of their memory no longer holds."""
        known = self._known
        for value in values:
            memory = _memory(value) if known else None
            if memory is not None:
                known.pop(memory, None)

    def look(self, tensor: torch.Tensor) -> tuple[TensorMeta, Stats]:
        """What a tensor is, and its statistics. Raises as `live_stats` does."""
        form = _forms.of(tensor) if is_plain(tensor) else None
        if form is None or form.kind is None:
            meta = meta_of(tensor)
            return meta, self._elsewhere(tensor, meta)
        kind = form.kind
        address = tensor.data_ptr()
        memory = address - int(tensor.storage_offset()) * kind[2]
        known = self._known.get(memory)
        if known is None:
            known = self._known[memory] = {}
        # Statistics and digests see the items in row-major order: the shape of contiguous ones makes no difference.
        key = (address, kind, form.count) if form.strides is None else (address, id(form))
        found = known.get(key)
        if found is None:
            stats = stats_in_memory(address, kind, form.items, form.strides, form.count)
            found = known[key] = (stats, form)
        return form.meta, found[0]

    def _elsewhere(self, tensor: torch.Tensor, meta: TensorMeta) -> Stats:
        """Of what is no plain tensor on the CPU; lazy views, which show other values than lie there, anew each time."""
        memory = _memory(tensor)
        if memory is None or tensor.is_neg() or tensor.is_conj():
            return live_stats(tensor)
        known = self._known.setdefault(memory, {})
        key = (tensor.data_ptr(), id(meta))
        if key not in known:
            known[key] = (live_stats(tensor), meta)
        return known[key][0]


def _memory(value: Any) -> int | None:
    """Address of the storage; None of what has none, or is empty."""
    if is_plain(value):
        return int(value.data_ptr() - value.storage_offset() * value.itemsize)
    if type(value) not in PLAIN_TYPES or value.layout is not torch.strided or value.is_meta:
        return None
    return int(value.untyped_storage().data_ptr()) or None


class _Kept:
    """What is kept of one execution: the tensors, and the arguments that are none."""

    __slots__ = ("data", "has_data", "scalars", "slots", "stats")

    def __init__(self) -> None:
        self.slots: list[str | TensorMeta] = []
        """Of each tensor its name, its side and its meta, one after the other."""
        self.data: list[Data | None] = []
        self.stats: list[Stats | None] = []
        self.scalars: list[WrittenSlot] = []
        self.has_data = False

    def add(self, name: str, side: Side, meta: TensorMeta, data: Data | None, stats: Stats | None) -> None:
        self.slots += (name, side, meta)
        self.data.append(data)
        self.stats.append(stats)
        self.has_data = self.has_data or data is not None


class _Selection:
    """Which ops of a graph are kept, and the form that each had when it ran last."""

    def __init__(self, chosen: list[Chosen | None]) -> None:
        self.chosen = chosen
        self.narrowed = [found if found is not None and any(found.blacklists) else None for found in chosen]
        """Of each op what it is chosen by, where that leaves out some of its inputs or outputs."""
        self._last: list[tuple[list[str | TensorMeta], list[WrittenSlot], OpForm] | None] = [None] * len(chosen)

    def form(self, op: GraphOp, kept: _Kept) -> OpForm:
        """The form of an execution: the last one, while nothing but values has changed."""
        last = self._last[op.index]
        if last is not None and last[0] == kept.slots and last[1] == kept.scalars:
            return last[2]
        parts: Any = kept.slots
        slots = [WrittenSlot(*part) for part in zip(parts[::3], parts[1::3], parts[2::3], strict=True)]
        form = OpForm(op.info, [*slots, *kept.scalars], op.notes)
        self._last[op.index] = (kept.slots, kept.scalars, form)
        return form


class _Call(NamedTuple):
    """What is the same for all ops of one call of a graph."""

    selection: _Selection
    place: Place
    memo: StatsMemo | None
    writer: DumpWriter


class OpRecorder(OpObserver):
    """Writes what the ops that the plan selects read and wrote.

    Where nothing else selects ops, marks of `scope.data_dump` do, for the whole dump: once a graph with a mark was
    compiled, graphs without one are not dumped any more, whichever came first.
    """

    def __init__(self, plan: DumpPlan, writer: Callable[[], DumpWriter]) -> None:
        """`writer` gives the writer of this process."""
        if plan.single_ops and not plan.entries_for(MODEL):  # they are those of a model; without an entry, all of it
            plan = msgspec.structs.replace(plan, models=(*plan.models, ModelEntry(MODEL, where=OP_SWITCH)))
        self._plan = plan
        self._writer = writer
        self._marked: set[DumpGraph] = set()
        self._stats = plan.data == "stats"
        self._choosers: dict[tuple[ModelEntry, ...], OpChooser] = {}
        self._models: dict[DumpModel, int] = {}
        self._graphs: dict[DumpGraph, _Selection] = {}
        self._due = False
        self._lock = threading.Lock()

    def wants(self, graph: DumpGraph) -> frozenset[int]:
        entries = self._plan.entries_for(*graph.model.names)
        if any(op.scoped for op in graph.ops):
            self._marked.add(graph)
        with self._lock:
            self._models.setdefault(graph.model, 0)
            if self._left_out(graph):
                return frozenset()
            chosen = self._choose(entries, graph.ops)
            self._models[graph.model] += sum(found is not None for found in chosen)
            self._graphs[graph] = _Selection(chosen)
        return frozenset(index for index, found in enumerate(chosen) if found is not None)

    def due(self, graph: DumpGraph, step: int) -> bool:
        if self._left_out(graph):
            return False
        due = self._plan.due(step)
        self._due = self._due or due
        return due and self._writer().accepts

    def before(self, execution: OpExecution) -> None:
        if self._plan.mode != "output" and execution.inputs:
            kept = execution.state[self] = _Kept()
            self._keep(self._call(execution.call), kept, execution, "input", execution.inputs)

    def after(self, execution: OpExecution) -> None:
        call, op = self._call(execution.call), execution.op
        if call.memo is not None and not op.data:
            if op.traits.mutates:
                call.memo.written([value for slot, value in execution.inputs if op.traits.may_write(slot)])
            call.memo.written([value for _, value in execution.outputs or ()])
        kept = execution.state.pop(self, None) or _Kept()
        # An op of data has nothing but its value; it is there in every mode.
        if self._plan.mode != "input" or op.data:
            self._keep(call, kept, execution, "output", execution.outputs or ())
        call.writer.submit_form(
            call.selection.form(op, kept),
            call.place,
            data=tuple(kept.data) if kept.has_data else (),
            stats=tuple(kept.stats),
            stream_id=_stream(kept, execution),
        )

    def call_ends(self, call: GraphCall, error: BaseException | None) -> None:
        if self in call.state:
            self._call(call).writer.drain()

    def close(self) -> list[str]:
        """Why there is less than was asked for: names that mean nothing, steps that never came."""
        plan = self._plan
        found = [line for chooser in self._choosers.values() for line in chooser.complaints()]
        names = tuple(dict.fromkeys(name for model in self._models for name in model.names))
        for entry in plan.unmatched_models(names) if self._models else ():
            if entry.where != OP_SWITCH:
                found.append(f"{entry.where}: no model is named {entry.model_name!r}; there were {_listed(names)}")
        if self._due or (plan.single_ops and not self._models):  # the watch of single ops has its own words
            return found
        selected = [model for model, count in self._models.items() if count]
        if selected or not any(model.called for model in self._models):
            why = why_no_call(plan, selected or self._models)
        elif any(chooser.left_out for chooser in self._choosers.values()):
            why = "blacklists leave out every op that is selected"
        else:
            why = "no op is selected in any graph"
        return [*found, f"nothing was dumped: {why}"]

    def _left_out(self, graph: DumpGraph) -> bool:
        return bool(self._marked) and not self._plan.narrowed and graph not in self._marked

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

    def _keep(self, call: _Call, kept: _Kept, execution: OpExecution, side: Side, slots: Values) -> None:
        """Add the tensors and the other arguments of one side, without what the plan leaves out."""
        narrowed = call.selection.narrowed[execution.op.index]
        memo = call.memo
        for name, value in slots:
            if narrowed is not None and not narrowed.keeps(side, _position(name)):
                continue
            if not isinstance(value, torch.Tensor):
                kept.scalars.append(WrittenSlot(name, side, scalar=scalar_of(value)))
                continue
            if memo is not None:
                try:
                    meta, stats = memo.look(value)
                except Exception:  # `dump_value` meets it again, and makes a gap of it
                    pass
                else:
                    kept.add(name, side, meta, None, stats)
                    continue
            kept.add(*dump_value(name, side, value, stats=self._stats, pool=call.writer.pool))

    def _call(self, call: GraphCall) -> _Call:
        """What is the same for all ops of a call."""
        found = call.state.get(self)
        if found is None:
            selection = self._graphs[call.graph]
            # Writes of ops that are not dumped would be missed.
            memo = StatsMemo() if self._stats and None not in selection.chosen else None
            found = call.state[self] = _Call(selection, call.place, memo, self._writer())
        return found


def _stream(kept: _Kept, execution: OpExecution) -> int:
    """The stream of the first tensor; it is not looked for where all that was kept is on the CPU."""
    if all(meta.device == "cpu" for meta in kept.slots[2::3]):  # type: ignore[union-attr]
        return 0
    tensor = next((v for _, v in (*(execution.outputs or ()), *execution.inputs) if isinstance(v, torch.Tensor)), None)
    return 0 if tensor is None else stream_of(tensor)


def _position(slot: str) -> int | None:
    """The number of an input or output by its slot: 2 of `input.2.1`; None of a keyword argument."""
    side, _, rest = slot.partition(".")
    number = rest.partition(".")[0]
    return int(number) if side in ("input", "output") and number.isdecimal() else None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
