"""What a call returned: leaves, and what is inside of objects, which a diagnosis compares as well."""

from __future__ import annotations

import dataclasses
import enum
from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch

from graphprobe.judge.observation import MOST, contents_of, plain_parts


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


def names(values: list[Any]) -> list[str]:
    return [value if isinstance(value, str) else type(value).__name__ for value in values]


def test_leaves_come_first_and_as_they_are() -> None:
    x = torch.ones(3)
    found = contents_of({"a": [x, 2, None], "b": (x, "s", 1.5)})
    assert found[0] is x and found[3] is x
    assert [found[i] for i in (1, 2, 4, 5)] == [2, None, "s", 1.5]


def test_an_object_is_its_type_and_what_is_in_it() -> None:
    x, hidden = torch.ones(3), torch.zeros(2)
    found = contents_of([Out(x, _note={"h": hidden, "secret": 7}), 5])
    assert found[0] == f"{__name__}.Out" and found[1] == 5
    assert any(value is x for value in found) and any(value is hidden for value in found)
    plain = [value for value in found if not isinstance(value, torch.Tensor)]
    assert "a" in plain and 7 not in plain, "numbers and texts of private attributes may be anything"


@pytest.mark.parametrize(
    "make", [lambda x: Slotted([x]), lambda x: UserDict(k=x), lambda x: Out(Out([Out(x)])), lambda x: [Out((x,))]]
)
def test_tensors_are_found_wherever_they_are(make: Any) -> None:
    x = torch.ones(3)
    assert any(value is x for value in contents_of(make(x)))


def test_cycles_and_shared_parts_end() -> None:
    out = Out(torch.ones(1))
    out._note = out
    again = Out([out, out])
    assert sum(isinstance(value, torch.Tensor) for value in contents_of(again)) == 1


def test_an_endless_object_ends() -> None:
    chain = Out(torch.ones(1))
    for _ in range(2 * MOST):
        chain = Out(chain)
    assert len(contents_of(chain)) <= MOST + 1


def test_names_only() -> None:
    shown = contents_of([Colour.RED, Out, names, torch.nn.Linear(2, 2), {1, 2}, torch.Generator()])
    assert shown[:3] == [f"{__name__}.Colour.RED", "builtins.type Out", "builtins.function names"]
    assert shown[3] == "torch.nn.modules.linear.Linear"
    assert not any(isinstance(value, torch.Tensor) for value in shown), "the state of a module is compared apart"


def test_numbers_of_numpy() -> None:
    found = contents_of([np.arange(3.0), np.float32(2.5), np.array(["a"])])
    tensors = [value for value in found if isinstance(value, torch.Tensor)]
    assert [t.tolist() for t in tensors] == [[0.0, 1.0, 2.0], 2.5]


def test_tensors_that_are_no_view_of_memory() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    for tensor in (x.as_subclass(Marked), x.to_sparse(), x.to_sparse_csr()):
        (part,) = plain_parts(tensor)
        assert type(part) is torch.Tensor and part.equal(x)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert [part.numel() for part in plain_parts(nested)] == [2, 3]
    assert plain_parts(x)[0] is x
    assert plain_parts(torch.empty(2, device="meta")) == []
