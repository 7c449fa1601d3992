"""Which modules belong to a program, however its function gets at them."""

from __future__ import annotations

import functools

import torch
from torch import nn

from graphprobe.diagnose.program import Program
from graphprobe.judge.observation import reachable_modules

AT_MODULE_LEVEL = nn.Linear(2, 3)


def through_a_global(x):
    return AT_MODULE_LEVEL(x)


def through_a_nested_function(x):
    def inner():
        return AT_MODULE_LEVEL(x)

    return inner()


class Trainer:
    def __init__(self):
        self.model = nn.Linear(2, 3)
        self.others = {"head": nn.Linear(3, 1)}

    def step(self, x):
        return self.others["head"](self.model(x))


def test_globals_that_the_code_names() -> None:
    assert reachable_modules(through_a_global) == [AT_MODULE_LEVEL]
    assert reachable_modules(through_a_nested_function) == [AT_MODULE_LEVEL]


def test_globals_that_no_code_names_are_left_out() -> None:
    assert reachable_modules(lambda x: x + 1) == []


def test_partial_closure_defaults_and_containers() -> None:
    first, second, third = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)
    layers = [first, (second,)]

    def run(x, last=third):
        return last(layers[1][0](layers[0](x)))

    assert set(reachable_modules(run)) == {first, second, third}
    assert reachable_modules(functools.partial(nn.functional.linear, weight=first)) == [first]
    assert set(reachable_modules(functools.partial(run, last=AT_MODULE_LEVEL))) == {
        first,
        second,
        third,
        AT_MODULE_LEVEL,
    }


def test_attributes_of_the_object_that_a_method_is_bound_to() -> None:
    trainer = Trainer()
    assert set(reachable_modules(trainer.step)) == {trainer.model, trainer.others["head"]}


def test_modules_that_a_module_hides_in_a_list() -> None:
    class Hiding(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Linear(2, 2)]

        def forward(self, x):
            return self.layers[0](x)

    model = Hiding()
    assert model.layers[0] in reachable_modules(model)


def test_cycles_end() -> None:
    trainer = Trainer()
    trainer.itself = trainer
    assert len(reachable_modules(trainer.step)) == 2


def test_their_parameters_are_the_programs_state_and_get_gradients() -> None:
    program = Program(through_a_global, [((torch.ones(1, 2),), {})], grad=True)
    assert program.wants_gradients()
    assert {id(t) for t in program.state()} == {id(t) for t in AT_MODULE_LEVEL.parameters()}


def test_a_module_passed_as_an_argument_counts() -> None:
    model = nn.Linear(2, 2)
    program = Program(lambda m, x: m(x), [((model, torch.ones(1, 2)), {})])
    assert program.modules() == [model]
