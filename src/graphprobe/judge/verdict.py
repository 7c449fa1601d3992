"""The verdict: only the rung that the user runs decides whether there is a fault; documented refusals are none.

What was seen in a changed program (values shown, pieces cut out, passes left out) names a culprit; it never convicts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, get_args

from graphprobe.findings import STAGES, Finding, Kind, Stage
from graphprobe.judge.judging import Difference
from graphprobe.judge.stage_table import LAID_OUT

RungName = Literal["dynamo", "aot", "passes", "kernels", "plain"]
State = Literal["right", "wrong", "unsure", "not_run"]
Answer = Literal["fault", "healthy", "undecided"]

RUNGS: tuple[RungName, ...] = get_args(RungName)
"""From the first to the last."""

LAST_STAGE: Mapping[RungName, Stage] = {
    "dynamo": "dynamo",
    "aot": "aot",
    "passes": "post_grad",
    "kernels": "codegen",
    "plain": "runtime",
}
"""The last stage of the compiler that a rung runs."""


FIRST_STAGE: Mapping[RungName, Stage] = {
    "dynamo": "dynamo",
    "aot": "aot",
    "passes": "decomposition",
    "kernels": "lowering",
    "plain": "runtime",
}
"""The first stage of the compiler that a rung of Inductor's runs and the rung below it does not."""

VERDICTS: Mapping[State, Answer] = {
    "right": "healthy",
    "wrong": "fault",
    "unsure": "undecided",
    "not_run": "undecided",
}
"""By the state of the rung that the user runs."""


def state_of(differences: Sequence[Difference] | None) -> State:
    """How a rung did; None: it was not run, or could not be."""
    if differences is None:
        return "not_run"
    if any(d.certain for d in differences):
        return "wrong"
    return "unsure" if differences else "right"


def verdict_of(user: State, *, refused: bool = False, excess: bool = False) -> Answer:
    """The verdict.

    Args:
        user: the state of the program compiled as its user does, nothing looked into.
        refused: torch refuses to compile it, in a way that torch documents.
        excess: it differs only because kernels keep narrow values wider, as torch means them to.
    """
    if user == "wrong" and refused:
        return "undecided"
    if user in ("wrong", "unsure") and excess:
        return "healthy"
    return VERDICTS[user]


def exonerated(stage: Stage, states: Mapping[RungName, State]) -> bool:
    """Whether a rung that runs this stage, and the stages before it, is right: then the stage is not to blame."""
    if stage not in STAGES:
        return False
    at = STAGES.index(stage)
    return any(state == "right" and STAGES.index(LAST_STAGE[name]) >= at for name, state in states.items())


def to_blame(findings: Sequence[Finding], lower: Mapping[RungName, State], seen: Collection[Kind]) -> list[Finding]:
    """The findings that may explain a fault.

    Those of stages that a right rung runs do not. Nor do a dtype, a shape or strides that are not as uncompiled, of a
    value that nobody sees, where another finding gives wrong numbers, and numbers are all that is wrong.

    Args:
        findings: of one program.
        lower: the states of the rungs below the first wrong one.
        seen: the kinds of failure that the first wrong rung shows.
    """
    guilty = [f for f in findings if not exonerated(f.stage, lower)]
    numbers = [f for f in guilty if f.kind not in LAID_OUT]
    return numbers if numbers and not any(kind in LAID_OUT for kind in seen) else guilty


def first_wrong(states: Mapping[RungName, State]) -> RungName | None:
    """The first rung that is wrong."""
    return next((name for name in RUNGS if states.get(name) == "wrong"), None)


def below_first_wrong(states: Mapping[RungName, State]) -> dict[RungName, State]:
    """The states of the rungs below the first wrong one; those above it tell nothing of the stages below."""
    first = first_wrong(states)
    at = RUNGS.index(first) if first is not None else len(RUNGS)
    return {name: state for name, state in states.items() if RUNGS.index(name) < at}
