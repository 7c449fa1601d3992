"""Which observables differ in their last bits, and by how much."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphprobe.diagnose.program import Program
from graphprobe.errors import raised_from
from graphprobe.findings import BitDifference, bits_in_words
from graphprobe.judge.bits import bit_differences
from graphprobe.judge.observation import Observation, read
from graphprobe.judge.uncompiled import Reference


def observed(fn: Callable[..., Any], x: torch.Tensor) -> list[Observation]:
    calls: list[Any] = [((x.detach().clone().requires_grad_(x.requires_grad),), {})]
    program = Program(fn, calls, grad=x.requires_grad or None, effects=False)
    return [read(record) for record in program.run(lambda f: f)]


def found(right: Callable[..., Any], other: Callable[..., Any], x: torch.Tensor) -> list[BitDifference]:
    return bit_differences(Reference([observed(right, x)]), observed(other, x))


def up(x: torch.Tensor) -> torch.Tensor:
    return torch.nextafter(x, torch.full_like(x, torch.inf))


X = torch.tensor([1.0, 1.5, -3.0, 0.0])


@pytest.mark.parametrize(
    ("dtype", "ulp"), [(torch.float64, 2.0**-52), (torch.float32, 2.0**-23), (torch.bfloat16, 2.0**-7)]
)
def test_it_counts_elements_and_units_in_the_last_place(dtype: torch.dtype, ulp: float) -> None:
    x = X.to(dtype)

    def third_moved(v: torch.Tensor) -> torch.Tensor:
        moved = v.clone()
        moved[1] = up(up(v))[1]
        return moved

    (one,) = found(torch.clone, third_moved, x)
    assert (one.observable, one.call, one.elements, one.max_ulp) == ("outputs[0]", 0, 0.25, 2.0)
    assert one.max_abs == 2 * ulp and one.repeats
    assert one.worst is not None and (one.worst.index, one.worst.expected, one.worst.wrong) == ((1,), 1.5, 1)
    assert found(torch.clone, torch.clone, x) == []


def test_what_counts() -> None:
    z = torch.complex(X, X)
    (one,) = found(torch.clone, lambda v: torch.complex(up(v.real), v.imag), z)
    assert one.elements == 0.5 and one.max_ulp >= 1, "of eight parts four differ"
    (two,) = found(torch.clone, lambda v: v + torch.tensor([0, 3]), torch.tensor([1, 2]))
    assert (two.elements, two.max_ulp, two.max_abs) == (0.5, 3.0, 3.0)
    (three,) = found(lambda v: v.sum().item(), lambda v: up(v.sum()).item(), X)
    assert three.elements == 1.0 and three.max_abs > 0 and three.worst is not None
    x = torch.tensor([0.0, torch.nan, 1.0])
    assert found(torch.clone, lambda v: torch.where(v == 0, -0.0, -v.neg()), x) == [], "signs of zero, kinds of NaN"
    reference = Reference([observed(lambda v, k=k: v + k, X) for k in (0.0, 1.0)])
    (one,) = bit_differences(reference, observed(lambda v: v + 2, X))
    assert not one.repeats, "uncompiled it is no two times the same"
    assert bit_differences(reference, [Observation(raised_from(ValueError("no")))]) == [], "an exception has no bits"


def test_gradients_and_changed_inputs() -> None:
    for right, other, x, observable in (
        (lambda v: v * 3, lambda v: v * 3 + (v - v.detach()) * 1e-6, X.clone().requires_grad_(), "gradients[0]"),
        (lambda v: v.mul_(2).sum(), lambda v: up(v.mul_(2)).sum(), X, "outputs[0]"),
        (lambda v: v.mul_(2).sum() * 0, lambda v: v.copy_(up(v * 2)).sum() * 0, X, "inputs[0]"),
    ):
        assert [one.observable for one in found(right, other, x)] == [observable]


@pytest.mark.parametrize(("more", "text"), [(0, ""), (1, " So does one more"), (2, " So do 2 more")])
def test_in_words(more: int, text: str) -> None:
    one = BitDifference(observable="outputs[0]", call=0, elements=0.25, max_ulp=1.0, max_abs=2.0**-23)
    first = "25% of the elements of outputs[0] differ, by up to 1 unit in the last place (1.2e-07)."
    assert bits_in_words([one] * (1 + more)).startswith(first + text)
