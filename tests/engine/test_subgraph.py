"""Pieces cut out of graphs compute what they computed in place, and graphs show only values that stay as they are."""

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

from graphprobe.engine import subgraph
from graphprobe.engine.interpret import run_graph

ATEN = torch.ops.aten


def named(gm: GraphModule, *names: str) -> list[Node]:
    by_name = {n.name: n for n in gm.graph.nodes}
    return [by_name[name] for name in names]


def traced(fn: Callable[..., Any], *args: Any) -> GraphModule:
    """An aten graph whose nodes know fake values, as AOTAutograd's do."""
    return make_fx(fn, tracing_mode="fake")(*args)


class WithBuffer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inner_scale", torch.tensor([2.0, 3.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * self.inner_scale + 1


def test_a_node_and_what_feeds_it() -> None:
    gm = symbolic_trace(lambda x, y: (torch.relu(x) + torch.sin(y)).exp())
    (exp,) = named(gm, "exp")
    assert {n.name for n in subgraph.ancestors([exp], 0)} == {"exp"}
    assert {n.name for n in subgraph.ancestors([exp], 1)} == {"exp", "add"}
    assert {n.name for n in subgraph.ancestors([exp], 2)} == {"exp", "add", "relu", "sin"}
    assert subgraph.ancestors([exp], 9) == subgraph.ancestors([exp], 2), "inputs are no calls"


def test_a_piece_computes_what_it_computed_in_place_on_copies_of_its_inputs() -> None:
    gm = symbolic_trace(lambda x, y: (torch.relu(x) + torch.sin(y)).exp() * 2)
    run = run_graph(gm, [torch.ones(3), torch.randn(3)])
    piece, inputs = subgraph.extract(gm, named(gm, "add", "exp"), run.values)
    assert [n.name for n in piece.graph.nodes if n.op == "placeholder"] == ["relu", "sin"]
    assert [n.name for n in piece.graph.nodes if n.op == "call_function"] == ["add"]
    (got,) = piece(*inputs)
    assert torch.equal(got, run.values["exp"])
    inputs[0].zero_()
    assert run.values["relu"].tolist() == [1.0] * 3


def test_an_item_brings_the_call_it_is_picked_from() -> None:
    gm = traced(lambda x: ATEN.topk.default(x, 2)[0] * 2, torch.randn(5))
    item = next(n for n in gm.graph.nodes if subgraph.is_item(n))
    assert {n.name for n in subgraph.with_producers([item])} == {"topk", item.name}
    run = run_graph(gm, [torch.tensor([3.0, 1.0, 2.0, 5.0, 4.0])])
    piece, inputs = subgraph.extract(gm, [item], run.values)
    assert [t.tolist() for t in inputs] == [[3.0, 1.0, 2.0, 5.0, 4.0]]
    assert piece(*inputs)[0].tolist() == [5.0, 4.0]


def test_numbers_slices_lists_and_keywords() -> None:
    gm = symbolic_trace(lambda x: torch.narrow(x, 0, x.size(0) - 2, 2) * 2)
    run = run_graph(gm, [torch.arange(5.0)])
    piece, inputs = subgraph.extract(gm, named(gm, "narrow", "mul"), run.values)
    assert len(inputs) == 1
    (narrow,) = (n for n in piece.graph.nodes if n.name == "narrow")
    assert narrow.args[1:] == (0, 3, 2)
    assert piece(*inputs)[0].tolist() == [6.0, 8.0]

    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        part = x[1 : n + 1]
        return torch.cat([part, torch.relu(part)], dim=n - 2)

    gm = symbolic_trace(fn)
    run = run_graph(gm, [torch.tensor([1.0, -2.0, 3.0]), 2])
    assert run.failed is None
    piece, inputs = subgraph.extract(gm, named(gm, "getitem", "relu", "cat"), run.values)
    assert piece(*inputs)[0].tolist() == [-2.0, 3.0, 0.0, 3.0]
    (item,) = (n for n in piece.graph.nodes if n.name == "getitem")
    assert item.args[1] == slice(1, 3)


def test_attributes_and_modules() -> None:
    gm = symbolic_trace(WithBuffer())
    run = run_graph(gm, [torch.tensor([-1.0, 1.0])])
    piece, inputs = subgraph.extract(gm, named(gm, "mul"), run.values)
    assert [t.tolist() for t in inputs] == [[0.0, 1.0], [2.0, 3.0]]
    assert piece(*inputs)[0].tolist() == [0.0, 3.0]
    assert not list(piece.buffers())
    gm = symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))
    run = run_graph(gm, [torch.randn(1, 2)])
    first = next(n for n in gm.graph.nodes if n.op == "call_module")
    piece, inputs = subgraph.extract(gm, [first], run.values)
    assert torch.equal(piece(*inputs)[0], run.values[first.name])


def test_bodies_of_an_operator_that_takes_graphs() -> None:
    found: list[GraphModule] = []

    def backend(gm: GraphModule, _: Any) -> Any:
        found.append(gm)
        return gm.forward

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (torch.relu(x),)) * 2

    x = torch.tensor([1.0, -3.0])
    torch.compile(fn, backend=backend)(x)
    run = run_graph(found[0], [x])
    assert run.failed is None
    (cond,) = (n for n in found[0].graph.nodes if n.target is torch.ops.higher_order.cond)
    piece, inputs = subgraph.extract(found[0], [cond], run.values)
    assert piece(*inputs)[0][0].tolist() == [0.0, -1.0]
    inputs[0].fill_(True)
    assert piece(*inputs)[0][0].tolist() == [2.0, 1.0], "both bodies are there"
    alone, inputs, owners = subgraph.isolated_calls(found[0], [cond], run.values)
    assert alone(*inputs)[0][0].tolist() == [0.0, -1.0]
    assert owners == [(cond, len(inputs))]


