"""Which ops make kernels crash or fail to compile: halves of the graph, each op on inputs of its own."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import torch
from torch.fx import Node

from graphprobe.diagnose.check_case import run_compiled
from graphprobe.diagnose.local import Suspect, certainly_wrong
from graphprobe.diagnose.prove import Prover
from graphprobe.diagnose.rungs import StageGraph
from graphprobe.engine.forked_child import Outcome
from graphprobe.engine.interpret import GraphRun
from graphprobe.engine.naming import op_of
from graphprobe.engine.subgraph import extract, is_item, isolated_calls
from graphprobe.engine.values import capture
from graphprobe.errors import Raised
from graphprobe.findings import kind_of_death

FEW = 3
"""Culprits looked for in one graph."""


def culprits(graph: StageGraph, run: GraphRun, prover: Prover) -> list[Suspect]:
    """The nodes of a graph that crash, hang or raise when compiled by themselves."""
    found: list[Suspect] = []
    nodes = [n for n in graph.graph.graph.nodes if n.op == "call_function" and stands_alone(n, run.values)]

    def outcome_of(part: Sequence[Node]) -> Outcome:
        isolated, inputs, _ = isolated_calls(graph.graph, part, run.values)
        prover.compiles += 1
        case = prover.case(isolated, [capture(inputs)], "crash_runtime")
        return run_compiled(case, prover.compilation.timeout_s, repeats=1)

    def search(part: Sequence[Node]) -> None:
        # One fault of an op shows at each of its calls.
        part = [n for n in part if op_of(n) not in {s.op for s in found}]
        if not part or len(found) >= FEW:
            return
        outcome = outcome_of(part)
        if not fails(outcome):
            return
        if len(part) == 1:
            found.append(_suspect(graph, run, part[0], outcome))
            return
        middle = len(part) // 2
        search(part[:middle])
        search(part[middle:])

    # A model calls few ops many times: one call of each first, and all of them only if none of these fails.
    search(list({_likeness(n, run): n for n in reversed(nodes)}.values()))
    if not found:
        search(nodes)
    return found or _by_prefix(graph, run, prover)


def _by_prefix(graph: StageGraph, run: GraphRun, prover: Prover) -> list[Suspect]:
    """The last node of the shortest beginning of the graph that fails: for ops that fail in one kernel together."""
    calls = [n for n in graph.graph.graph.nodes if n.op == "call_function" and n.name in run.values]

    outcomes: dict[int, Outcome] = {}

    def fails_until(last: int) -> bool:
        made, inputs = extract(graph.graph, set(calls[: last + 1]), run.values)
        prover.compiles += 1
        case = prover.case(made, [capture(inputs)], "crash_runtime")
        outcomes[last] = run_compiled(case, prover.compilation.timeout_s, repeats=1)
        return fails(outcomes[last])

    if not calls or not fails_until(len(calls) - 1):
        return []
    last = bisect_left(range(len(calls) - 1), True, key=fails_until)
    also = [op_of(n) for n in calls[last].all_input_nodes if n.op == "call_function"]
    return [replace(_suspect(graph, run, calls[last], outcomes[last]), whole=True, also=also)]


def fails(outcome: Outcome) -> bool:
    """Whether a case died, could not be compiled, or raised."""
    if outcome.died or outcome.raised is not None:
        return True
    return any(record["raised"] is not None for calls in outcome.value for record in calls)


def _likeness(node: Node, run: GraphRun) -> tuple[Any, ...]:
    """What two calls have in common that are likely to fail alike: the op, and dtype and dimensions of its inputs."""
    inputs = [run.values.get(n.name) for n in node.all_input_nodes]
    return op_of(node), *((v.dtype, v.dim()) for v in inputs if isinstance(v, torch.Tensor))


def stands_alone(node: Node, values: Mapping[str, Any]) -> bool:
    """Whether a call can be made by itself, on the values that are known of a graph's nodes."""
    known = all(n.name in values or n.op == "get_attr" for n in node.all_input_nodes)
    return node.name in values and known and not is_item(node)


def _suspect(graph: StageGraph, run: GraphRun, node: Node, outcome: Outcome) -> Suspect:
    if outcome.died:
        error = certainly_wrong(kind_of_death(outcome.signal), outcome.end)
    else:
        raised = outcome.raised
        if raised is None:
            record = next(r["raised"] for calls in outcome.value for r in calls if r["raised"] is not None)
            raised = msgspec.convert(record, Raised)
        error = certainly_wrong("crash_compile" if raised.while_compiling else "crash_runtime", raised.short)
    return Suspect("codegen", graph.direction, graph.graph, node, run.values, error)
