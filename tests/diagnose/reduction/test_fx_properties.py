"""What holds for the reduction of any graph, drawn by chance: judged in this process, by what a graph contains."""

import operator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reduction.reduction_cases import calls_of
from torch.fx import Graph, GraphModule, Interpreter, Node

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.reduction.problem import FxCandidate, Problem, shrinks_for
from graphprobe.diagnose.reduction.service import Service
from graphprobe.engine.naming import op_of
from graphprobe.engine.values import capture
from graphprobe.reduce import Answer, OracleVerdict, reduce

UNARY = (torch.sin, torch.relu, torch.neg, torch.exp, torch.ops.aten.add_.Scalar)
BINARY = (torch.add, torch.mul, torch.maximum, operator.sub)
WANTED = ("torch.relu", "torch.maximum", "torch.chunk", "aten.add_.Scalar", "torch.cat")


@st.composite
def graphs(draw: st.DrawFn) -> GraphModule:
    """A graph of up to 14 calls on values of one shape: elementwise, in place, two results of one call, joined."""
    graph = Graph()
    values = [graph.placeholder(f"x{i}") for i in range(draw(st.integers(1, 3)))]
    pick = st.integers(0, 10**6)

    def one() -> Node:
        return values[draw(pick) % len(values)]

    for _ in range(draw(st.integers(2, 9))):
        shape = draw(st.sampled_from(("unary", "unary", "binary", "binary", "chunk")))
        if shape == "unary":
            target = draw(st.sampled_from(UNARY))
            more = (1.5,) if target is torch.ops.aten.add_.Scalar else ()
            values.append(graph.call_function(target, (one(), *more)))
        elif shape == "binary":
            values.append(graph.call_function(draw(st.sampled_from(BINARY)), (one(), one())))
        else:
            halves = graph.call_function(torch.chunk, (one(), 2, 1))
            parts = [graph.call_function(operator.getitem, (halves, i)) for i in (1, 0)]
            values.append(graph.call_function(torch.cat, (parts, 1)))
    graph.output(tuple(values[-2:]))
    return GraphModule(torch.nn.Module(), graph)


class Contains:
    """Fails where all of these ops are, on a tensor of no fewer rows than so many."""

    def __init__(self, ops: frozenset[str], rows: int) -> None:
        self.ops, self.rows = ops, rows

    def __call__(self, candidate: FxCandidate) -> Answer:
        try:
            case = candidate.problem.case_of(candidate.recipe)
            inputs = case.calls[0].restore()
            Interpreter(case.graph).run(*inputs)
        except Exception as error:
            return Answer(OracleVerdict.UNRESOLVED, "", str(error))
        rows = max((x.shape[0] for x in inputs if isinstance(x, torch.Tensor) and x.ndim), default=0)
        if rows >= self.rows and self.ops <= {op_of(n) for n in calls_of(case.graph)}:
            return Answer(OracleVerdict.FAILS, "boom")
        return Answer(OracleVerdict.PASSES)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Problem, Contains]:
    gm = draw(graphs())
    torch.manual_seed(draw(st.integers(0, 3)))
    inputs = [torch.randn(8, 6) for n in gm.graph.nodes if n.op == "placeholder"]
    there = sorted({op_of(n) for n in calls_of(gm)} & set(WANTED))
    ops = frozenset(draw(st.lists(st.sampled_from(there), max_size=2))) if there else frozenset()
    case = Case(gm, [capture(inputs)], "wrong_value", backend="eager")
    return Problem.of(case, timeout_s=60), Contains(ops, draw(st.integers(0, 4)))


def reduced(problem: Problem, oracle: Contains) -> FxCandidate:
    service = Service(problem)
    done = reduce(
        problem,
        oracle,
        shrinks=shrinks_for(problem),
        rebase=lambda candidate: service.problem_based_on(candidate.recipe, timeout_s=60),
    )
    assert done.minimal
    assert oracle(done.case) == Answer(OracleVerdict.FAILS, done.signature)  # it still fails, in the same way
    assert (done.case.size, done.case.digest) <= (done.original.size, done.original.digest)
    return done.case


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(problems())
def test_the_result_fails_is_the_same_each_time_and_a_fixed_point(pair: tuple[Problem, Contains]) -> None:
    problem, oracle = pair
    case = reduced(problem, oracle)
    assert oracle.ops <= {op_of(n) for n in calls_of(case.graph)}
    assert reduced(problem, oracle).digest == case.digest
    again = Problem.of(case.problem.case_of(case.recipe), timeout_s=60)
    assert reduced(again, oracle).size == case.size


@pytest.mark.parametrize("rows", [1, 3])
def test_the_rows_that_are_needed_are_left(rows: int) -> None:
    graph = Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.relu, (graph.call_function(torch.sin, (x,)),)),))
    gm = GraphModule(torch.nn.Module(), graph)
    case = Case(gm, [capture([torch.randn(64, 512)])], "wrong_value", backend="eager")
    left = reduced(Problem.of(case, timeout_s=60), Contains(frozenset({"torch.relu"}), rows))
    assert [op_of(n) for n in calls_of(left.graph)] == ["torch.relu"]
    assert [tuple(v.shape) for v in left.inputs] == [(rows, 1)]
