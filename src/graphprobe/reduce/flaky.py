"""How steadily a case fails, and how often a candidate has to be asked because of that."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import msgspec

from graphprobe.reduce.outcome import Answer, OracleVerdict


class Repeats(msgspec.Struct, frozen=True):
    """How often the same case is asked.

    Attributes:
        first: asks of what fails; if all of them give the same failure, it counts as steady. The first is of the
            original, the others of the last candidates and of the result, which takes less time.
        most: asks of the original when its answers differ, and of the result of such a reduction.
        silent: asks after which an original that has not failed once is said not to fail.
        miss: accepted chance to take a candidate that fails as often as the original for one that passes.
        limit: asks of one candidate at most.
    """

    first: int = 3
    most: int = 20
    silent: int = 10
    miss: float = 0.02
    limit: int = 50


class Habit(msgspec.Struct, frozen=True):
    """What repeated asks of one case gave.

    Attributes:
        answers: in order.
        signature: of the failure that is looked for; empty if the case did not fail (in that way).
    """

    answers: tuple[Answer, ...]
    signature: str

    @property
    def failed(self) -> int:
        """Answers that are the failure looked for."""
        if not self.signature:
            return 0
        return sum(a.verdict is OracleVerdict.FAILS and a.signature == self.signature for a in self.answers)

    @property
    def rate(self) -> float:
        """Share of the answers that are the failure, 0 to 1; 0 without answers."""
        return self.failed / len(self.answers) if self.answers else 0.0

    @property
    def steady(self) -> bool:
        """Whether every answer was the failure."""
        return self.failed == len(self.answers) > 0


def observe(ask: Callable[[], Answer], repeats: Repeats, *, signature: str = "") -> Habit:
    """Ask the original until it has failed, or it is clear how it behaves. If it fails at once, one answer will do.

    Args:
        ask: gives one answer.
        repeats: how often.
        signature: the failure looked for. If empty, that of the first answer, if it fails, or else the most frequent
            one, of several the first.
    """
    answers: list[Answer] = []
    while True:
        answers.append(ask())
        failing = any(a.verdict is OracleVerdict.FAILS and signature in ("", a.signature) for a in answers)
        if failing and len(answers) == 1:
            break
        if len(answers) < repeats.first:
            continue
        undecided = all(a.verdict is OracleVerdict.UNRESOLVED for a in answers)
        enough = repeats.first if undecided else repeats.most
        if not failing:
            enough = min(enough, max(repeats.first, repeats.silent))
        if len(answers) >= enough:
            break
    if failing and not signature:
        signature = Counter(a.signature for a in answers if a.verdict is OracleVerdict.FAILS).most_common(1)[0][0]
    return Habit(tuple(answers), signature if failing else "")


def repeats_for(habit: Habit, repeats: Repeats) -> int:
    """Asks until a candidate that fails as often as the original has failed once, but for a chance of `miss`.

    The smallest k with (1 - rate)^k <= miss; 1 for a steady failure, `limit` where none of the answers failed.
    """
    if habit.steady:
        return 1
    if habit.failed == 0:
        return repeats.limit
    asks = math.ceil(math.log(repeats.miss) / math.log(1.0 - habit.rate))
    return max(1, min(asks, repeats.limit))
