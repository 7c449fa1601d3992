"""What is cut out of a graph runs alone, on the values that were computed there."""

import operator

import pytest
import torch
from reduction.reduction_cases import calls_of, captured, mlp
from torch.fx import Graph, GraphModule, symbolic_trace

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.reduction.problem import Problem
from graphprobe.engine.values import capture


def problem(fn, *calls, grad=False):
    graph = GraphModule(torch.nn.Module(), fn) if isinstance(fn, Graph) else symbolic_trace(fn)
    return Problem.of(Case(graph, [capture(list(c)) for c in calls], "wrong_value", grad=grad), timeout_s=60)


def of_dynamo(fn, *args):
    return Problem.of(Case(*captured(fn, args), "wrong_value"), timeout_s=60)


def names(space):
    return [unit.name for unit in space.units]


def piece(space, *units):
    made = space.candidate(frozenset(names(space).index(name) for name in units))
    assert made is not None
    return made


def built(space, *units):
    return space.build(piece(space, *units).recipe)


def test_a_cut_edge_becomes_a_placeholder_with_the_value_that_was_computed() -> None:
    x = torch.randn(3)
    space = problem(lambda x: torch.relu(torch.sin(x).cos()) + 1, (x,))
    assert names(space) == ["sin", "cos", "relu", "add"]
    graph, [inputs] = built(space, "cos", "add")
    assert torch.equal(inputs[0], x.sin())
    assert torch.equal(inputs[1], x.sin().cos().relu())
    outputs = graph(*inputs)
    assert torch.equal(outputs[0], x.sin().cos())
    assert torch.equal(outputs[1], inputs[1] + 1)
    for fn, unit, expected in (
        (added_in_place, "cos", torch.sin),
        (added_in_place, "exp", lambda x: x.sin() + 1),
        (doubled_in_place, "mul_", lambda x: x),
        (doubled_in_place, "sin", lambda x: x * 2),
    ):
        x = torch.randn(3)
        assert torch.equal(built(problem(fn, (x.clone(),)), unit)[1][0][0], expected(x))


def added_in_place(x):
    y = torch.sin(x)
    before = y.cos()
    y.add_(1)
    return before, y.exp()


def doubled_in_place(x):
    x.mul_(2)
    return x.sin()


def test_gradients_of_a_piece() -> None:
    x = torch.randn(3)
    graph, [inputs] = built(problem(added_in_place, (x.clone().requires_grad_(),), grad=True), "add_", "exp")
    assert inputs[0].requires_grad
    result = graph(*inputs)[-1]
    assert torch.equal(result, (x.sin() + 1).exp())
    result.sum().backward()
    w, x = torch.randn(3, requires_grad=True), torch.randn(3)
    space = problem(lambda x, w: torch.relu(x * w) + x.sin(), (x, w), grad=True)
    assert [value.requires_grad for value in built(space, "relu", "add")[1][0]] == [True, False]


def test_inputs_that_share_memory_go_on_sharing_it():
    def fn(x, y):
        x.mul_(2)
        return y.sin()

    base = torch.randn(4)
    space = problem(fn, (base[:3], base[1:]))
    _, [inputs] = space.build(space.whole().recipe)
    assert inputs[0].untyped_storage().data_ptr() == inputs[1].untyped_storage().data_ptr()
    other = problem(fn, (base[:3].clone(), base[1:].clone()))
    assert space.whole().digest != other.whole().digest


def test_items_belong_to_the_call_that_made_them():
    graph = Graph()
    parts = graph.call_function(torch.split, (graph.placeholder("x"), 2))
    a, b, c = (graph.call_function(operator.getitem, (parts, i)) for i in range(3))
    graph.output((graph.call_function(operator.add, (a, b)), graph.call_function(torch.sin, (c,))))
    value = torch.randn(6)
    space = problem(graph, (value,))
    assert names(space) == ["split", "add", "sin"]
    made, [inputs] = built(space, "add")
    assert torch.equal(made(*inputs)[0], value[:2] + value[2:4])
    assert len(piece(space, "split").graph(value)) == 3
    assert len(built(space, "split", "sin")[1][0]) == 1


def test_a_context_stays_whole():
    def fn(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ w
        return y.float().sin()

    space = of_dynamo(fn, torch.randn(2, 2), torch.randn(2, 2))
    (context,) = [name for name in names(space) if "autocast" in name]
    graph, [inputs] = built(space, context, "y")
    assert [out.dtype for out in graph(*inputs)] == [torch.bfloat16]


def test_numbers_are_written_in_unless_they_change_from_call_to_call():
    graph = Graph()
    x = graph.placeholder("x")
    sizes = tuple(graph.call_method("size", (x, dim)) for dim in (0, 1))
    graph.output((graph.call_function(torch.full, (sizes, 1.0)),))
    made, calls = built(problem(graph, (torch.randn(2, 5),), (torch.randn(3, 5),)), "full")
    assert calls == [[2], [3]]
    assert [made(*inputs)[0].shape for inputs in calls] == [(2, 5), (3, 5)]


@pytest.mark.parametrize(("floats", "units"), [([0.5], ["mul", "add"]), ([0.5, 0.25], ["item", "mul", "add"])])
def test_a_float_that_is_an_input_is_a_number_unless_it_changes_and_an_int_stays_an_input(floats, units):
    """`x * m.item() + n` as Dynamo makes it of a module's float, and a call for each float."""
    graph = Graph()
    x, m, n = (graph.placeholder(name) for name in "xmn")
    product = graph.call_function(operator.mul, (x, graph.call_method("item", (m,))))
    graph.output((graph.call_function(operator.add, (product, n)),))
    space = problem(graph, *((torch.ones(3), torch.tensor(f, dtype=torch.float64), 4) for f in floats))
    assert names(space) == units
    if len(floats) == 1:
        made, [inputs] = built(space, "mul", "add")
        assert inputs[1:] == [4]
        assert torch.equal(made(*inputs)[0], torch.full((3,), 4.5))


def test_the_digest_knows_structure_and_values_and_no_names():
    x = torch.randn(3)
    space, other = (problem(lambda x: (torch.relu(x), torch.relu(x) + 1), (value,)) for value in (x, x + 1))
    assert piece(space, "relu").digest == piece(space, "relu_1").digest
    assert piece(space, "relu").digest not in (piece(space, "add").digest, piece(other, "relu").digest)


def test_the_whole_is_the_case_and_its_units_know_their_modules():
    module, args = mlp(depth=3)
    space = of_dynamo(module, *args)
    assert [unit.path for unit in space.units] == [(str(number),) for number in range(6)]
    made, [inputs] = space.build(space.whole().recipe)
    assert len(calls_of(made)) == 6
    assert torch.equal(made(*inputs)[0], module(*args))
