"""Failures that come and go."""

from __future__ import annotations

import random

import pytest

from graphprobe.reduce.outcome import Answer, OracleVerdict
from graphprobe.reduce.reducer import Habit, Repeats, observe, reduce, repeats_for
from reduce.abstract import FAILS, PASSES, UNRESOLVED, Case, Halve, Numbers, Rule, space

OTHER = Answer(OracleVerdict.FAILS, "other")


@pytest.mark.parametrize(
    ("answers", "asked", "signature", "steady"),
    [
        ([FAILS], 1, "boom", True),
        ([PASSES] * 10, 10, "", False),
        ([UNRESOLVED] * 3, 3, "", False),
        ([PASSES, PASSES, FAILS] + [PASSES] * 17, 20, "boom", False),
        ([OTHER], 1, "other", True),
        ([PASSES, OTHER] + [FAILS] * 18, 20, "boom", False),
        ([UNRESOLVED, FAILS, PASSES] + [FAILS] * 17, 20, "boom", False),
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


@pytest.mark.parametrize(("failed", "asks"), [(20, 1), (19, 2), (10, 6), (6, 11), (1, 50), (0, 50)])
def test_asks_per_candidate_follow_the_rate(failed: int, asks: int) -> None:
    habit = Habit(tuple([FAILS] * failed + [PASSES] * (20 - failed)), "boom")
    assert repeats_for(habit, Repeats()) == asks
    if 0 < failed < 20 and asks < 50:
        assert (1 - habit.rate) ** asks <= Repeats().miss < (1 - habit.rate) ** (asks - 1)


def test_a_failure_in_three_of_ten_runs_is_reduced() -> None:
    found = taken_for_steady = 0
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
        if done.rate is None:  # it happened to fail each time it was asked again
            taken_for_steady += 1
            continue
        assert done.rate < 0.8
        found += done.case.keep == rule.culprits
    assert found >= 16
    assert taken_for_steady <= 2


def test_a_failure_that_stays_away_late_is_found_to_be_flaky() -> None:
    """What was taken to pass while the failure seemed steady is asked again."""
    rule = Rule(frozenset({5, 50}))

    def oracle(case: Case) -> Answer:
        answer = rule(case)
        return PASSES if rule.calls > 11 and rule.calls % 2 == 0 else answer

    done = reduce(space(64), oracle)
    assert done.case.keep == rule.culprits
    assert len(done.answers) == 1
    assert done.rate is not None
    assert done.rate == 0.5


def test_what_shrinking_has_made_superfluous_is_dropped_after_the_failure_stayed_away() -> None:
    """7 matters as long as there is a value. When that is gone, four answers in a row miss the failure."""
    missed: list[str] = []

    def oracle(case: Case) -> Answer:
        if not {5, 50} <= case.keep or (case.value and 7 not in case.keep):
            return PASSES
        if (missed or 7 not in case.keep) and len(missed) < 4:
            missed.append(case.digest)
            return PASSES
        return FAILS

    def rebase(case: Case) -> Numbers:
        return Numbers(tuple(sorted(case.keep)), case.value)

    done = reduce(space(64, value=8), oracle, shrinks=[Halve()], rebase=rebase)
    assert len(missed) == 4
    assert done.rate is not None
    assert done.minimal
    assert done.case == Case(frozenset({5, 50}))


def test_the_rate_of_a_steady_failure_is_not_measured() -> None:
    assert reduce(space(8), Rule(frozenset({3}))).rate is None
