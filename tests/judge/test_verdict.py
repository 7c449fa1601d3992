"""The rung that the user runs decides; what is known besides can only take an accusation back."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphprobe.diagnose.ladder import Ladder
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.rungs import RungReport
from graphprobe.diagnose.settings import Compilation, Limits
from graphprobe.findings import STAGES, Finding, Kind, Latent, Stage
from graphprobe.judge.judging import Difference
from graphprobe.judge.observation import Observation
from graphprobe.judge.uncompiled import Reference
from graphprobe.judge.verdict import (
    LAST_STAGE,
    RUNGS,
    VERDICTS,
    Answer,
    RungName,
    State,
    below_first_wrong,
    exonerated,
    first_wrong,
    state_of,
    to_blame,
    verdict_of,
)

STATES: tuple[State, ...] = get_args(State)

WRONG = Difference("wrong_value", 0, "outputs[0]", "twice as large")
UNSURE = Difference("wrong_value", 0, "outputs[0]", "there is no reference", weight="unsure")


def test_the_state_of_a_rung() -> None:
    assert state_of(None) == "not_run"
    assert state_of([]) == "right"
    assert state_of([UNSURE]) == "unsure"
    assert state_of([UNSURE, WRONG]) == "wrong"


@pytest.mark.parametrize(
    ("user", "refused", "excess", "verdict"),
    [
        ("right", False, False, "healthy"),
        ("right", False, True, "healthy"),
        ("right", True, False, "healthy"),
        ("right", True, True, "healthy"),
        ("wrong", False, False, "fault"),
        ("wrong", False, True, "healthy"),
        ("wrong", True, False, "undecided"),
        ("wrong", True, True, "undecided"),
        ("unsure", False, False, "undecided"),
        ("unsure", False, True, "healthy"),
        ("unsure", True, False, "undecided"),
        ("unsure", True, True, "healthy"),
        ("not_run", False, False, "undecided"),
        ("not_run", False, True, "undecided"),
        ("not_run", True, False, "undecided"),
        ("not_run", True, True, "undecided"),
    ],
)
def test_the_verdict(user: State, refused: bool, excess: bool, verdict: Answer) -> None:
    assert verdict_of(user, refused=refused, excess=excess) == verdict


def test_only_what_is_wrong_is_a_fault() -> None:
    assert set(VERDICTS) == set(STATES)
    for user, refused, excess in itertools.product(STATES, (True, False), (True, False)):
        if verdict_of(user, refused=refused, excess=excess) == "fault":
            assert (user, refused, excess) == ("wrong", False, False)


def test_each_rung_has_run_the_stages_up_to_its_last() -> None:
    for name in RUNGS:
        last = STAGES.index(LAST_STAGE[name])
        for stage in STAGES:
            assert exonerated(stage, {name: "right"}) == (STAGES.index(stage) <= last), (stage, name)


@pytest.mark.parametrize("state", [state for state in STATES if state != "right"])
def test_only_a_rung_that_is_right_exonerates(state: State) -> None:
    assert not any(exonerated(stage, dict.fromkeys(RUNGS, state)) for stage in STAGES)


def test_what_exonerates_no_stage() -> None:
    assert not exonerated("unknown", dict.fromkeys(RUNGS, "right")), "a stage that could not be told"
    assert not exonerated("codegen", {})
    assert exonerated("lowering", {"dynamo": "wrong", "kernels": "right"})
    assert not exonerated("runtime", {"kernels": "right"})


def test_the_rungs_are_in_the_order_of_their_stages() -> None:
    places = [STAGES.index(LAST_STAGE[name]) for name in RUNGS]
    assert places == sorted(places)
    assert set(LAST_STAGE) == set(RUNGS)


def test_the_first_wrong_rung() -> None:
    assert first_wrong({}) is None
    assert first_wrong(dict.fromkeys(RUNGS, "unsure")) is None
    assert first_wrong({"plain": "wrong", "passes": "wrong", "aot": "right"}) == "passes"


def test_the_rungs_below_the_first_wrong_one() -> None:
    assert below_first_wrong({"plain": "wrong", "passes": "wrong", "aot": "right"}) == {"aot": "right"}
    assert below_first_wrong({"plain": "right", "dynamo": "unsure"}) == {"plain": "right", "dynamo": "unsure"}


STATE, STAGE = st.sampled_from(STATES), st.sampled_from((*STAGES, "unknown"))
KIND = st.sampled_from(get_args(Kind))
FINDING = st.builds(Finding, kind=KIND, stage=STAGE, op=st.just("aten.relu.default"), reason=st.text(max_size=5))
LATENT = st.builds(Latent, kind=KIND, stage=STAGE, reason=st.text(max_size=5))


class Planted(Ladder):
    """A ladder whose rungs are not run: what was seen on them is given."""

    def __init__(self, folder: Path, rungs: dict[RungName, tuple[State, list[Finding], list[Latent]]], deep: bool):
        super().__init__(Program(len, []), Compilation("inductor", None, folder), Limits(deep=deep))
        self.planted = rungs
        self.reference = Reference([[Observation(None)]])
        self.run: list[str] = []

    def step(self, step: Any) -> Any:
        """No child process."""
        return SimpleNamespace(died=True, raised=None, value=None, signal="SIGKILL", seconds=0.0)

    def _rung(self, name: RungName, step: Any) -> None:
        state, findings, latent = self.planted[name]
        self.run.append(name)
        if state != "not_run":
            self.failing[name] = {"right": [], "wrong": [WRONG], "unsure": [UNSURE]}[state]
        self.reports[name] = RungReport(findings=list(findings), suspected=list(latent))
        self.result.findings += findings


@given(
    rungs=st.fixed_dictionaries(
        {name: st.tuples(STATE, st.lists(FINDING, max_size=2), st.lists(LATENT, max_size=2)) for name in RUNGS}
    ),
    deep=st.booleans(),
)
def test_whatever_is_seen_inside_a_program_that_is_right_is_latent(
    rungs: dict[RungName, tuple[State, list[Finding], list[Latent]]], deep: bool
) -> None:
    rungs["plain"] = ("right", *rungs["plain"][1:])
    ladder = Planted(Path("nowhere"), rungs, deep)
    ladder._rung("plain", None)
    ladder._settle()
    found = ladder.result
    assert (found.verdict, found.exit_code, found.findings) == ("healthy", 0, [])
    told = {(one.kind, one.stage, one.op) for one in found.latent}
    for name in ladder.run:
        for one in (*rungs[name][1], *rungs[name][2]):
            assert (one.kind, one.stage, one.op) in told
    assert ladder.run == (["plain", *RUNGS[:-1]] if deep else ["plain"])


@given(state=st.sampled_from(["unsure", "not_run"]), findings=st.lists(FINDING, min_size=1, max_size=3))
def test_what_is_seen_inside_does_not_convict_either_where_nothing_can_be_told(
    state: State, findings: list[Finding]
) -> None:
    rungs = dict.fromkeys(RUNGS, ("wrong", findings, [])) | {"plain": (state, [], [])}
    ladder = Planted(Path("nowhere"), rungs, False)  # type: ignore[arg-type]
    ladder._rung("plain", None)
    ladder._settle()
    assert (ladder.result.verdict, ladder.result.findings) == ("undecided", [])
    assert len(ladder.result.latent) >= 1
    assert ladder.result.notes, "the reason"


@given(stage=STAGE, right=st.sets(st.sampled_from(RUNGS)), wrong=st.sampled_from(RUNGS))
def test_a_stage_is_never_exonerated_by_rungs_that_stop_before_it(
    stage: Stage, right: set[RungName], wrong: RungName
) -> None:
    before = [name for name in right if stage in STAGES and STAGES.index(LAST_STAGE[name]) < STAGES.index(stage)]
    states: dict[RungName, State] = {**dict.fromkeys(before, "right"), wrong: "wrong"}
    assert not exonerated(stage, states)


def test_the_dtype_of_what_nobody_sees_explains_no_wrong_numbers() -> None:
    dtype = Finding(kind="wrong_dtype", stage="decomposition", op="aten.native_layer_norm.default")
    number = Finding(kind="nonfinite", stage="decomposition", op="aten.std.correction")
    assert to_blame([dtype, number], {"aot": "right"}, {"wrong_value"}) == [number]
    assert to_blame([dtype, number], {"aot": "right"}, {"wrong_value", "wrong_dtype"}) == [dtype, number]
    assert to_blame([dtype], {"aot": "right"}, {"wrong_value"}) == [dtype]
    assert to_blame([dtype, number], {"passes": "right"}, {"wrong_value"}) == []
