"""Finds the ops that made non-finite values out of finite ones, and writes these with a script that runs one again."""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from graphprobe.dump_plan import DumpPlan
from graphprobe.internals.quiet import quiet
from graphprobe.probe.dump.overflow_rules import (
    SKIPPED,
    FloatSummary,
    OverflowJudge,
    OverflowVerdict,
    elements,
    in_words,
    judged,
    memory_of,
    row_of,
    summary_from_row,
)
from graphprobe.probe.dump.running import DumpModel, GraphCall, GraphOp, OpExecution, Values
from graphprobe.probe.dump.side_files import FindingObserver, described, facts_of_op, logger
from graphprobe.probe.dump.tensors import is_tensor, read_back
from graphprobe.probe.formats import GUARD, assembled
from graphprobe.probe.formats.literals import Literals, Unreproducible
from graphprobe.store.dump_format import RECORD_KEY
from graphprobe.store.dump_reader import OVERFLOW
from graphprobe.store.dump_records import Side
from graphprobe.store.dump_writer import DumpWriter

HELD_BYTES = 256 << 20
"""Copies on a device that wait for the verdict; with more than these the flags are read back at once."""

STEPS_REMEMBERED = 16
MOST_CARRIERS = 64

_VALUES = """inf, nan = math.inf, math.nan
data = pathlib.Path(__file__).with_name({file!r}).read_bytes()
length = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8 : 8 + length])
slots = {{slot["name"]: slot.get("meta") for slot in json.loads(header["__metadata__"][{key!r}])["slots"]}}


def value(name):
    begin, end = header[name]["data_offsets"]
    meta, raw = slots[name], bytearray(data[8 + length + begin : 8 + length + end])
    dtype = getattr(torch, meta["dtype"])
    flat = torch.frombuffer(raw, dtype=torch.uint8).view(dtype) if raw else torch.empty(0, dtype=dtype)
    return flat.reshape(meta["shape"])"""

_CHECK = """result = {call}
outputs = result if isinstance(result, (tuple, list)) else [result]
found = 0
for index, output in enumerate(outputs):
    if isinstance(output, torch.Tensor) and (output.is_floating_point() or output.is_complex()):
        wide = output.to(torch.float32) if output.element_size() == 1 else output
        {test}
        print(f"output.{{index}}: {{count}} of {{output.numel()}} elements {what}")
        found += count
sys.exit(1 if found else 0)"""
_NOT_FINITE = "count = int((~torch.isfinite(wide)).sum())"
_AT_THE_END = "count = int((wide.abs() == torch.finfo(output.dtype).max).sum())"


@dataclass(slots=True)
class _PendingOp:
    """An op whose numbers are still on the device; `rows` are (side, slot, storage, dtype, index of its row)."""

    op: GraphOp
    inputs: Values
    outputs: Values
    rows: list[tuple[str, str, int, torch.dtype, int]]
    time_ns: int


@dataclass(slots=True)
class _OverflowCall:
    """What is known of a call under way."""

    pending: list[_PendingOp] = field(default_factory=list)
    rows: list[torch.Tensor] = field(default_factory=list)
    held_bytes: int = 0


@dataclass(slots=True)
class _ModelStep:
    """One step of a model: forward and backward share what was spoiled, and the document."""

    judge: OverflowJudge = field(default_factory=OverflowJudge)
    origins: list[dict[str, Any]] = field(default_factory=list)
    carriers: list[dict[str, Any]] = field(default_factory=list)
    carriers_left_out: int = 0
    uncompiled: str = ""
    written: bool = True


