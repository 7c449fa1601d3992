"""What explain says of a function, with any backend inside."""

import json
from typing import Any

import pytest
import torch

import graphprobe
from graphprobe import backends
from graphprobe.backends.explain import ExplainWithBackend, explain
from graphprobe.errors import UsageError


def in_two_parts(x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x) + 1
    torch._dynamo.graph_break()
    return y.sin()


@pytest.mark.parametrize("inner", ["eager", "aot_eager", "eager_debug", "graphprobe:aot_ts", backends.get("eager")])
def test_facts(inner: Any) -> None:
    found = explain(in_two_parts, inner=inner)(torch.ones(3))
    assert [graph.ops for graph in found.graphs] == [["torch.relu", "operator.add"], ["Tensor.sin"]]
    assert (found.graph_count, found.op_count, found.graph_break_count) == (2, 3, 1)
    assert "graph_break()" in found.breaks[0].reason
    assert found.breaks[0].stack[-1].endswith(" in in_two_parts") and "test_explain.py:" in found.breaks[0].stack[-1]
    assert found.breaks_without_graph == {}
    guards = [(guard.source, guard.kind) for guard in found.graphs[0].guards]
    assert ("L['x']", "TENSOR_MATCH") in guards
    assert any(guard.code for guard in found.graphs[0].guards)
    assert all(graph.backend_ns > 0 and graph.compile_id for graph in found.graphs)
    assert found.compile_times_s and all(seconds > 0 for seconds in found.compile_times_s.values())


def test_text_and_json_say_the_same() -> None:
    found = explain(in_two_parts)(torch.ones(3))
    text, facts = str(found), json.loads(found.to_json())
    parts = ("2 graphs, 1 graph breaks, 3 ops", "torch.relu", "Tensor.sin", "TENSOR_MATCH L['x']", "in in_two_parts")
    for part in parts:
        assert part in text
    assert (facts["graph_count"], facts["graph_break_count"], facts["op_count"]) == (2, 1, 3)
    assert facts["graphs"][0]["ops"] == ["torch.relu", "operator.add"]
    assert facts["graphs"][0]["graph_break"]["reason"] == found.breaks[0].reason


def test_break_before_any_op_is_counted_and_nothing_to_compile_is_said() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x.sin()

    found = explain(fn)(torch.ones(3))
    assert (found.graph_count, found.graph_break_count) == (1, 1)
    assert sum(found.breaks_without_graph.values()) == 1
    assert "break before any op (1×)" in str(found)
    found = explain(lambda x: x)(3)
    assert (found.graph_count, found.op_count, found.graphs) == (0, 0, [])
    assert str(found).startswith("0 graphs, 0 graph breaks, 0 ops")


def test_result_and_gradient_are_the_inner_backends() -> None:
    backend = ExplainWithBackend(backends.get("faulty", op="aten.sin", inner="aot_eager"))
    x = torch.ones(2, requires_grad=True)
    out = torch.compile(torch.sin, backend=backend)(x)
    out.sum().backward()
    assert torch.equal(out, torch.sin(x) + 1) and torch.equal(x.grad, torch.cos(x))
    assert backend.output().graphs[0].ops == ["torch.sin"]


def test_failure_of_the_inner_backend_is_noted_and_raised() -> None:
    backend = ExplainWithBackend(backends.get("relu_compile_error_TESTING_ONLY"))
    with pytest.raises(Exception, match="ReluCompileError"):
        torch.compile(torch.relu, backend=backend)(torch.ones(2))
    assert str(backend.output().graphs[0].error).startswith("ReluCompileError")


def test_options_pass_through_and_explanations_nest() -> None:
    inner = ExplainWithBackend("inductor")
    outer = ExplainWithBackend(inner)
    torch.compile(torch.sin, backend=outer, options={"max_autotune": False})(torch.ones(2))
    assert inner.output().graph_count == outer.output().graph_count == 1


def test_nested_ops_are_listed() -> None:
    found = explain(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))(torch.ones(2))
    ops = {op.replace("Tensor.", "torch.") for op in found.graphs[0].ops}
    assert {"higher_order.cond", "torch.sin", "torch.cos"} <= ops


def test_two_functions_are_not_a_break_and_recompiles_count() -> None:
    backend = ExplainWithBackend("eager")
    for x in (torch.ones(2), torch.ones(2, dtype=torch.float64)):
        torch.compile(torch.sin, backend=backend)(x)
    found = backend.output()
    assert (found.graph_count, found.graph_break_count) == (2, 0)
    assert len(backend.graphs) == 2 and "sin" in backend.graphs[0].code
    with pytest.raises(UsageError, match="no backend named 'nobody'"):
        ExplainWithBackend("nobody")


@pytest.mark.parametrize("asks_size", [True, False])
def test_a_size_is_no_tensor_to_choose_by(asks_size: bool) -> None:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        if asks_size:
            if len((x > 0).nonzero()) == 0:
                return x
        elif x.sum() > 0:
            return x
        return x + 1

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        (row,) = explain(chosen)(torch.ones(3)).remedies
    assert row.kind == "data-dependent-branch" and ("torch.where" in row.remedy) != asks_size


def f(x: Any) -> Any:
    return x * 2


def test_as_the_profiler_of_torch_was_used() -> None:
    with graphprobe.CompileProfiler() as prof:
        compiled = torch.compile(f, backend=prof)
        for n in (3, 4, 5):
            assert compiled(torch.ones(n)).tolist() == [2.0] * n
    assert prof.compiles == 2
    assert "size-changed ×1: the size of dim 0 of x changed: 3, 4" in prof.report()
    assert "torch._dynamo.mark_dynamic(x, 0)" in prof.report()


def test_others_do_not_count_and_one_that_is_never_used_says_so() -> None:
    with graphprobe.CompileProfiler() as prof:
        torch.compile(lambda x: x - 1, backend="eager")(torch.ones(3))
    assert prof.report() == "no recompilations: nothing was compiled with this backend"
    other = torch.compile(lambda x: x + 1, backend="eager")
    with graphprobe.CompileProfiler() as prof:
        compiled = torch.compile(f, backend=prof)
        compiled(torch.ones(3))
        other(torch.ones(3))
        other(torch.ones(4))
    assert prof.report() == "no recompilations"


def test_without_a_block_it_begins_by_itself() -> None:
    inside = torch._dynamo.convert_frame
    before = inside.exceeds_recompile_limit
    prof = graphprobe.CompileProfiler("aot_eager")
    compiled = torch.compile(f, backend=prof)
    assert inside.exceeds_recompile_limit is before
    x = torch.ones(3, requires_grad=True)
    compiled(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0] * 3
    compiled(torch.ones(4))
    prof.close()
    assert inside.exceeds_recompile_limit is before
    compiled(torch.ones(4, 4))
    assert [group.kind for group in prof.result().groups] == ["requires-grad-changed"]
