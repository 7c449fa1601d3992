"""Runs in which narrow results are rounded anew, and the judgement made of them."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from graphprobe.engine import rounding

BF16 = torch.bfloat16
U = 2.0**-8


def anew(seed: int = 0) -> rounding.RoundedAnew:
    return rounding.RoundedAnew(torch.Generator().manual_seed(seed))


def values(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(3)) * 3).to(dtype)


@pytest.mark.parametrize(
    "dtype", [BF16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float32, torch.float64]
)
def test_a_third_of_the_elements_moves_by_one_unit_in_the_last_place(dtype: torch.dtype) -> None:
    wide = dtype.itemsize >= 4
    x = torch.rand(20000, dtype=dtype if wide else None) + 1.01  # in [1, 2) an ulp is 2u, but for the last: these get 2
    fn: Callable[[], torch.Tensor] = (lambda: x * 1.25) if wide else (lambda: x.to(dtype))
    plain = fn()
    with rounding.RoundedAnew(torch.Generator().manual_seed(0), *([0.0] if wide else [])) as mode:
        got = fn()
    plain, got = (t.double() if wide else t.float().double() for t in (plain, got))
    steps = ((got - plain) / torch.finfo(dtype).eps)[(plain > 1) & (plain < 2)]
    assert 0.25 < float((steps != 0).double().mean()) < 0.42
    assert float(steps.abs().max()) == 1.0 and abs(float(steps.mean())) < 0.05
    assert (mode.rounded, mode.failed) == (1, 0)
    assert wide or mode.narrowest == torch.finfo(dtype).eps / 2


def test_what_is_exact_stays() -> None:
    for fn in (
        lambda x: x.clone(),
        lambda x: x.view(-1),
        lambda x: x.t().contiguous(),
        lambda x: torch.cat([x, x]),
        lambda x: torch.stack([x, x]),
        lambda x: x[torch.tensor([1, 0])],
        lambda x: torch.where(x > 0, x, 0.0),
        lambda x: x.relu(),
        lambda x: x.clone().relu_(),
        lambda x: -x,
        lambda x: x.abs(),
        lambda x: x.max(0).values,
        lambda x: x.sort(0).values,
        lambda x: x.topk(2).values,
        lambda x: x.masked_fill(x > 0, -torch.inf),
        lambda x: F.pad(x, (1, 1)),
        lambda x: torch.full_like(x, 0.3),
        lambda x: F.embedding(torch.tensor([1, 0]), x),
        lambda x: x.detach().float().to(BF16),
        lambda x: torch.empty_like(x).copy_(x),
        lambda x: torch.zeros_like(x).index_put_((torch.tensor([0, 2]),), x[:2]),
        lambda x: x.chunk(2)[1],
        lambda x: torch._foreach_neg([x, x])[0],
        lambda x: torch.softmax(x[:, :1], -1),
        lambda x: (x > 0).to(BF16),
    ):
        x = values(8, 8)
        plain = fn(x)
        with anew():
            assert torch.equal(fn(x), plain)


def looked_at(fn: Callable[..., object], *given: torch.Tensor) -> rounding.RoundedAnew:
    with rounding.RoundedAnew(torch.Generator().manual_seed(0), given=given) as mode:
        fn(*given)
    return mode


def half_of_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.float().numpy() * np.float32(0.3)).relu()


def half_of_python(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor([v * 0.3 for v in x.float().view(-1).tolist()]).relu()


@pytest.mark.parametrize("dtype", [BF16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.relu().abs().max(0).values,
        lambda x: torch.where(x > 0.5, x, -x).sort(0).values[:3],
        lambda x: torch.nextafter(x, x.roll(1)),
        lambda x: F.pad(torch.cat([x, x.flip(0)]), (1, 1), value=0.5),
        lambda x: x.clamp(-1, 1).double(),
        lambda x: x.masked_fill(x > 0, -torch.inf).argmax(0),
        lambda x: x.gather(0, (x > 0).long()).t().contiguous(),
        lambda x: torch.where(x > 0, x, torch.ones((), dtype=torch.uint8)),
        lambda x: F.max_pool1d(x[None], 2).relu_().round(),
        lambda x: (x > 0).sum() + x.argmax() * 3,
        lambda x: x.detach().requires_grad_().relu().backward(x),
    ],
)
def test_nothing_rounds(fn: Callable[[torch.Tensor], object], dtype: torch.dtype) -> None:
    assert not looked_at(fn, values(8, 8, dtype=dtype)).rounds


def test_something_may_round() -> None:
    for fn in (
        lambda x: x + x,
        lambda x: x.sum() > 0,
        lambda x: x.clamp(max=0.1),
        lambda x: x > 0.1,
        lambda x: x.round(decimals=1),
        lambda x: x.float().to(BF16),
        lambda x: torch.empty_like(x).copy_(x.float()),
        lambda x: x.argmax(0).to(BF16),
        lambda x: torch.where(x > 0, x, torch.ones((), dtype=torch.int64)),
        lambda x: torch.maximum(x, torch.arange(8)),
        lambda x: x > torch.arange(8),
        lambda x: torch.arange(0, 1, 0.1, dtype=BF16),
        lambda x: torch.rand_like(x).relu(),
        lambda x: x.max().item(),
        lambda x: torch.complex(x.float(), x.float()).abs(),
        lambda x: x.to_sparse().to_dense(),
        lambda x: torch.ones(2, 8, dtype=BF16).index_put_((torch.zeros(8, dtype=torch.long),), x, accumulate=True),
        lambda x: x.detach().requires_grad_().expand(2, 8, 8).relu().sum().backward(),
        lambda x: torch.ops.higher_order.cond(x.max() > 0, torch.relu, torch.neg, (x,)),
        half_of_numpy,
        half_of_python,
    ):
        assert looked_at(fn, values(8, 8)).rounds


def test_what_is_rounded_is_rounded_anew() -> None:
    for fn in (
        lambda x: x + 0.1,
        lambda x: x.clone().mul_(0.3),
        lambda x: x @ x,
        lambda x: torch.mm(x, x, out=torch.empty_like(x)),
        lambda x: F.layer_norm(x, (8,)),
        lambda x: torch.softmax(x, -1),
        lambda x: torch._foreach_mul([x, x], 0.3)[1],
        lambda x: x.float().mul(0.3).to(BF16),
        lambda x: torch.empty_like(x).copy_(x.float() * 0.3),
        lambda x: torch.zeros(2, 8, dtype=BF16).index_put_((torch.zeros(8, dtype=torch.long),), x, accumulate=True),
        lambda x: x.cumsum(0),
    ):
        x = values(8, 8)
        plain = fn(x)
        with anew() as mode:
            got = fn(x)
        assert not torch.equal(got, plain) and mode.rounded
        assert torch.allclose(got.float(), plain.float(), rtol=8 * U, atol=8 * U)
        assert got.stride() == plain.stride()
        assert torch.equal(x, values(8, 8))


def test_an_in_place_foreach_is_rounded_anew_and_seeds_repeat() -> None:
    runs = []
    for seed in (0, 0, 1):
        x = [values(8, 8), values(32)]
        with anew(seed):
            torch._foreach_mul_(x, 0.3)
        runs.append(torch.cat([x[0].view(-1), x[1]]))
    first, again, other = runs
    assert torch.equal(first, again) and not torch.equal(first, other)
    for made, plain in zip(first.split([64, 32]), (values(8, 8).view(-1) * 0.3, values(32) * 0.3), strict=True):
        assert not torch.equal(made, plain)


def test_wide_results_and_generators_are_left_alone() -> None:
    x = values(64, 64, dtype=torch.float32)
    plain = F.layer_norm(x @ x, (64,))
    state = torch.get_rng_state()
    with anew() as mode:
        assert torch.equal(F.layer_norm(x @ x, (64,)), plain)
        assert mode.rounded == 0 and mode.narrowest == 2.0**-24
        (x.to(BF16) * 3).sum()
    assert torch.equal(torch.get_rng_state(), state) and mode.rounded


def test_special_values_stay_finite_ones_stay_finite_and_a_subnormal_moves() -> None:
    most = torch.finfo(BF16).max
    x = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.0, -1.0, most, -most], dtype=BF16)
    for seed in range(20):
        with anew(seed):
            got = x * torch.tensor(1.0)
        assert torch.equal(got.isnan(), x.isnan())
        assert torch.equal(got.nan_to_num(7.0).signbit(), x.nan_to_num(7.0).signbit())
        assert torch.equal(got.nan_to_num(7.0, torch.inf, -torch.inf), x.nan_to_num(7.0, torch.inf, -torch.inf))
    large = torch.full((1000,), torch.finfo(torch.float16).max).half()
    tiny = torch.full((1000,), 2.0**-20).half()
    with anew():
        assert bool((torch.nextafter(large, torch.zeros_like(large)) * 1.0).isfinite().all())
        moved = (tiny * 1.0).unique()
    assert moved.tolist() == [2.0**-20 - 2.0**-24, 2.0**-20, 2.0**-20 + 2.0**-24]


def test_a_backward_is_rounded_anew_and_autograd_is_as_ever() -> None:
    weight = values(16, 16, dtype=torch.float32).requires_grad_()
    x = values(4, 16, dtype=torch.float32)

    def step() -> torch.Tensor:
        weight.grad = None
        with torch.autocast("cpu", BF16):
            y = F.gelu(F.linear(x, weight))
            y = y.clone().mul_(0.7).add_(0.1)
        y.float().square().sum().backward()
        assert weight.grad is not None
        return weight.grad

    plain = step()
    with anew():
        first = step()
    assert not torch.equal(first, plain)
    assert float((first - plain).norm() / plain.norm()) < 0.05
    with torch.inference_mode(), anew() as mode:
        _ = values(4) * 0.3
    assert mode.rounded and not mode.failed


def test_other_kinds_of_tensors_and_memory() -> None:
    x = values(64)
    with anew() as mode:
        with rounding.untouched():
            _ = x * 0.3
        assert mode.rounded == 0
        _ = x.to_sparse() * 0.5
        _ = x.to("meta") * 0.5
        _ = torch.empty(0, dtype=BF16) * 0.5
        _ = x.expand(3, 64)
    assert mode.failed == 0
    x = values(8)
    assert looked_at(lambda: x.relu()).rounds and not looked_at(lambda x: x.relu(), x).rounds
    with anew() as mode:
        x.relu()
    assert mode.rounds  # what is given was not said


def test_a_failure_does_not_fail_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(rounding.RoundedAnew, "_round", fail)
    x = values(8)
    with anew() as mode:
        got = x * 0.3
    assert torch.equal(got, values(8) * 0.3) and mode.failed == 1


def test_the_format_and_noise_of_values() -> None:
    x = np.random.default_rng(0).normal(size=1000)
    assert rounding.held_roundoff([x.astype(np.float32)]) == 2.0**-24
    assert rounding.held_roundoff([values(1000).float().numpy()]) == U
    assert rounding.held_roundoff([x.astype(np.float16)]) == 2.0**-11
    assert rounding.held_roundoff([np.array([1.0, 0.0, np.inf, np.nan])]) == 0.5
    assert rounding.held_roundoff([np.zeros(3)]) == 0.0
    rows, columns = np.array([0.0, 1.0, 4.0])[:, None], np.array([1.0, 9.0])[None]
    assert np.allclose(rounding.pooled(rows * columns), rows * columns)
    assert rounding.pooled(np.array(2.0)) == 2.0
    assert np.array_equal(rounding.pooled(np.array([1.0, np.inf])) == np.inf, [False, True])


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.factor = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64), 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", BF16):
            h = self.down(F.gelu(self.up(x)) * self.factor)
        return x + h.to(x.dtype)


def judged(candidate: torch.Tensor, wide: bool = True) -> str:
    net, x = Mlp(), values(32, 64, dtype=torch.float32)
    with torch.no_grad():
        eager = net(x)
        rounded = []
        for seed in range(rounding.MORE_RUNS):
            with anew(seed) as mode:
                rounded.append(net(x).numpy())
        double = Mlp().double()
        centre, *moved = (double(x.double() * (1 + s * 2.0**-24)).numpy() for s in (0, 1, -1))
    few, many = (
        rounding.judge_narrow(candidate, [eager], centre if wide else None, moved, rounded[:n], mode.narrowest)[0]
        for n in (rounding.RUNS, rounding.MORE_RUNS)
    )
    assert few == many
    return few


@pytest.mark.slow
@torch.no_grad()
def test_health_and_bugs_of_a_program_in_mixed_precision() -> None:
    net, x = Mlp(), values(32, 64, dtype=torch.float32)
    assert judged(net(x)) == "ok"
    with torch.autocast("cpu", enabled=False):
        single = x + net.down(F.gelu(net.up(x)))
    assert judged(single) == "ok"
    assert judged(single, wide=False) == "ok"
    with anew(99):
        assert judged(net(x)) == "ok"
    net.factor = 1.1
    assert judged(net(x)) == "worse"
    assert judged(x + 0.5 * (net(x) - x), wide=False) in ("unsure", "worse")
    assert judged(torch.full_like(x, torch.nan), wide=False) == "worse"
    wrong = single.clone()
    wrong[3] = x[3]
    assert judged(wrong) == "worse"


@torch.no_grad()
def test_what_no_narrow_rounding_moves_is_judged_as_wide() -> None:
    x = values(16, 16, dtype=torch.float32)
    centre = x.double().numpy()
    runs = [x.numpy()] * rounding.RUNS
    assert rounding.judge_narrow(x * (1 + 2.0**-22), [x], centre, [centre], runs, U)[0] == "ok"
    assert rounding.judge_narrow(x * (1 + 2.0**-14), [x], centre, [centre], runs, U)[0] == "worse"


def test_how_far_apart_results_are_in_roundings() -> None:
    x = torch.linspace(1, 2, 1000)
    assert rounding.roundings_apart(x, x.clone()) == 0
    assert rounding.roundings_apart(x, x * (1 + 2.0**-16)) == pytest.approx(2.0**8, rel=0.01)
    assert rounding.roundings_apart(x.bfloat16(), (x * 1.25).bfloat16()) == pytest.approx(2.0**6, rel=0.05)
    assert (
        rounding.roundings_apart(x, x * math.nan) == rounding.roundings_apart(torch.zeros(3), torch.ones(3)) == math.inf
    )
    sparse, whole = x.to_sparse(), x.long()
    unlike = [(sparse, -sparse), (x * math.inf, x), (x, x[:1]), (x, x.double()), (whole, whole + 1), (x, None)]
    assert [rounding.roundings_apart(want, have) for want, have in unlike] == [0] * 6, "nothing can be said"
