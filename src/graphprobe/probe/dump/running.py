"""A dump while the program runs: session, models, graphs, ops, and their observers, whose faults are kept in."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from graphprobe.dump_plan import DumpPlan
from graphprobe.errors import GraphprobeError
from graphprobe.internals.quiet import quiet
from graphprobe.internals.tensors import WeakStorages, storage_ids
from graphprobe.probe import environment
from graphprobe.probe.dump.tensors import device_index, is_capturing
from graphprobe.probe.dump.traits import NONE, OpTraits
from graphprobe.records import Direction
from graphprobe.select import OpFacts
from graphprobe.store.dump_records import DumpManifest, Engine, OpInfo, Place
from graphprobe.store.dump_writer import QUEUE_BYTES, DumpWriter

logger = logging.getLogger("graphprobe")

REMEMBERED = 64
"""Forward calls whose backward may still come; older ones are forgotten."""

DATA = "Data"
"""Type of an op that is a graph input or a constant, as TorchAir has it."""

Values = Sequence[tuple[str, Any]]
"""Slots with the live value of each: tensors, and arguments without any. Only good until the op goes on."""


class StepCounter:
    """Counts calls of one function as Dynamo sees it: its recompilations are the same function."""

    def __init__(self) -> None:
        self._next = 0
        self._lock = threading.Lock()

    @property
    def steps(self) -> int:
        """How many steps there were."""
        return self._next

    def advance(self) -> int:
        """Begin a step, and return its number, from 0."""
        with self._lock:
            step, self._next = self._next, self._next + 1
            return step


@dataclass(slots=True, eq=False)
class Forward:
    """One forward call of a model.

    Attributes:
        step: its number.
        data_index: number of the folder, None when nothing of the step was dumped yet.
        memory: of what it returned, for a backward to find it by.
        consumed: whether a backward has found it.
    """

    step: int
    data_index: int | None = None
    memory: WeakStorages = field(default_factory=lambda: WeakStorages(()))
    consumed: bool = False


class Forwards:
    """The latest forward calls of one model.

    A backward gets what its forward saved. So it belongs to the forward that returned most of its inputs; of equals, to
    the latest that no backward has found yet.
    """

    def __init__(self) -> None:
        self._calls: deque[Forward] = deque(maxlen=REMEMBERED)

    def add(self, call: Forward, outputs: Iterable[object]) -> None:
        """A forward call is over."""
        call.memory = WeakStorages(outputs)
        self._calls.append(call)

    def of_backward(self, inputs: Iterable[object]) -> Forward | None:
        """The forward of a backward that is called with `inputs`; None when there was none."""
        calls = list(self._calls)
        if not calls:
            return None
        ids = storage_ids(inputs)
        best = max(range(len(calls)), key=lambda i: (calls[i].memory.shared(ids), not calls[i].consumed, i))
        calls[best].consumed = True
        return calls[best]


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


@dataclass(frozen=True, eq=False, repr=False)
class DumpGraph:
    """A graph of a model, with its ops in the order in which they run.

    Attributes:
        direction: `forward` also for a graph without a backward; `pre_grad` for Dynamo's own.
        engine, perturbs: what runs it, and whether that changes what the program computes.
        trains: whether a backward of it may come.
    """

    model: DumpModel
    direction: Direction
    ops: Sequence[GraphOp]
    engine: Engine
    perturbs: bool
    trains: bool = False

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
    of = "" if len(called) == len(models) else f" of {', '.join(dict.fromkeys(m.name for m in called))}"
    why = why_no_step(plan, max(model.counter.steps for model in called), of=of)
    return why or "the graphs that hold what is selected were not called in a step that is dumped"


def why_no_step(plan: DumpPlan, steps: int, *, of: str = "") -> str:
    """Why none of so many steps was dumped, where the plan selects later ones alone; else empty."""
    if plan.steps is None or plan.steps.ranges[0][0] < steps:
        return ""
    return f"dump_step selects none of the steps 0 to {steps - 1}{of}, which were all"


@dataclass(frozen=True, slots=True)
class GraphOp:
    """An op of a graph, or a launch of its compiled code.

    Attributes:
        index: its position in `DumpGraph.ops`.
        info: what every record of it says.
        facts: what it can be selected by.
        data: whether it is a graph input or a constant of the graph.
        reads_data: indices of the data ops that it reads.
        notes: for its records, e.g. which buffer lies in which slot.
        scoped: whether the program marked it, in a block that asks for a dump.
        traits: what it reads and writes by name, and which infinities are meant.
    """

    index: int
    info: OpInfo
    facts: OpFacts
    data: bool = False
    reads_data: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    scoped: bool = False
    traits: OpTraits = NONE


@dataclass(slots=True, eq=False)
class OpExecution:
    """One execution of an op, from just before it runs until just after.

    Attributes:
        inputs: what it reads, live. An op that writes into one has done so in `after`.
        outputs: what it wrote, live; None before it has run.
        state: by observer, whatever `before` wants `after` to find.
    """

    op: GraphOp
    call: GraphCall
    inputs: Values
    outputs: Values | None = None
    state: dict[OpObserver, Any] = field(default_factory=dict)

    def written(self) -> dict[str, torch.Tensor]:
        """Before the op has run: copies of the inputs that it may write into, by slot."""
        with quiet():
            slots = [(slot, value) for slot, value in self.inputs if self.op.traits.may_write(slot)]
            return {slot: value.clone() for slot, value in slots if isinstance(value, torch.Tensor)}


class OpObserver:
    """Told what ops read and wrote, on the thread that runs them. May look at live tensors, and change none.

    One that raises is detached and reported; the program and the other observers go on.
    """

    def wants(self, graph: DumpGraph) -> Collection[int]:
        """A graph was compiled: indices of the ops it wants to be told of."""
        return ()

    def due(self, graph: DumpGraph, step: int) -> bool:
        """Whether it wants a call of this graph; asked once a call."""
        return False

    def before(self, execution: OpExecution) -> None:
        """An op is about to run."""

    def after(self, execution: OpExecution) -> None:
        """An op has run."""

    def raised(self, execution: OpExecution, error: BaseException) -> None:
        """An op has raised; the error goes on to the program."""

    def call_ends(self, call: GraphCall, error: BaseException | None) -> None:
        """The graph has returned or raised."""

    def close(self) -> list[str]:
        """The dump ends. Returns what the user should know, one sentence each."""
        return []


class GraphCall:
    """One call of a graph, of which at least one observer wants to know.

    Attributes:
        forward: the step that it belongs to.
        device_id: index of the device, 0 for the CPU.
        wanted: indices of the ops that somebody wants to be told of.
        result: what the graph has returned; None before.
        state: by observer, whatever it keeps for the length of the call.
    """

    def __init__(
        self,
        session: DumpSession,
        graph: DumpGraph,
        forward: Forward,
        device_id: int,
        observers: Sequence[tuple[OpObserver, frozenset[int]]],
    ) -> None:
        self.session = session
        self.graph = graph
        self.forward = forward
        self.device_id = device_id
        self.result: Any = None
        self.state: dict[OpObserver, Any] = {}
        self.wanted: frozenset[int] = frozenset().union(*(wanted for _, wanted in observers))
        self._observers = tuple(observers)
        self._alike = all(wanted == self.wanted for _, wanted in observers)
        """Whether each observer wants whatever any of them wants."""

    @property
    def step(self) -> int:
        """Number of the step, from 0."""
        return self.forward.step

    @property
    def place(self) -> Place:
        """The folder that its records go to: named by the step where the plan selects steps, else by a counter."""
        model = self.graph.model
        return Place(
            model_name=model.name,
            model_id=model.number,
            data_index=model.data_index(self.forward, by_step=self.session.plan.steps is not None),
            device_id=self.device_id,
            step=self.step,
        )

    def before(self, index: int, inputs: Values) -> OpExecution | None:
        """The op of that index is about to run with `inputs`; the result is for `after`. None: nobody wants it."""
        if index not in self.wanted:
            return None
        execution = OpExecution(self.graph.ops[index], self, inputs)
        self._tell(index, "before", execution)
        return execution

    def after(self, execution: OpExecution | None, outputs: Values) -> None:
        """It has run, and wrote `outputs`."""
        if execution is not None:
            execution.outputs = outputs
            self._tell(execution.op.index, "after", execution)

    def raised(self, execution: OpExecution | None, error: BaseException) -> None:
        if execution is not None:
            self._tell(execution.op.index, "raised", execution, error)

    def end(self, error: BaseException | None = None) -> None:
        self._tell(None, "call_ends", self, error)

    def _tell(self, index: int | None, event: str, *what: Any) -> None:
        """Tell those that want the op, None: all. The program must not see our faults: one that fails is detached."""
        found = self._observers
        if index is not None and not self._alike:
            found = tuple([item for item in found if index in item[1]])
        for item in found:  # not changed when one is detached meanwhile
            try:
                getattr(item[0], event)(*what)
            except Exception as error:
                self._observers = tuple(other for other in self._observers if other is not item)
                where = self.graph.ops[index].info.op_name if index is not None else repr(self.graph)
                self.session.detach(item[0], error, where)


class _CallsUnderWay(threading.local):
    def __init__(self) -> None:
        self.stack: list[GraphCall] = []


_calls = _CallsUnderWay()


def current_call() -> GraphCall | None:
    """The call under way on this thread, for ops that know nothing but their index. None when none is dumped."""
    return _calls.stack[-1] if _calls.stack else None


class under_way:  # noqa: N801  # reads as a statement: `with under_way(call):`
    """Makes `call` the current one of this thread, and ends it on the way out, also on an error."""

    def __init__(self, call: GraphCall) -> None:
        self._call = call

    def __enter__(self) -> GraphCall:
        _calls.stack.append(self._call)
        return self._call

    def __exit__(self, kind: Any, error: BaseException | None, trace: object) -> None:
        _calls.stack.remove(self._call)
        self._call.end(error)


class DumpSession:
    """Everything that one plan has dumped. Made by `sessions.session_for`, ended by `close`.

    The folder is made when the first model is compiled: by then the process knows its rank. A forked child has a
    folder of its own.
    """

    def __init__(self, plan: DumpPlan) -> None:
        self.plan = plan
        self._lock = threading.RLock()
        self._writer: DumpWriter | None = None
        self._pid = os.getpid()
        self._engine: Engine | None = None
        self.models: list[DumpModel] = []
        self._counters: dict[tuple[str, int], tuple[StepCounter, set[str]]] = {}
        self._wanted: dict[DumpGraph, list[tuple[OpObserver, frozenset[int]]]] = {}
        self._notes: list[str] = []
        self._lost: dict[str, tuple[str, str]] = {}
        self._detached: set[int] = set()
        self.closed = False
        self.observers: tuple[OpObserver, ...] = ()
        """Told of the ops; handed in before the first model is compiled."""
        for text in plan.warnings:
            self.note(text)

    def model(self, names: Sequence[str], compile_id: str | None, engine: Engine, *, owner: int = 0) -> DumpModel:
        """Dynamo has compiled something that goes by `names`; `compile_id` is torch's, e.g. `0/1`; `owner` stands for
        the module whose method it is, 0 for none."""
        with self._lock:
            self._engine = self._engine or engine
            self.writer()
            counter = self._counter(compile_id or f"?{len(self.models)}/0", owner)
            number = len(self.models)
            model = DumpModel(self, [*names, *([compile_id] if compile_id else ()), f"graph_{number}"], number, counter)
            self.models.append(model)
            return model

    def graph(self, graph: DumpGraph) -> DumpGraph:
        """A graph of a model is ready to run."""
        wanted = []
        for observer in self.observers:
            try:
                wanted.append((observer, frozenset(observer.wants(graph))))
            except Exception as error:
                self.detach(observer, error, repr(graph))
        with self._lock:
            self._wanted[graph] = [(observer, indices) for observer, indices in wanted if indices]
        return graph

    def begin(
        self, graph: DumpGraph, inputs: Sequence[Any], forward: Forward | None = None
    ) -> tuple[Forward | None, GraphCall | None]:
        """A graph is called with `inputs`. Returns its step, and the call when it is dumped.

        A forward begins a step, and `finish` ends it. A backward belongs to the step of its forward. Where the caller
        knows the step, it is `forward`.
        """
        try:
            return self._begin(graph, inputs, forward)
        except Exception as error:  # inside the program's own call
            self.failed(f"beginning a call of {graph}", error)
            return None, None

    def _begin(
        self, graph: DumpGraph, inputs: Sequence[Any], forward: Forward | None
    ) -> tuple[Forward | None, GraphCall | None]:
        model = graph.model
        model.called = True
        if forward is None and graph.direction == "backward":
            forward = model.forwards.of_backward(inputs)
        elif forward is None:
            forward = Forward(model.counter.advance())
        wanted = self._wanted.get(graph)
        if forward is None or not wanted or self.closed:
            return forward, None
        step = forward.step
        due = []
        for observer, indices in wanted:
            try:
                if id(observer) not in self._detached and observer.due(graph, step):
                    due.append((observer, indices))
            except Exception as error:
                self.detach(observer, error, repr(graph))
        if not due:
            return forward, None
        if is_capturing():
            self.missing("the graph was being captured into a CUDA graph", f"{graph}, step {step}", "call")
            return forward, None
        return forward, GraphCall(self, graph, forward, device_index(inputs), due)

    def finish(self, graph: DumpGraph, forward: Forward | None, outputs: Any) -> None:
        """The graph has returned `outputs`: its backward is recognised by them."""
        if forward is not None and graph.trains and isinstance(outputs, list | tuple):
            graph.model.forwards.add(forward, outputs)

    def note(self, text: str) -> None:
        """Something that the user should know: shown once, and kept in the manifest."""
        with self._lock:
            if text in self._notes:
                return
            self._notes.append(text)
            writer = self._writer
        logger.warning("dump: %s", text)
        if writer is not None:
            writer.note(text)

    def missing(self, reason: str, name: str, noun: str = "op") -> None:
        """Count something that should be in the dump and is not."""
        if self._writer is not None:
            self._writer.missing(reason, name=name, noun=noun)
        else:
            self._lost.setdefault(reason, (name, noun))

    def detach(self, observer: OpObserver, error: BaseException, where: str) -> None:
        """An observer has raised: it is told nothing more, in this call or a later one. The program goes on."""
        with self._lock:
            if id(observer) in self._detached:
                return
            self._detached.add(id(observer))
        name = type(observer).__name__
        last = f"{type(error).__name__}: {error}"
        logger.error("dump: %s failed at %s and is detached: %s", name, where, last, exc_info=error)
        self.missing(f"{name} failed and was detached: {last}", where)

    def failed(self, what: str, error: BaseException) -> None:
        """An engine could not do `what`; the program runs without it."""
        expected = isinstance(error, GraphprobeError)  # its text says it all
        reason = f"{what} failed: {error if expected else f'{type(error).__name__}: {error}'}"
        if not expected or reason not in self._lost:
            logger.error("dump: %s", reason, exc_info=None if expected else error)
        self.missing(reason, what, "graph")

    @property
    def time_dir(self) -> Path | None:
        """The folder of this dump, None while nothing was compiled."""
        return None if self._writer is None else self._writer.time_dir

    @property
    def lost(self) -> list[str]:
        """Why something is not in the dump, where there is no folder that could say it."""
        return [] if self._writer is not None else list(self._lost)

    def writer(self) -> DumpWriter:
        """The writer of this process.

        Raises:
            UsageError: the folder cannot be made.
        """
        if self._writer is not None and self._pid == os.getpid():
            return self._writer
        if self._pid != os.getpid():  # another thread of the parent may hold the lock for ever
            self._pid, self._lock, self._writer = os.getpid(), threading.RLock(), None
        with self._lock:
            if self._writer is None:
                plan = self.plan
                self._writer = DumpWriter.create(
                    Path(plan.path),
                    manifest=self._manifest(),
                    max_bytes=plan.max_bytes,
                    queue_bytes=0 if plan.write_through else QUEUE_BYTES,
                )
                for text in self._notes:
                    self._writer.note(text)
                for reason, (name, noun) in self._lost.items():
                    self._writer.missing(reason, name=name, noun=noun)
            return self._writer

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until everything so far is on disk; False when that took longer."""
        return self._writer is None or self._writer.flush(timeout_s)

    def close(self) -> None:
        """End the dump, and say what is not in it and why. Safe to call twice."""
        with self._lock:
            if self.closed or self._pid != os.getpid():
                return
            self.closed = True
        for observer in self.observers:
            try:
                texts = observer.close()
                for text in texts if self.models or not self._lost else ():
                    self.note(text)
            except Exception as error:
                self.detach(observer, error, "the end")
        if self._writer is not None:
            self._writer.close()

    def _manifest(self) -> DumpManifest:
        run = environment.manifest_of_rank(os.environ)
        plan = msgspec.to_builtins(self.plan)
        manifest = DumpManifest.of(run, engine=self.plan.engine or self._engine or "kernel", plan=plan)
        manifest.statistics = list(self.plan.stats)
        return manifest

    def _counter(self, compile_id: str, owner: int) -> StepCounter:
        """The steps of a function, or of a method of one module, which recompilations share: of compile id `0/1`, those
        of frame 0. Methods of two modules may be one code object, behind one decorator, and so have one frame.

        An id that comes a second time is another function: torch has begun to count anew.
        """
        frame = compile_id.rpartition("/")[0], owner
        counter, seen = self._counters.get(frame, (StepCounter(), set()))
        if compile_id in seen and counter.steps:
            counter, seen = StepCounter(), set()
        seen.add(compile_id)
        self._counters[frame] = (counter, seen)
        return counter
