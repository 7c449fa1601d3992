"""Which op was run with a number of an earlier call: what a cache entry that is served too widely has baked in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from graphprobe.diagnose.dynamo_check import Accused, accuse
from graphprobe.diagnose.passes import different
from graphprobe.diagnose.rungs import DynamoGraph
from graphprobe.engine.interpret import flat_outputs
from graphprobe.engine.naming import op_of
from graphprobe.engine.subgraph import CALLS
from graphprobe.internals.tensors.trees import tree_map


def stale_number(graphs: Sequence[DynamoGraph], observed: Sequence[Sequence[Any]]) -> Accused | None:
    """The op that explains what was observed: with a number from an earlier graph's run, the graph gives just that.

    Args:
        graphs: Dynamo's, in the order in which they were made, with their calls.
        observed: leaves of what the compiled program returned, for each call of it.

    Returns:
        the op with the two numbers; None where no single number of one op explains anything.
    """
    runs = [_Run(graph) for graph in graphs if graph.calls]
    found = list(_explanations(runs, observed))
    # Arithmetic on the number itself explains as much as the op of tensors that the result is for.
    of_tensors = [one for run, node, one in found if isinstance(run.results[node.name], torch.Tensor)]
    return next(iter([*of_tensors, *(one for _, _, one in found)]), None)


def _explanations(runs: Sequence[_Run], observed: Sequence[Sequence[Any]]) -> Iterator[tuple[_Run, Node, Accused]]:
    for later, run in enumerate(runs):
        right = run.outputs
        for earlier in reversed(runs[:later]):
            for node, old, new in _numbers(run, earlier):
                given = _outputs(run, node, old, new)
                if given is None or not any(different(a, b) for a, b in zip(right, given, strict=True)):
                    continue
                if any(_explains(given, leaves) for leaves in observed):
                    text = f"it was given {old:g}, the number of an earlier call, in place of {new:g}"
                    yield run, node, accuse(node, text)


class _Run:
    """A graph run on its first call; `given` has the arguments that each call got, `results` what it returned."""

    def __init__(self, graph: DynamoGraph) -> None:
        self.graph, self.inputs = graph.graph, graph.calls[0]
        self.given: dict[str, list[Any]] = {}
        self.results: dict[str, Any] = {}
        interpreter = _Watched(self.graph, self.given, self.results)
        self.outputs = _run(interpreter, self.inputs.restore())


class _Watched(Interpreter):
    """Keeps the arguments and results of every call."""

    def __init__(self, gm: GraphModule, given: dict[str, list[Any]], results: dict[str, Any]) -> None:
        super().__init__(gm)
        self.extra_traceback = False
        self.given, self.results = given, results

    def run_node(self, n: Node) -> Any:
        if n.op in CALLS:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            self.given[n.name] = flat_outputs([*args, *kwargs.values()])
        result = self.results[n.name] = super().run_node(n)
        return result


class _Replacing(Interpreter):
    """Gives one node `old` wherever it would get the number `new`."""

    def __init__(self, gm: GraphModule, node: Node, old: float, new: float) -> None:
        super().__init__(gm)
        self.extra_traceback = False
        self.node, self.old, self.new = node, old, new

    def run_node(self, n: Node) -> Any:
        if n is not self.node:
            return super().run_node(n)

        def replaced(value: Any) -> Any:
            return self.old if _is_number(value) and value == self.new else value

        args, kwargs = tree_map(replaced, self.fetch_args_kwargs_from_env(n))
        return getattr(self, n.op)(n.target, args, kwargs)


def _run(interpreter: Interpreter, inputs: list[Any]) -> list[Any]:
    with torch.no_grad():
        return flat_outputs(interpreter.run(*inputs))


def _outputs(run: _Run, node: Node, old: float, new: float) -> list[Any] | None:
    try:
        given = _run(_Replacing(run.graph, node, old, new), run.inputs.restore())
    except Exception:  # a number that the op does not take with these inputs
        return None
    return given if len(given) == len(run.outputs) else None


def _numbers(run: _Run, earlier: _Run) -> Iterator[tuple[Node, float, float]]:
    """Calls that both graphs make, with a number that each gave to it: the earlier, the later one."""
    ops = {n.name: op_of(n) for n in earlier.graph.graph.nodes if n.op in CALLS}
    for node in run.graph.graph.nodes:
        before, now = earlier.given.get(node.name), run.given.get(node.name)
        if before is None or now is None or len(before) != len(now) or ops[node.name] != op_of(node):
            continue
        seen: set[tuple[float, float]] = set()
        for old, new in zip(before, now, strict=True):
            if _is_number(old) and _is_number(new) and old != new and (old, new) not in seen:
                seen.add((old, new))
                yield node, old, new


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _explains(given: Sequence[Any], leaves: Sequence[Any]) -> bool:
    """Whether each tensor of a graph's outputs is among those that the program returned."""
    wanted = [v for v in given if isinstance(v, torch.Tensor)]
    found = [v for v in leaves if isinstance(v, torch.Tensor)]
    return bool(wanted) and all(any(not different(w, f) for f in found) for w in wanted)
