"""`dump_op_switch`: the ops that run outside compiled graphs, told to the same observers as those inside.

A gradient has the line, the module and the phase of the operator that it is of.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from graphprobe.internals.operators.autograd_edges import running_node, sequence_number, uncompiled
from graphprobe.internals.operators.eager_ops import EagerOp, EagerOps, Lines, program_lines
from graphprobe.internals.unseen import unseen
from graphprobe.probe.api.session import Paths
from graphprobe.probe.dump.facts import info_of
from graphprobe.probe.dump.running import (
    DumpGraph,
    DumpModel,
    Forward,
    GraphCall,
    GraphOp,
    OpExecution,
    OpObserver,
    StepCounter,
    under_way,
    why_no_step,
)
from graphprobe.probe.dump.tensors import is_tensor, slots_from_inputs, slots_from_outputs
from graphprobe.probe.dump.traits import OpTraits, type_of
from graphprobe.records import Direction
from graphprobe.scope import in_block
from graphprobe.select import OpFacts

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from graphprobe.probe.dump.running import DumpSession

MODEL = "eager"
"""What the ops belong to, as if it were a model."""

MARKS = "profiler."
"""Operators that compute nothing: they tell profilers where a block begins and ends."""

PERTURBS = (
    "dump_op_switch: while ops are watched, torch has other formulas for a few gradients (of prod and masked_fill), "
    "which may change their last bits"
)

MOST_OPS = 1 << 16
"""Operators whose gradients may still come; older ones are forgotten."""


class OpOrigin(NamedTuple):
    """What led to an operator: lines, outermost first; path of the innermost module, empty outside of all; phase."""

    lines: Lines
    module: str
    direction: Direction


class Origins:
    """Tells the origin of each operator as it runs; a gradient finds its operator by the number of its node."""

    def __init__(self) -> None:
        self._paths = Paths(None)
        self._made: dict[int, OpOrigin] = {}

    def here(self) -> OpOrigin | None:
        """Of what runs now on this thread; None where a compiled graph led here."""
        modules: list[torch.nn.Module] = []
        lines = program_lines(modules)
        if lines is None:
            return None
        node = running_node()
        if node is not None:
            forward = self._made.get(node[1])
            return OpOrigin(forward.lines if forward else lines, forward.module if forward else "", "backward")
        path: str | None = None
        for module in modules:
            path = self._paths.module(module, path)
        found = OpOrigin(lines, path or "", "forward")
        if torch.is_grad_enabled():
            # The node of an operator is made before the operator runs; those that need no gradient make none.
            self._made.setdefault(sequence_number() - 1, found)
            if len(self._made) > MOST_OPS:
                del self._made[next(iter(self._made))]
        return found


Site = tuple[str, bool, OpOrigin]


class SingleOps(OpObserver):
    """Watches the ops of one thread from `start` on. An observer, to be told of the end alone.

    Each line that calls an operator, by each way that leads there, is a graph of one op, so that what is true of it is
    found out once: its name, and whether the plan selects it.
    """

    def __init__(self, session: DumpSession) -> None:
        self._session = session
        self._steps = _FollowedSteps(session)
        self._model = DumpModel(session, [MODEL], 0, self._steps)
        self._forwards: dict[int, Forward] = {}
        """By step: all ops of a step share its folder."""
        self._sites: dict[Site, DumpGraph] = {}
        self._names: dict[str, int] = {}
        self._origins = Origins()
        self._lock = threading.Lock()
        self._tap = EagerOps(self._around)
        self._hook: RemovableHandle | None = None

    def start(self) -> None:
        """Begin, on this thread. What is in the way is noted, and then nothing is watched."""
        if self._tap.installed:
            return
        refusal = self._tap.install()
        if not refusal:
            self._hook = register_optimizer_step_post_hook(uncompiled(self._steps.stepped))
        text = f"dump_op_switch: ops outside compiled graphs are not watched: {refusal}" if refusal else PERTURBS
        self._session.note(text)

    def close(self) -> list[str]:
        watched = self._tap.installed
        self._tap.remove()
        if self._hook is not None:
            self._hook.remove()
        if self._sites or not watched:
            return []
        why = why_no_step(self._session.plan, self._steps.steps)
        why = why or "the program ran none, on the thread that is watched, in a step that is dumped"
        return [f"dump_op_switch: no op outside compiled graphs was dumped: {why}"]

    def _around(self, op: EagerOp) -> Any:
        call, execution = self._begin(op)
        if call is None:
            with unseen:
                return op.run()
        with unseen, under_way(call):
            try:
                with unseen:
                    result = op.run()
            except BaseException as error:
                call.raised(execution, error)
                raise
            try:
                call.after(execution, _outputs(op, result))
            except Exception as error:  # inside the program's own call
                self._session.failed(f"reading what {op.name} has written", error)
        return result

    def _begin(self, op: EagerOp) -> tuple[GraphCall | None, OpExecution | None]:
        """The call of an op that is dumped, and what its observers have seen before it."""
        try:
            step = self._steps.current
            if not self._session.plan.due(step) or op.name.startswith(MARKS):
                return None, None
            origin = self._origins.here()
            if origin is None:
                return None, None
            inputs = list(slots_from_inputs(op.args, op.kwargs))
            graph = self._graph(op, origin)
            tensors = [value for _, value in inputs if is_tensor(value)]
            forward = self._forwards.setdefault(step, Forward(step))
            _, call = self._session.begin(graph, tensors, forward)
            return call, None if call is None else call.before(0, inputs)
        except Exception as error:  # inside the program's own call
            self._session.failed(f"looking at {op.name}", error)
            return None, None

    def _graph(self, op: EagerOp, origin: OpOrigin) -> DumpGraph:
        site = (op.name, in_block(), origin)
        with self._lock:
            found = self._sites.get(site)
            if found is None:
                graph_op = self._op(op, site)
                graph = DumpGraph(self._model, origin.direction, [graph_op], "eager", graph_op.info.perturbs)
                found = self._sites[site] = self._session.graph(graph)
            return found

    def _op(self, op: EagerOp, site: Site) -> GraphOp:
        target, scoped, (lines, module, direction) = site
        kind = type_of(target)
        number = self._names.get(kind, 0)
        self._names[kind] = number + 1
        name = f"{kind}_{number}" if number else kind
        facts = OpFacts(names=(name,), targets=(target,), modules=(module,) if module else (), sources=lines)
        # Under a mode torch has other formulas for some gradients.
        info = info_of(facts, direction, "eager", perturbs=direction == "backward")
        traits = OpTraits(mutates=tuple(slot for slot, _, _ in op.written()))
        return GraphOp(0, info, facts, notes=tuple(_notes(op)), scoped=scoped, traits=traits)


class _FollowedSteps(StepCounter):
    """The steps of the function that was compiled first; before its first call, and until its second, it is step 0.

    Where nothing is compiled, a step ends when an optimizer has stepped.
    """

    def __init__(self, session: DumpSession) -> None:
        super().__init__()
        self._session = session
        self._stepped = 0

    def stepped(self, optimizer: object, args: object, kwargs: object) -> None:
        self._stepped += 1

    @property
    def current(self) -> int:
        models = self._session.models
        return max(0, models[0].counter.steps - 1) if models else self._stepped

    @property
    def steps(self) -> int:
        return self.current + 1


def _outputs(op: EagerOp, result: Any) -> list[tuple[str, Any]]:
    """What it returned, and after that what it wrote into without returning it."""
    results = [] if result is None else list(result) if isinstance(result, list | tuple) else [result]
    results += [value for _, value, returned in op.written() if not returned]
    return list(slots_from_outputs(results))


def _notes(op: EagerOp) -> Iterable[str]:
    count = len(op.target._schema.returns)
    for slot, _, returned in op.written():
        if not returned:
            yield f"output.{count} is {slot} as the op has left it"
            count += 1
