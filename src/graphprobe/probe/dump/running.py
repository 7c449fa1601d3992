"""A call of a graph while it runs: passes what the engine sees on to the observers, and keeps their faults in."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphprobe.probe.dump.model import DumpGraph
from graphprobe.probe.dump.ops import OpExecution, OpObserver, Values
from graphprobe.probe.dump.steps import Forward
from graphprobe.store.dump_records import Place

if TYPE_CHECKING:
    from graphprobe.probe.dump.session import DumpSession


class GraphCall:
    """One call of a graph, of which at least one observer wants to know.

    Attributes:
        graph: what is called.
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

    def before(self, index: int, inputs: Values) -> OpExecution | None:
        """The op of that index is about to run with `inputs`; the result is for `after`. None: nobody wants it."""
        if index not in self.wanted:
            return None
        execution = OpExecution(self.graph.ops[index], self, inputs)
        for item in self._observers_of(index):
            try:
                item[0].before(execution)
            except Exception as error:
                self._detach(item, error, index)
        return execution

    def after(self, execution: OpExecution | None, outputs: Values) -> None:
        """It has run, and wrote `outputs`."""
        if execution is not None:
            execution.outputs = outputs
            index = execution.op.index
            for item in self._observers_of(index):
                try:
                    item[0].after(execution)
                except Exception as error:
                    self._detach(item, error, index)

    def raised(self, execution: OpExecution | None, error: BaseException) -> None:
        """It has raised."""
        if execution is not None:
            index = execution.op.index
            for item in self._observers_of(index):
                try:
                    item[0].raised(execution, error)
                except Exception as own:
                    self._detach(item, own, index)

    def record(self, index: int, inputs: Values, outputs: Values) -> None:
        """`before` and `after` in one, for an engine that sees an op only once it has run."""
        self.after(self.before(index, inputs), outputs)

    def end(self, error: BaseException | None = None) -> None:
        """The graph has returned, or raised."""
        for item in self._observers:
            try:
                item[0].call_ends(self, error)
            except Exception as own:
                self._detach(item, own, None)

    def _observers_of(self, index: int) -> Sequence[tuple[OpObserver, frozenset[int]]]:
        """Those that want an op which somebody wants. Not changed when one is detached meanwhile."""
        return self._observers if self._alike else [item for item in self._observers if index in item[1]]

    def _detach(self, item: tuple[OpObserver, frozenset[int]], error: Exception, index: int | None) -> None:
        """The program must not see our faults."""
        self._observers = tuple(other for other in self._observers if other is not item)
        where = self.graph.ops[index].info.op_name if index is not None else repr(self.graph)
        self.session.detach(item[0], error, where)


class _Calls(threading.local):
    def __init__(self) -> None:
        self.stack: list[GraphCall] = []


_calls = _Calls()


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


def place_of(call: GraphCall, *, by_step: bool) -> Place:
    """The folder that a call's records go to; `by_step`: it is named by the step, else by a counter."""
    model = call.graph.model
    return Place(
        model_name=model.name,
        model_id=model.number,
        data_index=model.data_index(call.forward, by_step=by_step),
        device_id=call.device_id,
        step=call.step,
    )
