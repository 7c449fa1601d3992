"""The verdict of a diagnosis and what its reader needs first, from what the rungs have shown. Nothing runs here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphprobe.diagnose import notes
from graphprobe.diagnose.exceptions import Origin, refused
from graphprobe.diagnose.rungs import RungReport
from graphprobe.errors import Raised
from graphprobe.findings import Finding
from graphprobe.judge.judging import Difference
from graphprobe.judge.uncompiled import Reference
from graphprobe.judge.verdict import Answer, RungEvidence, RungName, State, state_of, verdict_of


@dataclass(frozen=True)
class RungSeen:
    """What is known of a rung.

    Attributes:
        differences: from the uncompiled program; None: nobody could judge.
        better: where the uncompiled program is further off.
        alike: no bit differs.
        report: what its step has sent, if that came to its end.
        origin: of an exception, or where it was when it was ended.
    """

    differences: list[Difference] | None = None
    better: Sequence[Difference] = ()
    alike: bool = False
    report: RungReport | None = None
    origin: Origin | None = None

    @property
    def certain(self) -> list[Difference]:
        """What is certainly wrong."""
        return [d for d in self.differences or () if d.certain]


UNSEEN = RungSeen()


@dataclass(frozen=True)
class Climbed:
    """What was seen of a program.

    Attributes:
        reference: the program uncompiled.
        top: the rung that the user runs.
        inductor: whether Inductor compiles it.
        excess: all that differs is gone once kernels round narrow values as eager does; None: no time was left to see.
    """

    reference: Reference
    top: RungSeen
    inductor: bool = True
    excess: bool | None = False

    @property
    def user(self) -> State:
        """The state of the rung that the user runs."""
        state = state_of(self.top.differences)
        return "unsure" if self.excess is None and state == "wrong" else state

    @property
    def raised(self) -> Raised | None:
        """The exception that the program raises uncompiled."""
        return next((call.raised for call in self.reference.eager[0] if call.raised is not None), None)


@dataclass(frozen=True)
class Settled:
    """A verdict.

    Attributes:
        notes: that stand before all others.
        refusal: torch refuses to compile the program, in words that it documents.
        final: nothing that is inside of the program can add to it.
    """

    verdict: Answer
    notes: Sequence[str] = ()
    refusal: Finding | None = None
    final: bool = False


def settle(seen: Climbed) -> Settled:
    """The verdict of what was seen."""
    report, refusal = seen.top.report, refusal_in(seen.top)
    verdict = verdict_of(seen.user, refused=refusal is not None, excess=bool(seen.excess))
    if verdict == "healthy" and report is not None and report.graphs == 0 and seen.raised is None:
        if not report.given_up:
            return Settled("undecided", [notes.NOTHING], final=True)
        reason = report.given_up[0].partition("\n")[0]
        return Settled(verdict, [notes.LEFT_AS_IT_IS.format(reason=reason)], final=True)
    if refusal is not None:
        return Settled(verdict, [refusal.reason], refusal, final=True)
    return Settled(verdict)


def refusal_in(rung: RungSeen) -> Finding | None:
    """The program as one that torch refuses to compile, in words that torch documents."""
    report = rung.report
    return None if report is None else refused([report.calls[d.call].raised for d in rung.certain], report.origin)


def states_of(rungs: Mapping[RungName, RungSeen]) -> dict[RungName, State]:
    """The state of each rung that was run."""
    return {name: state_of(rung.differences) for name, rung in rungs.items() if rung.differences is not None}


def held_against(rungs: Mapping[RungName, RungSeen], certain: Sequence[Difference]) -> RungEvidence:
    """What findings are held against; `certain`: what is wrong on the first wrong rung."""
    kernels = rungs.get("kernels", UNSEEN).report
    agreed = kernels is not None and kernels.checked > 0 and not (kernels.findings or kernels.suspected)
    return RungEvidence(states_of(rungs), {d.kind for d in certain}, agreed)


def with_reasons(told: Sequence[str], seen: Climbed, verdict: Answer, *, late: str, wider: str) -> list[str]:
    """Notes, with what a reader of the verdict needs first.

    Args:
        late: what the budget has ended first; empty: nothing.
        wider: which op keeps a narrow value wider, where that is all that differs.
    """
    told = list(told)
    if seen.user == "not_run" and not late:
        why = told.pop() if told else "no reason is known"
        told.insert(0, f"the compiled program itself was not run: {why}")
    if verdict == "undecided":
        told[:0] = [f"{d.kind} in {d.where}: {d.text}" for d in seen.top.differences or ()]
    if verdict != "healthy":
        return told
    told[:0] = [wider] if wider else notes.excused(seen.top.better)
    if seen.raised is not None:
        told.insert(0, notes.raised_in_both(seen.raised, seen.top.report))
    return told + [notes.ONE_THREAD] * (seen.inductor and notes.in_one_thread(seen.reference))
