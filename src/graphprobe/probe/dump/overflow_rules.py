"""Who made a value that is not finite: from what lies in an op's inputs and outputs to a verdict. Knows no tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from graphprobe.probe.dump.infinities import Signs
from graphprobe.probe.dump.traits import OpTraits

Kind = Literal["nan", "inf", "saturated"]


class FloatSummary(NamedTuple):
    """What an overflow shows in, of one tensor of floats.

    Attributes:
        slot: where it lies.
        memory: address of its storage, 0 when unknown.
        nan, positive, negative: how many elements are NaN, +inf, -inf.
        low, high: the least and the largest finite element, 0 without any.
        limit: largest finite number of a dtype that is narrow enough to be judged by saturation; else 0.
    """

    slot: str
    memory: int
    nan: int
    positive: int
    negative: int
    low: float = 0.0
    high: float = 0.0
    limit: float = 0.0

    @property
    def signs(self) -> Signs:
        """Signs of its infinities."""
        return frozenset("+" * bool(self.positive) + "-" * bool(self.negative))

    @property
    def extremes(self) -> Signs:
        """At which ends of the dtype's range elements lie."""
        if not self.limit:
            return frozenset()
        return frozenset("+" * (self.high == self.limit) + "-" * (self.low == -self.limit))

    @property
    def finite(self) -> bool:
        """Whether all of it is finite."""
        return not (self.nan or self.positive or self.negative)


class BadOutput(NamedTuple):
    """What is wrong with one output: `sign` of an infinity or of the end of the range, empty for NaN."""

    slot: str
    kind: Kind
    sign: str = ""


@dataclass(frozen=True, slots=True)
class OverflowVerdict:
    """What an op has to do with an overflow. A carrier read values that an origin before it had spoiled."""

    role: Literal["origin", "carrier"]
    problems: tuple[BadOutput, ...] = ()


class OverflowJudge:
    """Judges the ops of one step in the order in which they ran, forward and backward.

    It keeps in mind which memory holds values that an origin has spoiled.
    """

    def __init__(self) -> None:
        self._spoiled: set[int] = set()

    def spoiled(self, inputs: Sequence[FloatSummary]) -> bool:
        """Whether one of these is not finite, and an origin is why."""
        return any(not found.finite and found.memory in self._spoiled for found in inputs)

    def judge(
        self, traits: OpTraits, inputs: Callable[[], Sequence[FloatSummary]], outputs: Sequence[FloatSummary]
    ) -> OverflowVerdict | None:
        """The verdict on an op; `inputs` is called only when something about the outputs is odd."""
        odd = [found for found in outputs if not found.finite or found.extremes]
        for found in outputs:
            if found.finite:
                self._spoiled.discard(found.memory)
        if not odd:
            return None
        read = inputs()
        spoiled = self.spoiled(read)
        nan = any(found.nan for found in read)
        signs = frozenset().union(*(found.signs for found in read))
        problems = []
        for found in odd:
            problems += self._problems(found, traits.meant(found.slot, signs), read, nan, signs, spoiled)
        bad = {problem.slot for problem in problems}
        carried = spoiled and any(not found.finite for found in odd)
        for found in odd:
            if found.slot in bad or (spoiled and not found.finite):
                self._spoiled.add(found.memory)
            else:
                self._spoiled.discard(found.memory)
        if problems:
            return OverflowVerdict("origin", tuple(problems))
        return OverflowVerdict("carrier") if carried else None

    def _problems(
        self, out: FloatSummary, meant: Signs, read: Sequence[FloatSummary], nan: bool, signs: Signs, spoiled: bool
    ) -> list[BadOutput]:
        if nan or spoiled:
            return []  # what comes of NaN, and of values that were spoiled before, is passed on
        problems = []
        # A NaN of infinities that are meant comes of a row that is masked as a whole; what reads those is no origin.
        if out.nan and not signs:
            problems.append(BadOutput(out.slot, "nan"))
        problems += [BadOutput(out.slot, "inf", sign) for sign in sorted(out.signs - signs - meant)]
        hit = out.extremes - meant
        if hit and all(found.finite and not _reaches(found, out.limit) for found in read):
            problems += [BadOutput(out.slot, "saturated", sign) for sign in sorted(hit)]
        return problems


def _reaches(found: FloatSummary, limit: float) -> bool:
    return limit in (found.high, -found.low)
