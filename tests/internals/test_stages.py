"""Inductor stopped after each of its stages gives right results, and copies of graphs are independent."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch._inductor.config
from torch.fx import Graph, GraphModule, Node, symbolic_trace

from graphprobe.engine.interpret import Recorder
from graphprobe.engine.subgraph import is_item, producer
from graphprobe.internals.inductor.stages import STAGES, copy_graph, inductor_config, stop_after


class MLP(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(self.second(torch.tanh(self.first(x))))


Seen = list[tuple[GraphModule, bool]]
"""Graphs, and whether each is a backward."""


def compiled_upto(stage: str, fn: Callable[..., Any]) -> tuple[Callable[..., Any], Seen]:
    seen: Seen = []

    def inner(gm: GraphModule, _: Sequence[Any], settings: dict[str, Any]) -> Callable[..., Any]:
        seen.append((copy_graph(gm), bool(settings.get("is_backward"))))
        graph = copy_graph(gm)

        def run(args: list[Any]) -> Any:
            return Recorder(graph, keep=False).run(*args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    return torch.compile(fn, backend=lambda gm, inputs: stop_after(stage, gm, inputs, inner)), seen


def targets(gm: GraphModule) -> set[str]:
    return {str(n.target) for n in gm.graph.nodes if n.op == "call_function"}


@pytest.mark.parametrize("stage", STAGES)
def test_forward_and_backward_are_right_after_each_stage(stage: str) -> None:
    torch.manual_seed(0)
    model, x = MLP(), torch.randn(5, 6, requires_grad=True)
    leaves = [x, *model.parameters()]
    expected = model(x)
    gradients = torch.autograd.grad(expected.sum(), leaves)
    compiled, seen = compiled_upto(stage, model)
    got = compiled(x)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(torch.autograd.grad(got.sum(), leaves), gradients)
    assert [backward for _, backward in seen] == [False, True]
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), expected)
    assert [backward for _, backward in seen] == [False, True, False]


def halved(values: list[torch.Tensor]) -> torch.Tensor:
    torch._foreach_div_(values, 2.0)
    return values[0] * values[1]


def test_items_of_an_operation_that_returns_nothing_run_op_by_op() -> None:
    """Inductor writes `_foreach_div_` where `_foreach_div` was, and leaves the items of its result as they were."""
    given, own = ([torch.tensor([1.0, 3.0]), torch.tensor([2.0, 8.0])] for _ in range(2))
    compiled, seen = compiled_upto("post_grad", halved)
    with torch.no_grad():
        got = compiled(given)
    assert "aten._foreach_div_.Scalar" in targets(seen[0][0])
    torch.testing.assert_close(got, halved(own))
    torch.testing.assert_close(given, own)
    assert {producer(n).name for n in seen[0][0].graph.nodes if is_item(n)} == {"_foreach_div"}


def counting(x: torch.Tensor) -> torch.Tensor:
    """What a pass of the post-grad graph replaces by a range; one of the joint graph makes the tensor of ones plain."""
    return torch.ones(4, 3, dtype=torch.bool).cumsum(1, dtype=torch.float32) + x


def test_stages_differ_in_which_passes_ran_and_settings_and_caches_are_as_before() -> None:
    names = ("use_pre_grad_passes", "use_joint_graph_passes", "use_post_grad_passes", "fx_graph_cache")
    before = [getattr(torch._inductor.config, name) for name in names]
    caching = torch._functorch.config.enable_autograd_cache
    found: dict[str, set[str]] = {}
    for stage in STAGES:
        torch.compiler.reset()
        compiled, seen = compiled_upto(stage, counting)
        torch.testing.assert_close(compiled(torch.ones(4, 3)), counting(torch.ones(4, 3)))
        found[stage] = targets(seen[0][0])
    assert [stage for stage in STAGES if "aten.cumsum.default" in found[stage]] == list(STAGES[:3])
    assert [getattr(torch._inductor.config, name) for name in names] == before
    assert torch._functorch.config.enable_autograd_cache is caching


def test_an_unknown_stage() -> None:
    assert inductor_config() is torch._inductor.config
    with pytest.raises(ValueError, match="not in tuple"):
        stop_after("postgrad", symbolic_trace(torch.nn.ReLU()), [], lambda *_: lambda args: args)


def replace(graph: Graph, old: Any, new: Any) -> None:
    for node in graph.nodes:
        if node.target is old:
            node.target = new


def test_a_copy_is_independent() -> None:
    gm = symbolic_trace(MLP())
    gm.meta["kept"] = 1
    copy = copy_graph(gm)
    assert [n.name for n in copy.graph.nodes] == [n.name for n in gm.graph.nodes]
    assert copy.get_submodule("first") is gm.get_submodule("first"), "parameters are shared"
    assert copy.meta["kept"] == 1
    x = torch.randn(2, 6)
    before = gm(x)
    assert torch.equal(copy(x), before)
    replace(copy.graph, torch.tanh, torch.relu)
    copy.recompile()
    assert torch.equal(gm(x), before) and not torch.equal(copy(x), before)


def unsorted() -> GraphModule:
    graph = Graph()
    x = graph.placeholder("x")
    made: list[Node] = [graph.call_function(f, (x,)) for f in (torch.exp, torch.sin, torch.relu)]
    exp, sin, relu = made
    exp.args, sin.args = (sin,), (relu,)  # exp(sin(relu(x))), in the opposite order
    graph.output((exp, sin))
    return GraphModule(torch.nn.Module(), graph)


def test_a_copy_of_a_graph_out_of_order_is_sorted() -> None:
    gm = unsorted()
    with pytest.raises(RuntimeError):
        gm.graph.lint()
    copy = copy_graph(gm)
    copy.graph.lint()
    assert [n.name for n in copy.graph.nodes] == ["x", "relu", "sin", "exp", "output"]
    x = torch.randn(3)
    assert torch.equal(copy(x)[0], torch.exp(torch.sin(torch.relu(x))))
    assert [n.name for n in gm.graph.nodes] == ["x", "exp", "sin", "relu", "output"], "the original stays as it is"


@pytest.mark.timeout(60)
def test_a_graph_that_depends_on_itself_cannot_be_copied() -> None:
    gm = unsorted()
    relu, exp = (next(n for n in gm.graph.nodes if n.target is f) for f in (torch.relu, torch.exp))
    relu.args = (exp,)
    with pytest.raises(ValueError, match="depends on itself"):
        copy_graph(gm)


def test_a_value_with_many_users_is_no_cycle() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    last = graph.call_function(torch.exp, (x,))
    used = [graph.call_function(torch.add, (last, last)) for _ in range(3)]
    last.args = (graph.call_function(torch.relu, (x,)),)
    used[0].args = (used[1], used[2])
    graph.output(used[0])
    assert copy_graph(GraphModule(torch.nn.Module(), graph))(torch.zeros(1)).tolist() == [4.0]


def test_a_copy_of_a_deep_graph_out_of_order() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    nodes = [graph.call_function(torch.neg, (x,)) for _ in range(3000)]
    for node, after in itertools.pairwise(nodes):
        node.args = (after,)
    graph.output(nodes[0])
    copy = copy_graph(GraphModule(torch.nn.Module(), graph))
    copy.graph.lint()
    assert copy(torch.ones(1)).tolist() == [1.0]


def test_graphs_inside_a_graph_are_copied_too() -> None:
    root = torch.nn.Module()
    root.body, root.linear = symbolic_trace(lambda x: torch.relu(x) + 1), torch.nn.Linear(2, 2)
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("body", (graph.call_module("linear", (x,)),)))
    gm = GraphModule(root, graph)
    copy = copy_graph(gm)
    inner: Any = copy.get_submodule("body")
    assert inner is not gm.get_submodule("body") and isinstance(inner, GraphModule)
    assert copy.get_submodule("linear") is gm.get_submodule("linear")
    value = torch.randn(1, 2)
    before = gm(value)
    replace(inner.graph, torch.relu, torch.sin)
    inner.recompile()
    assert torch.equal(gm(value), before) and not torch.equal(copy(value), before)


def test_what_a_pass_may_not_do_is_no_graph_break_as_it_is_none_in_inductor() -> None:
    """Dynamo runs uncompiled what a backend refuses with this exception, unless Inductor has wrapped it."""
    from torch._subclasses.fake_tensor import DataDependentOutputException

    def refuse(graph: Graph) -> None:
        raise DataDependentOutputException(torch.ops.aten._local_scalar_dense.default)

    with torch._inductor.config.patch(post_grad_custom_post_pass=refuse):
        for backend in ("inductor", lambda gm, inputs: stop_after("post_grad", gm, inputs, lambda *_: gm)):
            torch._dynamo.reset()
            with pytest.raises(torch._inductor.exc.InductorError, match="_local_scalar_dense"):
                torch.compile(lambda x: x.sin() + 1, backend=backend)(torch.ones(3))
