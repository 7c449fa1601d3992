"""The formula of the noise, term by term, and the sampling of sigma."""

import numpy as np
import pytest

from graphprobe.errors import UsageError
from graphprobe.numerics import noise
from graphprobe.numerics.dtypes import DTYPES
from graphprobe.numerics.noise import Noise, scale, sigma_from_runs, typical_magnitude

HALF = DTYPES["float16"]
U = 2.0**-11


def d_of(reference: np.ndarray, sigma: np.ndarray, **kwargs: object) -> np.ndarray:
    accumulation = kwargs.pop("accumulation", None)
    typical = typical_magnitude(reference)
    return scale(reference, Noise(sigma, accumulation), HALF, typical, slice(None), **kwargs)  # type: ignore[arg-type]


def test_every_term_counts_once() -> None:
    reference = np.array([2.0, -2.0, 2.0, 2.0])
    sigma = np.array([0.0, 1.0, 0.0, 3.0])
    accumulation = np.array([0.0, 0.0, 5.0, 0.0])
    expected = U * 2 + U * 2 / 16 + U * sigma + 2.0**-24 * accumulation
    np.testing.assert_allclose(d_of(reference, sigma, accumulation=accumulation), expected, rtol=1e-15)


def test_below_the_smallest_normal_the_noise_stops_shrinking() -> None:
    d = d_of(np.array([1e-30, 1e-9]), np.zeros(2), c0=0.0)
    np.testing.assert_array_equal(d, U * HALF.smallest_normal)
    flushed = d_of(np.array([1e-30]), np.zeros(1), c0=0.0, flush=True)
    assert flushed[0] > HALF.smallest_normal


def test_magnitudes_beyond_the_dtype_are_limited() -> None:
    assert d_of(np.array([1e300]), np.zeros(1), c0=0.0)[0] == U * HALF.largest


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0, -4.0], np.sqrt(12.5)),
        ([1.0, 1.0, 1.0, 1e6], 4.0),
        ([0.0, 0.0, 0.0, 5.0], 0.0),
        (np.empty((0, 3)), 0.0),
        (2.0, 2.0),
        ([np.nan, np.inf], 0.0),
        ([np.inf, 2.0], 2.0),
        ([3 + 4j], 5.0),
        ([1e-200, 1e-200], 1e-200),
        ([1e200, 1e200], 1e200),
    ],
)
def test_typical_magnitude_is_the_smaller_of_rms_and_four_medians(values: object, expected: float) -> None:
    assert typical_magnitude(np.array(values)) == pytest.approx(expected)


def test_typical_magnitude_does_not_depend_on_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).standard_normal(1000)
    whole = typical_magnitude(values)
    monkeypatch.setattr(noise, "CHUNK", 7)
    assert typical_magnitude(values) == pytest.approx(whole, rel=1e-14)


def test_sigma_is_the_rms_response_per_roundoff() -> None:
    reference = np.array([1.0, 10.0])
    runs = [reference + [3e-3, 0.0], reference + [4e-3, 1e-3]]
    np.testing.assert_allclose(sigma_from_runs(reference, runs, 1e-3), [np.sqrt(12.5), np.sqrt(0.5)])
    np.testing.assert_array_equal(sigma_from_runs(reference, [], 1e-3), [0.0, 0.0])
    reference = np.array([1.0, np.inf, np.nan, -np.inf])
    run = np.array([np.nan, np.inf, np.nan, np.inf])
    moves = sigma_from_runs(reference, [run], 1e-3)
    np.testing.assert_array_equal(moves, [np.inf, 0.0, 0.0, np.inf])  # where the class moves
    for reference, runs, roundoff, said in (
        (np.ones(3), [np.ones(2)], 1e-3, r"\(2,\)"),
        (np.ones(3), [], 0.0, "positive"),
    ):
        with pytest.raises(UsageError, match=said):
            sigma_from_runs(reference, runs, roundoff)
