"""A driver for edits (greedy: the first proposal that still fails, then all over again), and graphs to edit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch.fx import GraphModule

from graphprobe.diagnose.reduction import edits
from graphprobe.engine.values import capture, same_bits

Oracle = Callable[[GraphModule, list[Any]], bool]


@dataclass
class Reduced:
    graph: GraphModule
    inputs: list[Any]
    calls: int = 0
    accepted: list[Any] = field(default_factory=list)


def reduce_case(
    graph: GraphModule, inputs: list[Any], fails: Oracle, *, passes: Any = edits.PASSES, limit: int = 3000
) -> Reduced:
    """Smallest case by greedy descent. Every step is checked: simpler, and the arguments untouched."""
    state = Reduced(graph, inputs)
    while (edit := _step(state, fails, passes)) is not None:
        before = edits.size_of(state.graph, state.inputs)
        state.graph, state.inputs = edit.apply(state.graph, state.inputs)
        state.accepted.append(edit)
        assert edits.size_of(state.graph, state.inputs) < before
        assert state.calls < limit, f"still going: {state.accepted[-5:]}"
    return state


def _step(state: Reduced, fails: Oracle, passes: Any) -> Any:
    for a_pass in passes:
        for edit in a_pass.proposals(state.graph, state.inputs):
            state.calls += 1
            if fails(*edit.apply(state.graph, state.inputs)):
                return edit
    return None


def run(graph: GraphModule, inputs: list[Any]) -> Any:
    with torch.no_grad():
        return copy.deepcopy(graph)(*[v.clone() if isinstance(v, torch.Tensor) else v for v in inputs])


def check_edit(
    edit: Any, graph: GraphModule, inputs: list[Any], *, simpler: bool = True
) -> tuple[GraphModule, list[Any]]:
    """Apply it, and hold it against the contract."""
    text, kept = str(graph.graph), capture(inputs, rng=False).restore()
    state = {k: v.clone() for k, v in graph.state_dict().items()}
    flags = [v.requires_grad for v in inputs if isinstance(v, torch.Tensor)]
    read = msgspec.json.decode(msgspec.json.encode(edit), type=edits.Edit)
    assert read == edit
    made, values = read.apply(graph, inputs)
    again, others = edit.apply(graph, inputs)
    assert str(made.graph) == str(again.graph)
    assert not same_bits(values, others, stride=True)
    assert str(graph.graph) == text
    assert not same_bits(kept, inputs, stride=True)
    assert not same_bits(state, dict(graph.state_dict()))
    assert [v.requires_grad for v in inputs if isinstance(v, torch.Tensor)] == flags
    owned = {v.untyped_storage().data_ptr() for v in inputs if isinstance(v, torch.Tensor)} - {0}
    assert not owned & {v.untyped_storage().data_ptr() for v in values if isinstance(v, torch.Tensor)}
    assert len([n for n in made.graph.nodes if n.op == "placeholder"]) == len(values)
    run(made, values)
    if simpler:
        assert edits.size_of(made, values) < edits.size_of(graph, inputs)
    return made, values


def captured(fn: Any, *args: Any, dynamic: bool | None = False) -> tuple[GraphModule, list[Any]]:
    """The first graph that Dynamo makes of a function, and what it is called with; numbers as ints."""
    seen: list[Any] = []

    def backend(graph: GraphModule, example_inputs: Any) -> Any:
        def called(*values: Any) -> Any:
            if not seen:
                seen.append(
                    (copy.deepcopy(graph), [copy.copy(v) if not isinstance(v, torch.Tensor) else v for v in values])
                )
            return graph(*values)

        return called

    torch.compiler.reset()
    torch.compile(fn, backend=backend, dynamic=dynamic)(*args)
    graph, values = seen[0]
    return graph, [v.detach().clone() if isinstance(v, torch.Tensor) and not v.requires_grad else v for v in values]


def shapes(inputs: list[Any]) -> list[Any]:
    return [tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in inputs]


def targets(graph: GraphModule) -> list[str]:
    return [str(n.target) for n in graph.graph.nodes if n.op.startswith("call")]
