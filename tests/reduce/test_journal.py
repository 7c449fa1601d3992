"""What is on disk when a reduction ends before its end, and that it goes on from there."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from graphprobe.errors import UsageError
from graphprobe.reduce import Answer, OracleVerdict, reduce
from graphprobe.reduce.gate import Budget
from graphprobe.reduce.journal import Journal
from graphprobe.reduce.reducer import Reduction
from reduce.abstract import FAILS, PASSES, Case, Rule, scattered, space


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