class OverflowObserver(FindingObserver):
    """Dumps the ops that overflow, whole, and names those that pass it on."""

    kind, happened = "overflow", "overflowed"

    def __init__(
        self, plan: DumpPlan, writer: Callable[[], DumpWriter], *, held_bytes: int = HELD_BYTES, deferred: bool = False
    ) -> None:
        """With `deferred` the flags of CPU tensors are read at the end of the call, too, as a device's are."""
        super().__init__(plan, writer)
        self._held_bytes = held_bytes
        self._deferred = deferred
        self._steps: OrderedDict[tuple[int, int], _ModelStep] = OrderedDict()
        self._firsts: dict[int, tuple[GraphCall, _ModelStep, str]] = {}
        """By model, its first origin in words, with the call and the step."""
        self._lock = threading.Lock()

    def before(self, execution: OpExecution) -> None:
        """Copies of what the op may write into; on a device of all it reads: others may write there."""
        op, call = execution.op, execution.call.state.setdefault(self, _OverflowCall())
        if self._defers(execution.inputs):
            inputs = self._copied(execution.inputs, call)
            execution.state[self] = inputs, self._rows("input", inputs, execution.inputs, call)
            return
        if op.traits.mutates:
            kept = execution.written()
            execution.state[self] = [(slot, kept.get(slot, value)) for slot, value in execution.inputs], []

    def after(self, execution: OpExecution) -> None:
        inputs, rows = execution.state.pop(self, (execution.inputs, []))
        if execution.op.info.op_type in SKIPPED:
            return
        call, outputs = execution.call.state.setdefault(self, _OverflowCall()), execution.outputs or ()
        if self._defers(execution.inputs) or self._defers(outputs) or call.pending:
            if not rows:
                rows = self._rows("input", inputs, execution.inputs, call)
            held = self._copied(outputs, call)
            rows = rows + self._rows("output", held, outputs, call)
            call.pending.append(_PendingOp(execution.op, inputs, held, rows, time.time_ns()))
            if call.held_bytes > self._held_bytes:
                self._settle(execution.call, call)
            return
        known = execution.op.traits, inputs, execution.inputs
        verdict = self._step(execution.call).judge.look(lambda: known, outputs)
        if verdict is not None:
            self._tell(execution.call, execution.op, verdict, inputs, outputs, time.time_ns())

    def call_ends(self, call: GraphCall, error: BaseException | None) -> None:
        self._seen += 1
        under_way = call.state.pop(self, None)
        if under_way is not None:
            self._settle(call, under_way)
        step = self._step(call)
        if step.origins and not step.written:
            self._write(call, step)

    def unanswered(self, model: DumpModel) -> bool:
        """Whether an op of the model has overflowed, and nobody knows yet whether the uncompiled program does."""
        first = self._firsts.get(model.number)
        return first is not None and not first[1].uncompiled

    def answer(self, model: DumpModel, text: str) -> None:
        """What the uncompiled program does, in words."""
        call, step, _ = self._firsts[model.number]
        step.uncompiled = text
        logger.warning("dump: %s", text)
        self._write(call, step)

    def first(self) -> list[str]:
        """The first origin, and what is known of the uncompiled program, in words."""
        for _, step, text in self._firsts.values():
            return [f"first: {text}", step.uncompiled or "whether the uncompiled program makes it, too, is not known"]
        return []

    def _defers(self, values: Values) -> bool:
        return any(is_tensor(value) and (self._deferred or not value.is_cpu) for _, value in values)

    def _copied(self, values: Values, call: _OverflowCall) -> list[tuple[str, Any]]:
        found = []
        with quiet():
            for slot, value in values:
                if is_tensor(value) and value.layout is torch.strided:
                    call.held_bytes += value.numel() * value.element_size()
                    value = value.detach().clone()
                found.append((slot, value))
        return found

    def _rows(
        self, side: str, values: Values, live: Values, call: _OverflowCall
    ) -> list[tuple[str, str, int, torch.dtype, int]]:
        """Starts the summaries of one side; `live` are the program's own tensors, which tell where they lie."""
        own = dict(live)
        found = []
        for slot, value in judged(values):
            row = row_of(value)
            if row is not None:
                found.append((side, slot, memory_of(own[slot]), value.dtype, len(call.rows)))
                call.rows.append(row)
        return found

    def _settle(self, graph_call: GraphCall, call: _OverflowCall) -> None:
        """Read back all flags so far, with one wait for each device, and judge the ops in order."""
        pending, rows = call.pending, call.rows
        call.pending, call.rows, call.held_bytes = [], [], 0
        numbers = read_back(rows)
        step = self._step(graph_call)
        for item in pending:
            sides: dict[str, list[FloatSummary]] = {"input": [], "output": []}
            for side, slot, memory, dtype, index in item.rows:
                sides[side].append(summary_from_row(slot, memory, dtype, numbers[index]))
            known = item.op.traits, sides["input"]
            verdict = step.judge.judge(lambda known=known: known, sides["output"])  # type: ignore[misc]
            if verdict is not None:
                self._tell(graph_call, item.op, verdict, item.inputs, item.outputs, item.time_ns)

    def _step(self, call: GraphCall) -> _ModelStep:
        key = (call.graph.model.number, call.step)
        with self._lock:
            step = self._steps.setdefault(key, _ModelStep())
            while len(self._steps) > STEPS_REMEMBERED:
                self._steps.popitem(last=False)
            return step

    def _tell(
        self, call: GraphCall, op: GraphOp, verdict: OverflowVerdict, inputs: Values, outputs: Values, time_ns: int
    ) -> None:
        step = self._step(call)
        if verdict.role == "carrier":
            if len(step.carriers) < MOST_CARRIERS:
                step.carriers.append(facts_of_op(op))
            else:
                step.carriers_left_out += 1
            step.written = False  # at the end of the call: there may be many
        else:
            live = dict(outputs)
            problems = [elements(live[problem.slot], problem) for problem in verdict.problems]
            text = f"{described(op)} overflows in step {call.step}, {call.graph.direction}: {in_words(problems)}"
            slots: list[tuple[str, Side, Any]] = [
                *((slot, "input", value) for slot, value in inputs),
                *((slot, "output", value) for slot, value in outputs),
            ]
            file = self.entry(call, op, slots, f"overflow: {text}", time_ns=time_ns)[1]
            name = file.rpartition("/")[2]
            saturated = all(problem.kind == "saturated" for problem in verdict.problems)
            repro = None
            if file and self._plan.data == "tensor":
                script = repro_of(op, inputs, file=name, why=in_words(problems), saturated=saturated)
                if script is not None:
                    repro = self.document(call.place, f"repro_{name}.py", script.encode())
            origin = {"role": "origin", **facts_of_op(op), "problems": problems, "file": file, "repro": repro}
            step.origins.append(origin)
            self._firsts.setdefault(call.graph.model.number, (call, step, text))
            same = (call.graph, op.index)
            self.finding(text, same=same, model=call.graph.model.name, step=call.step, **origin)
            self._write(call, step)

    def _write(self, call: GraphCall, step: _ModelStep) -> None:
        document = {
            "model": call.graph.model.name,
            "step": call.step,
            "origins": step.origins,
            "carriers": step.carriers,
            "carriers_left_out": step.carriers_left_out,
            "uncompiled": step.uncompiled,
        }
        self.document(call.place, OVERFLOW, document)
        step.written = True


