"""How many calls the search may take. A change that makes it dearer fails here."""

import statistics

import pytest

from graphprobe.reduce import reduce
from reduce.abstract import Rule, closure, scattered, space

SIZES = (64, 256, 1024, 4096)
SEEDS = range(8)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize(("culprits", "budget"), [(1, 20), (2, 40), (4, 75), (8, 145)])
def test_scattered_faults_stay_near_what_they_tell(culprits: int, budget: int, count: int) -> None:
    """8 of 4096 hold 80 bits; the failure is confirmed four times and every one of the 8 is tried alone at the end."""
    for seed in SEEDS:
        rule = scattered(seed, count, culprits)
        done = reduce(space(count), rule)
        assert done.case.keep == rule.culprits
        assert rule.calls == done.calls <= budget


@pytest.mark.parametrize("constraints", [2, 8, 32])
@pytest.mark.parametrize("culprits", [1, 2, 4, 8])
@pytest.mark.parametrize("count", SIZES)
def test_hostile_cases_stay_under_two_hundred_calls(count: int, culprits: int, constraints: int) -> None:
    calls = []
    for seed in SEEDS:
        rule = scattered(seed, count, culprits, constraints)
        left = reduce(space(count), rule).case.keep
        calls.append(rule.calls)
        assert left >= rule.culprits
        if count > 64:  # among few units constraints form rings, and a ring of three may stay
            assert left == closure(rule.culprits, rule.needs)
    assert max(calls) < 200
    assert statistics.median(calls) < 180


@pytest.mark.parametrize(
    ("culprits", "hints", "budget"),
    [
        *((range(start, start + 8), [], 65) for start in (0, 1000, 4088)),
        ([7], [7], 8),
        ([7, 90], [7, 90], 8),
    ],
)
def test_neighbours_and_right_hints_are_cheap(culprits: list[int], hints: list[int], budget: int) -> None:
    rule = Rule(frozenset(culprits))
    assert reduce(space(4096), rule, hints=hints).case.keep == rule.culprits
    assert rule.calls <= budget


def test_a_wrong_hint_costs_two() -> None:
    plain, misled = Rule(frozenset({7})), Rule(frozenset({7}))
    reduce(space(4096), plain)
    reduce(space(4096), misled, hints=[8, 9])
    assert misled.calls <= plain.calls + 2
