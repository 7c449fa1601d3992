"""Which of Dynamo's nodes a rung gets wrong: each compiled by itself, forward and backward, on the values it got."""

from __future__ import annotations

import contextlib
import math
import re
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.overrides import TorchFunctionMode

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.check_case import reference_of
from graphprobe.diagnose.evidence import DEATHS, RAISED
from graphprobe.diagnose.local import LocalError, Suspect, comparable
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.rungs import DynamoGraph, Watch, graphs_rung, run_program
from graphprobe.diagnose.searches.equal_graphs import form_of
from graphprobe.diagnose.settings import Compilation
from graphprobe.engine.forked_child import doing, isolated
from graphprobe.engine.interpret import plain_value, run_graph
from graphprobe.engine.naming import aten_ops, op_of
from graphprobe.engine.subgraph import CALLS, attribute, extract, is_item, isolated_calls
from graphprobe.engine.values import capture
from graphprobe.findings import kind_of_death
from graphprobe.internals.tensors import tree_map
from graphprobe.judge.judging import Difference, compare
from graphprobe.judge.observation import ObservationRecord, read
from graphprobe.judge.stage_table import GRAPHS

CRASHES = (*RAISED, *DEATHS)

MOST_CALLS = 8
"""Calls of one function that are tried by themselves."""


def isolated_suspects(
    graph: DynamoGraph, stage: str, compilation: Compilation, grad: bool, wanted: Difference | None = None
) -> list[Suspect]:
    """The nodes whose outputs or gradients the rung gets wrong, or that crash it in the way `wanted` does."""
    found: list[Suspect] = []
    for call in graph.calls[-1:]:
        run = run_graph(graph.graph, [plain_value(v) for v in call.restore()])
        nodes = [n for n in graph.graph.graph.nodes if n.op in CALLS and n.name in run.values and comparable(op_of(n))]
        nodes = [n for n in nodes if isinstance(run.values[n.name], torch.Tensor) and not is_item(n)]
        words = set(re.findall(r"\w+", wanted.text)) if wanted is not None and wanted.kind in CRASHES else set()
        named = [node for node in nodes if op_of(node).rpartition(".")[2] in words]  # by torch's error
        search = _NodeSearch(graph, run.values, stage, compilation, grad)
        wrong = _like(wanted, search.wrong(named)) or _like(wanted, search.wrong(nodes))
        together = not wrong and wanted is not None and wanted.kind in CRASHES
        seen: set[Node] = set()
        for node, difference in _like(wanted, search.beginning()) if together else wrong:
            if node in seen:
                continue  # its gradient is wrong because it is
            seen.add(node)
            error = LocalError("worse", difference.kind, difference.z, math.inf, difference.text)
            direction = "backward" if difference.kind == "wrong_gradient" else "forward"
            known: Any = "codegen" if stage == "kernels" else stage
            also = [op_of(n) for n in node.all_input_nodes if n.op in CALLS] if together else []
            suspect = Suspect(known, direction, graph.graph, node, run.values, error, whole=together, also=also)
            if stage not in ("dynamo", "pre_grad") and compilation.is_inductor:
                first, *others = [*aten_ops(graph.graph, node, run.values), suspect.op]
                suspect = replace(suspect, named=first, also=[*others, *also])
            found.append(suspect)
        if not found and wanted is not None and wanted.kind in CRASHES:
            taking = [n for n in graph.graph.graph.nodes if any(given.op == "get_attr" for given in n.all_input_nodes)]
            found = [suspect for node in taking for suspect in search.inside(node, wanted)]
    return found


def _like(wanted: Difference | None, found: list[tuple[Node, Difference]]) -> list[tuple[Node, Difference]]:
    """Without crashes of another kind, made by taking a node out of its place."""
    return [(n, d) for n, d in found if wanted is None or d.kind not in CRASHES or _error(d) == _error(wanted)]


def _error(difference: Difference) -> tuple[str, str]:
    """The kind of a crash and the class of its exception."""
    name = difference.text.partition(":")[0]
    return difference.kind, name if " " not in name else ""


