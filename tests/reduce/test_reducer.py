"""The gate, budgets, Ctrl-C, hints, and what a reduction says of itself."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import pytest

from graphprobe.reduce.gate import Budget, Gate
from graphprobe.reduce.outcome import Answer, OracleVerdict, Progress
from graphprobe.reduce.reducer import INTERRUPTED, reduce, shrink_once
from graphprobe.reduce.search import Subsets, cut
from graphprobe.reduce.space import Unit
from reduce.abstract import FAILS, PASSES, UNRESOLVED, Case, Halve, Numbers, Rule, space


def case(*keep: int, value: int = 0) -> Case:
    return Case(frozenset(keep), value)


def test_the_gate_takes_only_what_fails_in_the_same_way_and_is_simpler() -> None:
    answers = {
        case(1): Answer(OracleVerdict.FAILS, "another"),
        case(2): UNRESOLVED,
        case(3): PASSES,
        case(1, 2): FAILS,
        case(1, 3): FAILS,
    }
    best: list[Case] = []
    gate = Gate(case(1, 2, 3), answers.__getitem__, on_best=best.append)
    gate.look_for("boom")
    assert [gate.consider(case(one), "p") for one in (1, 2, 3)] == [False, False, False]
    assert gate.others == {"another": 1}
    first, second = sorted((case(1, 2), case(1, 3)), key=lambda c: c.digest)
    assert gate.fails(second, "p")
    assert gate.best == second
    assert gate.consider(first, "p")  # of the same size, but before the other one
    assert not gate.consider(second, "p")
    assert gate.fails(second, "p")
    assert best == [case(1, 2, 3), second, first]
    stats = gate.passes["p"]
    assert (stats.proposed, stats.asked, stats.known, stats.accepted, stats.unresolved) == (7, 5, 2, 2, 2)


def test_a_case_that_does_not_fail_is_said_not_to() -> None:
    done = reduce(space(8), lambda case: PASSES)
    assert not done.failed
    assert not done.minimal
    assert done.case == done.original
    assert [answer.verdict for answer in done.answers] == [OracleVerdict.PASSES] * 10


def test_a_case_that_cannot_be_judged_is_left_soon() -> None:
    done = reduce(space(8), lambda case: UNRESOLVED)
    assert not done.failed
    assert len(done.answers) == 3


def test_a_case_that_fails_in_another_way_than_asked_for() -> None:
    assert not reduce(space(8), lambda case: FAILS, signature="bang").failed
    assert reduce(space(8), lambda case: FAILS, signature="boom").case.size == (1, 0)


def test_another_failure_is_not_followed() -> None:
    def oracle(case: Case) -> Answer:
        if {3, 40} <= case.keep:
            return FAILS
        return Answer(OracleVerdict.FAILS, "other") if 3 in case.keep else PASSES

    done = reduce(space(64), oracle)
    assert done.case.keep == {3, 40}
    assert done.others["other"] > 0


@pytest.mark.parametrize("calls", range(16))
def test_a_spent_budget_keeps_the_best(calls: int) -> None:
    rule = Rule(frozenset({9, 500}))
    best: list[Case] = []
    done = reduce(space(1024), rule, budget=Budget(max_calls=calls), on_best=best.append)
    assert rule.calls == done.calls == calls
    assert done.stopped == f"the budget of {calls} calls is spent"
    assert not done.minimal
    if calls < 1:
        assert best == []
        assert done.case == done.original
    else:
        assert done.case == best[-1]
        assert rule.judge(done.case) == FAILS


def test_a_budget_of_seconds() -> None:
    done = reduce(space(1024), Rule(frozenset({9})), budget=Budget(max_seconds=0))
    assert done.calls == 0
    assert done.stopped == "the budget of 0 s is spent"


@pytest.mark.parametrize("at", [1, 4, 9, 15])
def test_ctrl_c_keeps_the_best(at: int) -> None:
    rule = Rule(frozenset({9, 500}))

    def oracle(case: Case) -> Answer:
        if rule.calls == at:
            raise KeyboardInterrupt
        return rule(case)

    done = reduce(space(1024), oracle)
    assert done.stopped == INTERRUPTED
    assert done.calls == at
    assert rule.judge(done.case) == FAILS
    assert at < 9 or len(done.case.keep) < 1024


def test_what_an_oracle_raises_goes_through() -> None:
    def oracle(case: Case) -> Answer:
        raise OSError("no worker")

    with pytest.raises(OSError, match="no worker"):
        reduce(space(4), oracle)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match=r"hints: \[8\]"):
        reduce(space(8), lambda case: FAILS, hints=[1, 8])
    with pytest.raises(ValueError, match="cannot build"):
        reduce(Numbers((1, 2), buildable=lambda keep: False), lambda case: FAILS)


def test_progress_tells_size_calls_and_rate() -> None:
    seen: list[Progress] = []
    done = reduce(space(256), Rule(frozenset({9})), on_progress=seen.append)
    assert {one.original for one in seen} == {(256, 0)}
    calls = [one.calls for one in seen]
    assert calls == sorted(set(calls))
    assert calls[0] == 2
    assert len(calls) + 1 + done.passes["confirm"].asked == done.calls == 11
    assert seen[-1].size == (1, 0)
    assert seen[-1].calls_per_s > 0
    assert all(later.size <= sooner.size for sooner, later in itertools.pairwise(seen))


def test_the_journey_goes_on_when_a_shrink_makes_units_droppable() -> None:
    """Unit 5 is needed while the value is large; dropping it is tried again once the value has shrunk."""

    def oracle(case: Case) -> Answer:
        return FAILS if 3 in case.keep and (case.value < 10 or 5 in case.keep) else PASSES

    whole = space(8, value=40)
    plain = reduce(whole, oracle, shrinks=[Halve()])
    assert plain.case == case(3, 5)
    joint = reduce(whole, oracle, shrinks=[Halve()], rebase=lambda c: Numbers(tuple(sorted(c.keep)), c.value))
    assert joint.case == case(3)


def test_two_units_that_need_each_other_go_together() -> None:
    rule = Rule(frozenset({1}), needs=((20, 40), (40, 20)))
    assert reduce(space(64), rule).case.keep == {1}


def test_a_pass_with_a_proposal_per_input_takes_them_in_turn() -> None:
    @dataclasses.dataclass(frozen=True)
    class Row:
        values: tuple[int, ...]

        @property
        def digest(self) -> str:
            return repr(self.values)

        @property
        def size(self) -> tuple[int, ...]:
            return (sum(self.values),)

    class Zero:
        name = "zero"

        def proposals(self, row: Row) -> Iterator[Row]:
            for position, value in enumerate(row.values):
                if value:
                    yield Row((*row.values[:position], 0, *row.values[position + 1 :]))

    def oracle(row: Row) -> Answer:
        return FAILS if all(row.values[:20]) else PASSES

    gate = Gate(Row((1,) * 40), oracle)
    gate.look_for("boom")
    assert shrink_once(gate, Zero())
    assert gate.best.values == (1,) * 20 + (0,) * 20
    assert gate.calls <= 3 * 40


def test_a_subset_that_cannot_be_built_costs_no_call() -> None:
    whole = Numbers(tuple(range(8)), buildable=lambda keep: 0 in keep)
    rule = Rule(frozenset({3}))
    gate = Gate(whole.candidate(frozenset(range(8))) or case(), rule)
    gate.look_for("boom")
    subsets = Subsets(whole, gate)
    assert subsets.drop([0], "p") is OracleVerdict.UNRESOLVED
    assert subsets.drop([0], "p") is OracleVerdict.UNRESOLVED
    assert rule.calls == 0
    stats = gate.passes["p"]
    assert (stats.proposed, stats.unbuildable, stats.known) == (2, 1, 1)


def test_cuts_fall_between_groups_near_the_middle() -> None:
    layers = [Unit(f"{layer}.{k}", path=(f"layer{layer}", f"part{k // 3}")) for layer in range(4) for k in range(9)]
    order = range(len(layers))
    assert cut(layers, order, 0, 36) == 18
    assert cut(layers, order, 0, 34) == 18
    assert cut(layers, order, 0, 9) in (3, 4, 5, 6)
    assert cut(layers, order[::-1], 2, 36) == 18
    heavy = [Unit("a", weight=100), *(Unit(str(k)) for k in range(9))]
    assert cut(heavy, range(10), 0, 10) in (1, 2)
    assert cut(heavy, range(10), 4, 6) == 5
