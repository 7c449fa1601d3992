"""Distances in units of noise: by values and by statistics, and arguments that are no tensors."""

import numpy as np
import pytest
import torch

from compare.made import KNOWN, replaced
from graphprobe.compare.measures import HUGE, measure_statistics, measure_values, typical_of_sample
from graphprobe.compare.slots import scalar_difference
from graphprobe.numerics import stats_from_array
from graphprobe.records import TensorStats
from graphprobe.store import Scalar

VALUES = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
SINGLE, NARROW = ("float32", "float32"), ("bfloat16", "float32")


def bits(values: np.ndarray) -> np.ndarray:
    """Rounded to bfloat16, to nearest even."""
    raw = values.view(np.uint32)
    return ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(np.uint16)


def test_equal_values_are_no_distance() -> None:
    found = measure_values(VALUES, VALUES, SINGLE)
    assert (found.level, found.unequal, found.rounding, found.accuracy) == (0.0, 0, True, "Yes")


def test_rounding_once_is_recognized_and_more_is_not() -> None:
    rounded = measure_values(bits(VALUES), VALUES, NARROW)
    assert rounded.rounding and 0.2 < rounded.level < 1
    noisy = VALUES * (1 + 1e-3 * np.random.default_rng(1).standard_normal(4096).astype(np.float32))
    assert not measure_values(bits(noisy), VALUES, NARROW).rounding


def test_bfloat16_that_a_format_widened_is_judged_as_bfloat16() -> None:
    widened = (bits(VALUES).astype(np.uint32) << 16).view(np.float32)
    a, b = measure_values(widened, VALUES, NARROW), measure_values(bits(VALUES), VALUES, NARROW)
    assert (a.level, a.ulp, a.rounding) == (b.level, b.ulp, True)


def test_a_flipped_element_is_the_worst_and_classes_are_counted() -> None:
    other = VALUES.copy()
    other[1234] *= -1
    found = measure_values(other, VALUES, SINGLE)
    assert found.worst == 1234 and found.level > 1e4 and found.cosine is not None and found.cosine > 0.99
    other = VALUES.copy()
    other[[3, 5]] = np.nan, np.inf
    found = measure_values(other, VALUES, SINGLE)
    assert (found.mismatched, found.worst, found.candidate_worse) == (2, 3, True)
    assert not measure_values(VALUES, other, SINGLE).candidate_worse


def test_a_mean_near_zero_does_not_explode() -> None:
    centred = (VALUES - VALUES.mean()).astype(np.float32)
    shaken = centred * (1 + 2.0**-9 * np.random.default_rng(2).choice([-1, 1], 4096))
    a, b = stats_from_array(shaken.astype(np.float32)), stats_from_array(centred)
    assert a.mean is not None and b.mean is not None and abs(a.mean - b.mean) > 20 * abs(b.mean)
    assert measure_statistics(a, b, frozenset(KNOWN), NARROW).level < 4


@pytest.mark.parametrize("change", [lambda v: v * 1.02, lambda v: v + 0.05, lambda v: np.where(v > 3, 5 * v, v)])
def test_statistics_show_what_they_can(change) -> None:  # type: ignore[no-untyped-def]
    a, b = stats_from_array(change(VALUES).astype(np.float32)), stats_from_array(VALUES)
    assert measure_statistics(a, b, frozenset(KNOWN), NARROW).level > 8
    assert measure_statistics(a, b, frozenset(KNOWN), SINGLE).level > 1000


def test_statistics_of_another_class() -> None:
    a = replaced(stats_from_array(VALUES), nan=3)
    found = measure_statistics(a, stats_from_array(VALUES), frozenset(KNOWN), SINGLE)
    assert found.mismatched == 3 and found.candidate_worse
    blind = frozenset(KNOWN) - {"nan"}
    assert measure_statistics(a, stats_from_array(VALUES), blind, SINGLE).mismatched == 0
    infinite = replaced(stats_from_array(VALUES), l2=float("inf"))
    assert measure_statistics(infinite, stats_from_array(VALUES), frozenset(KNOWN), SINGLE).level == HUGE


