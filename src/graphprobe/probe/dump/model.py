"""What Dynamo compiled, as the dump knows it: a model with a number, and its forward and backward graph."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from graphprobe.dump_plan import DumpPlan
from graphprobe.probe.dump.ops import GraphOp
from graphprobe.probe.dump.steps import Forward, Forwards, StepCounter
from graphprobe.records import Direction
from graphprobe.store.dump_records import Engine

if TYPE_CHECKING:
    from graphprobe.probe.dump.session import DumpSession


class DumpModel:
    """One compile by Dynamo. A recompile, and what follows a graph break, is a model of its own.

    Attributes:
        session: the dump it belongs to.
        name: the class of the module, or the function, that was compiled; `names` are all it goes by.
        number: in order of appearance, from 0; the `model_id`.
        counter: of the steps; recompilations of a function share it.
    """

    def __init__(self, session: DumpSession, names: Sequence[str], number: int, counter: StepCounter) -> None:
        self.session = session
        self.names = tuple(dict.fromkeys(names)) or ("graph",)
        self.name = self.names[0]
        self.number = number
        self.counter = counter
        self.forwards = Forwards()
        self.called = False
        self._dumped = 0
        self._lock = threading.Lock()

    def data_index(self, forward: Forward, *, by_step: bool) -> int:
        """The folder of a step: its number when steps are selected, else how many were dumped before it."""
        with self._lock:
            if forward.data_index is None:
                forward.data_index = forward.step if by_step else self._dumped
                self._dumped += 1
            return forward.data_index


class DumpGraph:
    """A graph of a model, with its ops in the order in which they run.

    Attributes:
        direction: `forward` also for a graph without a backward; `pre_grad` for Dynamo's own.
        engine, perturbs: what runs it, and whether that changes what the program computes.
        trains: whether a backward of it may come.
    """

    def __init__(
        self,
        model: DumpModel,
        direction: Direction,
        ops: Sequence[GraphOp],
        *,
        engine: Engine,
        perturbs: bool,
        trains: bool = False,
    ) -> None:
        self.model = model
        self.direction: Direction = direction
        self.ops = tuple(ops)
        self.engine: Engine = engine
        self.perturbs = perturbs
        self.trains = trains

    def __repr__(self) -> str:
        return f"{self.model.name} ({self.model.number}), {self.direction}"


def why_no_call(plan: DumpPlan, models: Iterable[DumpModel]) -> str:
    """Why nothing of these models was looked at, although it was wanted."""
    models = list(models)
    called = [model for model in models if model.called]
    if not models:
        return "no model was compiled with this backend"
    if not called:
        return "no model that was compiled has run"
    steps = max(model.counter.steps for model in called)
    if plan.steps is not None and plan.steps.ranges[0][0] >= steps:
        of = "" if len(called) == len(models) else f" of {', '.join(dict.fromkeys(m.name for m in called))}"
        return f"dump_step selects none of the steps 0 to {steps - 1}{of}, which were all"
    return "the graphs that hold what is selected were not called in a step that is dumped"
