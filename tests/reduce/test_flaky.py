"""Failures that come and go."""

from __future__ import annotations

import random

import pytest

from graphprobe.reduce.flaky import Habit, Repeats, observe, repeats_for
from graphprobe.reduce.outcome import Answer, Verdict
from graphprobe.reduce.reducer import reduce
from reduce.abstract import FAILS, PASSES, UNRESOLVED, Case, Rule, space

OTHER = Answer(Verdict.FAILS, "other")


@pytest.mark.parametrize(
    ("answers", "asked", "signature", "steady"),
    [
        ([FAILS] * 3, 3, "boom", True),
        ([PASSES] * 10, 10, "", False),
        ([UNRESOLVED] * 3, 3, "", False),
        ([PASSES, PASSES, FAILS] + [PASSES] * 17, 20, "boom", False),
        ([OTHER, FAILS, FAILS] + [FAILS] * 17, 20, "boom", False),
        ([FAILS, UNRESOLVED, FAILS] + [FAILS] * 17, 20, "boom", False),
        ([UNRESOLVED, PASSES] + [PASSES] * 8, 10, "", False),
    ],
)
def test_the_original_is_asked_until_it_is_clear(
    answers: list[Answer], asked: int, signature: str, steady: bool
) -> None:
    rest = iter(answers)
    habit = observe(lambda: next(rest), Repeats())
    assert len(habit.answers) == asked == len(answers)
    assert habit.signature == signature
    assert habit.steady == steady


@pytest.mark.parametrize(("failed", "asks"), [(20, 1), (19, 2), (10, 6), (6, 11), (1, 50), (0, 1)])
def test_asks_per_candidate_follow_the_rate(failed: int, asks: int) -> None:
    habit = Habit(tuple([FAILS] * failed + [PASSES] * (20 - failed)), "boom" if failed else "")
    assert repeats_for(habit, Repeats()) == asks
    if 0 < failed < 20 and asks < 50:
        assert (1 - habit.rate) ** asks <= Repeats().miss < (1 - habit.rate) ** (asks - 1)


def test_a_failure_in_three_of_ten_runs_is_reduced() -> None:
    found = 0
    for seed in range(20):
        rng = random.Random(seed)
        rule = Rule(frozenset({5, 50}))

        def oracle(case: Case, rng: random.Random = rng, rule: Rule = rule) -> Answer:
            return FAILS if rule(case) == FAILS and rng.random() < 0.3 else PASSES

        done = reduce(space(64), oracle)
        if not done.failed:  # one in 35: it did not fail in ten asks
            assert len(done.answers) == 10
            continue
        assert done.case.keep >= rule.culprits
        assert done.rate is not None
        assert done.rate < 0.8
        found += done.case.keep == rule.culprits
    assert found >= 16


def test_the_rate_of_a_steady_failure_is_not_measured() -> None:
    assert reduce(space(8), Rule(frozenset({3}))).rate is None
