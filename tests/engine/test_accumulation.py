"""The errors that float64 runs with rough sums have, against those that recursive sums in float32 have."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from graphprobe.engine import reference
from graphprobe.engine.reference import ROUNDOFF, RoughSums

K = 4096
ROWS = 256


def recursive(terms: torch.Tensor) -> torch.Tensor:
    """The sum over the last dimension, in float32, one term after the other."""
    total = torch.zeros(terms.shape[:-1])
    for k in range(terms.shape[-1]):
        total = total + terms[..., k]
    return total


def rough(fn: Callable[..., torch.Tensor], *args: torch.Tensor, seed: int = 0) -> torch.Tensor:
    with RoughSums(torch.Generator().manual_seed(seed)):
        return fn(*args)


def rms(values: torch.Tensor) -> float:
    return float(values.double().square().mean().sqrt())


@pytest.mark.parametrize("shift", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("name", ["sum", "mean", "mm"])
def test_the_error_is_that_of_a_recursive_sum(name: str, shift: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(ROWS, K) + shift
    weight = torch.randn(K) if name == "mm" else torch.ones(K)
    terms = x * weight  # rounded: the same terms for both
    share = 1 / K if name == "mean" else 1.0
    got = rms(recursive(terms).double() * share - terms.double().sum(-1) * share)
    wide = terms.double()
    if name == "mm":
        ours = rough(torch.mm, wide, torch.ones(K, 1, dtype=torch.float64))[:, 0] - wide.sum(-1)
    else:
        fn = {"sum": torch.sum, "mean": torch.mean}[name]
        ours = rough(lambda t: fn(t, dim=-1), wide) - fn(wide, dim=-1)
    assert 0.2 < got / rms(ours) < 1.0  # a rounding is at most u, and 0.4 u in the mean square


@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
def test_an_error_of_the_mean_makes_a_small_variance_larger_and_never_negative(name: str) -> None:
    torch.manual_seed(0)
    x = 1e-2 * torch.randn(ROWS, K) + 100
    fn = getattr(torch, name)

    def spread(t: torch.Tensor) -> torch.Tensor:
        result = fn(t, dim=-1, correction=0)
        return result[0] if name.endswith("mean") else result

    mean = recursive(x)[:, None] * (1 / K)
    in_float32 = (x - mean).square().mean(-1)  # of rounded differences from a rounded mean
    got = rms((in_float32 if name.startswith("var") else in_float32.sqrt()).double() - spread(x.double()))
    ours = rms(rough(spread, x.double()) - spread(x.double()))
    assert 0.02 < got / ours < 1.0
    drawn = torch.randn(ROWS, K, dtype=torch.float64)
    near = 1e-2 * drawn + 0.1  # nothing cancels
    assert rms(rough(spread, near) - spread(near)) < 128 * ROUNDOFF * rms(spread(near))
    assert (rough(spread, 1e-6 * drawn[:64] + 100) > 0).all()


def test_errors_of_the_other_sign() -> None:
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    runs = []
    for sign in (1, -1):
        with RoughSums(torch.Generator().manual_seed(0), sign=sign):
            runs.append(x.sum(1) - 1e-9)
    torch.testing.assert_close((runs[0] + runs[1]) / 2, x.sum(1) - 1e-9, rtol=1e-12, atol=1e-14)
    assert not torch.equal(*runs)


@pytest.mark.parametrize("name", ["mm", "cumsum", "index_add"])
def test_both_parts_of_a_complex_sum_are_off(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(K, 4, dtype=torch.complex128)
    fn = {
        "mm": lambda t: t.mT @ t,
        "cumsum": lambda t: t.cumsum(0),
        "index_add": lambda t: torch.zeros(8, 4, dtype=t.dtype).index_add(0, torch.arange(K) % 8, t),
    }[name]
    off = rough(fn, x) - fn(x)
    assert 0.5 < rms(off.real) / rms(off.imag) < 2
    assert ROUNDOFF < rms(off.real) / float(fn(x).abs().square().mean().sqrt()) < K * ROUNDOFF


def gradient_of_a_bias(x: torch.Tensor) -> torch.Tensor:
    bias = torch.zeros(64, dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad(((x + bias) ** 2).sum(), bias)[0]


def updated_statistics(x: torch.Tensor) -> torch.Tensor:
    mean, var = torch.zeros(8, dtype=torch.float64), torch.ones(8, dtype=torch.float64)
    F.batch_norm(x, mean, var, training=True, momentum=1.0)
    return torch.cat([mean, var])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.var((0, 2)),
        lambda x: torch.var_mean(x, (0, 2))[0],
        lambda x: F.batch_norm(x, torch.zeros(8).double(), torch.ones(8).double(), training=True),
        lambda x: F.layer_norm(x, x.shape[-1:]),
        lambda x: F.group_norm(x, 2),
        lambda x: torch.softmax(x, -1),
        lambda x: torch.log_softmax(x, -1),
        lambda x: torch.logsumexp(x, -1),
        lambda x: F.conv1d(x, x[:4, :, :3]),
        lambda x: F.conv_transpose1d(x, x[:8, :, :3]),
        lambda x: x.cumsum(-1),
        lambda x: torch.linalg.vector_norm(x),
        lambda x: F.mse_loss(x, -x),
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
        lambda x: torch.zeros(4, 8, 64, dtype=x.dtype).index_add(0, torch.zeros(32, dtype=torch.int64), x),
        lambda x: torch.zeros(4, 8, 64, dtype=x.dtype).index_add_(0, torch.zeros(32, dtype=torch.int64), x),
        gradient_of_a_bias,
        updated_statistics,
    ],
)
def test_sums_inside_other_ops(fn: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(32, 8, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    exact, got = fn(x), rough(fn, x)
    assert got.dtype == exact.dtype
    assert ROUNDOFF / 8 < rms(got - exact) / rms(exact) < 512 * ROUNDOFF
    assert torch.equal(got, rough(fn, x))
    assert not torch.equal(got, rough(fn, x, seed=1))
    monkeypatch.setattr(reference, "AT_ONCE", 8)
    assert torch.equal(got, rough(fn, x)), "row by row it is the same"


def test_what_adds_nothing_is_exact() -> None:
    for fn in (
        lambda x: x * 3 + x.exp(),
        lambda x: x.transpose(0, 1).reshape(-1),
        lambda x: x.amax(0),
        lambda x: x[:, :1].sum(1),  # one term
        lambda x: (x > 0).sum(0, dtype=torch.float64),
        lambda x: (x > 0).double().sum(0),  # integers
        lambda x: x.float().sum(0),
        lambda x: torch.zeros(40, 8, dtype=x.dtype).index_copy(0, torch.arange(32), x),
        lambda x: torch.zeros(40, 8, dtype=x.dtype).index_put((torch.arange(32),), x),
    ):
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        assert torch.equal(rough(fn, x), fn(x))
    state = torch.get_rng_state()
    x = torch.ones(4, 4, dtype=torch.float64) / 3
    with pytest.raises(RuntimeError, match="shape"), RoughSums(torch.Generator()):
        x.sum().reshape(3)
    assert torch.equal(x.sum(), x.sum())
    assert torch.equal(state, torch.get_rng_state())
    x = torch.randn(8, 8, dtype=torch.float64)
    fn = lambda x: torch.cond(x.sum() > -1e9, lambda t: t.sum(0), lambda t: t.cos().sum(0), (x,))  # noqa: E731
    assert rough(fn, x).shape == (8,)