@dataclass(frozen=True)
class _NodeSearch:
    """Compiles nodes of a graph on the rung of a stage, each by itself."""

    graph: DynamoGraph
    values: dict[str, Any]
    stage: str
    compilation: Compilation
    grad: bool

    def wrong(self, nodes: list[Node]) -> list[tuple[Node, Difference]]:
        """The nodes that the rung gets wrong, and how."""
        if not nodes:
            return []
        doing(f"{len(nodes)} ops, each by itself, from {op_of(nodes[0])} on")
        made, inputs, owners = isolated_calls(self.graph.graph, nodes, self.values)
        differences = self._differences(made, inputs)
        crash = _crash(differences)
        if len(nodes) > 1 and crash is not None and (found := self._first_crash(nodes)) is not None:
            first, crash = found
            alike = [n for n in nodes if n is not first and self._alike(n, first)]
            surely = crash.kind == "crash_compile"  # else it may be the numbers that end it
            wrong = [first, *(n for n in alike if surely or self._crash_of([n]) is not None)]
            return [*((n, crash) for n in wrong), *self.wrong([n for n in nodes if n not in wrong])]
        if differences is None or (crash is not None and len(nodes) > 1):
            middle = len(nodes) // 2
            return [*self.wrong(nodes[:middle]), *self.wrong(nodes[middle:])] if middle else []
        return [(_owner(d, nodes, owners), d) for d in differences]

    def inside(self, node: Node, wanted: Difference) -> list[Suspect]:
        """What crashes in the graphs that an operator takes, as the backward of an `autograd.Function`.

        Dynamo does not trace all of these operators again. The numbers that their graphs get are not known, and drawn.
        """
        found: list[Suspect] = []
        for given in node.all_input_nodes:
            body = attribute(self.graph.graph, given.target) if given.op == "get_attr" else None
            if isinstance(body, GraphModule) and (inputs := _drawn(body)):
                part = DynamoGraph(body, [capture(inputs)])
                grad = self.grad and op_of(node) != "higher_order.autograd_function_apply"
                inner = isolated_suspects(part, self.stage, self.compilation, grad, wanted)
                direction = "backward" if str(given.target).startswith("bwd") else "forward"
                found += [replace(one, direction=direction) for one in inner if not one.whole]
        return found

    def _first_crash(self, nodes: list[Node]) -> tuple[Node, Difference] | None:
        """One of the nodes that crashes by itself; None if halving does not lead to one."""
        crash: Difference | None = None
        while len(nodes) > 1:
            half = nodes[: len(nodes) // 2]
            doing(f"{len(half)} ops of those that crash, from {op_of(half[0])} on")
            crash = self._crash_of(half)
            nodes = half if crash is not None else nodes[len(half) :]
        crash = crash or self._crash_of(nodes)
        return (nodes[0], crash) if crash is not None else None

    def _crash_of(self, nodes: list[Node]) -> Difference | None:
        return _crash(self._differences(*isolated_calls(self.graph.graph, nodes, self.values)[:2]))

    def _alike(self, a: Node, b: Node) -> bool:
        """Whether two calls are equal but for the numbers in their tensors, so that they compile alike."""

        def look(given: Node) -> Any:  # of a graph, its name: another one is something else
            value = given.name if given.op == "get_attr" else self.values.get(given.name)
            return form_of(value) if isinstance(value, torch.Tensor) else value

        looks = [repr(map_arg((n.args, n.kwargs), look)) for n in (a, b)]
        return a.target == b.target and looks[0] == looks[1]

    def beginning(self) -> list[tuple[Node, Difference]]:
        """The last node of the shortest beginning of the graph that crashes: for ops that do so in one kernel alone."""
        nodes = [n for n in self.graph.graph.graph.nodes if n.op in CALLS and n.name in self.values]
        crashes: dict[int, Difference | None] = {}

        def crashes_until(last: int) -> bool:
            doing(f"the first {last + 1} ops together")
            found = self._differences(*extract(self.graph.graph, set(nodes[: last + 1]), self.values)) or []
            crashes[last] = next((d for d in found if d.kind in CRASHES), None)
            return crashes[last] is not None

        if not nodes or not crashes_until(len(nodes) - 1):
            return []
        last = bisect_left(range(len(nodes) - 1), True, key=crashes_until)
        crash = crashes[last]
        return [(nodes[last], crash)] if crash is not None else []

    def _differences(self, made: GraphModule, inputs: list[Any]) -> list[Difference] | None:
        """What the rung gets wrong of a graph; None of one that cannot run by itself."""
        if self.grad:
            inputs = [v.requires_grad_() if v.is_floating_point() else v for v in inputs]
        case = Case(made, [capture(inputs)], "wrong_value", grad=self.grad, dynamic=self.compilation.dynamic)
        try:
            reference = reference_of(case)
        except Exception:
            return None
        outcome = isolated(partial(_run, case, self.stage, self.compilation), timeout_s=self.compilation.timeout_s)
        if outcome.died or outcome.raised is not None:
            kind: Any = kind_of_death(outcome.signal) if outcome.died else "crash_compile"
            return [Difference(kind, 0, "", outcome.raised.short if outcome.raised else outcome.end)]
        calls = [read(record) for record in msgspec.convert(outcome.value, list[ObservationRecord])]
        return [d for d in compare(reference, calls) if d.certain]


def _run(case: Case, stage: str, compilation: Compilation) -> list[ObservationRecord]:
    program = Program(case.graph, [(call.restore(), {}) for call in case.calls], grad=bool(case.grad))
    point: Any = "partition" if stage == "decomposition" else stage
    backend = graphs_rung(Watch(), point) if point in GRAPHS else compilation.backend
    return run_program(program, compilation, backend).calls


def _drawn(graph: GraphModule) -> list[torch.Tensor]:
    """Inputs of the forms that a graph was made for; empty where it takes something else than tensors."""
    generator, found = torch.Generator().manual_seed(0), list[torch.Tensor]()
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            like = node.meta.get("example_value")
            if not isinstance(like, torch.Tensor) or not all(type(n) is int for n in (*like.shape, *like.stride())):
                return []
            length = 1 + sum((n - 1) * step for n, step in zip(like.shape, like.stride(), strict=True))
            memory = torch.randn(max(1, length), generator=generator).to(like.dtype).to(like.device)
            found.append(memory.as_strided(like.shape, like.stride()))
    return found


def _crash(differences: list[Difference] | None) -> Difference | None:
    """What is wrong with a graph as a whole, if it is."""
    return next((d for d in differences or () if d.where == ""), None)


def _owner(difference: Difference, nodes: list[Node], owners: list[tuple[Node, int]]) -> Node:
    part, _, rest = difference.where.partition("[")
    index = int(rest.rstrip("]")) if rest else 0
    if part == "outputs":
        return nodes[min(index, len(nodes) - 1)]
    for node, count in owners:
        if index < count:
            return node
        index -= count
    return nodes[-1]


def graphs_of_calls(program: Program, op: str) -> list[DynamoGraph]:
    """The uncompiled program's first calls of a function of torch, each as a graph of this one call.

    For what ends Dynamo before it has handed a graph to any backend. `op`: as `op_of` names it.
    """
    seen = _CallsOf(op)
    with contextlib.suppress(Exception), seen:
        program.run(lambda fn: fn)
    return seen.graphs


class _CallsOf(TorchFunctionMode):
    def __init__(self, op: str) -> None:
        super().__init__()
        self.op = op
        self.graphs: list[DynamoGraph] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == self.op.rpartition(".")[2] and len(self.graphs) < MOST_CALLS:
            method = getattr(torch.Tensor, name, None) is func
            graph, given = Graph(), list[torch.Tensor]()

            def placed(value: Any) -> Any:
                if not isinstance(value, torch.Tensor):
                    return value
                given.append(value.detach())
                return graph.placeholder(f"arg{len(given)}")

            with contextlib.suppress(Exception):  # an argument that no graph takes
                placed_args, placed_kwargs = tree_map(placed, (tuple(args), dict(kwargs or {})))
                kind, target = ("call_method", name) if method else ("call_function", func)
                node = graph.create_node(kind, target, placed_args, placed_kwargs)
                graph.output(node)
                if op_of(node) == self.op:
                    self.graphs.append(DynamoGraph(GraphModule(torch.nn.Module(), graph), [capture(given)]))
        return func(*args, **(kwargs or {}))
