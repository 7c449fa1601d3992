"""Which calls `faulty` matches, what it refuses, and the faulty backends that torch has under their names."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphprobe import backends
from graphprobe.backends.faulty import PlantedFault, faulty
from graphprobe.errors import GraphprobeWarning, UsageError

X = torch.linspace(-1, 1, 12).view(3, 4)


def two_sines(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(torch.sin(x) * 2)


def without_sines(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).tanh() + x


def test_callers_graph_is_not_edited() -> None:
    codes: list[tuple[str, str]] = []

    def watching(gm: Any, inputs: Any) -> Any:
        before = gm.code
        compiled = faulty(op="sin", kind="accuracy", nth=None, inner="eager")(gm, inputs)
        codes.append((before, gm.code))
        return compiled

    assert not torch.equal(torch.compile(two_sines, backend=watching)(X), two_sines(X))
    assert codes[0][0] == codes[0][1]


@pytest.mark.parametrize("name", ["relu", "torch.relu", "F.relu", "*.relu", "rel?"])
def test_names_in_dynamos_graph(name: str) -> None:
    backend = faulty(op=name, inner="eager", nth=None)
    torch.compile(lambda x: torch.relu(x), backend=backend)(X)
    assert len(backend.hits) == (name != "F.relu")


def test_what_is_not_planted_is_told() -> None:
    def two(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.relu(x) + 1)

    with pytest.warns(GraphprobeWarning, match="no call of 'relux', so nothing is planted in it; did you mean 'relu'"):
        torch.compile(two, backend=faulty(op="relux", inner="eager"))(X)
    torch.compiler.reset()
    with pytest.warns(GraphprobeWarning, match="no call 5 of 'relu', so nothing is planted in it; it has 2"):
        torch.compile(two, backend=faulty(op="relu", nth=5, inner="eager"))(X)
    torch.compiler.reset()
    with pytest.warns(GraphprobeWarning, match="no call of 'relu'"):
        torch.compile(torch.sin, backend="graphprobe:relu_accuracy_error_TESTING_ONLY")(X)
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", GraphprobeWarning)
        torch.compile(two, backend=faulty(op="relu", nth=1, inner="eager"))(X)


@pytest.mark.parametrize("name", ["relu", "relu.default", "aten.relu", "aten.relu.default", "aten::relu", "aten.*"])
def test_names_in_aotautograds_graph(name: str) -> None:
    backend = faulty(op=name)
    torch.compile(lambda x: torch.nn.functional.relu(x), backend=backend)(X)
    assert [hit.op for hit in backend.hits] == ["aten.relu.default"]


def test_methods_tuples_branches_and_custom_ops() -> None:
    method = faulty(op="relu", inner="eager")
    torch.compile(lambda x: x.relu(), backend=method)(X)
    assert [hit.op for hit in method.hits] == ["Tensor.relu"]
    several = faulty(op="aten.topk")
    values, where = torch.compile(lambda x: torch.topk(x, 2), backend=several)(X)
    assert torch.equal(values, torch.topk(X, 2).values + 1) and torch.equal(where, torch.topk(X, 2).indices)
    branch = faulty(op="aten.sin")
    fn = torch.compile(lambda x: torch.cond(x.sum() > 5, torch.sin, torch.cos, (x,)), backend=branch)
    ten = torch.full((2,), 10.0)
    assert torch.equal(fn(ten), torch.sin(ten) + 1) and len(branch.hits) == 1


def test_options_reach_the_backend_through_torch_compile() -> None:
    function = backends.describe("faulty").function
    out = torch.compile(torch.sin, backend=function, options={"op": "sin", "amount": 2.0, "inner": "eager"})(X)
    assert torch.equal(out, torch.sin(X) + 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"op": "sin", "kind": "rot"}, "there are compile"),
        ({"op": "sin", "where": "up"}, "'forward' or 'backward'"),
        ({"op": "sin", "nth": -1}, "a number from 0"),
        ({"op": "sin", "nth": True}, "a number from 0"),
        ({"op": "sin", "inner": "nobody"}, "no backend named"),
        ({"op": "sin", "inner": "eager", "where": "backward", "kind": "dtype"}, "needs the backward graph"),
        ({"kind": "nan"}, "op"),
        ({"op": "sin", "nht": 1}, "nht"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        faulty(**options)


def test_fault_that_cannot_be() -> None:
    for options, message in [({"kind": "nan"}, "has no NaN"), ({"kind": "dtype"}, "no dtype")]:
        with pytest.raises(Exception, match=message):
            torch.compile(lambda x: x > 0, backend=faulty(op="aten.gt", **options))(X)
        torch.compiler.reset()
    with pytest.raises(Exception, match="an alias needs an operand"):
        torch.compile(lambda x: x.sum(), backend=faulty(op="aten.sum", kind="alias"))(X)


def test_crossref_catches_a_planted_lie() -> None:
    backend = faulty(op="sin", kind="dtype", inner="aot_eager_decomp_partition_crossref")
    with pytest.raises(Exception, match=r"graphprobe\.fault.*mismatched tensor metadata"):
        torch.compile(torch.sin, backend=backend)(X)


def test_the_sources_four() -> None:
    module = torch.nn.ReLU()
    fns: list[Callable[..., Any]] = [lambda x: torch.relu(x) * 2, lambda x: x.relu() * 2, lambda x: module(x) * 2]
    for fn in fns:
        torch.compiler.reset()
        wrong = torch.compile(fn, backend=backends.get("relu_accuracy_error_TESTING_ONLY"))(X)
        assert torch.equal(wrong, fn(X) + 2)
        with pytest.raises(PlantedFault):
            torch.compile(fn, backend=backends.get("relu_runtime_error_TESTING_ONLY"))(X)
        with pytest.raises(Exception, match="ReluCompileError"):
            torch.compile(fn, backend=backends.get("relu_compile_error_TESTING_ONLY"))(X)
    for name in ("relu_accuracy_error", "relu_runtime_error", "relu_compile_error", "non_leaf_compile_error"):
        torch.compiler.reset()
        fine = torch.compile(without_sines, backend=backends.get(f"{name}_TESTING_ONLY"))
        assert torch.equal(fine(X), without_sines(X))
    torch.compiler.reset()
    non_leaf = torch.compile(without_sines, backend=backends.get("non_leaf_compile_error_TESTING_ONLY"))
    with pytest.raises(Exception, match="TestingOnlyCompileError"):
        non_leaf(X.clone().requires_grad_() * 1)
