"""The longest common subsequence against a brute-force one, and what must stay linear."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from graphprobe.compare.align import common_subsequence

SEQUENCES = st.lists(st.integers(0, 4), max_size=24)


def longest(a: list[int], b: list[int]) -> int:
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in range(len(a) - 1, -1, -1):
        for j in range(len(b) - 1, -1, -1):
            table[i][j] = table[i + 1][j + 1] + 1 if a[i] == b[j] else max(table[i + 1][j], table[i][j + 1])
    return table[0][0]


@given(SEQUENCES, SEQUENCES)
def test_it_is_common_ascending_and_longest(a: list[int], b: list[int]) -> None:
    pairs = common_subsequence(a, b)
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(x < y and v < w for (x, v), (y, w) in itertools.pairwise(pairs))
    assert len(pairs) == longest(a, b)


def test_one_more_element_in_the_middle_shifts_nothing() -> None:
    a = [i * i % 61 for i in range(20_000)]
    b = [*a[:9_000], 7, *a[9_000:]]
    pairs = common_subsequence(a, b)
    assert pairs[:9_000] == [(i, i) for i in range(9_000)]
    assert len(pairs) == len(a) and pairs[-1] == (19_999, 20_000)


def test_many_differences_without_anchors_end() -> None:
    a, b = [1] * 3000, [1, 2] * 1500
    pairs = common_subsequence(a, b)
    assert 1000 <= len(pairs) <= 1500
    assert all(a[i] == b[j] for i, j in pairs)
