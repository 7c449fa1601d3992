"""z of each element against a plain formula, statistics over chunks, classes."""

import tracemalloc

import numpy as np
import pytest

from graphprobe.errors import UsageError
from graphprobe.numerics import divergence as module
from graphprobe.numerics.divergence import ZERO, Divergence, RunValues, classes_of, divergences
from graphprobe.numerics.dtypes import DTYPES
from graphprobe.numerics.noise import Noise, scale, typical_magnitude

SINGLE, HALF, E4M3 = DTYPES["float32"], DTYPES["float16"], DTYPES["float8_e4m3fn"]


def measure(values: np.ndarray, reference: np.ndarray, dtype: object = SINGLE, **kwargs: object) -> Divergence:
    noise = Noise(kwargs.pop("sigma", np.abs(np.nan_to_num(reference, posinf=0.0, neginf=0.0))))  # type: ignore[arg-type]
    return divergences(reference, noise, [RunValues(values, dtype)], **kwargs)[0]  # type: ignore[arg-type]


def test_statistics_against_a_plain_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    reference = rng.standard_normal((50, 101))
    values = reference * (1 + 1e-6 * rng.standard_normal(reference.shape))
    noise = Noise(np.abs(reference))
    d = scale(reference, noise, SINGLE, typical_magnitude(reference), slice(None))
    z = np.abs(values - reference).ravel() / d
    signed, weight = ((values - reference) * np.sign(reference)).ravel() / d, np.abs(reference).ravel() / d
    along = np.sqrt(z.size * np.sum(weight**2))
    for chunk in (1 << 16, 97):
        monkeypatch.setattr(module, "CHUNK", chunk)
        found = measure(values, reference)
        assert found.compared == z.size
        assert found.rms == pytest.approx(np.sqrt(np.mean(z**2)))
        assert found.max == pytest.approx(z.max())
        assert found.worst == int(z.argmax())
        assert found.q999 == pytest.approx(np.sort(z)[-6])  # 6 = ceil(5050 / 1000)
        assert found.gain == pytest.approx(np.sum(signed * weight) / along)
        assert found.gain_error == pytest.approx(np.sqrt(np.sum((signed * weight) ** 2)) / along)


def test_peaks_by_magnitude() -> None:
    reference = np.array([0.0, 1.0, 3.9, 4.0, 1e-5])
    values = reference + [1.0, 2e-6, 1e-6, 0.0, 1e-8]
    found = measure(values, reference, c0=0.0)
    assert set(found.peaks) == {ZERO, 1, -8}
    z = np.array([2e-6 / (2 * 2.0**-24), 1e-6 / (2 * 2.0**-24 * 3.9)])
    assert found.peaks[1] == pytest.approx(z.max())
    assert max(found.peaks.values()) == found.max


def test_equal_elements_count_once_for_the_gain() -> None:
    reference = np.full(1000, 0.1)
    found = measure(reference * (1 + 1e-7), reference)
    assert found.gain_error == pytest.approx(abs(found.gain))
    other = np.linspace(0.1, 0.2, 1000)
    assert measure(other * (1 + 1e-7), other).gain_error < 0.1 * abs(found.gain)


def test_exact_values_have_no_distance() -> None:
    values = np.random.default_rng(2).standard_normal(100)
    found = measure(values, values)
    assert (found.rms, found.q999, found.max, found.gain, found.beyond_rounding) == (0.0, 0.0, 0.0, 0.0, 0)
    for shape in ((), (0,), (3, 0, 2)):
        found = measure(np.ones(shape), np.ones(shape))
        assert (found.compared, found.max) == (np.ones(shape).size, 0.0)
    found = measure(np.array([-0.0, 0.0]), np.zeros(2))
    assert found.max == 0.0


def test_rounding_to_the_dtype_is_not_beyond_rounding() -> None:
    reference = np.random.default_rng(3).standard_normal(1000) * np.logspace(-8, 4, 1000)
    rounded = reference.astype(np.float16)
    assert measure(rounded, reference, HALF).beyond_rounding == 0
    assert measure(np.nextafter(rounded, np.float16(0)), reference, HALF).beyond_rounding > 400


