from __future__ import annotations

import operator

import msgspec
import torch
from reduction.reduction_cases import calls_of, captured, mlp
from torch.fx import Graph, GraphModule, symbolic_trace

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.reduction.edits import Recipe
from graphprobe.diagnose.reduction.problem import Problem
from graphprobe.engine.values import capture


def problem(fn, *calls, grad=False):
    graph = fn if isinstance(fn, GraphModule) else symbolic_trace(fn)
    return Problem.of(Case(graph, [capture(list(c)) for c in calls], "wrong_value", grad=grad), timeout_s=60)


def index(space, name):
    return next(i for i, unit in enumerate(space.units) if unit.name == name)


def piece(space, *names):
    made = space.candidate(frozenset(index(space, name) for name in names))
    assert made is not None
    return made


def test_a_cut_edge_becomes_a_placeholder_with_the_value_that_was_computed():
    x = torch.randn(3)
    space = problem(lambda x: torch.relu(torch.sin(x).cos()) + 1, (x,))
    assert [unit.name for unit in space.units] == ["sin", "cos", "relu", "add"]
    middle = piece(space, "cos", "add")
    graph, [inputs] = space.build(middle.recipe)
    assert torch.equal(inputs[0], x.sin())
    assert torch.equal(inputs[1], x.sin().cos().relu())
    outputs = graph(*inputs)
    assert torch.equal(outputs[0], x.sin().cos())
    assert torch.equal(outputs[1], inputs[1] + 1)


def test_a_value_is_the_one_its_user_found():
    def fn(x):
        y = torch.sin(x)
        before = y.cos()
        y.add_(1)
        return before, y.exp()

    x = torch.randn(3)
    space = problem(fn, (x,))
    _, [[first]] = space.build(piece(space, "cos").recipe)
    _, [[after]] = space.build(piece(space, "exp").recipe)
    assert torch.equal(first, x.sin())
    assert torch.equal(after, x.sin() + 1)
    graph, [inputs] = space.build(piece(space, "add_", "exp").recipe)
    assert torch.equal(graph(*inputs)[-1], (x.sin() + 1).exp())


def test_an_input_is_as_it_was_before_the_graph_changed_it():
    def fn(x):
        x.mul_(2)
        return x.sin()

    x = torch.randn(3)
    space = problem(fn, (x.clone(),))
    assert torch.equal(space.build(piece(space, "mul_").recipe)[1][0][0], x)
    assert torch.equal(space.build(piece(space, "sin").recipe)[1][0][0], x * 2)


def test_inputs_that_share_memory_go_on_sharing_it():
    def fn(x, y):
        x.mul_(2)
        return y.sin()

    base = torch.randn(4)
    space = problem(fn, (base[:3], base[1:]))
    _, [inputs] = space.build(space.whole().recipe)
    assert inputs[0].untyped_storage().data_ptr() == inputs[1].untyped_storage().data_ptr()
    alone = torch.randn(4)
    other = problem(fn, (alone[:3].clone(), alone[1:].clone()))
    assert space.whole().digest != other.whole().digest


def test_items_belong_to_the_call_that_made_them():
    def fn(x):
        a, b, c = torch.split(x, 2)
        return a + b, c.sin()

    graph = Graph()
    x = graph.placeholder("x")
    parts = graph.call_function(torch.split, (x, 2))
    items = [graph.call_function(operator.getitem, (parts, i)) for i in range(3)]
    total = graph.call_function(operator.add, (items[0], items[1]))
    graph.output((total, graph.call_function(torch.sin, (items[2],))))
    value = torch.randn(6)
    space = problem(GraphModule(torch.nn.Module(), graph), (value,))
    assert [unit.name for unit in space.units] == ["split", "add", "sin"]
    made, [inputs] = space.build(piece(space, "add").recipe)
    assert torch.equal(made(*inputs)[0], fn(value)[0])
    assert len(piece(space, "split").graph(value)) == 3
    made, [inputs] = space.build(piece(space, "split", "sin").recipe)
    assert len(inputs) == 1


