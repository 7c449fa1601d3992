"""Edits of the graph alone: outputs, dead calls, graphs that operators take."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from reduction.edits.edit_driver import captured, check_edit, reduce_case, run, targets
from torch.fx.experimental.proxy_tensor import make_fx

from graphprobe.diagnose.reduction import edits
from graphprobe.diagnose.reduction.edits import NotApplicable, inline_hop, outputs
from graphprobe.diagnose.reduction.edits.inline_hop import InlineBranch
from graphprobe.diagnose.reduction.edits.outputs import DropCalls, KeepOutputs


def test_outputs_are_dropped() -> None:
    graph = make_fx(lambda x: tuple(x + i for i in range(20)))(torch.randn(3))
    names = [n.name for n in graph.graph.nodes if n.op == "call_function"]
    wanted = {names[3], names[17]}

    def fails(graph: Any, _inputs: Any) -> bool:
        return wanted <= {n.name for n in graph.graph.find_nodes(op="output")[0].args[0]}

    done = reduce_case(graph, [torch.randn(3)], fails, passes=[outputs.PASS, outputs.DEAD])
    assert len(targets(done.graph)) == len(run(done.graph, done.inputs)) == 2
    assert done.calls < 80
    with pytest.raises(NotApplicable):
        KeepOutputs(()).apply(graph, [torch.randn(3)])
    with pytest.raises(NotApplicable):
        KeepOutputs((20,)).apply(graph, [torch.randn(3)])


def test_outputs_that_are_none_go_and_one_stays() -> None:
    graph = torch.fx.symbolic_trace(lambda x: (None, x + 1, None))
    made, _ = check_edit(KeepOutputs((1,)), graph, [torch.randn(3)])
    assert isinstance(run(made, [torch.randn(3)]), tuple)
    assert not list(outputs.PASS.proposals(made, [torch.randn(3)]))


def test_dead_calls_go_where_the_fault_lets_them() -> None:
    def f(x: Any) -> Any:
        a = x.sin()
        a.cos()
        x.exp().log()
        y = x.clone()
        y.add_(1)
        return x + 1

    graph = torch.fx.symbolic_trace(f)
    done = reduce_case(graph, [torch.randn(3)], lambda g, v: True, passes=[outputs.DEAD])
    assert targets(done.graph) == ["clone", "add_", "<built-in function add>"]
    done = reduce_case(graph, [torch.randn(3)], lambda g, v: "exp" in targets(g), passes=[outputs.DEAD])
    assert targets(done.graph)[0] == "exp" and "log" not in targets(done.graph)
    with pytest.raises(NotApplicable, match="is used"):
        DropCalls(("sin",)).apply(graph, [torch.randn(3)])
    check_edit(DropCalls(("sin", "cos")), graph, [torch.randn(3)])


def test_autocast_is_no_dead_call() -> None:
    def f(x: Any) -> Any:
        with torch.autocast("cpu"):
            return x @ x

    graph, inputs = captured(f, torch.randn(4, 4))
    assert not list(outputs.DEAD.proposals(graph, inputs))


def test_the_branch_that_is_taken() -> None:
    scale = torch.nn.Parameter(torch.tensor(2.0))

    def f(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda v: v.sin() * scale, lambda v: v.cos(), (x,)) + 1

    inputs = [torch.rand(3, 4) + 1]
    graph, values = captured(f, *inputs)
    proposals = list(inline_hop.PASS.proposals(graph, values))
    assert [edit.branch for edit in proposals] == [0, 1]
    made, out = check_edit(proposals[0], graph, values)
    assert torch.allclose(run(made, out)[0], f(inputs[0]))
    assert "sin" in targets(made) and edits.size_of(made, out).graphs == 0
    values = [-v if v.ndim == 2 else v for v in values]
    assert next(inline_hop.PASS.proposals(graph, values)).branch == 1


def test_dynamic_branches_and_nested_ones() -> None:
    def f(x: Any) -> Any:
        def inner(v: Any) -> Any:
            return torch.cond(v.max() > 1, lambda w: w.exp(), lambda w: w.neg(), (v,))

        return torch.cond(x.sum() > 0, inner, lambda v: v.cos(), (x,))

    x = torch.rand(3, 4) + 1
    for dynamic in (False, True):
        graph, values = captured(f, x, dynamic=dynamic)
        done = reduce_case(graph, values, lambda g, v: torch.allclose(run(g, v)[0], f(x)), passes=[inline_hop.PASS])
        assert edits.size_of(done.graph, done.inputs).graphs == 0
        assert "exp" in targets(done.graph)
        small = reduce_case(graph, values, lambda g, v: "exp" in str(g.print_readable(print_output=False)))
        assert targets(small.graph).count("exp") == 1
        assert all(v.numel() == 1 for v in small.inputs)


def test_invoked_and_wrapped_graphs() -> None:
    region = torch.compiler.nested_compile_region(lambda x, y: (x.sin() @ y, x + y))

    def f(x: Any, y: Any, z: Any) -> Any:
        a, b = region(x, y)
        return region(a, b)[0] + torch.utils.checkpoint.checkpoint(lambda v: v.cos(), z, use_reentrant=False)

    inputs = [torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)]
    graph, values = captured(f, *inputs)
    assert edits.size_of(graph, values).graphs == 3
    done = reduce_case(graph, values, lambda g, v: torch.allclose(run(g, v)[0], f(*inputs)), passes=[inline_hop.PASS])
    assert edits.size_of(done.graph, done.inputs).graphs == 0
    assert len(done.accepted) == 3
    with pytest.raises(NotApplicable):
        InlineBranch("nothing").apply(graph, values)


def test_a_loop_is_left_alone() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def g(x: Any) -> Any:
        return while_loop(lambda v: v.sum() < 9, lambda v: (v + 1,), (x,))[0]

    graph, values = captured(g, torch.zeros(3))
    assert not list(inline_hop.PASS.proposals(graph, values))
