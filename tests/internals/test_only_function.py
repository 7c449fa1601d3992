"""Only the functions of some names are compiled."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from graphprobe.errors import UsageError
from graphprobe.internals.dynamo.only_function import OnlyFunction, names_of


class Counted:
    """A backend that says whose graphs it got."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        self.graphs.append(gm)
        return gm.forward

    @property
    def ops(self) -> list[list[str]]:
        return [[n.name for n in gm.graph.nodes if n.op.startswith("call")] for gm in self.graphs]


class Block(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return helper(x.sin())


class Special(Block):
    """Inherits `forward`."""


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Special()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)).exp()


def helper(x: torch.Tensor) -> torch.Tensor:
    return x.cos()


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos()


@contextmanager
def only(patterns: str) -> Iterator[OnlyFunction]:
    made = OnlyFunction(patterns)
    made.install()
    try:
        yield made
    finally:
        assert made.remove() == []


def compiled(patterns: str, *, fullgraph: bool = False) -> tuple[Counted, OnlyFunction]:
    """What came to the backend when `Model` was called; the result is that of the uncompiled model."""
    backend, x = Counted(), torch.randn(3)
    with only(patterns) as made:
        result = torch.compile(Model(), backend=backend, fullgraph=fullgraph)(x)
    assert torch.equal(result, Model()(x))
    return backend, made


WHOLE = ["sin", "cos", "sin_1", "cos_1", "exp"]


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize(
    ("pattern", "ops"),
    [
        ("Model.forward", [WHOLE]),
        ("*.forward", [WHOLE]),
        ("helper", [["cos"]]),
        ("test_only_function.py:h*r", [["cos"]]),
        ("Special.forward", [["sin", "cos"]]),
        ("Special", [["sin", "cos"]]),
        ("no_such_function", []),
    ],
)
def test_what_matches_is_compiled_and_nothing_else(pattern: str, ops: list[list[str]], fullgraph: bool) -> None:
    backend, _ = compiled(pattern, fullgraph=fullgraph)
    assert backend.ops == ops


def decorated(function: Any) -> Any:
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


class Behind(torch.nn.Module):
    @decorated
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


class Other(torch.nn.Module):
    @decorated
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cos()


def test_models_behind_one_decorator_are_told_apart() -> None:
    for pattern in ("Other", "Other.forward"):
        backend = Counted()
        with only(pattern):
            for model in (Behind(), Other()):
                torch.compile(model, backend=backend)(torch.randn(3))
        assert backend.ops == [["cos"]]


def test_the_piece_behind_a_graph_break_belongs_to_its_function() -> None:
    backend = Counted()
    with only("broken") as made:
        torch.compile(broken, backend=backend)(torch.randn(3))
    assert backend.ops == [["y"], ["cos"]] and not made.left_out


def test_after_the_filter_the_whole_model_is_one_graph_again() -> None:
    model, backend, x = Model(), Counted(), torch.randn(3)
    with only("no_such_function"):
        torch.compile(model, backend=Counted())(x)
    torch.compile(model, backend=backend)(x)
    assert backend.ops == [WHOLE]


def test_the_report_counts_and_names_the_nearest() -> None:
    _, made = compiled("Blok.forward,helper")
    lines = made.report()
    assert "compiled: 1 function: helper" in lines[0] and "Model.forward (test_only_function.py:" in lines[0]
    assert lines[1].startswith("only_function: 'Blok.forward' matched no function; nearest: Block.forward")
    assert len(lines) == 2
    assert OnlyFunction(None).report() == []


def test_torchs_own_filter_still_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DEBUG_FUNCTION", "helper")
    assert compiled("*")[0].ops == [["cos"]]


def test_a_filter_that_fails_lets_everything_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OnlyFunction, "_wants", lambda *_: {}["bad luck"])
    backend, made = compiled("helper")
    assert backend.ops == [WHOLE]
    assert made.report() == ["only_function: not in force, all functions were compiled: KeyError: 'bad luck'"]


def test_an_empty_pattern_is_refused() -> None:
    for patterns in ("", "forward,", " , "):
        with pytest.raises(UsageError, match="empty pattern"):
            OnlyFunction(patterns)


def test_names() -> None:
    def inner() -> None: ...

    names = names_of(inner.__code__)
    assert {"inner", "test_names.inner", "test_names.<locals>.inner", "test_only_function.py:inner"} <= set(names)
    assert "Special.forward" in names_of(Special.forward.__code__, Special)
    assert "Special.forward" not in names_of(Special.forward.__code__)
