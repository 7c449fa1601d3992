"""A dump of this process: the plan, the writer, the models that were compiled, and the observers of their ops."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from graphprobe.dump_plan import DumpPlan
from graphprobe.errors import GraphprobeError
from graphprobe.probe import environment
from graphprobe.probe.dump.model import DumpGraph, DumpModel
from graphprobe.probe.dump.observers import observers_of
from graphprobe.probe.dump.ops import GraphOp, OpObserver
from graphprobe.probe.dump.running import GraphCall
from graphprobe.probe.dump.steps import Forward, StepCounter
from graphprobe.probe.dump.tensors import device_index, is_capturing
from graphprobe.records import Direction
from graphprobe.settings import resolve
from graphprobe.store.dump_records import DumpManifest, Engine, dump_manifest_from_run
from graphprobe.store.dump_writer import QUEUE_BYTES, DumpWriter

logger = logging.getLogger("graphprobe")


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
        self._models: list[DumpModel] = []
        self._counters: dict[tuple[str, int], tuple[StepCounter, set[str]]] = {}
        self._wanted: dict[DumpGraph, list[tuple[OpObserver, frozenset[int]]]] = {}
        self._notes: list[str] = []
        self._lost: dict[str, tuple[str, str]] = {}
        self._detached: set[int] = set()
        self._closed = False
        self.observers, lacking = observers_of(self)
        for text in (*plan.warnings, *lacking):
            self.note(text)

    # -- what engines call --------------------------------------------------------------------------------------------

    def model(self, names: Sequence[str], compile_id: str | None, engine: Engine, *, owner: int = 0) -> DumpModel:
        """Dynamo has compiled something that goes by `names`; `compile_id` is torch's, e.g. `0/1`; `owner` stands for
        the module whose method it is, 0 for none."""
        with self._lock:
            self._engine = self._engine or engine
            self.writer()
            counter = self._counter(compile_id or f"?{len(self._models)}/0", owner)
            number = len(self._models)
            model = DumpModel(self, [*names, *([compile_id] if compile_id else ()), f"graph_{number}"], number, counter)
            self._models.append(model)
            return model

    def graph(
        self,
        model: DumpModel,
        direction: Direction,
        ops: Sequence[GraphOp],
        *,
        engine: Engine,
        perturbs: bool,
        trains: bool = False,
    ) -> DumpGraph:
        """One graph of a model is ready to run, with these ops in the order in which they run."""
        graph = DumpGraph(model, direction, ops, engine=engine, perturbs=perturbs, trains=trains)
        wanted = []
        for observer in self.observers:
            try:
                wanted.append((observer, frozenset(observer.wants(graph))))
            except Exception as error:
                self.detach(observer, error, repr(graph))
        with self._lock:
            self._wanted[graph] = [(observer, indices) for observer, indices in wanted if indices]
        return graph

    def begin(self, graph: DumpGraph, inputs: Sequence[Any]) -> tuple[Forward | None, GraphCall | None]:
        """A graph is called with `inputs`. Returns its step, and the call when it is dumped.

        A forward begins a step, and `finish` ends it. A backward belongs to the step of its forward.
        """
        try:
            return self._begin(graph, inputs)
        except Exception as error:  # inside the program's own call
            self.failed(f"beginning a call of {graph}", error)
            return None, None

    def _begin(self, graph: DumpGraph, inputs: Sequence[Any]) -> tuple[Forward | None, GraphCall | None]:
        model = graph.model
        model.called = True
        if graph.direction == "backward":
            forward = model.forwards.of_backward(inputs)
        else:
            forward = Forward(model.counter.advance())
        wanted = self._wanted.get(graph)
        if forward is None or not wanted or self._closed:
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

    # -- faults and remarks -------------------------------------------------------------------------------------------

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

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def time_dir(self) -> Path | None:
        """The folder of this dump, None while nothing was compiled."""
        return None if self._writer is None else self._writer.time_dir

    @property
    def lost(self) -> list[str]:
        """Why something is not in the dump, where there is no folder that could say it."""
        return [] if self._writer is not None else list(self._lost)

    @property
    def models(self) -> tuple[DumpModel, ...]:
        """What was compiled so far."""
        return tuple(self._models)

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
            if self._closed or self._pid != os.getpid():
                return
            self._closed = True
        for observer in self.observers:
            try:
                texts = observer.close()
                for text in texts if self._models or not self._lost else ():
                    self.note(text)
            except Exception as error:
                self.detach(observer, error, "the end")
        if self._writer is not None:
            self._writer.close()

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._closed

    def _manifest(self) -> DumpManifest:
        settings = resolve(arguments={}, environ=os.environ)
        run = environment.manifest(settings)
        run.rank, run.world_size = _rank_and_world_size(run.rank, run.world_size)
        plan = msgspec.to_builtins(self.plan)
        manifest = dump_manifest_from_run(run, engine=self.plan.engine or self._engine or "kernel", plan=plan)
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


def _rank_and_world_size(rank: int, world_size: int) -> tuple[int, int]:
    """Those of the process group where there is one; else as the launcher set them."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return rank, world_size
    return distributed.get_rank(), distributed.get_world_size()
