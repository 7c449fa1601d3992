"""The rung that the user runs decides; what is known besides can only take an accusation back."""

import copy
import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from graphprobe.diagnose.ladder import Ladder
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.rungs import RungReport
from graphprobe.diagnose.settings import Compilation, Limits
from graphprobe.diagnose.settle import RungSeen
from graphprobe.findings import STAGES, Finding, Kind, Latent, Stage, Worst
from graphprobe.judge import verdict
from graphprobe.judge.judging import Difference
from graphprobe.judge.observation import Observation
from graphprobe.judge.uncompiled import Reference

STATES: tuple[verdict.State, ...] = get_args(verdict.State)

WRONG = Difference("wrong_value", 0, "outputs[0]", "twice as large")
UNSURE = Difference("wrong_value", 0, "outputs[0]", "there is no reference", weight="unsure")


def test_the_states_of_rungs() -> None:
    found = [verdict.state_of(differences) for differences in (None, [], [UNSURE], [UNSURE, WRONG])]
    assert found == ["not_run", "right", "unsure", "wrong"]
    assert verdict.first_wrong({}) is None
    assert verdict.first_wrong(dict.fromkeys(verdict.RUNGS, "unsure")) is None
    assert verdict.first_wrong({"plain": "wrong", "passes": "wrong", "aot": "right"}) == "passes"
    assert verdict.below_first_wrong({"plain": "wrong", "passes": "wrong", "aot": "right"}) == {"aot": "right"}
    assert verdict.below_first_wrong({"plain": "right", "dynamo": "unsure"}) == {"plain": "right", "dynamo": "unsure"}


def test_the_verdict() -> None:
    for user, verdicts in (
        ("right", "healthy healthy healthy healthy"),
        ("wrong", "fault healthy undecided undecided"),
        ("unsure", "undecided healthy undecided healthy"),
        ("not_run", "undecided undecided undecided undecided"),
    ):
        cases = itertools.product((False, True), repeat=2)
        assert [
            verdict.verdict_of(user, refused=refused, excess=excess) for refused, excess in cases
        ] == verdicts.split()
        assert set(verdict.VERDICTS) == set(STATES)


def test_what_a_rung_exonerates() -> None:
    places = [STAGES.index(verdict.LAST_STAGE[name]) for name in verdict.RUNGS]
    assert places == sorted(places)
    assert set(verdict.LAST_STAGE) == set(verdict.RUNGS)
    for name, last in zip(verdict.RUNGS, places, strict=True):
        assert [verdict.exonerated(stage, {name: "right"}) for stage in STAGES] == [
            i <= last for i in range(len(STAGES))
        ]
    others = [state for state in STATES if state != "right"]
    assert not any(
        verdict.exonerated(stage, dict.fromkeys(verdict.RUNGS, state)) for stage in STAGES for state in others
    )
    assert not verdict.exonerated("unknown", dict.fromkeys(verdict.RUNGS, "right")), "a stage that could not be told"
    assert not verdict.exonerated("codegen", {})
    assert verdict.exonerated("lowering", {"dynamo": "wrong", "kernels": "right"})
    assert not verdict.exonerated("runtime", {"kernels": "right"})


STATE, STAGE = st.sampled_from(STATES), st.sampled_from((*STAGES, "unknown"))
KIND = st.sampled_from(get_args(Kind))
FINDING = st.builds(Finding, kind=KIND, stage=STAGE, op=st.just("aten.relu.default"), reason=st.text(max_size=5))
LATENT = st.builds(Latent, kind=KIND, stage=STAGE, reason=st.text(max_size=5))


class Planted(Ladder):
    """A ladder whose rungs are not run: what was seen on them is given."""

    def __init__(
        self, folder: Path, rungs: dict[verdict.RungName, tuple[verdict.State, list[Finding], list[Latent]]], deep: bool
    ):
        super().__init__(Program(len, []), Compilation("inductor", None, folder), Limits(deep=deep))
        self.planted = rungs
        self.reference = Reference([[Observation(None)]])
        self.run: list[str] = []

    def step(self, step: Any, **_: Any) -> Any:
        """No child process."""
        return SimpleNamespace(died=True, raised=None, value=None, signal="SIGKILL", seconds=0.0)

    def _rung(self, name: verdict.RungName, step: Any) -> None:
        state, findings, latent = self.planted[name]
        self.run.append(name)
        differences = {"right": [], "wrong": [WRONG], "unsure": [UNSURE], "not_run": None}[state]
        report = RungReport(findings=list(findings), suspected=list(latent))
        self.rungs[name] = RungSeen(differences, report=report)
        self.result.findings += findings


