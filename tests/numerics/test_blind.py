"""Values that are nothing but rounding: a gradient that is zero in exact arithmetic, such as that of a key's bias."""

from __future__ import annotations

import numpy as np
import pytest

from graphprobe.numerics.divergence import RunValues
from graphprobe.numerics.dtypes import DTYPES
from graphprobe.numerics.noise import Noise
from graphprobe.numerics.verdict import Verdict, judge

FLOAT32 = DTYPES["float32"]


def verdict(seed: int, factor: float) -> Verdict:
    """The reference is 1e-17 or less, the runs are 1e-9: rounding on the way, which no noise of the inputs shows."""
    rng = np.random.default_rng(seed)
    reference = rng.standard_normal(64) * 10.0 ** rng.uniform(-26, -17, 64)
    eager, candidate = rng.standard_normal((2, 64)) * 1e-9
    candidate *= factor
    return judge(RunValues(candidate, FLOAT32), reference, Noise(np.abs(reference)), [RunValues(eager, FLOAT32)])


@pytest.mark.parametrize("seed", range(40))
def test_rounding_differs_by_any_factor_and_that_is_no_fault(seed: int) -> None:
    assert verdict(seed, 1.0).answer == "inconclusive"


@pytest.mark.parametrize("factor", [1e3, 1e6])
def test_values_where_none_should_be_are_a_fault(factor: float) -> None:
    assert verdict(0, factor).answer == "candidate_worse"