def test_what_the_nodes_know_of_their_origin_is_kept() -> None:
    gm = symbolic_trace(lambda x: torch.relu(x) + 1)
    (add,) = named(gm, "add")
    add.meta = {"stack_trace": "here", "val": object(), "nn_module_stack": {}}
    piece, _ = subgraph.extract(gm, [add], run_graph(gm, [torch.ones(1)]).values)
    (made,) = (n for n in piece.graph.nodes if n.op == "call_function")
    assert made.meta == {"stack_trace": "here", "nn_module_stack": {}}


def test_calls_on_inputs_of_their_own() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x)
        return torch.atan2(y, x) + torch.narrow(y, 0, x.size(0) - 1, 1)

    gm = symbolic_trace(fn)
    run = run_graph(gm, [torch.tensor([-1.0, 2.0])])
    nodes = named(gm, "add", "atan2", "narrow", "relu")
    alone, inputs, owners = subgraph.isolated_calls(gm, nodes, run.values)
    assert owners == [(nodes[0], 2), (nodes[1], 2), (nodes[2], 1), (nodes[3], 1)]
    assert len(inputs) == 6
    assert [n.name for n in alone.graph.nodes if n.op == "placeholder"][:3] == ["add_atan2", "add_narrow", "atan2_relu"]
    for node, got in zip(nodes, alone(*inputs), strict=True):
        assert torch.equal(got, run.values[node.name])
    inputs[2].fill_(5.0)
    changed = [not torch.equal(a, run.values[n.name]) for a, n in zip(alone(*inputs), nodes, strict=True)]
    assert changed == [False, True, False, False], "each has its own copy"
    gm = traced(lambda x: x + ATEN.full.default([2], 3.0), torch.ones(2))
    run = run_graph(gm, [torch.ones(2)])
    alone, inputs, owners = subgraph.isolated_calls(gm, named(gm, "full", "add"), run.values)
    assert [count for _, count in owners] == [0, 2]
    assert [t.tolist() for t in alone(*inputs)] == [[3.0, 3.0], [4.0, 4.0]]


def test_more_outputs() -> None:
    gm = symbolic_trace(lambda x: (torch.relu(x) + 1, x))
    subgraph.output_node(gm).meta["original_output_strides"] = [(1,), (1,)]
    one = symbolic_trace(lambda x: torch.relu(x) + 1)
    for graph, outputs in ((gm, [[1.0], [-1.0], [0.0]]), (one, [[1.0], [0.0]])):
        subgraph.exposed(graph, named(graph, "relu"))
        assert [t.tolist() for t in graph(torch.tensor([-1.0]))] == outputs
    assert subgraph.output_node(gm).meta["original_output_strides"] == [(1,), (1,), None]
    assert "original_output_strides" not in subgraph.output_node(one).meta


def chain(x: torch.Tensor) -> torch.Tensor:
    return ATEN.exp.default(ATEN.sin.default(ATEN.relu.default(x)))


def written_to(x: torch.Tensor) -> torch.Tensor:
    a, b = ATEN.relu.default(x), ATEN.sin.default(x)
    ATEN.add_.Tensor(a, 1)
    return ATEN.mul.Tensor(a, b)


def written_to_by_a_view(x: torch.Tensor) -> torch.Tensor:
    a, b = ATEN.relu.default(x), ATEN.sin.default(x)
    view, other = ATEN.view.default(a, [4]), ATEN.view.default(b, [4])
    ATEN.add_.Tensor(ATEN.slice.Tensor(view, 0, 0, 2), 1)
    return ATEN.mul.Tensor(ATEN.sum.default(a), ATEN.add.Tensor(view, other))


def view_of_a_written_input(x: torch.Tensor) -> torch.Tensor:
    view, kept = ATEN.view.default(x, [4]), ATEN.clone.default(x)
    ATEN.copy_.default(x, ATEN.sin.default(kept))
    return ATEN.exp.default(view)


def items(x: torch.Tensor) -> torch.Tensor:
    values, indices = ATEN.topk.default(x, 2)
    return ATEN.mul.Tensor(values, indices)


def parts_of_a_written_list(x: torch.Tensor) -> torch.Tensor:
    first, second = ATEN.split.Tensor(ATEN.relu.default(x), 2)
    ATEN.add_.Tensor(first, 1)
    return ATEN.mul.Tensor(ATEN.sin.default(second), first)


def test_only_values_that_stay_as_they_are_can_be_shown() -> None:
    for fn, shape, names in (
        (chain, [2], ["relu", "sin"]),
        (written_to, [2], ["sin"]),
        (written_to_by_a_view, [2, 2], ["sin", "view_1", "sum_1", "add"]),
        (view_of_a_written_input, [2, 2], ["clone", "sin"]),
        (items, [5], ["getitem", "getitem_1"]),
        (parts_of_a_written_list, [4], ["sin"]),
    ):
        assert [n.name for n in subgraph.showable(traced(fn, torch.rand(shape)))] == names
        assert subgraph.showable(symbolic_trace(fn)) == [], "no values are known"