@given(
    rungs=st.fixed_dictionaries(
        {name: st.tuples(STATE, st.lists(FINDING, max_size=2), st.lists(LATENT, max_size=2)) for name in verdict.RUNGS}
    ),
    state=STATE.filter(lambda state: state != "wrong"),
    deep=st.booleans(),
)
def test_whatever_is_seen_inside_a_program_that_is_not_wrong_convicts_nothing(
    rungs: dict[verdict.RungName, tuple[verdict.State, list[Finding], list[Latent]]], state: verdict.State, deep: bool
) -> None:
    rungs["plain"] = (state, *rungs["plain"][1:])
    ladder = Planted(Path("nowhere"), rungs, deep)
    ladder._rung("plain", None)
    ladder._settle()
    found = ladder.result
    assert (found.verdict, found.findings) == ("healthy" if state == "right" else "undecided", [])
    assert (found.exit_code == 0) == (state == "right") and (state == "right" or found.notes), "the reason"
    told = {(one.kind, one.stage, one.op) for one in found.latent}
    for name in ladder.run:
        for one in (*rungs[name][1], *rungs[name][2]):
            assert (one.kind, one.stage, one.op) in told
    assert state != "right" or ladder.run == (["plain", *verdict.RUNGS[:-1]] if deep else ["plain"])


@given(stage=STAGE, right=st.sets(st.sampled_from(verdict.RUNGS)), wrong=st.sampled_from(verdict.RUNGS))
def test_not_exonerated_by_rungs_before(stage: Stage, right: set[verdict.RungName], wrong: verdict.RungName) -> None:
    before = [
        name for name in right if stage in STAGES and STAGES.index(verdict.LAST_STAGE[name]) < STAGES.index(stage)
    ]
    states: dict[verdict.RungName, verdict.State] = {**dict.fromkeys(before, "right"), wrong: "wrong"}
    assert not verdict.exonerated(stage, states)


def test_the_dtype_of_what_nobody_sees_explains_no_wrong_numbers() -> None:
    dtype = Finding(kind="wrong_dtype", stage="decomposition", op="aten.native_layer_norm.default")
    number = Finding(kind="nonfinite", stage="decomposition", op="aten.std.correction")
    right = verdict.RungEvidence({"aot": "right"}, {"wrong_value"})
    assert verdict.to_blame([dtype, number], right) == [number]
    assert verdict.to_blame([dtype, number], replace(right, kinds={"wrong_value", "wrong_dtype"})) == [dtype, number]
    assert verdict.to_blame([dtype], right) == [dtype]
    assert verdict.to_blame([dtype, number], verdict.RungEvidence({"passes": "right"}, {"wrong_value"})) == []


def worst(off: float, allowed: float | None, wrong: int = 1) -> Worst:
    return Worst(label="output 0", expected=-12.5, actual=-12.5 - off, off=off, legitimate=allowed, wrong=wrong)


OPS = ("aten.index_put.default", "aten.index_fill.int_Scalar", "torch.trace", "zeros")
OP = st.sampled_from((None, *OPS))
CALLED = st.sets(st.sampled_from(("index_fill", "trace", "relu")))
WORST = st.builds(worst, st.sampled_from((1e-3, 1.0, float("inf"))), st.sampled_from((None, 0.0, 0.1, 930.0)))
ANY = st.builds(
    Finding,
    kind=KIND,
    stage=STAGE,
    direction=st.sampled_from(("forward", "backward")),
    op=OP,
    also=st.lists(st.sampled_from(OPS), max_size=2),
    kernel=st.sampled_from((None, "cpp_fused_0")),
    proof=st.sampled_from((None, "piece", "program")),
    worst=st.none() | WORST,
)
SEEN = st.builds(
    verdict.RungEvidence,
    states=st.dictionaries(st.sampled_from(verdict.RUNGS), STATE),
    kinds=st.sets(KIND, max_size=2),
    agreed=st.booleans(),
    called=CALLED,
)


@given(finding=ANY, seen=SEEN)
def test_no_finding_passes_that_contradicts_what_was_seen(finding: Finding, seen: verdict.RungEvidence) -> None:
    """Whatever has been seen: what is left contradicts nothing, and what contradicts nothing is left as it is."""
    before = copy.deepcopy(finding)
    left = verdict.consistent(finding, seen)
    assert finding == before, "it is another one that is left"
    held = [check.why for check in verdict.CHECKS if check.holds(finding, seen)]
    assert (left == finding) == (not held), held
    if left is not None:
        assert [check.why for check in verdict.CHECKS if check.holds(left, seen)] == []
        assert (left.kind, left.source, left.reason, left.worst) == (
            finding.kind,
            finding.source,
            finding.reason,
            finding.worst,
        )
    for found in verdict.to_blame([finding], seen):
        assert found == left


