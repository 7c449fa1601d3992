"""The float64 reference: what is widened, what is perturbed, and what stays."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from graphprobe.engine.reference import InFloat64, array_from, dtype_of, references, terms_of
from graphprobe.engine.value_file import ValueFile
from graphprobe.numerics import RunValues, Verdict, judge

U = 2.0**-8


def judged(fn: object, candidate: torch.Tensor, eager: torch.Tensor, *args: torch.Tensor) -> Verdict:
    (found,) = references(fn, args, roundoff=dtype_of(eager).unit_roundoff)  # type: ignore[arg-type]
    candidates, *runs = [RunValues(array_from(value), dtype_of(value)) for value in (candidate, eager)]
    return judge(candidates, found.values, found.noise, runs)


def test_the_reference_is_the_op_in_float64() -> None:
    x = torch.randn(5, 3).bfloat16()
    (found,) = references(torch.exp, [x], roundoff=U)
    np.testing.assert_array_equal(found.values, torch.exp(x.double()).numpy())
    expected = (x.double().abs() * torch.exp(x.double())).numpy()  # |x·f'(x)|, to first order
    np.testing.assert_allclose(found.noise.sigma, expected, rtol=0.1, atol=1e-3)
    x, i = torch.randn(4, 3), torch.tensor([2, 0])
    found = references(lambda x, i: {"rows": x[i], "same": i, "more": (x.sum(),)}, [x, i], roundoff=U)
    assert [value.values.shape for value in found] == [(2, 3), ()]
    x, before = torch.ones(3), torch.get_rng_state()
    found = references(lambda x: x.mul_(2).add_(1), [x], roundoff=U)
    assert x.tolist() == [1.0, 1.0, 1.0] and torch.equal(torch.get_rng_state(), before)
    assert found[0].values.tolist() == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("roundoff", [2.0**-8, 2.0**-24, 2.0**-40], ids=str)
def test_inputs_are_perturbed_both_ways(roundoff: float) -> None:
    seen: list[torch.Tensor] = []
    x = torch.full((1000,), 3.0)
    references(lambda x: seen.append(x.detach()) or x, [x], roundoff=roundoff, runs=1)
    steps = (seen[1] / 3.0 - 1) / roundoff
    assert seen[1].dtype is torch.float64
    assert sorted({round(float(s), 2) for s in steps}) == [-1.0, 1.0]
    assert 400 < int((steps > 0).sum()) < 600


A = torch.linspace(1, 2, 4000)
NOISE: dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor], float, Any, float]] = {
    "both of nearly equal values": (torch.sub, [A, A + 1e-3], U, np.sqrt(2) * A.numpy(), 0.01),
    "each of three": (torch.addcmul, [A, A, torch.full_like(A, -1.0)], U, np.sqrt(3) * A.numpy(), 0.02),
    # Else what jumps would not be seen to jump for half of the values that are about to.
    "each element both ways": (torch.floor, [torch.full((1000,), 3.0 - 1e-4)], 2.0**-12, 2.0**12 / np.sqrt(2), 1e-7),
}


@pytest.mark.parametrize("case", NOISE)
def test_the_noise_of_a_pointwise_op_is_that_of_each_input_and_element(case: str) -> None:
    fn, inputs, roundoff, expected, rtol = NOISE[case]
    (found,) = references(fn, inputs, roundoff=roundoff, runs=4, pointwise=True)
    np.testing.assert_allclose(found.noise.sigma, expected, rtol=rtol)


def test_signs_that_are_drawn_are_alike_in_all_runs_for_some_elements() -> None:
    (drawn,) = references(torch.sub, [A, A + 1e-3], roundoff=U, runs=4)
    assert (drawn.noise.sigma < 0.02).any()


def test_casts_inside_and_a_dtype_argument_have_no_effect() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.to(torch.bfloat16).half().float() + torch.ones(3, dtype=torch.float16) * 0.1
        return torch.softmax(y, -1, dtype=torch.float32).type_as(x)

    x = torch.randn(2, 3)
    (found,) = references(fn, [x], roundoff=U)
    np.testing.assert_allclose(found.values, torch.softmax(x.double() + 0.1, -1).numpy(), rtol=1e-14)
    (found,) = references(torch.ops.aten._to_copy.default, [x], {"dtype": torch.bfloat16}, roundoff=U)
    np.testing.assert_array_equal(found.values, x.double().numpy())
    np.testing.assert_allclose(found.noise.sigma, x.double().abs().numpy(), rtol=1e-12)


def test_modules_and_gradients() -> None:
    module = torch.nn.Linear(4, 2)
    x = torch.zeros(3, 4)
    (found,) = references(module, [x], roundoff=U)
    assert found.values.dtype == np.float64
    bias = module.bias.detach().double().abs().numpy()
    np.testing.assert_allclose(found.noise.sigma, np.broadcast_to(bias, (3, 2)), rtol=1e-12)
    assert module.weight.dtype is torch.float32

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(torch.sin(x).sum(), x)[0]

    x = torch.randn(5, requires_grad=True)
    (found,) = references(fn, [x], roundoff=U)
    np.testing.assert_allclose(found.values, torch.cos(x.detach().double()).numpy())


def test_a_sum_gets_the_accumulation_term() -> None:
    x = torch.tensor([[1.0, -1.0, 2.0, -2.0]])
    (found,) = references(lambda x: x.sum(-1), [x], roundoff=U, terms=4)
    assert found.values.tolist() == [0.0]
    assert found.noise.accumulation.tolist() == [12.0]
    assert references(torch.exp, [x], roundoff=U)[0].noise.accumulation is None


def test_terms() -> None:
    a, b = torch.ones(3, 7), torch.ones(7, 2)
    assert terms_of("aten.mm.default", [a, b], [a @ b]) == 7
    assert terms_of("aten.addmm.default", [torch.ones(2), a, b], [a @ b]) == 8
    assert terms_of("torch.nn.functional.linear", [a, torch.ones(2, 7)], [torch.ones(3, 2)]) == 8
    assert terms_of("aten.convolution.default", [torch.ones(1, 4, 5, 5), torch.ones(6, 4, 3, 3)], [a]) == 37
    assert terms_of("aten.cumsum.default", [a, 1], [a]) == 7
    assert terms_of("aten.sum.dim_IntList", [a, [1]], [torch.ones(3)]) == 7
    assert terms_of("aten.gelu.default", [a], [a]) is None
    assert terms_of("aten.sum.default", [torch.ones(3, dtype=torch.int64)], []) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float16], ids=str)
def test_arrays_hold_every_bit(dtype: torch.dtype) -> None:
    x = torch.tensor([0.5, -3.0, 0.0625, 448.0]).to(dtype)
    assert array_from(x).astype(np.float64).tolist() == x.double().tolist()
    assert dtype_of(x).name == str(dtype)[6:]


def test_arrays_resolve_lazy_conjugation() -> None:
    assert array_from(torch.tensor([1 + 2j]).conj()).tolist() == [1 - 2j]


def test_end_to_end() -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(32, 64, generator=generator).bfloat16() for _ in range(2))

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ w.t(), -1)

    eager = fn(x, w)
    fused = fn(x.float(), w.float()).bfloat16()
    assert not torch.equal(eager, fused)
    assert judged(fn, fused, eager, x, w).answer in ("ok", "candidate_better")
    assert judged(fn, torch.softmax((x @ w.t()) * 1.05, -1), fused, x, w).answer == "candidate_worse"
    z = torch.randn(6, dtype=torch.complex64)
    eager = z * z
    assert judged(lambda z: z * z, eager, eager, z).answer == "ok"
    assert judged(lambda z: z * z, eager.conj().resolve_conj(), eager, z).answer == "candidate_worse"


def same_in_float64(plain: list[torch.Tensor], wide: list[torch.Tensor]) -> bool:
    pairs = zip(plain, wide, strict=True)
    return all(b.dtype is torch.float64 and torch.equal(a.double(), b) for a, b in pairs)


def test_random_numbers_are_those_of_the_program() -> None:
    def drawn() -> list[torch.Tensor]:
        torch.manual_seed(1)
        layer = torch.nn.Linear(5, 4)
        made = [torch.rand(3), torch.randn(17), torch.rand_like(torch.ones(2, 3)), torch.empty(20).normal_()]
        dropped = torch.nn.functional.dropout(torch.ones(50), 0.5)
        return [*made, torch.empty(20).exponential_(), dropped, layer.weight.detach(), layer.bias.detach()]

    plain = drawn()
    with InFloat64():
        assert same_in_float64(plain, drawn())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_numbers_are_drawn_in_the_dtype_of_the_program(dtype: torch.dtype) -> None:
    def drawn(x: torch.Tensor) -> list[torch.Tensor]:
        torch.manual_seed(3)
        made = [torch.rand(x.shape, dtype=x.dtype), torch.randn(7, dtype=x.dtype), torch.randn_like(x, dtype=x.dtype)]
        filled = [torch.empty_like(x).bernoulli_(x), torch.empty_like(x).exponential_()]
        return [*made, torch.bernoulli(x), *filled, torch.normal(x, x)]

    x = torch.linspace(0.25, 0.75, 40).to(dtype)
    plain = drawn(x)
    with InFloat64(dtype):
        assert same_in_float64(plain, drawn(x.double()))


def test_what_is_kept_in_a_file_is_the_same() -> None:
    file, given = ValueFile(), [torch.randn(200, 500), torch.randn(500, 300)]

    def run(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        return [a @ b, a.sum(0)]

    here, there = (references(run, given, roundoff=2.0**-24, rough=True, file=f) for f in (None, file))
    assert file.size >= 200 * 300 * 8, "the noise is in it"
    for a, b in zip(here, there, strict=True):
        np.testing.assert_array_equal(a.values, b.values)
        np.testing.assert_array_equal(a.noise.sigma, b.noise.sigma)
        file.release(b.values, b.noise.sigma)
        np.testing.assert_array_equal(a.noise.sigma, b.noise.sigma)
