"""Finds operators of an eager program whose result is not finite though all that they read was finite.

Every operator is judged as it runs, forward and backward, by the rules that graphs are judged by. On an accelerator
each judgement waits for the device, so a step takes longer there. An overflow is written in ptdbg's layout,
`Overflow_info_<timestamp>.pkl` and a folder of the same name.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.fx import Graph, Node
from torch.overrides import TorchFunctionMode

from graphprobe.engine.tensor_stats import meta_of
from graphprobe.errors import EXIT_FOUND, GraphprobeError, UsageError
from graphprobe.internals.operators.autograd_edges import innermost_function_mode, running_node, sequence_number
from graphprobe.internals.operators.eager_ops import EagerOp, EagerOps
from graphprobe.internals.quiet import quiet
from graphprobe.probe.api.plan import info_of
from graphprobe.probe.api.session import Frames
from graphprobe.probe.dump.overflow_rules import SKIPPED, OverflowJudge, elements, in_words, judged, memory_of
from graphprobe.probe.dump.tensors import dump_value, leaves, scalar_of, slots_from_inputs, slots_from_outputs
from graphprobe.probe.dump.traits import MASK, NONE, NOTHING, OpTraits, Signs, largest, tables
from graphprobe.store.calls import CallDirection
from graphprobe.store.dump_dtypes import Array, bits_from_bytes
from graphprobe.store.dump_queue import CopyPool
from graphprobe.store.foreign.names import foreign_from_api
from graphprobe.store.foreign.ptdbg import PtdbgWriter, timestamped

_MOST_VALUES = 1 << 24
"""A larger tensor is not looked through for being a mask of ones and zeros."""

logger = logging.getLogger("graphprobe")

_MOST_NODES = 1 << 18
"""Nodes of autograd whose forward calls are remembered, for the names of their backwards."""

Values = list[tuple[str, Any]]

PREFIX = "Overflow_info"


def traits_of(op: EagerOp, inputs: Sequence[tuple[str, Any]], outputs: Sequence[tuple[str, Any]]) -> OpTraits:
    """What is meant of the outputs of `op`, read from its arguments and from the values of its inputs.

    An input that holds the largest or the lowest number of its dtype, or an infinity, is such a value on purpose: had
    an operator before it made it, the rules for values that an origin has spoiled would apply.

    Args:
        op: after it has run.
        inputs: its tensors by slot, as they were before.
        outputs: its tensors by slot.
    """
    if not outputs:
        return NONE
    graph, whole = Graph(), dict[Node, Signs]()
    before = {slot: value for slot, value in inputs if isinstance(value, torch.Tensor)}

    def of(slot: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            value = before.get(slot, value)
            # A node without inputs is what the rules take for a constant, whose signs are looked up.
            node = graph.call_function(torch.full, ((), 0.0))
            node.meta["val"] = value
            whole[node] = _signs_of(value)
            return node
        if isinstance(value, (list, tuple)):
            return [of(f"{slot}.{index}", item) for index, item in enumerate(value)]
        return value if isinstance(value, (bool, int, float, type(None))) else None

    args = tuple(of(f"input.{index}", value) for index, value in enumerate(op.args))
    kwargs = {name: of(f"kwarg.{name}", value) for name, value in op.kwargs.items()}
    node = graph.call_function(op.target, args, kwargs)
    node.meta["val"] = outputs[0][1]
    return OpTraits(infinities={"": tables([node], whole)[node]})


def _signs_of(tensor: torch.Tensor) -> Signs:
    if tensor.dtype == torch.bool:
        return MASK
    if not tensor.is_floating_point() or not tensor.numel():
        return NOTHING
    values = tensor.detach()
    if values.element_size() == 1:
        values = values.to(torch.float32)
    limit = largest(tensor.dtype)
    if math.isinf(limit):
        return NOTHING
    known = torch.nan_to_num(values, nan=0.0, posinf=math.inf, neginf=-math.inf)
    low, high = float(known.amin()), float(known.amax())
    if low == 0 and high == 1 and tensor.numel() <= _MOST_VALUES and bool(((known == 0) | (known == 1)).all()):
        return MASK
    return frozenset("+" * (high >= limit) + "-" * (low <= -limit))


class OverflowFoundError(GraphprobeError):
    """The program was stopped at the overflow that the check was to stop at."""

    slug = "overflow-found"
    exit_code = EXIT_FOUND


@dataclass(frozen=True, slots=True)
class Overflow:
    """One overflow.

    Attributes:
        number: of the overflow, from 1.
        api: that was called, e.g. `torch.div`; in a backward the one whose backward runs. The operator outside any.
        call: number of the forward call among all, from 1; 0 if it is not known.
        direction: of the operator.
        op: that overflowed, `aten.div.Tensor`.
        source: `file.py:12` of the program; in a backward that of the forward call.
        module: what `within` has said at the forward call; empty where it is not known.
        stack: of a forward, frames as in `Call.stack`.
        problems: in words, one for each output.
        inputs, outputs: by slot, the tensors and other arguments: in a forward those of the API, in a backward those of
            the operator. What is changed in place is as it was before in `inputs`.
    """

    number: int
    api: str
    call: int
    direction: CallDirection
    op: str
    source: str
    stack: tuple[str, ...]
    problems: tuple[str, ...]
    inputs: Values
    outputs: Values
    module: str = ""

    def __str__(self) -> str:
        where = f" at {self.source}" if self.source else ""
        return f"{self.api} ({self.op}, {self.direction}){where}: {'; '.join(self.problems)}"


@dataclass(slots=True)
class _OpenCall:
    """An API call under way. `before` has copies of what operators in it changed, by storage and first element."""

    api: str
    number: int
    source: str
    module: str
    first_sequence: int = 0
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    stack: tuple[str, ...] = ()
    origins: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    before: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)


class _State(threading.local):
    call: _OpenCall | None = None


class OverflowWatch:
    """The check. It begins with `start`, in the calling thread and those that run a backward for it."""

    def __init__(
        self, found: Callable[[Overflow], None], *, limit: int | None = None, within: Callable[[], str] = lambda: ""
    ) -> None:
        """Prepare.

        Args:
            found: is told of each overflow, while the program waits; its tensors are the program's own, to read only.
            limit: the overflow at which the program is stopped; None: never.
            within: says at each forward call in which module it is.
        """
        if limit is not None and limit < 1:
            raise UsageError(f"limit={limit!r}: expected 1 or more, or None", hint="1 stops at the first overflow")
        self.count = 0
        self._found = found
        self._limit, self._within = limit, within
        self._judge = OverflowJudge()
        self._frames = Frames()
        self._state = _State()
        self._calls = 0
        self._made: dict[int, _OpenCall] = {}
        self._judged: dict[Any, bool] = {}
        self._ops = EagerOps(self._around)
        self._mode = _ApiMode(self)
        self._lock = threading.Lock()
        self._installed = False
        self._on = False

    def start(self) -> None:
        """Begin. Raises UsageError inside a compile or another dispatch mode."""
        if self._installed:
            return
        why = self._ops.install()
        if why:
            raise UsageError(f"overflows cannot be looked for: {why}", hint="call it before the training loop")
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        self._installed = self._on = True

    def stop(self) -> None:
        """End; does nothing when it has not begun."""
        if not self._installed:
            return
        self._installed = self._on = False
        if innermost_function_mode() is self._mode:
            self._mode.__exit__(None, None, None)
        self._ops.remove()

    def __enter__(self) -> OverflowWatch:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def around_api(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an API call, and tell of what overflowed in it."""
        info = info_of(func)
        if not self._on or info.skip or self._state.call is not None:
            return func(*args, **kwargs)
        self._calls += 1
        frame = sys._getframe(2)
        source = self._frames.source(frame)
        call = _OpenCall(info.api, self._calls, source, self._within(), sequence_number(), args, kwargs)
        self._state.call = call
        try:
            result = func(*args, **kwargs)
        finally:
            self._state.call = None
        self._remember(call)
        if call.origins:
            call.stack = self._frames.stack(frame)
            self._guarded(lambda: self._tell_api(call, result))
        return result

    def _remember(self, call: _OpenCall) -> None:
        """Keep where the call was, by the numbers of the nodes that it made; not its tensors."""
        nodes = range(call.first_sequence, sequence_number())
        if not nodes:
            return
        with self._lock:
            self._made |= dict.fromkeys(nodes, _OpenCall(call.api, call.number, call.source, call.module))
            while len(self._made) > _MOST_NODES:
                del self._made[next(iter(self._made))]

    def _tell_api(self, call: _OpenCall, result: Any) -> None:
        with quiet():
            given = slots_from_inputs(call.args, call.kwargs)
            inputs = [(slot, call.before.get(_place(value), value)) for slot, value in given]
        outputs = list(slots_from_outputs(result))
        op, problems = call.origins[0]
        where = call.source, call.stack
        self._report(Overflow(0, call.api, call.number, "forward", op, *where, problems, inputs, outputs, call.module))

    def _around(self, op: EagerOp) -> Any:
        if not self._on or not self._is_judged(op):
            return op.run()
        before = self._before(op) if op.target._schema.is_mutable else {}
        result = op.run()
        self._guarded(lambda: self._judge_op(op, before, list(slots_from_outputs(result))))
        return result

    def _is_judged(self, op: EagerOp) -> bool:
        known = self._judged.get(op.target)
        if known is None:
            known = op.target.namespace == "aten" and op.name.split(".")[1] not in SKIPPED
            self._judged[op.target] = known
        return known

    def _guarded(self, tell: Callable[[], None]) -> None:
        """The program goes on when the check fails; it ends when the check is to end it."""
        try:
            tell()
        except OverflowFoundError:
            raise
        except Exception as error:
            self._on = False
            logger.warning("graphprobe: the overflow check failed and looks no further", exc_info=error)

    def _before(self, op: EagerOp) -> dict[str, torch.Tensor]:
        """Copies of what the operator will change, by slot."""
        found: dict[str, torch.Tensor] = {}
        call = self._state.call
        with quiet():
            for slot, tensor in judged([leaf for name, value, _ in op.written() for leaf in leaves(name, value)]):
                found[slot] = tensor.detach().clone()
                if call is not None:
                    call.before.setdefault(_place(tensor), found[slot])
        return found

    def _judge_op(self, op: EagerOp, before: dict[str, torch.Tensor], outputs: Values) -> None:
        inputs: Values = []

        def known() -> tuple[OpTraits, Values, Values]:
            live = list(slots_from_inputs(op.args, op.kwargs))
            inputs.extend((slot, before.get(slot, value)) for slot, value in live)
            return traits_of(op, inputs, outputs), inputs, live

        with quiet():
            verdict = self._judge.look(known, outputs)
            if verdict is None or verdict.role != "origin":
                return
            if any(isinstance(value, float) and math.isnan(value) for _, value in inputs):
                return  # asked for, as by `fill_(nan)`
            values = dict(outputs)
            problems = tuple(in_words([elements(values[problem.slot], problem)]) for problem in verdict.problems)
        call = self._state.call
        if call is not None:
            call.origins.append((op.name, problems))
        else:
            self._tell_op(op, problems, inputs, outputs)

    def _tell_op(self, op: EagerOp, problems: tuple[str, ...], inputs: Values, outputs: Values) -> None:
        node = running_node()
        with self._lock:
            call = self._made.get(node[1]) if node is not None else None
        call = call or _OpenCall(f"torch.ops.{op.name.rpartition('.')[0]}", 0, "", "")
        direction: CallDirection = "backward" if node is not None else "forward"
        where = direction, op.name, call.source, ()
        self._report(Overflow(0, call.api, call.number, *where, problems, inputs, outputs, call.module))

    def _report(self, overflow: Overflow) -> None:
        with self._lock:
            if not self._on:
                return
            self.count += 1
            overflow = replace(overflow, number=self.count)
        with quiet():
            self._found(overflow)
        if self._limit is not None and overflow.number >= self._limit:
            self._on = False
            raise OverflowFoundError(
                f"overflow {overflow.number} of {self._limit}: {overflow}",
                hint="the dump of each has its inputs and outputs; raise the limit to go on",
            )


