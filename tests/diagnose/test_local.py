"""One op against itself in float64: faults are accused, what libraries and compilers may do is not."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphprobe.diagnose.local import LocalError, base_name, coarsest, comparable, local_error
from graphprobe.engine.reference import dtype_of
from graphprobe.numerics import DEFAULT, LIBRARY, tolerated

ATEN = torch.ops.aten


def error_of(op: Callable[..., Any], got: Any, *args: Any, name: str | None = None, **how: Any) -> LocalError:
    return local_error(name or str(op), op, args, {}, got, **how)


OPS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (ATEN.exp.default, (torch.linspace(-4, 4, 200),)),
    (ATEN.mm.default, (torch.linspace(-1, 1, 600).reshape(20, 30), torch.linspace(2, 1, 300).reshape(30, 10))),
    (ATEN.sum.dim_IntList, (torch.linspace(-1, 3, 400).reshape(20, 20), [1])),
    (ATEN._softmax.default, (torch.linspace(-4, 4, 200).reshape(10, 20), 1, False)),
    (ATEN.gelu.default, (torch.linspace(-3, 3, 200),)),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("op", "args"), OPS, ids=[str(op) for op, _ in OPS])
def test_another_rounding_and_a_wrong_factor(op: Callable[..., Any], args: tuple[Any, ...], dtype: torch.dtype) -> None:
    mine = [a.to(dtype) if isinstance(a, torch.Tensor) else a for a in args]
    wide = op(*[a.double() if isinstance(a, torch.Tensor) else a for a in mine])
    assert error_of(op, op(*mine), *mine).answer == "ok"
    assert error_of(op, wide.to(dtype), *mine).answer in ("ok", "better")
    wrong = error_of(op, (wide * 1.06).to(dtype), *mine)
    assert (wrong.answer, wrong.kind) == ("worse", "wrong_value")
    assert 1 < wrong.excess < math.inf
    assert wrong.z > 4
    assert "limit" in wrong.reason


@pytest.mark.parametrize(("op", "args"), OPS, ids=[str(op) for op, _ in OPS])
def test_one_percent_or_one_element_in_float32(op: Callable[..., Any], args: tuple[Any, ...]) -> None:
    got = op(*args)
    assert error_of(op, got * 1.01, *args).answer == "worse"
    got.view(-1)[got.numel() // 3] += 0.01 * float(got.abs().max())
    found = error_of(op, got, *args)
    assert (found.answer, found.kind) == ("worse", "wrong_value")


NEAR_ZERO: dict[str, Callable[..., Any]] = {
    "expm1": lambda x: x.exp() - 1,
    "log1p": lambda x: (1 + x).log(),
    "erf": lambda x: torch.erf(x) + 2.0**-24 * torch.sign(x),
    "tanh": lambda x: 1 - 2 / ((2 * x).exp() + 1),
}


@pytest.mark.parametrize("name", NEAR_ZERO)
def test_what_libraries_do_near_zero(name: str) -> None:
    x, op = torch.linspace(-1e-3, 1e-3, 300), getattr(ATEN, name).default
    got = NEAR_ZERO[name](x)
    assert error_of(op, got, x).answer in ("ok", "better")
    assert error_of(op, got, x, name="aten.mul.Tensor").answer == "worse", "not what other ops may do"
    assert error_of(op, got + 1e-5, x).answer == "worse"


def test_which_of_two_is_inaccurate() -> None:
    x = torch.linspace(0.5, 4, 500)
    low = x.rsqrt() * (1 + 3e-5 * torch.sin(1000 * x))
    assert error_of(ATEN.rsqrt.default, low, x).answer == "worse"

    def eager(x: torch.Tensor) -> torch.Tensor:
        return x.sin() if x.dtype is torch.float64 else x.sin() * 1.01

    x = torch.linspace(1, 2, 100)
    assert error_of(eager, x.sin(), x, name="aten.mul.Tensor").answer == "better"


def test_integers_and_what_hangs_on_a_last_bit() -> None:
    a, b = torch.arange(10), torch.arange(10) * 3
    assert error_of(ATEN.add.Tensor, a + b, a, b).answer == "ok"
    found = error_of(ATEN.add.Tensor, a + b + (a == 4), a, b)
    assert (found.answer, found.z, found.excess) == ("worse", math.inf, math.inf)
    assert "1 of 10" in found.reason
    assert error_of(ATEN.gt.Tensor, a >= b, a, b).answer == "worse", "no rounding decides between integers"
    x = torch.tensor([1.0, 2.0, 3.0, 4.5])
    assert error_of(ATEN.gt.Scalar, torch.tensor([False, False, True, True]), x, 1.5).answer == "unsure"
    assert error_of(ATEN.argmax.default, torch.tensor(2), x).answer == "unsure"
    to = ATEN._to_copy.default
    off_by_one, far_off = torch.tensor([1, 2, 3, 5]), torch.tensor([1, 2, 3, 7])
    answers = [local_error(str(to), to, [x], {"dtype": torch.int64}, got).answer for got in (off_by_one, far_off)]
    assert answers == ["unsure", "worse"]
    assert local_error(str(to), to, [x], {"dtype": torch.int64}, off_by_one - 1).answer == "worse", "most are off"


@pytest.mark.parametrize(
    "name", ["aten.rand.default", "aten.bernoulli_.float", "aten.empty.memory_format", "aten.native_dropout.default"]
)
def test_what_cannot_be_compared(name: str) -> None:
    assert not comparable(name)
    assert error_of(ATEN.exp.default, torch.zeros(3), torch.ones(3), name=name).answer == "skipped"


def test_classes_of_numbers() -> None:
    x = torch.tensor([-1.0, 1.0, 4.0, 1e30])
    assert error_of(ATEN.sqrt.default, x.sqrt(), x).answer == "ok", "NaN in both"
    for i, value in ((1, math.nan), (2, math.inf), (0, 0.0)):
        got = x.sqrt()
        got[i] = value
        found = error_of(ATEN.sqrt.default, got, x)
        assert (found.answer, found.kind, found.z) == ("worse", "nonfinite", math.inf)
    got = torch.tensor([1.0, 1.0, 16.0, 3e38])
    assert error_of(ATEN.mul.Tensor, got, x, x).answer == "worse", "eager overflows, and so must it"
    half = torch.tensor([300.0]).half()
    assert error_of(ATEN.mul.Tensor, half * half, half, half).answer == "ok"


def test_dtype_shape_number_and_type_of_results() -> None:
    x = torch.linspace(1, 2, 6)
    for got, kind in ((x.exp().double(), "wrong_dtype"), (x.exp()[:5], "wrong_shape"), ([x.exp(), x], "wrong_shape")):
        found = error_of(ATEN.exp.default, got, x)
        assert found.kind == kind
    assert found.reason == "2 results, not 1"
    size, y = ATEN.sym_size.int, torch.ones(3, 4)
    assert error_of(size, 4, y, 1).answer == "ok"
    found = error_of(size, 3, y, 1)
    assert (found.answer, found.reason) == ("worse", "3, not 4")


def test_the_worst_of_several_results() -> None:
    op, args = ATEN.var_mean.correction, [torch.linspace(-1, 1, 40).reshape(4, 10), [1]]
    var, mean = op(*args, correction=1)
    for got, answer in (
        ((var, mean), "ok"),
        ((var * 1.01, mean), "worse"),
        ((var, mean + 0.1), "worse"),
        ((mean, var), "worse"),
    ):
        assert local_error(str(op), op, args, {"correction": 1}, got).answer == answer


def test_how_an_op_is_run() -> None:
    found = error_of(ATEN.mm.default, torch.ones(2, 2), torch.ones(2, 3), torch.ones(2, 3))
    assert found.answer == "skipped"
    assert "does not run by itself: RuntimeError" in found.reason
    x, generator = torch.linspace(0, 1, 5), torch.get_rng_state()
    before = x.clone()
    assert error_of(ATEN.add_.Tensor, x + 1, x, 1.0).answer == "ok"
    assert error_of(ATEN.add_.Tensor, x + 1.01, x, 1.0).answer == "worse"
    assert torch.equal(x, before) and torch.equal(torch.get_rng_state(), generator)


def test_inputs_that_were_rounded_only_to_be_shown() -> None:
    exact = torch.randn(100)
    shown = exact.bfloat16()
    op = ATEN._to_copy.default

    def found(**how: Any) -> str:
        return local_error(str(op), op, [shown], {"dtype": torch.float32}, exact, **how).answer

    assert found() in ("ok", "better"), "it may have held them in float32"
    assert found(rounded=[]) == "worse", "it may not"
    assert found(rounded=[shown]) in ("ok", "better")


def test_names_and_dtypes() -> None:
    names = ("aten.add.Tensor", "Tensor.sin", "torch.nn.functional.gelu", "relu")
    assert [base_name(name) for name in names] == ["add", "sin", "gelu", "relu"]
    byte = torch.ones(1, dtype=torch.int8)
    found = coarsest([torch.ones(1), torch.ones(1).half(), 3, byte])
    assert found is not None and found.name == "float16"
    assert coarsest([1, byte]) is None
    assert tolerated(dtype_of(torch.ones(1))) is LIBRARY
    assert tolerated(dtype_of(torch.ones(1).bfloat16())) is DEFAULT, "narrow dtypes are held to more"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("combined", [ATEN.add.Tensor, ATEN.sub.Tensor], ids=str)
def test_products_not_rounded_before_they_nearly_cancel(combined: Callable[..., Any], dtype: torch.dtype) -> None:
    """As in rotary embeddings: a fused kernel adds the products as they are; shown they are rounded."""
    a, b, c, d = (torch.randn(20000).to(dtype).float() for _ in range(4))
    shown = [(a * b).to(dtype), (c * d).to(dtype)]
    assert error_of(combined, combined(a * b, c * d).to(dtype), *shown, rounded=shown).answer == "ok"
    wrong = error_of(combined, combined(a * b, c * d * 1.1).to(dtype), *shown, rounded=shown)
    assert wrong.answer == "worse"