def test_a_context_stays_whole():
    def fn(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ w
        return y.float().sin()

    graph, calls = captured(fn, (torch.randn(2, 2), torch.randn(2, 2)))
    space = Problem.of(Case(graph, calls, "wrong_value"), timeout_s=60)
    names = [unit.name for unit in space.units]
    assert sum("autocast" in name for name in names) == 1
    made = space.candidate(frozenset([next(i for i, n in enumerate(names) if "autocast" in n), names.index("y")]))
    graph, [inputs] = space.build(made.recipe)
    assert [out.dtype for out in graph(*inputs)] == [torch.bfloat16]


def test_numbers_are_written_in_unless_they_change_from_call_to_call():
    graph = Graph()
    x = graph.placeholder("x")
    size = graph.call_method("size", (x, 0))
    last = graph.call_method("size", (x, 1))
    graph.output((graph.call_function(torch.full, ((size, last), 1.0)),))
    space = problem(GraphModule(torch.nn.Module(), graph), (torch.randn(2, 5),), (torch.randn(3, 5),))
    made, calls = space.build(piece(space, "full").recipe)
    assert calls == [[2], [3]]
    assert [made(*inputs)[0].shape for inputs in calls] == [(2, 5), (3, 5)]


def test_gradients_are_asked_for_where_the_program_asked_for_them():
    w, x = torch.randn(3, requires_grad=True), torch.randn(3)
    space = problem(lambda x, w: torch.relu(x * w) + x.sin(), (x, w), grad=True)
    _, [inputs] = space.build(piece(space, "relu", "add").recipe)
    assert [value.requires_grad for value in inputs] == [True, False]


def test_a_value_that_is_written_to_is_no_leaf():
    def fn(x):
        y = x.sin()
        y.add_(1)
        return y.cos()

    space = problem(fn, (torch.randn(3, requires_grad=True),), grad=True)
    graph, [inputs] = space.build(piece(space, "add_", "cos").recipe)
    assert inputs[0].requires_grad
    graph(*inputs)[-1].sum().backward()


def test_the_digest_knows_structure_and_values_and_no_names():
    x = torch.randn(3)
    space = problem(lambda x: (torch.relu(x), torch.relu(x) + 1), (x,))
    assert piece(space, "relu").digest == piece(space, "relu_1").digest
    assert piece(space, "relu").digest != piece(space, "add").digest
    other = problem(lambda x: (torch.relu(x), torch.relu(x) + 1), (x + 1,))
    assert piece(other, "relu").digest != piece(space, "relu").digest


def test_units_know_their_modules_and_groups_stand_together():
    graph, calls = captured(*mlp(depth=3))
    space = Problem.of(Case(graph, calls, "wrong_value"), timeout_s=60)
    paths = [unit.path for unit in space.units]
    assert paths == [("0",), ("1",), ("2",), ("3",), ("4",), ("5",)]


def test_a_recipe_is_the_same_after_json():
    recipe = Recipe(("a", "b"), calls=(1,), base=Recipe(("c",)))
    assert msgspec.json.decode(msgspec.json.encode(recipe), type=Recipe) == recipe


def test_the_whole_is_the_case():
    module, args = mlp(depth=3)
    graph, calls = captured(module, args)
    space = Problem.of(Case(graph, calls, "wrong_value"), timeout_s=60)
    made, [inputs] = space.build(space.whole().recipe)
    assert len(calls_of(made)) == 6
    assert torch.equal(made(*inputs)[0], module(*args))


def with_a_float(*floats):
    """`x * m.item() + n` as Dynamo makes it of a module's float, and a call for each float."""
    graph = Graph()
    x, m, n = (graph.placeholder(name) for name in "xmn")
    product = graph.call_function(operator.mul, (x, graph.call_method("item", (m,))))
    graph.output((graph.call_function(operator.add, (product, n)),))
    calls = [(torch.ones(3), torch.tensor(f, dtype=torch.float64), 4) for f in floats]
    return problem(GraphModule(torch.nn.Module(), graph), *calls)


def test_a_float_that_is_an_input_is_a_number_and_an_int_stays_an_input():
    space = with_a_float(0.5)
    assert [unit.name for unit in space.units] == ["mul", "add"]
    graph, [inputs] = space.build(piece(space, "mul", "add").recipe)
    assert inputs[1:] == [4]
    assert torch.equal(graph(*inputs)[0], torch.full((3,), 4.5))


def test_a_float_that_changes_stays_an_input():
    assert [unit.name for unit in with_a_float(0.5, 0.25).units] == ["item", "mul", "add"]
