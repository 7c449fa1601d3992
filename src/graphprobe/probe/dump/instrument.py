"""The engine that puts recording ops into the graph after the last FX pass, so that Inductor's code shows every node.

What is recorded has to be stored, and what is stored is not fused away: rounding can differ from a plain compile, most
of all in low precision, and every record says `perturbs`. A value lives until the record of its last reader, and memory
that the plain code would reuse for an op's result is not reused for it.

Ops that record, put into an FX graph: which values they get, and in which slots these belong.
"""

from __future__ import annotations

import dataclasses
import operator
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate, map_arg

from graphprobe.internals.inductor.dump_taps import after_post_grad
from graphprobe.internals.inductor.stages import compile_kernels
from graphprobe.internals.operators.operators import define_side_effect, operator_of, value_of, writes_to
from graphprobe.internals.tensors.plain_tensors import InputMemory
from graphprobe.internals.unseen import unseen
from graphprobe.probe.dump.facts import DATA_OPS, is_scoped, ops_of_graph
from graphprobe.probe.dump.running import DumpGraph, DumpModel, GraphCall, GraphOp, OpExecution, Values, under_way
from graphprobe.records import Direction
from graphprobe.store.dump_records import slots_from_inputs, slots_from_outputs


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


INPUTS, OUTPUTS, BOTH = 1, 2, 3
"""What a recording op is given: before an op that writes into its inputs, after it, or all of it afterwards."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Stands for one of the tensors that the recording op is given."""

    position: int


@dataclass(frozen=True, slots=True)
class _Number:
    """Stands for one of its numbers: a size that is known only when the program runs."""

    position: int


@dataclass(slots=True)
class Template:
    """The slots of one recording op, with a stand-in for each value that it gets when it runs."""

    inputs: list[tuple[str, Any]] = field(default_factory=list)
    outputs: list[tuple[str, Any]] = field(default_factory=list)

    def fill(self, tensors: Sequence[Any], numbers: Sequence[int]) -> tuple[Values, Values]:
        """Inputs and outputs, live."""

        def value(stand_in: Any) -> Any:
            if isinstance(stand_in, _Tensor):
                return tensors[stand_in.position]
            return numbers[stand_in.position] if isinstance(stand_in, _Number) else stand_in

        def slots(template: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
            return [(name, map_aggregate(stand_in, value)) for name, stand_in in template]

        return slots(self.inputs), slots(self.outputs)


@dataclass(slots=True)
class Inserted:
    """What was put into a graph: by index of an op and what is recorded there, the template."""

    templates: dict[tuple[int, int], Template] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def insert_recorders(gm: GraphModule, record: Any, ops: Mapping[Node, GraphOp], wanted: Collection[int]) -> Inserted:
    """Put a call of `record(tensors, numbers, index, what)` behind each op that is wanted, graph inputs excepted.

    An op that may write into what it reads gets one in front of it as well, for the inputs. The others get one for both
    sides, since nothing keeps a compiler from running two such calls in the other order.

    Returns:
        The templates; `left_out` names ops without any tensor. When an error is raised the graph is as it was.
    """
    inserted = Inserted()
    new: list[Node] = []
    try:
        for node in list(gm.graph.nodes):
            op = ops.get(node)
            if op is None or op.index not in wanted or node.op == "placeholder":
                continue
            parts = (BOTH,) if not may_write(node) else (INPUTS, OUTPUTS)
            made = [_insert(gm, node, what, record, op.index, inserted, new) for what in parts]
            if not any(made) and node.op not in DATA_OPS:  # a constant without a tensor is a nested graph
                inserted.left_out.append(node.name)
        if new:
            gm.graph.lint()
            gm.recompile()
    except Exception:
        for node in reversed(new):
            gm.graph.erase_node(node)
        gm.recompile()
        raise
    return inserted


def may_write(node: Node) -> bool:
    """Whether an op changes what it reads: by its schema, or because it has none, such as a call of a Triton kernel."""
    if node.op in DATA_OPS:
        return False
    found = operator_of(node.target)
    return bool(writes_to(node)) or (found is not None and found.namespace == "higher_order")


def _insert(
    gm: GraphModule, node: Node, what: int, record: Any, index: int, inserted: Inserted, new: list[Node]
) -> bool:
    """One recording op; False when there is no tensor to record."""
    template, tensors, numbers = Template(), list[Node](), list[Node]()
    take = _taking(tensors, numbers)
    with gm.graph.inserting_before(node if what == INPUTS else node.next):
        if what & INPUTS and node.op not in DATA_OPS:
            args, kwargs = _map((node.args, node.kwargs), lambda read: _spread(gm, read, new))
            for name, _, value in slots_from_inputs(args, kwargs, is_tensor=_is_tensor):
                template.inputs.append((name, _map(value, take)))
        if what & OUTPUTS:
            for name, _, value in slots_from_outputs(_spread(gm, node, new), is_tensor=_is_tensor):
                template.outputs.append((name, _map(value, take)))
            if not tensors and (index, INPUTS) in inserted.templates:
                # It gives nothing, or numbers. What it has read says that this comes after it.
                map_arg((node.args, node.kwargs), take)
        if not tensors:
            return False
        call = gm.graph.call_function(record, (tensors, numbers, index, what))
    call.meta["val"] = None
    new.append(call)
    inserted.templates[index, what] = template
    return True


def _map(value: Any, change: Callable[[Node], Any]) -> Any:
    return map_arg(value, change)


def _taking(tensors: list[Node], numbers: list[Node]) -> Callable[[Node], Any]:
    def take(node: Node) -> Any:
        value = value_of(node)
        if isinstance(value, torch.Tensor):
            tensors.append(node)
            return _Tensor(len(tensors) - 1)
        if isinstance(value, int | torch.SymInt) and not isinstance(value, bool):
            numbers.append(node)
            return _Number(len(numbers) - 1)
        return node.name  # a nested graph, a symbolic float: its name has to do

    return take


def _is_tensor(value: object) -> bool:
    return isinstance(value, Node) and isinstance(value_of(value), torch.Tensor)


def _spread(gm: GraphModule, node: Node, new: list[Node]) -> Any:
    """The node; or, if its result is a list, what is in that, each part taken out by a node of its own."""
    result = value_of(node)
    if not isinstance(result, list | tuple) or not _holds_tensor(result):
        return node
    parts: list[Any] = []
    for index, value in enumerate(result):
        if isinstance(value, torch.Tensor | torch.SymInt) or _holds_tensor(value):
            part = gm.graph.call_function(operator.getitem, (node, index))
            part.meta["val"] = value
            new.append(part)
            parts.append(_spread(gm, part, new))
        else:
            parts.append(value)
    return tuple(parts)


def _holds_tensor(value: object) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(v, torch.Tensor) or _holds_tensor(v) for v in value)
