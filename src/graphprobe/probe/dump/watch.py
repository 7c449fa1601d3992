"""Observes overwritten memory: after each op, values that other ops wrote must still be where they put them."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from graphprobe.dump_plan import DumpPlan
from graphprobe.engine.tensor_stats import readable, stats_async, stats_of
from graphprobe.errors import UsageError
from graphprobe.internals.quiet import quiet
from graphprobe.internals.tensors import PLAIN_TYPES, WeakMemory, span_of, version_of
from graphprobe.probe.dump.running import DumpGraph, GraphCall, GraphOp, OpExecution, why_no_call
from graphprobe.probe.dump.side_files import FindingObserver, described, facts_of_op
from graphprobe.probe.dump.tensors import is_tensor, leaves, read_back
from graphprobe.select import LayerMatcher
from graphprobe.store.dump_reader import Elements
from graphprobe.store.dump_records import Side
from graphprobe.store.dump_writer import DumpWriter
from graphprobe.store.files import ByteBudget

COPY_BYTES = 256 << 20
"""Copies of watched values; of what is over, digests are kept, which tell that something changed and not where."""


class WatchedValue:
    """An output of an op from when it was written until it is dead. Does not keep the program's memory alive.

    Attributes:
        op: its producer.
        slot, name: which output, and its name in the graph or the code.
        step: when it was written.
        memory, begin, end: address of the storage, and of the bytes it may lie on.
        checked: the last op after which it was intact.
        elements: how many it has.
        where: what is there now, or whether its memory was freed.
    """

    def __init__(self, op: GraphOp, slot: str, name: str, step: int, tensor: torch.Tensor, budget: ByteBudget) -> None:
        """Raises RuntimeError or UsageError for what has no memory to be read."""
        self.op, self.slot, self.name, self.step = op, slot, name, step
        self.memory, self.begin, self.end = span_of(tensor)
        self.checked: GraphOp | None = op
        self.elements = tensor.numel()
        self._budget = budget
        self.where = WeakMemory(tensor)
        self._meta = (tensor.dtype, tuple(tensor.shape))
        self._object: weakref.ref[torch.Tensor] | None = None
        self._version: int | None = None
        self._copied_bytes = 0
        self._copy: torch.Tensor | None = None
        self._keep(readable(tensor))

    def refresh(self) -> None:
        """What lies there now is right: it was written on purpose."""
        self.close()
        now = self.where.tensor()
        if now is not None:
            self._keep(now)

    def hold(self, result: torch.Tensor) -> None:
        """The graph has returned it as `result`: it is watched for as long as its memory lives."""
        self._object = weakref.ref(result)
        self._version = version_of(result)

    def changed_by_program(self) -> bool | None:
        """Whether an operator of the program has changed it in place since `hold`; None when that cannot be told."""
        result = self._object() if self._object is not None else None
        if result is None or self._version is None:
            return None
        now = version_of(result)
        if now == self._version:
            return False
        self._version = now
        return True

    def overlaps(self, memory: int, begin: int, end: int) -> bool:
        """Whether the bytes from `begin` to `end` of a storage may be some of its own."""
        return memory == self.memory and begin < self.end and self.begin < end

    @property
    def before(self) -> torch.Tensor | None:
        """What its producer wrote; None when only a digest was kept."""
        with quiet():
            return None if self._copy is None else self._copy.view(self._meta[0]).reshape(self._meta[1])

    @property
    def on_cpu(self) -> bool:
        """Whether it can be looked at without waiting for a device."""
        return self.where.device.type == "cpu"

    def compare(self) -> Elements | torch.Tensor | None:
        """What has changed, or None. Of what is on a device, numbers for `change_from_row`, without waiting for it."""
        now = self.where.tensor()
        if now is None:
            return None
        with quiet():
            if self._copy is None:
                if self.on_cpu:
                    same = stats_of(now).digest == self._digest
                    return None if same else Elements(None, None, None, self.elements)
                differs = (stats_async(now) != self._digest).any().to(torch.int64)
                return torch.stack([-differs, differs - 1, differs - 1])
            bits = _bytes(now)
            if self.on_cpu and torch.equal(bits, self._copy):
                return None
            row = _row(bits, self._copy, now.element_size())
            return change_from_row(row.tolist(), self.elements) if self.on_cpu else row

    def close(self) -> None:
        """It is watched no longer."""
        self._budget.give_back(self._copied_bytes)
        self._copied_bytes, self._copy = 0, None

    def _keep(self, tensor: torch.Tensor) -> None:
        with quiet():
            size_bytes = tensor.numel() * tensor.element_size()
            self._digest: Any = None
            if self._budget.take(size_bytes):
                self._copied_bytes = size_bytes
                self._copy = _bytes(tensor).clone()
            else:
                self._digest = stats_of(tensor).digest if self.on_cpu else stats_async(tensor)


def change_from_row(row: Sequence[float], elements: int) -> Elements | None:
    """What the numbers of `WatchedValue.compare` say, once they are on the host."""
    count, first, last = map(int, row)
    if not count:
        return None
    return Elements(first, last, count, elements) if count > 0 else Elements(None, None, None, elements)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of the elements in row-major order."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _row(now: torch.Tensor, before: torch.Tensor, item_bytes: int) -> torch.Tensor:
    """How many elements differ, the first and the last of them."""
    differs = (now != before).reshape(-1, item_bytes).any(dim=1)
    where = torch.arange(len(differs), device=differs.device)
    first = torch.where(differs, where, len(differs)).amin()
    last = torch.where(differs, where, -1).amax()
    return torch.stack([differs.sum(), first, last])


class _Chosen(NamedTuple):
    """Of one graph: after which ops is looked, whose outputs are watched, and those that were named one by one.

    `last_read` has the last op that reads a value, by the value's name.
    """

    layers: frozenset[int]
    watched: frozenset[int]
    named: frozenset[int]
    last_read: dict[str, int]


class _Suspicion(NamedTuple):
    """A value that may have changed; `was` is the copy of it."""

    value: WatchedValue
    intact: GraphOp | None
    culprit: GraphOp
    declared: bool
    was: torch.Tensor | None


class _WatchedCall:
    """What is known of a call under way; `given` are the storages of the graph's inputs."""

    def __init__(self) -> None:
        self.values: list[WatchedValue] = []
        self.suspicions: list[tuple[torch.Tensor, _Suspicion]] = []
        """With numbers that are not yet read from a device."""
        self.given: set[int] = set()


