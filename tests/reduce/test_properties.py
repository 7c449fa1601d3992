"""What holds for every space and every oracle, drawn by chance."""

import dataclasses
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from graphprobe.reduce import Answer, OracleVerdict, reduce
from graphprobe.reduce.reducer import Reduction
from reduce.abstract import Case, Halve, Numbers, Refused, Rule, rebase


@st.composite
def monotone(draw: st.DrawFn) -> tuple[Numbers, Rule]:
    count = draw(st.integers(1, 60))
    numbers = st.integers(0, count - 1)
    culprits = draw(st.frozensets(numbers, min_size=1, max_size=6))
    value = draw(st.integers(0, 40))
    return Numbers(tuple(range(count)), value), Rule(culprits, least=draw(st.integers(0, value)))


@st.composite
def hostile(draw: st.DrawFn) -> tuple[Numbers, Rule]:
    count = draw(st.integers(1, 40))
    numbers = st.integers(0, count - 1)
    pairs = st.lists(st.tuples(numbers, numbers), max_size=12).map(tuple)
    culprits = draw(st.frozensets(numbers, max_size=5))
    value = draw(st.integers(0, 40))
    buildable = Refused(draw(pairs))
    rule = Rule(culprits, draw(pairs), draw(pairs), draw(st.integers(0, value)))
    return Numbers(tuple(range(count)), value, buildable), rule


def run(space: Numbers, rule: Rule, *, seed: int, hints: tuple[int, ...] = ()) -> Reduction[Case]:
    within = [hint % len(space.among) for hint in hints]
    return reduce(space, rule, shrinks=[Halve()], rebase=rebase(space), seed=seed, hints=within)


def check(space: Numbers, rule: Rule, done: Reduction[Case]) -> None:
    whole = Case(frozenset(space.among), space.value)
    assert done.minimal
    assert rule.judge(done.case) == Answer(OracleVerdict.FAILS, done.signature)
    assert (done.case.size, done.case.digest) <= (whole.size, whole.digest)
    for unit in done.case.keep:
        less = done.case.keep - {unit}
        if less and space.buildable(less):
            assert rule.judge(dataclasses.replace(done.case, keep=less)).verdict is not OracleVerdict.FAILS
            assert dataclasses.replace(done.case, keep=less).digest in rule.asked
    for smaller in Halve().proposals(done.case):
        assert rule.judge(smaller).verdict is not OracleVerdict.FAILS
    confirmed = done.passes["confirm"].asked if "confirm" in done.passes else 0
    assert len(rule.asked) - len(set(rule.asked)) == confirmed <= 6  # only what fails is asked again
    assert len(rule.asked) == done.calls == done.total.asked


@given(monotone(), st.integers(0, 3))
def test_a_monotone_failure_is_reduced_to_its_culprits(pair: tuple[Numbers, Rule], seed: int) -> None:
    space, rule = pair
    done = run(space, rule, seed=seed)
    check(space, rule, done)
    assert done.case == Case(rule.culprits, rule.least)


@pytest.mark.slow
@example(  # single units lead from 0 to 5 to {0, 1, 3}, and halves of that to {1}
    (Numbers((0, 1, 2, 3, 4, 5)), Rule(frozenset(), spoilers=((0, 1), (0, 3), (3, 0), (4, 0)))), 0, ()
)
@settings(max_examples=300)
@given(hostile(), st.integers(0, 3), st.lists(st.integers(0, 39), max_size=3).map(tuple))
def test_whatever_fails_is_reduced_to_a_fixed_point_and_the_same_seed_asks_the_same(
    pair: tuple[Numbers, Rule], seed: int, hints: tuple[int, ...]
) -> None:
    space, rule = pair
    same, after = (dataclasses.replace(rule, asked=[]) for _ in range(2))
    done = run(space, rule, seed=seed, hints=hints)
    check(space, rule, done)
    assert run(space, same, seed=seed, hints=hints).case == done.case
    assert rule.asked == same.asked
    assert run(rebase(space)(done.case), after, seed=seed).case == done.case


@given(st.integers(1, 40), st.randoms(use_true_random=False))
def test_an_oracle_without_any_rule(count: int, rng: Any) -> None:
    """Every subset fails, passes or cannot be judged by chance, but always in the same way."""
    table: dict[str, Answer] = {}
    kinds = [Answer(OracleVerdict.FAILS, "boom"), Answer(OracleVerdict.FAILS, "other"), Answer(OracleVerdict.PASSES)]

    def judge(case: Case) -> Answer:
        if len(case.keep) == count:
            return kinds[0]
        return table.setdefault(case.digest, rng.choice([*kinds, Answer(OracleVerdict.UNRESOLVED)]))

    done = reduce(Numbers(tuple(range(count))), judge)
    assert judge(done.case) == kinds[0]
    for unit in done.case.keep:
        if len(done.case.keep) > 1:
            less = Case(done.case.keep - {unit})
            assert less.digest in table
            assert table[less.digest] != kinds[0]
    assert reduce(Numbers(tuple(sorted(done.case.keep))), judge).case == done.case
