"""Whether a program that is diagnosed again is the same: of anything that can be called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from graphprobe.engine import finished


class Called:
    def __init__(self, factor: int = 2) -> None:
        self.factor = factor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.factor


class Other:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x - 3


CALLABLES: list[Callable[..., Any]] = [
    *(torch.copysign, torch.addmm, torch.ops.aten.relu.default, torch.nn.functional.gelu, torch.Tensor.add, len),
    *(nn.ReLU(), nn.Tanh(), Called(), Other(), Called().method),
    *(lambda x: x + 1, lambda x: x + 2),
    *(functools.partial(torch.add, alpha=2), functools.partial(torch.add, alpha=3)),
    functools.partial(torch.sub, alpha=3),
]


@pytest.fixture(autouse=True)
def from_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("__main__.__file__", __file__, raising=False)


def test_each_callable_has_a_code_of_its_own() -> None:
    codes = [finished._code_of(fn) for fn in CALLABLES]
    assert len(codes) == len(set(codes)) == len(CALLABLES)
    assert [finished._code_of(fn) for fn in CALLABLES] == codes
    told = finished.identity_of({}, [torch.ones(2)], CALLABLES[0])
    assert told is not None and told.facts["code"] == codes[0]


def test_what_cannot_be_told_is_not_resumed_and_does_not_raise() -> None:
    class Hostile:
        def __getattribute__(self, name: str) -> Any:
            raise AttributeError(name) if name == "__code__" else RuntimeError(name)

        def __call__(self) -> None: ...

    assert finished.identity_of({}, [torch.ones(2)], Hostile()) is None
    assert finished.identity_of({}, [torch.ones(2).to_sparse()], torch.neg) is None
