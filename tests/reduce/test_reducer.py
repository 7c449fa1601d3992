"""The gate, budgets, Ctrl-C, hints, failures that come and go, and what a reduction says of itself."""

import itertools
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT
from graphprobe.errors import UsageError
from graphprobe.reduce import Answer, OracleVerdict, reduce
from graphprobe.reduce.gate import Budget, Gate
from graphprobe.reduce.journal import Journal
from graphprobe.reduce.outcome import Progress
from graphprobe.reduce.reducer import INTERRUPTED, Habit, Reduction, Repeats, observe, repeats_for, shrink_once
from graphprobe.reduce.search import Subsets, cut
from graphprobe.reduce.space import Unit
from reduce.abstract import FAILS, PASSES, UNRESOLVED, Case, Halve, Numbers, Rule, closure, rebase, scattered, space

OTHER = Answer(OracleVerdict.FAILS, "other")


def case(*keep: int, value: int = 0) -> Case:
    return Case(frozenset(keep), value)


def test_the_gate_takes_only_what_fails_in_the_same_way_and_is_simpler() -> None:
    answers = {case(1): OTHER, case(2): UNRESOLVED, case(3): PASSES, case(1, 2): FAILS, case(1, 3): FAILS}
    best: list[Case] = []
    gate = Gate(case(1, 2, 3), answers.__getitem__, on_best=best.append)
    gate.look_for("boom")
    assert [gate.consider(case(one), "p") for one in (1, 2, 3)] == [False, False, False]
    assert gate.others == {"other": 1}
    first, second = sorted((case(1, 2), case(1, 3)), key=lambda c: c.digest)
    assert gate.fails(second, "p")
    assert gate.best == second
    assert gate.consider(first, "p")  # of the same size, but before the other one
    assert not gate.consider(second, "p")
    assert gate.fails(second, "p")
    assert best == [case(1, 2, 3), second, first]
    stats = gate.passes["p"]
    assert (stats.proposed, stats.asked, stats.known, stats.accepted, stats.unresolved) == (7, 5, 2, 2, 2)


@pytest.mark.parametrize(("answer", "asked"), [(PASSES, 10), (UNRESOLVED, 3)])
def test_a_case_that_does_not_fail_or_cannot_be_judged_is_said_to(answer: Answer, asked: int) -> None:
    done = reduce(space(8), lambda case: answer)
    assert not done.failed
    assert not done.minimal
    assert done.case == done.original
    assert [one.verdict for one in done.answers] == [answer.verdict] * asked


def test_another_failure_is_not_followed() -> None:
    assert not reduce(space(8), lambda case: FAILS, signature="bang").failed
    assert reduce(space(8), lambda case: FAILS, signature="boom").case.size == (1, 0)

    def oracle(case: Case) -> Answer:
        if {3, 40} <= case.keep:
            return FAILS
        return OTHER if 3 in case.keep else PASSES

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
    assert bool(best) == bool(calls)
    assert done.case == (best[-1] if best else done.original)
    assert rule.judge(done.case) == FAILS


def test_a_budget_of_seconds() -> None:
    done = reduce(space(1024), Rule(frozenset({9})), budget=Budget(max_seconds=0))
    assert (done.calls, done.stopped) == (0, "the budget of 0 s is spent")


@pytest.mark.parametrize("at", [1, 4, 9, 15])
def test_ctrl_c_keeps_the_best(at: int) -> None:
    rule = Rule(frozenset({9, 500}))

    def oracle(case: Case) -> Answer:
        if rule.calls == at:
            raise KeyboardInterrupt
        return rule(case)

    done = reduce(space(1024), oracle)
    assert (done.stopped, done.calls) == (INTERRUPTED, at)
    assert rule.judge(done.case) == FAILS
    assert at < 9 or len(done.case.keep) < 1024