class UncompiledOverflows(OverflowObserver):
    """Judges the ops of a graph that runs uncompiled, and writes nothing; `origins` are in words."""

    def __init__(self, plan: DumpPlan, writer: Callable[[], DumpWriter]) -> None:
        super().__init__(plan, writer)
        self.origins: list[str] = []

    def _tell(
        self, call: GraphCall, op: GraphOp, verdict: OverflowVerdict, inputs: Values, outputs: Values, time_ns: int
    ) -> None:
        if verdict.role == "origin":
            self.origins.append(described(op))


def repro_of(op: GraphOp, inputs: Values, *, file: str, why: str, saturated: bool) -> str | None:
    """The script, or None when the op is no plain operator of torch, or has an argument that no text stands for.

    `file` is the name of the op's file, `why` says what happened; `saturated`: at the end of the range, not beyond it.
    """
    arguments = _from_launch(inputs) if op.info.engine == "kernel" else _from_node(inputs)
    function = _function(op)
    if function is None or arguments is None:
        return None
    test, what = (_AT_THE_END, "at the end of the range") if saturated else (_NOT_FINITE, "not finite")
    return assembled(
        [f"Runs {op.info.op_name} again on the inputs in {file}: {why}. Exit code 1 when it happens again."],
        ["import json, math, pathlib, struct, sys", "import torch"],
        [
            _VALUES.format(file=file, key=RECORD_KEY),
            _CHECK.format(call=f"{function}({', '.join(arguments)})", test=test, what=what),
        ],
        first=["", GUARD],
        gap="\n\n\n",
    )


def _function(op: GraphOp) -> str | None:
    name = op.facts.names[1] if op.info.engine == "kernel" and len(op.facts.names) > 1 else op.info.target
    if re.fullmatch(r"extern_kernels\.\w+", name):
        short = name.partition(".")[2]
        return f"torch.{short}" if hasattr(torch, short) else None
    if re.fullmatch(r"(aten|prims)\.\w+\.\w+", name):
        return f"torch.ops.{name}"
    return None


def _from_node(inputs: Values) -> list[str] | None:
    """Slots of an FX node: `input.1`, `input.0.2` of a list, `kwarg.dim`."""
    positional: dict[int, Any] = {}
    keywords: dict[str, Any] = {}
    for slot, value in inputs:
        side, _, rest = slot.partition(".")
        name, _, inside = rest.partition(".")
        target: dict[Any, Any] = positional if side == "input" else keywords
        key: Any = int(name) if side == "input" else name
        text = _text(slot, value)
        if text is None or "." in inside:
            return None
        if inside:
            target.setdefault(key, []).append(text)
        else:
            target[key] = text
    if sorted(positional) != list(range(len(positional))):
        return None
    args = [_listed(positional[index]) for index in range(len(positional))]
    return args + [f"{name}={_listed(value)}" for name, value in keywords.items()]


def _from_launch(inputs: Values) -> list[str] | None:
    """Slots of a launch: its buffers `input.0` and so on in order, other arguments by position: `arg.2`, `arg.beta`."""
    buffers = [slot for slot, _ in inputs if slot.startswith("input.")]
    numbered: dict[int, str] = {}
    keywords = []
    for slot, value in inputs:
        side, _, name = slot.partition(".")
        if side == "input":
            continue
        text = _text(slot, value)
        if text is None:
            return None
        if name.isdecimal():
            numbered[int(name)] = text
        else:
            keywords.append(f"{name}={text}")
    rest = iter(buffers)
    args = [numbered.get(index) or f"value({next(rest)!r})" for index in range(len(buffers) + len(numbered))]
    return [*args, *keywords] if numbered.keys() <= set(range(len(args))) else None


def _listed(value: str | list[str]) -> str:
    return value if isinstance(value, str) else f"[{', '.join(value)}]"


def _text(slot: str, value: object) -> str | None:
    """An argument as Python; a tensor is read from the file."""
    if isinstance(value, torch.Tensor):
        return f"value({slot!r})"
    try:
        return Literals().text(value, {})
    except Unreproducible:
        return None
