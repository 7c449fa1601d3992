"""A driver for edits (greedy: the first proposal that still fails, then all over again), and graphs to edit."""

import copy
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
import torch
from reduction import reduction_cases
from torch.fx import GraphModule

from graphprobe.diagnose.reduction import edits
from graphprobe.engine.values import capture, same_bits


@dataclass
class Reduced:
    graph: GraphModule
    inputs: list[Any]
    calls: int = 0
    accepted: list[Any] = field(default_factory=list)


def reduce_case(graph: GraphModule, inputs: list[Any], fails: Any, *, passes: Any = edits.PASSES) -> Reduced:
    """Smallest case by greedy descent. Every step is checked: simpler, and the arguments untouched."""
    state = Reduced(graph, inputs)
    while (edit := _step(state, fails, passes)) is not None:
        before = edits.size_of(state.graph, state.inputs)
        state.graph, state.inputs = edit.apply(state.graph, state.inputs)
        state.accepted.append(edit)
        assert edits.size_of(state.graph, state.inputs) < before
        assert state.calls < 3000, f"still going: {state.accepted[-5:]}"
    return state


def _step(state: Reduced, fails: Any, passes: Any) -> Any:
    for a_pass in passes:
        for edit in a_pass.proposals(state.graph, state.inputs):
            state.calls += 1
            if fails(*edit.apply(state.graph, state.inputs)):
                return edit
    return None


def run(graph: GraphModule, inputs: list[Any]) -> Any:
    with torch.no_grad():
        return copy.deepcopy(graph)(*[v.clone() if isinstance(v, torch.Tensor) else v for v in inputs])


def tensors(values: list[Any]) -> list[torch.Tensor]:
    return [v for v in values if isinstance(v, torch.Tensor)]


def check_edit(edit: Any, graph: GraphModule, inputs: list[Any], *, simpler: bool = True) -> tuple[Any, list[Any]]:
    """Apply it, and hold it against the contract."""
    text, kept = str(graph.graph), capture(inputs, rng=False).restore()
    state = {k: v.clone() for k, v in graph.state_dict().items()}
    flags = [v.requires_grad for v in tensors(inputs)]
    read = msgspec.json.decode(msgspec.json.encode(edit), type=edits.Edit)
    assert read == edit
    made, values = read.apply(graph, inputs)
    again, others = edit.apply(graph, inputs)
    assert str(made.graph) == str(again.graph)
    assert not same_bits(values, others, stride=True)
    assert str(graph.graph) == text
    assert not same_bits(kept, inputs, stride=True)
    assert not same_bits(state, dict(graph.state_dict()))
    assert [v.requires_grad for v in tensors(inputs)] == flags
    owned = {v.untyped_storage().data_ptr() for v in tensors(inputs)} - {0}
    assert owned.isdisjoint(v.untyped_storage().data_ptr() for v in tensors(values))
    assert len(made.graph.find_nodes(op="placeholder")) == len(values)
    run(made, values)
    assert not simpler or edits.size_of(made, values) < edits.size_of(graph, inputs)
    return made, values


def refused(edit: Any, graph: GraphModule, inputs: list[Any], *, why: str | None = None) -> None:
    with pytest.raises(edits.NotApplicable, match=why):
        edit.apply(graph, inputs)


def captured(fn: Any, *args: Any, dynamic: bool | None = False) -> tuple[GraphModule, list[Any]]:
    """The graph that Dynamo makes of a function, and what it is called with; numbers as ints."""
    graph, [values] = reduction_cases.captured(fn, args, grad=True, dynamic=dynamic)
    return graph, values.restore()


def shapes(inputs: list[Any]) -> list[Any]:
    return [tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in inputs]


def targets(graph: GraphModule) -> list[str]:
    return [str(n.target) for n in reduction_cases.calls_of(graph)]