def test_wrong_arguments_and_what_an_oracle_raises() -> None:
    def oracle(case: Case) -> Answer:
        raise OSError("no worker")

    with pytest.raises(OSError, match="no worker"):
        reduce(space(4), oracle)
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
    assert reduce(whole, oracle, shrinks=[Halve()]).case == case(3, 5)
    assert reduce(whole, oracle, shrinks=[Halve()], rebase=rebase(whole)).case == case(3)


def test_two_units_that_need_each_other_go_together() -> None:
    rule = Rule(frozenset({1}), needs=((20, 40), (40, 20)))
    assert reduce(space(64), rule).case.keep == {1}


def test_a_pass_with_a_proposal_per_input_takes_them_in_turn() -> None:
    class Without:
        name = "without"

        def proposals(self, case: Case) -> Iterator[Case]:
            for unit in sorted(case.keep):
                yield Case(case.keep - {unit})

    rule = Rule(frozenset(range(20)))
    gate = Gate(case(*range(40)), rule)
    gate.look_for("boom")
    assert shrink_once(gate, Without())
    assert gate.best.keep == rule.culprits
    assert gate.calls <= 3 * 40


def test_a_subset_that_cannot_be_built_costs_no_call() -> None:
    whole = Numbers(tuple(range(8)), buildable=lambda keep: 0 in keep)
    rule = Rule(frozenset({3}))
    gate = Gate(whole.candidate(frozenset(range(8))) or case(), rule)
    gate.look_for("boom")
    subsets = Subsets(whole, gate)
    assert [subsets.drop([0], "p") for _ in range(2)] == [OracleVerdict.UNRESOLVED] * 2
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
    assert (habit.signature, habit.steady) == (signature, steady)


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
    assert (len(done.answers), done.rate) == (1, 0.5)
    assert reduce(space(8), Rule(frozenset({3}))).rate is None  # that of a steady one is not measured


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

    whole = space(64, value=8)
    done = reduce(whole, oracle, shrinks=[Halve()], rebase=rebase(whole))
    assert len(missed) == 4
    assert done.rate is not None and done.minimal
    assert done.case == Case(frozenset({5, 50}))


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


def run(path: Path, rule: Rule, *, calls: int | None = None, resume: bool = True) -> Reduction[Case]:
    with Journal.open(path, identity="case 1", resume=resume) as journal:
        return reduce(space(256), rule, journal=journal, budget=Budget(max_calls=calls))


@pytest.mark.parametrize("constraints", [0, 8])
def test_a_resumed_reduction_asks_nothing_twice(tmp_path: Path, constraints: int) -> None:
    straight = scattered(1, 256, 3, constraints)
    whole = run(tmp_path / "straight", straight)
    asked: list[str] = []
    for calls in (2, 1, 10, 7, None):
        rule = scattered(1, 256, 3, constraints)
        done = run(tmp_path / "parts", rule, calls=calls)
        assert done.replayed == len(asked)
        asked += rule.asked
    assert asked == straight.asked
    assert done.case == whole.case
    assert done.minimal
    assert done.total.asked == whole.calls


def test_flaky_answers_are_replayed_one_by_one(tmp_path: Path) -> None:
    def oracle(case: Case, rng: random.Random) -> Answer:
        return FAILS if 5 in case.keep and rng.random() < 0.5 else PASSES

    with Journal.open(tmp_path / "j", identity="x") as journal:
        rng = random.Random(3)
        first = reduce(space(32), lambda case: oracle(case, rng), journal=journal)
    with Journal.open(tmp_path / "j", identity="x", resume=True) as journal:
        again = reduce(space(32), lambda case: pytest.fail("asked again"), journal=journal)
    assert again.calls == 0
    assert (again.case, again.rate) == (first.case, first.rate)


