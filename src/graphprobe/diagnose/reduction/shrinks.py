"""The edits, and the dropping of calls, as the reducer takes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from graphprobe.diagnose.reduction.edits import PASSES, EditPass
from graphprobe.diagnose.reduction.problem import FxCandidate, Problem
from graphprobe.reduce.space import Shrink


@dataclass(frozen=True)
class EditShrink:
    """One pass of edits."""

    edits: EditPass

    @property
    def name(self) -> str:
        """For statistics and progress."""
        return self.edits.name

    def proposals(self, case: FxCandidate) -> Iterator[FxCandidate]:
        """The case with one more edit, the boldest first."""
        for edit in self.edits.proposals(case.graph, case.inputs):
            made = case.problem.edited(case, edit)
            if made is not None:
                yield made


@dataclass(frozen=True)
class FewerCalls:
    """Makes the compiled function called less often: once, then without one of the calls."""

    name: str = "calls of the graph"

    def proposals(self, case: FxCandidate) -> Iterator[FxCandidate]:
        """The last call alone, the first alone, then each left out."""
        calls = case.problem.calls_of(case.recipe)
        if len(calls) < 2:
            return
        tries = [calls[-1:], calls[:1], *(calls[:i] + calls[i + 1 :] for i in reversed(range(len(calls))))]
        for few in dict.fromkeys(tries):
            made = case.problem.with_calls(case, few)
            if made is not None:
                yield made


def shrinks_for(problem: Problem) -> list[Shrink[FxCandidate]]:
    """What is tried once no unit can be left out, in this order."""
    found: list[Shrink[FxCandidate]] = [EditShrink(edits) for edits in PASSES]
    return [FewerCalls(), *found] if len(problem.recordings) > 1 else found