def test_classes() -> None:
    values = np.array([1.0, np.nan, np.inf, -np.inf])
    assert classes_of(values).tolist() == [1, 2, 4, 8]
    assert classes_of(np.array([complex(np.nan, np.inf), complex(0, np.nan), 1j])).tolist() == [12, 2, 1]


def test_wrong_classes_are_counted_by_what_the_run_has() -> None:
    reference = np.array([1.0, 1.0, 1.0, np.nan, np.inf, np.inf, np.nan])
    values = np.array([np.nan, np.inf, 1.0, 2.0, 5.0, -np.inf, np.nan])
    found = measure(values, reference)
    assert (found.wrong_nan, found.wrong_inf, found.wrong_finite, found.wrong_class) == (1, 2, 2, 5)
    assert found.worst == 0
    assert found.compared == 1


def test_a_class_that_a_legitimate_run_has_is_forgiven_where_it_has_it() -> None:
    reference = np.ones(3)
    mine, eager = np.array([np.inf, np.inf, 1.0]), np.array([np.inf, 1.0, np.inf])
    runs = [RunValues(mine, HALF), RunValues(eager, HALF)]
    first, second = divergences(reference, Noise(np.zeros(3)), runs, forgiving=[1])
    assert (first.wrong_class, first.shared, first.worst) == (1, 1, 1)
    assert second.wrong_class == 2


def test_overflow_is_legitimate_where_the_reference_leaves_the_range() -> None:
    near = HALF.largest * (1 + 1e-4)
    reference = np.array([near, near, 1e6, 1e6, -1e6, 6e4])
    values = np.array([HALF.largest, np.inf, np.inf, HALF.largest, np.inf, np.inf])
    found = measure(values, reference, HALF)
    # a finite value for 1e6, the wrong sign for -1e6 and an infinity for 6e4, which is far enough from 65504
    assert (found.wrong_finite, found.wrong_inf) == (1, 2)
    assert found.worst == 3


def test_a_dtype_without_infinity_may_saturate_or_give_nan() -> None:
    reference = np.array([1e4, 1e4, np.inf, 1.0])
    values = np.array([448.0, np.nan, 448.0, np.nan])
    found = measure(values, reference, E4M3)
    assert (found.wrong_class, found.wrong_nan, found.worst) == (1, 1, 3)
    assert found.max == 0.0


def test_elements_of_unstable_class_are_left_out() -> None:
    found = measure(np.array([np.nan, 1.0]), np.ones(2), sigma=np.array([np.inf, 0.0]))
    assert (found.unstable, found.compared, found.wrong_class) == (1, 1, 0)


def test_complex_numbers_are_measured_by_modulus() -> None:
    reference = np.array([1.0 + 1e-9j])
    values = np.array([1.0 + 2e-9j])
    assert measure(values, reference, DTYPES["complex64"]).max < 0.1  # the imaginary part alone is 100 % off
    assert measure(-reference, reference, DTYPES["complex64"]).max > 1e6


def test_each_run_is_measured_in_its_own_dtype() -> None:
    reference = np.array([1.0])
    runs = [RunValues(np.array([1.001]), SINGLE), RunValues(np.array([1.001]), DTYPES["bfloat16"])]
    single, bf16 = divergences(reference, Noise(np.ones(1)), runs)
    assert single.max == pytest.approx(bf16.max * 2**16)


def test_memory_stays_bounded() -> None:
    reference = np.random.default_rng(4).standard_normal(1 << 21)
    values, noise = reference.astype(np.float32), Noise(np.abs(reference))
    tracemalloc.start()
    divergences(reference, noise, [RunValues(values, SINGLE)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20  # the reference alone takes 16 MiB


def test_shapes_must_agree() -> None:
    with pytest.raises(UsageError, match=r"\(2,\)"):
        measure(np.ones(2), np.ones(3))
    with pytest.raises(UsageError, match="noise"):
        measure(np.ones(2), np.ones(2), sigma=np.ones(3))
