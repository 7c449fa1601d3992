"""The engine that puts recording ops into the graph after the last FX pass, so that Inductor's code shows every node.

What is recorded has to be stored, and what is stored is not fused away: rounding can differ from a plain compile, most
of all in low precision, and every record says `perturbs`. A value lives until the record of its last reader, and memory
that the plain code would reuse for an op's result is not reused for it.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from graphprobe.internals.inductor.post_grad_tap import after_post_grad
from graphprobe.internals.inductor.stages import compile_kernels
from graphprobe.internals.operators.side_effects import define_side_effect
from graphprobe.internals.tensors.plain_tensors import InputMemory
from graphprobe.internals.unseen import unseen
from graphprobe.probe.dump.facts import ops_of_graph
from graphprobe.probe.dump.instrument_graph import INPUTS, OUTPUTS, Inserted, insert_recorders
from graphprobe.probe.dump.scoped import is_scoped
from graphprobe.probe.dump.session import DumpGraph, DumpModel, GraphCall, GraphOp, OpExecution, under_way
from graphprobe.records import Direction


def compile_instrumented(
    model: DumpModel, gm: GraphModule, example_inputs: Sequence[Any], settings: dict[str, Any]
) -> Any:
    """Inductor's last part on a graph of AOTAutograd, with recording ops for the nodes that somebody wants.

    Where none is wanted the graph, and so the code, is that of a plain compile.
    """
    direction: Direction = "backward" if settings.get("is_backward") else "forward"
    trains = direction == "forward" and not settings.get("is_inference")
    found: list[_Instrumented] = []

    def edit(after_passes: GraphModule) -> None:
        try:
            found.append(_instrument(model, direction, after_passes, trains))
        except Exception as error:  # the program is compiled without
            model.session.failed(f"instrumenting {model.name}'s {direction} graph", error)

    with after_post_grad(edit):
        output: Any = compile_kernels(gm, example_inputs, settings)
    if found and callable(getattr(output, "current_callable", None)):
        output.current_callable = _watched(found[-1], output.current_callable)
    return output


class _Instrumented:
    """A graph of the dump, and what was put into it."""

    def __init__(self, graph: DumpGraph, inputs: Sequence[GraphOp], inserted: Inserted) -> None:
        self.graph = graph
        self.inputs = inputs
        self.inserted = inserted


def _instrument(model: DumpModel, direction: Direction, gm: GraphModule, trains: bool) -> _Instrumented:
    session = model.session
    ops = {
        node: dataclasses.replace(op, scoped=is_scoped(node))
        for node, op in ops_of_graph(gm.graph, direction, engine="instrument", perturbs=True).items()
    }
    graph = session.graph(model, direction, list(ops.values()), engine="instrument", perturbs=True, trains=trains)
    wanted = frozenset(index for _, indices in session._wanted.get(graph, ()) for index in indices)
    inserted = insert_recorders(gm, _record, ops, wanted)
    if inserted.left_out:
        session.note(
            f"instrument: {len(inserted.left_out)} ops of {graph} have no tensor and are not recorded; "
            f"first: {inserted.left_out[0]}"
        )
    return _Instrumented(graph, [op for node, op in ops.items() if _is_input(node)], inserted)


def _is_input(node: Node) -> bool:
    return node.op == "placeholder"


def _watched(instrumented: _Instrumented, plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
    graph = instrumented.graph
    session = graph.model.session

    def run(inputs: Any) -> Any:
        forward, call = session.begin(graph, inputs)
        given = InputMemory(inputs)
        inputs[:] = given.values
        if call is None:
            with unseen, _frames.entered(None):
                result = plain(inputs)
        else:
            with unseen, under_way(call), _frames.entered(_Frame(call, instrumented.inserted)):
                for position, op in enumerate(instrumented.inputs):
                    if op.index in call.wanted:
                        call.record(op.index, (), (("output.0", inputs[position]),))
                result = plain(inputs)
        session.finish(graph, forward, result)
        return given.restored(result)

    run.__dict__.update(getattr(plain, "__dict__", {}))
    return run


class _Frame:
    """One call of an instrumented graph."""

    def __init__(self, call: GraphCall, inserted: Inserted) -> None:
        self._call = call
        self._templates = inserted.templates
        self._running: dict[int, OpExecution | None] = {}

    def record(self, tensors: Sequence[Any], numbers: Sequence[int], index: int, what: int) -> None:
        """A recording op of that index runs."""
        inputs, outputs = self._templates[index, what].fill(tensors, numbers)
        if what & INPUTS:
            self._running[index] = self._call.before(index, inputs)
        if what & OUTPUTS:
            # An op with nothing to record in front of it, such as one that only writes, begins here.
            execution = self._running.pop(index) if index in self._running else self._call.before(index, ())
            self._call.after(execution, outputs)


class _Frames(threading.local):
    """What the instrumented code on this thread belongs to; None where its step is not dumped."""

    def __init__(self) -> None:
        self.stack: list[_Frame | None] = []

    def entered(self, frame: _Frame | None) -> _Entered:
        return _Entered(self.stack, frame)


class _Entered:
    def __init__(self, stack: list[_Frame | None], frame: _Frame | None) -> None:
        self._stack = stack
        self._frame = frame

    def __enter__(self) -> None:
        self._stack.append(self._frame)

    def __exit__(self, *exception: object) -> None:
        self._stack.pop()


_frames = _Frames()


def _record_kernel(tensors: Sequence[Any], numbers: Sequence[int], index: int, what: int) -> None:
    frame = _frames.stack[-1] if _frames.stack else None
    if frame is None:
        return
    try:
        frame.record(tensors, numbers, index, what)
    except Exception as error:  # inside the program's own call
        frame._call.session.failed(f"recording an op of {frame._call.graph}", error)


_record: Any = define_side_effect(
    "record", "Tensor[] tensors, SymInt[] numbers, int index, int what", _record_kernel, any_strides=True
)
