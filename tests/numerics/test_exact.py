"""Integers, booleans and indices."""

from __future__ import annotations

import numpy as np
import pytest

from graphprobe.errors import UsageError
from graphprobe.numerics.dtypes import DTYPES
from graphprobe.numerics.verdict import judge_exact, judge_indices

BF16 = DTYPES["bfloat16"]


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


def argmax(candidate: int, expected: int, values: list[float]) -> str:
    return judge_indices(np.array([candidate]), np.array([expected]), np.array(values), BF16).answer


def test_an_index_counts_where_the_margin_exceeds_the_noise() -> None:
    assert argmax(0, 1, [1.0, 1.001, 0.5]) == "ok"
    assert argmax(2, 1, [1.0, 1.001, 0.5]) == "candidate_worse"
    assert argmax(0, 1, [7.0, 7.0, 1.0]) == "ok"
    assert argmax(3, 1, [1.0, 1.001, 0.5]) == "candidate_worse"
    assert argmax(-1, 1, [1.0, 1.001, 0.5]) == "candidate_worse"


def test_nan_stands_for_nan() -> None:
    assert argmax(0, 2, [np.nan, 1.0, np.nan]) == "ok"
    assert argmax(1, 2, [np.nan, 1.0, np.nan]) == "candidate_worse"
    assert argmax(0, 1, [np.inf, np.inf]) == "ok"
    assert argmax(0, 1, [np.inf, -np.inf]) == "candidate_worse"


def test_repeated_indices_of_a_sort_are_wrong() -> None:
    values = np.array([[1.0, 1.0, 2.0], [3.0, 3.0, 3.0]])
    order = np.array([[0, 1, 2], [0, 1, 2]])
    swapped = np.array([[1, 0, 2], [2, 0, 1]])
    repeated = np.array([[0, 0, 2], [2, 0, 1]])
    assert judge_indices(swapped, order, values, BF16, distinct=True).answer == "ok"
    assert judge_indices(repeated, order, values, BF16, distinct=False).answer == "ok"
    found = judge_indices(repeated, order, values, BF16, distinct=True)
    assert (found.answer, found.worst, found.candidate.wrong_finite) == ("candidate_worse", (0, 1), 1)


def test_along_another_axis_and_over_integers() -> None:
    values = np.array([[1, 5], [4, 2], [4, 5]])
    expected = np.array([[1, 0]])
    assert judge_indices(np.array([[2, 2]]), expected, values, DTYPES["int64"], axis=0).answer == "ok"
    assert judge_indices(np.array([[0, 2]]), expected, values, DTYPES["int64"], axis=0).answer == "candidate_worse"


def test_empty_indices() -> None:
    empty = np.empty((2, 0), np.int64)
    assert judge_indices(empty, empty, np.ones((2, 3)), BF16).answer == "ok"