SLICES = "[slice(None, None, None), slice(None, -1, None)]", "(slice(None, None, None), slice(None, -1, None))"
SCALARS: list[tuple[str, str, bool, bool | None]] = [
    # one side, the other, whether they differ in one format, and in two formats
    ("1e-05", "1e-06", True, None),
    ("'tanh'", "'none'", True, True),
    ("0.1", "0.101", True, True),
    ("True", "False", True, None),
    ("1", "1.0", False, None),
    ("nan", "nan", False, None),
    ("(1, 2)", "[1, 2]", False, None),
    ("(1, 2)", "(1, 3)", True, False),
    ("torch.float32", "torch.bfloat16", False, None),
    ("device(type='cuda', index=0)", "device(type='cpu')", False, None),
    ("0.12345678901", "0.12345678999", False, None),
    ("0.12345678901", "0.22345678999", True, None),
    ("<object object at 0x7f01>", "<object object at 0x7f02>", False, None),
    ("None", "<torch._C.Generator>", True, False),
    (*SLICES, True, False),
]


@pytest.mark.parametrize(("mine", "theirs", "differs", "between"), SCALARS)
def test_scalars(mine: str, theirs: str, differs: bool, between: bool | None) -> None:
    pair = Scalar("x", mine), Scalar("x", theirs)
    assert bool(scalar_difference(*pair, roundoff=2.0**-9)) is differs
    if between is not None:
        assert bool(scalar_difference(*pair, roundoff=2.0**-9, same_format=False)) is between


OWN = frozenset(("max", "min", "mean", "l2"))
"""What tools have that reduce in the tensor's own dtype."""


def reduced(values: np.ndarray, dtype: torch.dtype) -> tuple[TensorStats, TensorStats]:
    """Statistics of `values` in `dtype` as torch reduces them, and ours."""
    t = torch.from_numpy(values).to(dtype)
    own = TensorStats(t.numel(), t.min().item(), t.max().item(), t.mean().item(), l2=torch.norm(t).item())
    return own, stats_from_array(t.float().numpy())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shift", [0.0, 1.0])
@pytest.mark.parametrize("count", [3, 4096, 1 << 20])
def test_a_reduction_in_the_own_dtype_is_no_difference(dtype: torch.dtype, shift: float, count: int) -> None:
    values = np.random.default_rng(count).standard_normal(count).astype(np.float32) + np.float32(shift)
    own, exact = reduced(values, dtype)
    name = str(dtype).removeprefix("torch.")
    u = max(torch.finfo(dtype).eps / 2, 2.0**-24)
    assert own.l2 != exact.l2
    for pair in ((own, exact), (exact, own)):
        found = measure_statistics(*pair, OWN, (name, name), reduction=u)
        assert found.unequal == 0 and found.rounding and found.level <= 1
        wrong = replaced(pair[0], l2=(pair[0].l2 or 0) * 1.1)
        assert measure_statistics(wrong, pair[1], OWN, (name, name), reduction=u).unequal == 1
        wrong = replaced(pair[0], max=(pair[0].max or 0) * 1.01)
        assert measure_statistics(wrong, pair[1], OWN, (name, name), reduction=u).unequal == 1


def test_a_norm_that_overflowed_says_nothing() -> None:
    own, exact = reduced(np.full(8, 60000, dtype=np.float32), torch.float16)
    assert own.l2 == np.inf and exact.l2 is not None and np.isfinite(exact.l2)
    assert measure_statistics(own, exact, OWN, ("float16", "float16"), reduction=2.0**-11).level == 0
    assert measure_statistics(own, exact, OWN, ("float16", "float16")).level == HUGE
    infinite = replaced(own, max=np.inf)
    assert measure_statistics(infinite, exact, OWN, ("float16", "float16"), reduction=2.0**-11).level == HUGE


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_tool_without_counts_tells_nan_and_inf_in_its_statistics(odd: float) -> None:
    values = np.array([1.0, odd, -2.0], dtype=np.float32)
    own, exact = reduced(values, torch.float32)
    found = measure_statistics(own, exact, OWN, SINGLE, reduction=2.0**-24)
    assert (found.level, found.unequal) == (0.0, 0)
    healthy = stats_from_array(np.array([1.0, 1.0, -2.0], dtype=np.float32))
    assert measure_statistics(own, healthy, OWN, SINGLE, reduction=2.0**-24).level == HUGE


def test_zeros_do_not_hide_how_large_the_other_values_are() -> None:
    values = np.concatenate([np.zeros(600), np.full(400, 2.0)]).astype(np.float32)
    assert typical_of_sample(values, "float32") == pytest.approx(2.0 * np.sqrt(0.4))
    assert typical_of_sample(np.zeros(8, np.float32), "float32") == 0.0
    # The largest of a few outliers is still no measure.
    assert typical_of_sample(np.array([0, 1, 1, 1, 1e6], np.float32), "float32") == 4.0