class WatchObserver(FindingObserver):
    """Compares watched values after each op with what their producers wrote.

    A value is live until the last op of its graph that reads it has run; one that the graph returns, for as long as the
    program keeps its memory.
    """

    kind = "overwritten"

    def __init__(self, plan: DumpPlan, writer: Callable[[], DumpWriter], *, copy_bytes: int = COPY_BYTES) -> None:
        super().__init__(plan, writer)
        self._matchers = [
            tuple(LayerMatcher(found) if found is not None else None for found in (entry.layers, entry.watcher_nodes))
            for entry in plan.watch
        ]
        self._budget = ByteBudget(copy_bytes)
        self._chosen: dict[DumpGraph, _Chosen] = {}
        self._held: list[WatchedValue] = []
        self._lock = threading.RLock()

    def wants(self, graph: DumpGraph) -> frozenset[int]:
        """All ops: each may end the life of a value, or overwrite what the program holds of an earlier call."""
        facts = [op.facts for op in graph.ops]
        every = frozenset(range(len(facts)))
        layers, watched, named = frozenset[int](), frozenset[int](), frozenset[int]()
        for layer, nodes in self._matchers:
            layers |= every if layer is None else {i for i, found in enumerate(layer.choose(facts)) if found}
            if nodes is None:
                watched |= every
            else:
                named |= {i for i, found in enumerate(nodes.choose(facts)) if found}
        last_read: dict[str, int] = {}
        for op in graph.ops:
            last_read |= dict.fromkeys(op.traits.reads, op.index)
        self._chosen[graph] = _Chosen(layers, watched | named, named, last_read)
        return every

    def due(self, graph: DumpGraph, step: int) -> bool:
        due = super().due(graph, step)
        if due:
            with self._lock:
                self._between_calls(graph, step)
        return due

    def after(self, execution: OpExecution) -> None:
        op, chosen = execution.op, self._chosen[execution.call.graph]
        with self._lock:
            call = execution.call.state.setdefault(self, _WatchedCall())
            if not op.data:
                self._check(execution, call, chosen)
            else:
                call.given |= {memory for memory, _, _ in _spans(v for _, v in execution.outputs or () if is_tensor(v))}
            self._watch_outputs(execution, call, chosen)
            if chosen.named and op.index in (chosen.layers | chosen.named) and not op.data:
                self._dump_named(execution, call, chosen)

    def call_ends(self, call: GraphCall, error: BaseException | None) -> None:
        self._seen += 1
        with self._lock:
            under_way = call.state.pop(self, None)
            if under_way is None:
                return
            self._settle(call, under_way)
            results = [v for _, v in leaves("", call.result) if is_tensor(v)] if error is None else []
            at = {(memory, begin): found for found in results for memory, begin, _ in _spans([found])}
            for value in under_way.values:
                found = at.get((value.memory, value.begin))
                if found is not None and not value.op.data:
                    value.hold(found)
                    self._held.append(value)
                else:
                    value.close()

    def close(self) -> list[str]:
        for value in self._held:
            value.close()
        self._held = []
        found = [
            f"{entry.where}: {text}"
            for entry, matchers in zip(self._plan.watch, self._matchers, strict=True)
            for matcher in matchers
            for text in (matcher.complaints() if matcher is not None else ())
        ]
        chosen = self._chosen.values()
        if chosen and not any(one.watched and one.layers for one in chosen):
            lacking = "watcher_nodes" if not any(one.watched for one in chosen) else "layer"
            return [f"nothing was watched: no op of any graph is in {lacking}", *found]
        if not self._seen:
            models = {graph.model for graph in self._chosen}
            return [f"nothing was watched: {why_no_call(self._plan, models)}", *found]
        if self._count:
            return [f"overwritten values found: {self._count}, see findings.jsonl", *found]
        return [f"no value was overwritten in {self._seen} calls of graphs", *found]

    def _check(self, execution: OpExecution, call: _WatchedCall, chosen: _Chosen) -> None:
        op = execution.op
        written = _written(execution)
        looks = op.index in chosen.layers
        kept = []
        for value in call.values:
            declared = any(value.overlaps(*span) for span in written)
            needed = chosen.last_read.get(value.name, -1) > op.index or value.name in value.op.traits.returns
            superseded = declared and value.name in op.traits.writes.values() and op.info.engine != "interpreter"
            if value.where.gone or superseded or not (needed or (value.op.data and not declared)):
                value.close()
            elif declared and op.info.engine == "interpreter":
                value.refresh()  # the graph says so, and whoever reads it later means what is there then
                kept.append(value)
            elif not looks or not self._differs(execution, call, value, op, declared):
                kept.append(value)
        call.values = kept
        still = []
        for value in self._held:
            if value.where.gone:
                value.close()
            elif value.memory in call.given and any(value.overlaps(*span) for span in written):
                value.close()  # the program has handed it in, to be written to or used up; now it is this call's
            elif not looks or not self._differs(execution, call, value, op, declared=False):
                still.append(value)
        self._held = still

    def _differs(
        self, execution: OpExecution, call: _WatchedCall, value: WatchedValue, op: GraphOp, declared: bool
    ) -> bool:
        """Whether a change was found, which ends the watch. On a device that is known at the end of the call."""
        change = value.compare()
        intact, value.checked = value.checked, op
        if change is None:
            return False
        found = _Suspicion(value, intact, op, declared, value.before)
        if isinstance(change, torch.Tensor):
            call.suspicions.append((change, found))
            return False
        self._report(execution.call, found, change)
        value.close()
        return True

    def _settle(self, graph_call: GraphCall, call: _WatchedCall) -> None:
        """Read back what was found on devices, with one wait; of each value, the first change is told."""
        told: set[int] = set()
        rows = read_back([row for row, _ in call.suspicions])
        for (_, found), row in zip(call.suspicions, rows, strict=True):
            change = change_from_row(row, found.value.elements)
            if change is not None and id(found.value) not in told:
                told.add(id(found.value))
                self._report(graph_call, found, change)
        call.suspicions = []
        for values in (call.values, self._held):
            for value in [value for value in values if id(value) in told]:
                values.remove(value)
                value.close()

    def _between_calls(self, graph: DumpGraph, step: int) -> None:
        """Before a graph runs: what the program holds, against what it was when it got it."""
        still = []
        for value in self._held:
            if value.where.gone:
                value.close()
                continue
            by_program = value.changed_by_program()
            if by_program:
                value.refresh()
                still.append(value)
                continue
            change = value.compare()
            if isinstance(change, torch.Tensor):
                with quiet():
                    change = change_from_row(change.tolist(), value.elements)
            if change is None or by_program is None:
                if change is not None:
                    value.refresh()  # an operator may have done it: nothing tells
                still.append(value)
                continue
            self._report_outside(graph, step, value, change)
            value.close()
        self._held = still

    def _watch_outputs(self, execution: OpExecution, call: _WatchedCall, chosen: _Chosen) -> None:
        op = execution.op
        if op.index not in chosen.watched:
            return
        known = {(value.memory, value.begin, value.name) for value in call.values}
        for slot, tensor in execution.outputs or ():
            if type(tensor) not in PLAIN_TYPES or tensor.layout is not torch.strided or not tensor.numel():
                continue
            name = op.traits.writes.get(slot, op.info.op_name)
            with contextlib.suppress(RuntimeError, UsageError):  # it has no memory of its own
                value = WatchedValue(op, slot, name, execution.call.step, tensor, self._budget)
                if (value.memory, value.begin, value.name) not in known:
                    call.values.append(value)

    def _report(self, call: GraphCall, found: _Suspicion, change: Elements) -> None:
        value, culprit = found.value, found.culprit
        how = (
            "which shares its memory by a wrong reuse" if found.declared else "which does not say that it writes there"
        )
        intact = found.intact.info.op_name if found.intact is not None else ""
        text = (
            f"{_victim(value)} was overwritten by {described(culprit)}, {how}: {_range(change)}, in step {call.step}, "
            f"{call.graph.direction}, between {intact}, after which it was intact, and {culprit.info.op_name}"
        )
        self.finding(
            text,
            same=(culprit, value.op, value.slot),
            model=call.graph.model.name,
            step=call.step,
            culprit=facts_of_op(culprit),
            declared=found.declared,
            intact_after=intact,
            victim=_victim_facts(value),
            elements=change,
            seq=self._evidence(call, found, text),
        )

    def _report_outside(self, graph: DumpGraph, step: int, value: WatchedValue, change: Elements) -> None:
        text = (
            f"{_victim(value)}, which the program still holds, was overwritten outside of any op: {_range(change)}, "
            f"before step {step} of {graph}, by no operator of the program. A CUDA graph that is replayed writes its "
            "outputs to the same memory each time: clone what is kept"
        )
        facts = {"victim": _victim_facts(value), "elements": change}
        self.finding(text, same=(value.op, value.slot), model=graph.model.name, step=step, culprit=None, **facts)

    def _evidence(self, call: GraphCall, found: _Suspicion, text: str) -> int | None:
        """What the victim was and is goes into the dump, as an entry of its producer. Returns its number."""
        value = found.value
        sides: list[tuple[str, Side, torch.Tensor | None]] = [
            ("before", "input", found.was),
            ("after", "output", value.where.tensor()),
        ]
        slots = [(f"{value.slot}.{name}", side, tensor) for name, side, tensor in sides if tensor is not None]
        return self.entry(call, value.op, slots, text)[0]

    def _dump_named(self, execution: OpExecution, call: _WatchedCall, chosen: _Chosen) -> None:
        """The outputs of the watcher nodes that were named, as they are after this op."""
        by_op: dict[GraphOp, list[tuple[str, Side, torch.Tensor]]] = {}
        for value in call.values:
            if value.op.index in chosen.named and (now := value.where.tensor()) is not None:
                by_op.setdefault(value.op, []).append((value.slot, "output", now))
        for op, slots in by_op.items():
            self.entry(execution.call, op, slots, f"watched: as it is after {execution.op.info.op_name}")


def _written(execution: OpExecution) -> list[tuple[int, int, int]]:
    """The memory that the op says it writes. An FX node's result is its own; of a view it is what is there already."""
    op = execution.op
    into = [value for slot, value in execution.inputs if op.traits.may_write(slot)]
    if op.info.engine == "kernel":
        into += [value for _, value in execution.outputs or ()]
    return list(_spans(value for value in into if is_tensor(value)))


def _spans(tensors: Iterable[torch.Tensor]) -> Iterator[tuple[int, int, int]]:
    for tensor in tensors:
        try:
            yield span_of(tensor)
        except RuntimeError:  # no storage: sparse, or a subclass
            continue


def _victim(value: WatchedValue) -> str:
    return f"{value.name}, {value.slot} of {described(value.op)} in step {value.step}"


def _victim_facts(value: WatchedValue) -> dict[str, Any]:
    return {**facts_of_op(value.op), "slot": value.slot, "value": value.name, "written_in_step": value.step}


def _range(change: Elements) -> str:
    if change.changed is None:
        return f"some of {change.of} elements (only a digest was kept)"
    return f"elements {change.first} to {change.last}, {change.changed} of {change.of} changed"
