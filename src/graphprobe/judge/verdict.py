"""The verdict: only the rung that the user runs decides whether there is a fault; documented refusals are none.

What was seen in a changed program (values shown, pieces cut out, passes left out) names a culprit; it never convicts.
Nor may a finding contradict what its diagnosis has seen: `CHECKS` has all that it is held against.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import msgspec
import torch

from graphprobe.findings import STAGES, Finding, Kind, Stage
from graphprobe.judge.judging import Difference
from graphprobe.judge.stage_table import LAID_OUT, is_later
from graphprobe.judge.worst import tells

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

VERDICTS: Mapping[State, Answer] = {"right": "healthy", "wrong": "fault", "unsure": "undecided", "not_run": "undecided"}
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


@dataclass(frozen=True)
class RungEvidence:
    """What a finding is held against.

    Attributes:
        states: of the rungs that were run.
        kinds: of failure that the first wrong rung shows; empty: not known.
        agreed: each value that was looked at in kernels is what its operation makes of its inputs.
        called: base names of what the program's code names, and of what its graphs call; empty: not known.
    """

    states: Mapping[RungName, State] = field(default_factory=dict)
    kinds: Collection[Kind] = ()
    agreed: bool = False
    called: Collection[str] = ()

    @property
    def lower(self) -> dict[RungName, State]:
        """The states of the rungs below the first wrong one."""
        return below_first_wrong(self.states)

    @property
    def first(self) -> Stage:
        """The last stage that the first wrong rung runs."""
        name = first_wrong(self.states)
        return LAST_STAGE[name] if name is not None else "unknown"


class Contradiction(NamedTuple):
    """A contradiction, and what is left of a finding that has it; None: nothing."""

    why: str
    holds: Callable[[Finding, RungEvidence], bool]
    left: Callable[[Finding, RungEvidence], Finding | None]


def base_of(op: str) -> str:
    """`index_put` of `aten.index_put_.default`, `relu` of `torch.relu`."""
    parts = op.split(".")
    return (parts[1] if len(parts) > 1 and parts[0] in ("aten", "prims") else parts[-1]).strip("_")


def _is_foreign(finding: Finding, seen: RungEvidence) -> bool:
    """Whether its operation is one of ATen's that nothing calls; Python's own operators have no names in code."""
    base = base_of(finding.op or "")
    known = not seen.called or base in seen.called or hasattr(operator, base) or not hasattr(torch.ops.aten, base)
    known = known or (finding.op or "") in finding.reason  # torch's own error names it
    return not (known or finding.op is None or finding.pass_ or finding.relation or finding.called_from)


def _unnamed(finding: Finding, seen: RungEvidence) -> Finding:
    """Without an operation: its place and its stage are told."""
    return msgspec.structs.replace(finding, op=None, node=None, also=[])


def by_its_rung(finding: Finding, seen: RungEvidence) -> Finding:
    """What contradicts what was seen, by its place and the rung that is wrong, and with nothing proven."""
    rest: dict[str, Any] = {"stage": seen.first, "pass_": None, "kernel": None, "proof": None, "dossier": None}
    return msgspec.structs.replace(_unnamed(finding, seen), **rest)


def _called(finding: Finding, seen: RungEvidence) -> Finding:
    """With what the program calls in the place of what neither it nor what it calls contains."""
    names = [name for name in finding.also if base_of(name) in seen.called]
    if not names:
        return _unnamed(finding, seen)
    also = [name for name in (finding.op, *finding.also) if name and name != names[0]]
    return msgspec.structs.replace(finding, op=names[0], also=also)


CHECKS: tuple[Contradiction, ...] = (
    Contradiction(
        "a rung that runs its stage, and those before it, is right",
        lambda f, seen: exonerated(f.stage, seen.lower),
        lambda f, seen: None,
    ),
    Contradiction(
        "it is raised before its stage is at work",
        lambda f, seen: f.kind == "crash_compile" and f.proof != "piece" and is_later(f.stage, seen.first),
        lambda f, seen: msgspec.structs.replace(f, stage=seen.first, pass_=None, kernel=None),
    ),
    Contradiction(
        "what its kernels compute agrees with their operations, and no experiment accuses one",
        lambda f, seen: (
            seen.agreed
            and f.op is not None
            and f.stage in ("lowering", "codegen")
            and f.kind in ("wrong_value", "wrong_gradient", "nonfinite")
            and f.kernel is None
            and f.proof != "piece"
        ),
        _unnamed,
    ),
    Contradiction("neither the program nor what it calls contains its operation", _is_foreign, _called),
    Contradiction(
        "gradients that no graph of the forward gives are wrong in the backward",
        lambda f, seen: f.kind == "wrong_gradient" and f.op is None and f.direction == "forward",
        lambda f, seen: msgspec.structs.replace(f, direction="backward"),
    ),
    Contradiction(
        "its proof has to allow more than what differs",
        lambda f, seen: f.proof is not None and f.worst is not None and not tells(f.worst),
        lambda f, seen: msgspec.structs.replace(f, proof=None),
    ),
)
"""In the order in which they are made."""


def consistent(finding: Finding, seen: RungEvidence) -> Finding | None:
    """What is left of a finding that does not contradict what was seen; None: nothing."""
    found: Finding | None = finding
    for check in CHECKS:
        if found is not None and check.holds(found, seen):
            found = check.left(found, seen)
    return found


def to_blame(findings: Sequence[Finding], seen: RungEvidence) -> list[Finding]:
    """The findings that may explain a fault, as far as they contradict nothing.

    A dtype, a shape or strides that are not as uncompiled, of a value that nobody sees, do not where another finding
    gives wrong numbers, and numbers are all that is wrong.
    """
    guilty = [found for f in findings if (found := consistent(f, seen)) is not None]
    numbers = [f for f in guilty if f.kind not in LAID_OUT]
    return numbers if numbers and not any(kind in LAID_OUT for kind in seen.kinds) else guilty


def first_wrong(states: Mapping[RungName, State]) -> RungName | None:
    """The first rung that is wrong."""
    return next((name for name in RUNGS if states.get(name) == "wrong"), None)


def below_first_wrong(states: Mapping[RungName, State]) -> dict[RungName, State]:
    """The states of the rungs below the first wrong one; those above it tell nothing of the stages below."""
    first = first_wrong(states)
    at = RUNGS.index(first) if first is not None else len(RUNGS)
    return {name: state for name, state in states.items() if RUNGS.index(name) < at}
