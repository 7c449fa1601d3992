"""What torch leaves undefined comes out otherwise, and nothing else does."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphprobe.engine.undefined import GARBAGE, WAYS, DoneOtherwise, Way, unrepresentable

PLACES = torch.tensor([0, 2, 2, 1, 2])
VALUES = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
TIES = torch.tensor([1, 0, 1, 0, 1])


def in_way(way: Way, fn: Callable[..., torch.Tensor], *args: Any) -> tuple[torch.Tensor, list[str]]:
    with DoneOtherwise(way) as mode:
        result = fn(*args)
    return result, mode.met


def test_what_an_integer_cannot_hold() -> None:
    for dtype, values, outside in (
        (torch.int8, [-129.0, -128.9, -128.0, 127.9, 128.0], [True, False, False, False, True]),
        (torch.uint8, [-1.0, -0.9, 255.9, 256.0, 3.0], [True, False, False, True, False]),
        (torch.int64, [-(2.0**63), 2.0**63, float("nan"), float("inf"), 0.0], [False, True, True, True, False]),
    ):
        found = unrepresentable(torch.tensor(values), dtype)
        assert found is not None and found.tolist() == outside


def test_a_tensor_that_grows_and_a_gradient() -> None:
    result, _ = in_way("flipped", lambda: VALUES.clone().resize_(20))
    assert torch.equal(result[:5], VALUES)

    def gradient() -> torch.Tensor:
        x = TIES.float().requires_grad_()
        return torch.autograd.grad((torch.sort(x).values * torch.arange(1.0, 6.0)).sum(), x)[0]

    usual, other = gradient(), in_way("flipped", gradient)[0]
    assert not torch.equal(usual, other)
    assert torch.equal(usual[TIES == 1].sum(), other[TIES == 1].sum())


@pytest.mark.parametrize("dtype", [torch.bool, torch.float16, torch.complex64])
def test_other_conversions_are_defined(dtype: torch.dtype) -> None:
    assert unrepresentable(torch.tensor([1e30]), dtype) is None
    assert unrepresentable(torch.tensor([300]), torch.int8) is None


@pytest.mark.parametrize("convert", [lambda x: x.to(torch.int8), lambda x: torch.zeros(3, dtype=torch.int8).copy_(x)])
def test_conversions(convert: Callable[..., torch.Tensor]) -> None:
    x = torch.tensor([1.5, 300.0, float("nan")])
    usual = convert(x)
    results = {way: in_way(way, convert, x) for way in WAYS}
    assert all(met == ["numbers converted to torch.int8, which cannot hold them"] for _, met in results.values())
    assert torch.equal(results["as it is"][0], usual)
    assert results["flipped"][0].tolist() == [1, *(~usual[1:]).tolist()]
    assert results["zero"][0].tolist() == [1, 0, 0]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int64])
def test_conversions_to_any_integer(dtype: torch.dtype) -> None:
    x = torch.tensor([1.5, 1e30])
    usual, other = x.to(dtype).tolist(), in_way("flipped", lambda: x.to(dtype))[0].tolist()
    assert other[0] == usual[0] == 1 and other[1] != usual[1]


def test_places_written_several_times() -> None:
    for write in (
        lambda: torch.zeros(3).index_put_((PLACES,), VALUES),
        lambda: torch.zeros(3).index_put((PLACES,), VALUES),
        lambda: torch.zeros(3).scatter(0, PLACES, VALUES),
        lambda: torch.zeros(3).scatter_(0, PLACES, VALUES),
        lambda: torch.zeros(3).index_copy(0, PLACES, VALUES),
        lambda: torch.zeros(3, 2).index_put_((PLACES, torch.tensor(0)), VALUES)[:, 0],
        lambda: torch.zeros(3, 2).index_put_((PLACES,), VALUES[:, None])[:, 1],
    ):
        usual, met = in_way("as it is", write)
        assert usual.tolist() == [1.0, 4.0, 5.0] and len(met) == 1
        assert in_way("flipped", write)[0].tolist() == [1.0, 4.0, 2.0]


def written_by_columns() -> torch.Tensor:
    """With indices that are not looked into."""
    x = torch.zeros(3, 3)
    x[:, PLACES] = VALUES
    return x


def test_what_is_defined_stays() -> None:
    for write in (
        lambda: torch.zeros(3).index_put_((PLACES,), VALUES, accumulate=True),
        lambda: torch.zeros(3).index_put_((PLACES,), torch.tensor(7.0)),
        lambda: torch.zeros(3).index_put_((PLACES[:2],), VALUES[:2]),
        lambda: torch.zeros(3).index_put_((torch.tensor([True, False, True]),), VALUES[:2]),
        lambda: torch.zeros(3).scatter_add(0, PLACES, VALUES),
        lambda: torch.zeros(3).scatter(0, PLACES, 2.0),
        lambda: torch.zeros(3).index_fill(0, PLACES, 2.0),
        lambda: VALUES.to(torch.int8),
        lambda: VALUES.clone().resize_(3),
        lambda: torch.zeros(3) + torch.ones(3),
        lambda: VALUES.sort().indices,
        lambda: TIES.sort(stable=True).indices,
        lambda: TIES.argmax(),
        written_by_columns,
    ):
        usual = write()
        for way in WAYS:
            result, met = in_way(way, write)
            assert not met and torch.equal(result, usual)


@pytest.mark.parametrize("choose", [torch.sort, lambda x: torch.topk(x, 2), torch.mode])
def test_equal_elements(choose: Callable[..., Any]) -> None:
    usual, met = in_way("as it is", lambda: choose(TIES).indices)
    other, _ = in_way("flipped", lambda: choose(TIES).indices)
    assert len(met) == 1 and not torch.equal(usual, other)
    assert torch.equal(TIES[usual], TIES[other])


def test_memory_that_was_never_written() -> None:
    for make in (
        lambda: torch.empty(3),
        lambda: torch.empty_like(VALUES),
        lambda: VALUES.new_empty(3, 2),
        lambda: torch.empty_strided((2, 3), (1, 2)),
        lambda: torch.empty(3, dtype=torch.int32),
        lambda: VALUES.clone().resize_(20)[5:],
    ):
        assert in_way("as it is", make)[1] == ["memory that was never written"]
        assert in_way("flipped", make)[0].eq(GARBAGE).all()
        assert in_way("zero", make)[0].eq(0).all()