Changed = dict[str, Any] | None
RIGHT_TO: dict[str, dict[verdict.RungName, verdict.State]] = {
    "dynamo": {"dynamo": "wrong", "plain": "wrong"},
    "passes": {"dynamo": "right", "aot": "right", "passes": "right", "kernels": "wrong", "plain": "wrong"},
}
PUT, FILL, TRACE, ZEROS = OPS
TANH = Finding(kind="wrong_value", stage="codegen", op="aten.tanh.default", proof="program")
MUL = Finding(kind="crash_compile", stage="aot", op="operator.mul")
PASSES, DYNAMO = (verdict.RungEvidence(RIGHT_TO[name]) for name in ("passes", "dynamo"))
NAMED = verdict.RungEvidence(called={"index_fill", "trace"})
UNNAMED: Changed = {"op": None}
# A finding, what was seen besides, and what has to be changed in it; None: the finding goes.
PLANTED: list[tuple[Finding, verdict.RungEvidence, Changed]] = [
    (Finding(kind="wrong_value", stage="joint"), PASSES, None),
    (Finding(kind="wrong_value", stage="lowering"), PASSES, {}),
    (MUL, DYNAMO, {"stage": "dynamo"}),
    (msgspec.structs.replace(MUL, stage="decomposition"), DYNAMO, {}),
    (
        msgspec.structs.replace(MUL, stage="decomposition"),
        verdict.RungEvidence({"dynamo": "right", "aot": "wrong"}),
        {"stage": "aot"},
    ),
    (msgspec.structs.replace(MUL, proof="piece"), DYNAMO, {}),
    (TANH, replace(PASSES, agreed=True), UNNAMED),
    (TANH, PASSES, {}),
    (msgspec.structs.replace(TANH, proof="piece"), replace(PASSES, agreed=True), {}),
    (msgspec.structs.replace(TANH, kernel="cpp_fused_0"), replace(PASSES, agreed=True), {}),
    (Finding(kind="wrong_value", stage="lowering", op=PUT, also=[FILL]), NAMED, {"op": FILL, "also": [PUT]}),
    (Finding(kind="wrong_value", stage="lowering", op=ZEROS), NAMED, UNNAMED),
    (Finding(kind="wrong_value", stage="lowering", op=TRACE), NAMED, {}),
    (Finding(kind="wrong_value", stage="dynamo", op="view_as", source="a.py:3"), NAMED, UNNAMED),
    (Finding(kind="wrong_value", stage="dynamo", op="view_as", called_from="a.py:3"), NAMED, {}),
    (Finding(kind="wrong_value", stage="dynamo", op="view_as", relation="no hook is called"), NAMED, {}),
    (Finding(kind="wrong_value", stage="dynamo", op="operator.mul"), NAMED, {}),
    (Finding(kind="wrong_value", stage="dynamo", op="self.holder"), NAMED, {}),
    (Finding(kind="wrong_value", stage="joint", op="aten.addmm.default", pass_="fused"), NAMED, {}),
    (Finding(kind="wrong_gradient", stage="aot"), verdict.RungEvidence(), {"direction": "backward"}),
    (Finding(kind="wrong_gradient", stage="aot", op=TRACE), verdict.RungEvidence(), {}),
    (msgspec.structs.replace(TANH, worst=worst(float("inf"), 930.0)), PASSES, {"proof": None}),
    (msgspec.structs.replace(TANH, worst=worst(0.01, 0.1, wrong=0)), PASSES, {"proof": None}),
    (msgspec.structs.replace(TANH, worst=worst(float("inf"), 0.1)), PASSES, {}),
    (msgspec.structs.replace(TANH, worst=worst(1.0, 0.1)), PASSES, {}),
]


@given(finding=ANY, seen=SEEN.filter(lambda seen: verdict.first_wrong(seen.states)))
def test_what_contradicts_is_told_by_its_rung_which_contradicts_nothing(
    finding: Finding, seen: verdict.RungEvidence
) -> None:
    told = verdict.by_its_rung(finding, seen)
    assert (told.op, told.also, told.stage, told.proof) == (None, [], seen.first, None)
    assert (told.kind, told.source, told.reason) == (finding.kind, finding.source, finding.reason)
    assert verdict.consistent(told, seen) is not None


def test_planted_contradictions() -> None:
    met = set()
    for finding, seen, changed in PLANTED:
        met |= {check.why for check in verdict.CHECKS if check.holds(finding, seen)}
        expected = None if changed is None else msgspec.structs.replace(finding, **changed)
        assert verdict.consistent(finding, seen) == expected
    assert met == {check.why for check in verdict.CHECKS}, "each check has a contradiction of its own"
