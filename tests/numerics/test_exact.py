"""Integers and booleans."""

from __future__ import annotations

import numpy as np
import pytest

from graphprobe.errors import UsageError
from graphprobe.numerics.divergence import RunValues
from graphprobe.numerics.dtypes import DTYPES
from graphprobe.numerics.verdict import judge_exact, judge_unrounded


def test_integers_agree_or_do_not() -> None:
    a = np.arange(6).reshape(2, 3)
    assert judge_exact(a, a.copy()).answer == "ok"
    b = a.copy()
    b[1, 0] += 5
    b[0, 1] -= 1
    found = judge_exact(b, a)
    assert (found.answer, found.worst, found.candidate.max, found.candidate.wrong_finite) == (
        "candidate_worse", (1, 0), 5.0, 2,
    )  # fmt: skip


def test_unsigned_differences_do_not_wrap() -> None:
    assert judge_exact(np.array([0], np.uint8), np.array([1], np.uint8)).candidate.max == 1.0


def test_booleans_and_large_integers() -> None:
    assert judge_exact(np.array([True]), np.array([False])).answer == "candidate_worse"
    assert judge_exact(np.array([2**62 + 1]), np.array([2**62])).answer == "candidate_worse"
    assert judge_exact(np.empty((0,), bool), np.empty((0,), bool)).answer == "ok"


def test_floats_are_refused() -> None:
    with pytest.raises(UsageError, match="float64"):
        judge_exact(np.ones(1), np.ones(1))


def test_floats_that_nothing_has_rounded() -> None:
    half = DTYPES["float16"]
    a = np.array([[1.0, -0.0, np.nan], [np.inf, 3e-5, 65504.0]], np.float16)
    same = np.array([[1.0, 0.0, np.nan], [np.inf, 0.0, 65504.0]], np.float16)
    assert judge_unrounded(RunValues(same, half), a).answer == "ok"
    assert judge_unrounded(RunValues(same, half), a.astype(np.float64)).answer == "ok"
    for index, value in {(0, 0): 1.001, (0, 1): 7e-5, (0, 2): 0.0, (1, 0): -np.inf, (1, 2): np.inf}.items():
        wrong = a.copy()
        wrong[index] = value
        found = judge_unrounded(RunValues(wrong, half), a)
        assert (found.answer, found.worst, found.candidate.wrong_finite) == ("candidate_worse", index, 1)
    assert judge_unrounded(RunValues(np.ones((), np.float16), half), np.zeros((), np.float16)).worst == ()
    assert judge_unrounded(RunValues(np.ones((0, 2), np.float16), half), np.ones((0, 2))).answer == "ok"
