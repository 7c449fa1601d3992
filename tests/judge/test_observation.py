"""What a call returned, with what is inside of objects; and which modules belong to a program."""

import dataclasses
import enum
import functools
from collections import UserDict
from typing import Any

import numpy as np
import torch
from torch import nn

from graphprobe.diagnose.program import Program
from graphprobe.judge.observation import MOST_VALUES, contents_of, plain_parts, reachable_modules


class Marked(torch.Tensor):
    pass


class Colour(enum.IntEnum):
    RED = 1


@dataclasses.dataclass
class Out:
    y: Any
    label: str = "a"
    _note: Any = None


class Slotted:
    __slots__ = ("first", "never_set")

    def __init__(self, first: Any) -> None:
        self.first = first


def test_contents() -> None:
    x = torch.ones(3)
    found = contents_of({"a": [x, 2, None], "b": (x, "s", 1.5)})
    assert found[0] is x and found[3] is x and [*found[1:3], *found[4:]] == [2, None, "s", 1.5]
    x, hidden = torch.ones(3), torch.zeros(2)
    found = contents_of([Out(x, _note={"h": hidden, "secret": 7}), 5])
    assert found[0] == f"{__name__}.Out" and found[1] == 5
    assert any(value is x for value in found) and any(value is hidden for value in found)
    plain = [value for value in found if not isinstance(value, torch.Tensor)]
    assert "a" in plain and 7 not in plain, "numbers and texts of private attributes may be anything"
    shown = contents_of([Colour.RED, Out, contents_of, nn.Linear(2, 2), {1, 2}, torch.Generator()])
    assert shown[:3] == [f"{__name__}.Colour.RED", "builtins.type Out", "builtins.function contents_of"]
    assert shown[3] == "torch.nn.modules.linear.Linear"
    assert not any(isinstance(value, torch.Tensor) for value in shown), "the state of a module is compared apart"
    found = contents_of([np.arange(3.0), np.float32(2.5), np.float64(3.5), np.array(["a"])])
    tensors = [value for value in found if isinstance(value, torch.Tensor)]
    assert [t.tolist() for t in tensors] == [[0.0, 1.0, 2.0], 2.5, 3.5]
    assert set(found[:4]) == {"numpy.ndarray"}, "compiled, torch makes arrays without dimensions of numpy's numbers"


def test_tensors_are_found_wherever_they_are() -> None:
    for make in [lambda x: Slotted([x]), lambda x: UserDict(k=x), lambda x: Out(Out([Out(x)])), lambda x: [Out((x,))]]:
        x = torch.ones(3)
        assert any(value is x for value in contents_of(make(x)))


def test_cycles_shared_parts_and_endless_objects_end() -> None:
    out = Out(torch.ones(1))
    out._note = out
    again = Out([out, out])
    assert sum(isinstance(value, torch.Tensor) for value in contents_of(again)) == 1
    chain = Out(torch.ones(1))
    for _ in range(2 * MOST_VALUES):
        chain = Out(chain)
    assert len(contents_of(chain)) <= MOST_VALUES + 1


def test_tensors_that_are_no_view_of_memory() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    for tensor in (x.as_subclass(Marked), x.to_sparse(), x.to_sparse_csr()):
        (part,) = plain_parts(tensor)
        assert type(part) is torch.Tensor and part.equal(x)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert [part.numel() for part in plain_parts(nested)] == [2, 3]
    assert plain_parts(x)[0] is x
    assert plain_parts(torch.empty(2, device="meta")) == []


AT_MODULE_LEVEL = nn.Linear(2, 3)


def through_a_global(x: Any) -> Any:
    return AT_MODULE_LEVEL(x)


def through_a_nested_function(x: Any) -> Any:
    def inner():
        return AT_MODULE_LEVEL(x)

    return inner()


class Trainer:
    def __init__(self):
        self.model = nn.Linear(2, 3)
        self.others = {"head": nn.Linear(3, 1)}

    def step(self, x):
        return self.others["head"](self.model(x))


class Hiding(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(2, 2)]

    def forward(self, x):
        return self.layers[0](x)


def test_modules_that_are_reached() -> None:
    assert reachable_modules(through_a_global) == [AT_MODULE_LEVEL]
    assert reachable_modules(through_a_nested_function) == [AT_MODULE_LEVEL]
    assert reachable_modules(lambda x: x + 1) == []
    first, second, third = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)
    layers = [first, (second,)]

    def run(x, last=third):
        return last(layers[1][0](layers[0](x)))

    assert set(reachable_modules(run)) == {first, second, third}
    assert reachable_modules(functools.partial(nn.functional.linear, weight=first)) == [first]
    partial = functools.partial(run, last=AT_MODULE_LEVEL)
    assert set(reachable_modules(partial)) == {first, second, third, AT_MODULE_LEVEL}
    trainer, model = Trainer(), Hiding()
    trainer.itself = trainer  # a cycle
    found = reachable_modules(trainer.step)
    assert len(found) == 2 and set(found) == {trainer.model, trainer.others["head"]}
    assert model.layers[0] in reachable_modules(model)
    assert Program(lambda m, x: m(x), [((model.layers[0], torch.ones(1, 2)), {})]).modules() == [model.layers[0]]