class _ApiMode(TorchFunctionMode):
    """Tells the check which API runs. What an API calls inside itself is part of its call."""

    def __init__(self, watch: OverflowWatch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._watch.around_api(func, args, kwargs or {})


def _place(value: Any) -> tuple[int, int]:
    """Where a tensor lies: its storage, and its first element in there."""
    if not isinstance(value, torch.Tensor):
        return (0, -1)
    memory = memory_of(value)
    return (memory, int(value.storage_offset())) if memory else (0, -1)


class OverflowFiles:
    """Receiver of `OverflowWatch`. `written` lists the texts, in order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.written: list[Path] = []

    def __call__(self, overflow: Overflow) -> None:
        """Write one overflow: full tensors and, as the format wants it, no statistics. Raises OSError."""
        data_dir = timestamped(self._folder / PREFIX)
        text = self._folder / f"{data_dir.name}.pkl"
        kind, name = foreign_from_api(overflow.api)
        call = f"{overflow.call}_{kind}_{name}_{overflow.direction}"
        with contextlib.closing(PtdbgWriter(text, data_dir)) as writer:
            if overflow.stack:
                writer.stack(call, overflow.stack)
            for slot, value in (*overflow.inputs, *overflow.outputs):
                head, _, path = slot.partition(".")
                place = f"{call}_{'output' if head == 'output' else 'input'}.{path}"
                if isinstance(value, torch.Tensor):
                    writer.tensor(place, meta_of(value), None, _bits_of(value))
                else:
                    writer.scalar(place, scalar_of(value))
        self.written.append(text)


def _bits_of(tensor: torch.Tensor) -> Array | None:
    """Values in numpy's own dtype, or as unsigned integers; None of a tensor without memory of its own."""
    value: Any = dump_value("", "input", tensor, stats=False, pool=CopyPool(0))
    try:
        return bits_from_bytes(np.asarray(value.data()), value.meta.dtype, value.meta.shape)
    except (ValueError, RuntimeError):
        return None
