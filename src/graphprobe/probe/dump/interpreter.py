"""The engine that runs a graph node by node in the place of its compiled code, on any backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule, Interpreter, Node

from graphprobe.internals.tensors.plain_tensors import InputMemory
from graphprobe.internals.unseen import unseen
from graphprobe.probe.dump.facts import DATA_OPS, ops_of_graph
from graphprobe.probe.dump.session import DumpModel, GraphCall, GraphOp, under_way
from graphprobe.probe.dump.tensors import is_tensor
from graphprobe.records import Direction
from graphprobe.store.dump_slots import slots_from_inputs, slots_from_outputs

Boxed = Callable[[list[Any]], Any]


def interpreted(
    model: DumpModel, direction: Direction, gm: GraphModule, *, perturbs: bool, trains: bool = False
) -> Callable[..., Any]:
    """A function of `gm`'s inputs that tells the dump of each node, in the steps that are dumped.

    In the others the graph runs as Python code, node by node just the same: the results are those of the interpreter.
    """
    session = model.session
    ops = ops_of_graph(gm.graph, direction, engine="interpreter", perturbs=perturbs)
    graph = session.graph(model, direction, list(ops.values()), engine="interpreter", perturbs=perturbs, trains=trains)

    def run(*args: Any) -> Any:
        forward, call = session.begin(graph, args)
        plain = InputMemory(args if perturbs else ())  # the graphs of eager backends get what torch gives them
        args = tuple(plain.values) if perturbs else args
        with unseen:
            if call is None:
                result = gm(*args)
            else:
                with under_way(call):
                    result = call.result = _TellingInterpreter(gm, call, ops).run(*args, enable_io_processing=False)
        session.finish(graph, forward, result)
        return plain.restored(result)

    return run


def boxed(run: Callable[..., Any]) -> Boxed:
    """`run` as a function of one list, which it empties."""

    def call(args: list[Any]) -> Any:
        values = tuple(args)
        args.clear()
        with unseen:
            return run(*values)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


class _TellingInterpreter(Interpreter):
    """Tells a call of each node; values are freed after their last use, as in the compiled code."""

    def __init__(self, gm: GraphModule, call: GraphCall, ops: dict[Node, GraphOp]) -> None:
        super().__init__(gm)
        self.extra_traceback = False
        self._call = call
        self._ops = ops

    def run_node(self, n: Node) -> Any:
        op = self._ops.get(n)
        if op is None or op.index not in self._call.wanted:
            with unseen:
                return super().run_node(n)
        execution = self._call.before(op.index, [] if n.op in DATA_OPS else self._inputs(n))
        try:
            with unseen:
                result = super().run_node(n)
        except BaseException as error:
            self._call.raised(execution, error)
            raise
        self._call.after(execution, _outputs(result))
        return result

    def _inputs(self, node: Node) -> list[tuple[str, Any]]:
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        return [(name, value) for name, _, value in slots_from_inputs(args, kwargs, is_tensor=is_tensor)]


def _outputs(result: Any) -> Sequence[tuple[str, Any]]:
    return [(name, value) for name, _, value in slots_from_outputs(result, is_tensor=is_tensor)]