@pytest.mark.parametrize("lost", [1, 7, 40])
def test_a_torn_last_line_is_removed(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "j"
    straight, rule = scattered(1, 256, 3), scattered(1, 256, 3)
    run(path, straight)
    data = path.read_bytes()
    path.write_bytes(data[:-lost])
    assert run(path, rule).case.keep == rule.culprits
    assert rule.asked == straight.asked[-1:]
    assert path.read_bytes().count(b"\n") == data.count(b"\n")


@pytest.mark.parametrize("kept", [0, 1, 20, 30])
def test_a_torn_first_line_is_an_empty_journal(tmp_path: Path, kept: int) -> None:
    path, rule = tmp_path / "sub" / "j", Rule(frozenset({9}))
    Journal.open(path, identity="case 1").close()
    path.write_bytes(path.read_bytes()[:kept])
    first = run(path, rule)
    assert first.case.keep == {9}
    assert run(path, rule).calls == 0
    assert run(path, rule, resume=False).calls == first.calls  # it begins anew


HEAD = '{"reduce_journal":1,"identity":"case 1"}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD.replace("case 1", "case 2"), "belongs to another reduction"),
        (HEAD.replace(":1", ":9"), "version 9"),
        ("def f():\n    pass\n", "not a journal"),
        ("my only copy", "not a journal"),
        (HEAD + "nonsense\n", "line 2"),
        (HEAD + '{"digest":"a","by":"b","verdict":"maybe"}\n', "line 2"),
    ],
)
def test_what_cannot_be_resumed_is_left_alone(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "j"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        Journal.open(path, identity="case 1", resume=True)
    assert caught.value.hint
    assert path.read_text() == text


def test_text_that_no_file_can_hold_ends_nothing(tmp_path: Path) -> None:
    def oracle(case: Case) -> Answer:
        return Answer(OracleVerdict.FAILS, "no such file: \udcff", "\udcfe") if 3 in case.keep else PASSES

    for more in (True, False):
        with Journal.open(tmp_path / "j", identity="x", resume=True) as journal:
            done = reduce(space(8), oracle, journal=journal)
        assert done.case.keep == {3}
        assert bool(done.calls) == more


def test_answers_come_back_as_they_were(tmp_path: Path) -> None:
    answer = Answer(OracleVerdict.FAILS, "RuntimeError: \u201equoted\u201c\n\U0001f600", "x\n", 0.25)
    with Journal.open(tmp_path / "j", identity="x") as journal:
        journal.write("d", "p", answer)
    with Journal.open(tmp_path / "j", identity="x", resume=True) as journal:
        assert journal.known == 1
        assert [journal.replay("d") for _ in range(2)] == [answer, None]


KILLED = """
import sys, time
from pathlib import Path
from graphprobe.reduce.journal import Journal
from graphprobe.reduce import reduce
from reduce.abstract import scattered, space
folder = Path(sys.argv[1])
rule = scattered(1, 1024, 4, 8)
def oracle(case):
    time.sleep(0.02)
    with (folder / "asked").open("a") as file:
        file.write(case.digest + "\\n")
    return rule(case)
def keep(case):
    (folder / "new").write_text(" ".join(map(str, sorted(case.keep))))
    (folder / "new").rename(folder / "best")
with Journal.open(folder / "journal", identity="x", resume=True) as journal:
    reduce(space(1024), oracle, journal=journal, on_best=keep)
(folder / "done").touch()
"""


def test_a_killed_process_loses_at_most_the_call_under_way(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    rule = scattered(1, 1024, 4, 8)
    straight = reduce(space(1024), rule)
    kills = 0
    for wait_s in (0.5, 0.7, 0.9, 60.0):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        try:
            child.wait(wait_s)
        except subprocess.TimeoutExpired:
            kills += 1
            child.kill()
            child.wait()
        if (tmp_path / "best").exists():
            kept = frozenset(map(int, (tmp_path / "best").read_text().split()))
            assert rule.judge(Case(kept)) == FAILS
    assert (tmp_path / "done").exists()
    assert kept == straight.case.keep
    asked = (tmp_path / "asked").read_text().split()
    assert len(rule.asked) <= len(asked) <= len(rule.asked) + kills
