"""Reduces a failing case: is it steady, fewer units, simpler values, until nothing makes it smaller."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from graphprobe.reduce.gate import Budget, BudgetSpent, Gate, Pass, Unsteady, total
from graphprobe.reduce.journal import Journal
from graphprobe.reduce.outcome import Answer, Observer, OracleVerdict
from graphprobe.reduce.search import Subsets, reduce_units
from graphprobe.reduce.space import Candidate, Oracle, Shrink, Space

C = TypeVar("C", bound=Candidate)

ORIGINAL, RESULT = "original", "result"

DOUBT_AFTER = 8
"""Candidates in a row that do not fail before the best case is asked whether it still does: that many are rare while a
steady failure is cut down by halves, and common where a failure comes and goes."""

INTERRUPTED = "interrupted"
"""What `Reduction.stopped` says after Ctrl-C."""


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


def shrink_all(gate: Gate[C], shrinks: Sequence[Shrink[C]]) -> bool:
    """Run each pass to its end, again and again, until a whole round changes nothing. Whether any changed something."""
    changed = False
    again = True
    while again:
        again = False
        for shrink in shrinks:
            again |= shrink_once(gate, shrink)
        changed |= again
    return changed


def shrink_once(gate: Gate[C], shrink: Shrink[C]) -> bool:
    """Take proposals of one pass until none of its proposals for the best case is accepted. Whether any was.

    After one is accepted the pass is asked anew, and proposals before that position come last: they were refused for
    the case before, so that a pass with one proposal per input takes its inputs in turn.
    """
    changed = False
    skip = 0
    while True:
        case = gate.best
        postponed: list[C] = []
        for position, proposal in enumerate(shrink.proposals(case)):
            if position < skip:
                postponed.append(proposal)
            elif gate.consider(proposal, shrink.name):
                skip = position
                break
        else:
            if not any(gate.consider(proposal, shrink.name) for proposal in postponed):
                return changed
            skip = 0
        changed = True


class Reduction(msgspec.Struct, Generic[C], frozen=True):
    """The outcome of a reduction.

    Attributes:
        case: the simplest failing case found; the original if it did not fail.
        original: the case that it began with.
        signature: of the failure; empty if the original does not fail (in the wanted way).
        answers: to the original, until it failed or was clear not to.
        rate: share of asks in which the result fails; None unless the failure is flaky and this could be measured.
        stopped: why it ended before nothing could be made smaller; None if it did not.
        calls: answers of the oracle in this process.
        replayed: answers out of the journal.
        seconds: wall time in this process.
        passes: statistics by pass, in the order of their first use.
        others: signatures of other failures that came up, and how often.
    """

    case: C
    original: C
    signature: str
    answers: tuple[Answer, ...]
    rate: float | None
    stopped: str | None
    calls: int
    replayed: int
    seconds: float
    passes: dict[str, Pass]
    others: dict[str, int]

    @property
    def failed(self) -> bool:
        """Whether the original failed in the wanted way, so that there was something to reduce."""
        return bool(self.signature)

    @property
    def minimal(self) -> bool:
        """Whether every reduction was tried on the result, and none makes it smaller."""
        return self.failed and self.stopped is None

    @property
    def total(self) -> Pass:
        """All passes together."""
        return total(self.passes.values())


def reduce(
    space: Space[C],
    oracle: Oracle[C],
    *,
    shrinks: Sequence[Shrink[C]] = (),
    rebase: Callable[[C], Space[C]] | None = None,
    signature: str = "",
    hints: Sequence[int] = (),
    seed: int = 0,
    repeats: Repeats | None = None,
    budget: Budget | None = None,
    journal: Journal | None = None,
    on_best: Callable[[C], None] | None = None,
    on_progress: Observer | None = None,
) -> Reduction[C]:
    """The simplest case that fails in the same way.

    The result fails with the signature of the original, and comes no later in the order `(size, digest)`. If the
    failure is steady, reducing the result once more, with the same seed and without hints, finds nothing smaller. With
    the same arguments and the same answers the search is the same, which is what lets a journal resume it. Ctrl-C and a
    spent budget end it with the best case so far.

    Args:
        space: subsets of the failing case; with all its units it is the case itself.
        oracle: judges a case. What it raises goes through.
        shrinks: other ways to make the case simpler, tried in this order when no unit can be dropped.
        rebase: gives the space of a case that a shrink has changed, in which dropping units is tried again. Without it
            no more units are dropped once a shrink has changed the case.
        signature: the failure to keep. If empty, the most frequent one of the original is taken.
        hints: indices of units that are suspected, the most suspected first.
        seed: of what is left to chance in the order of tries.
        repeats: how often a case is asked when the failure is flaky.
        budget: when to stop early.
        journal: takes every answer, and gives those of an earlier process, which are not asked for again.
        on_best: gets the original once it is known to fail, then every case that becomes the best.
        on_progress: gets the state after each candidate that was asked.

    Raises:
        ValueError: if the space cannot build the whole case, or a hint is no index into its units.
    """
    original = space.candidate(frozenset(range(len(space.units))))
    if original is None:
        raise ValueError(f"the space cannot build the case with all its {len(space.units)} units")
    bad = [hint for hint in hints if not 0 <= hint < len(space.units)]
    if bad:
        raise ValueError(f"hints: {bad} are no indices into {len(space.units)} units")
    gate = Gate(original, oracle, budget=budget, journal=journal, on_best=on_best, on_progress=on_progress)
    return _Search(space, gate, shrinks, rebase, hints, seed, repeats or Repeats()).run(original, signature)


class _Search(Generic[C]):
    """One search for the simplest case.

    A failure is taken to be steady until it once stays away: the best case is asked again after many candidates in a
    row that do not fail, and at the end, unless the latest candidates have failed. Then its rate is measured, what
    seemed to pass is forgotten, and every candidate is asked as often as the rate requires.
    """

    def __init__(
        self,
        space: Space[C],
        gate: Gate[C],
        shrinks: Sequence[Shrink[C]],
        rebase: Callable[[C], Space[C]] | None,
        hints: Sequence[int],
        seed: int,
        repeats: Repeats,
    ) -> None:
        self._answers: list[Answer] = []
        self._rate: float | None = None
        self._space, self._gate = space, gate
        self._shrinks, self._rebase = shrinks, rebase
        self._hints, self._seed, self._repeats = hints, seed, repeats

    def run(self, original: C, signature: str) -> Reduction[C]:
        """Look for the failure of the original, and for the simplest case that has it."""
        gate, stopped = self._gate, None
        try:
            self._search(original, signature)
        except BudgetSpent as spent:
            stopped = str(spent)
        except KeyboardInterrupt:
            stopped = INTERRUPTED
        return Reduction(
            case=gate.best,
            original=original,
            signature=gate.signature,
            answers=tuple(self._answers),
            rate=self._rate,
            stopped=stopped,
            calls=gate.calls,
            replayed=gate.replayed,
            seconds=gate.elapsed_s,
            passes=gate.passes,
            others=gate.others,
        )

    def _search(self, original: C, signature: str) -> None:
        def ask() -> Answer:
            self._answers.append(self._gate.ask(original, ORIGINAL))
            return self._answers[-1]

        gate, repeats = self._gate, self._repeats
        habit = observe(ask, repeats, signature=signature)
        if not habit.signature:
            return
        gate.look_for(habit.signature, repeats=repeats_for(habit, repeats))
        subsets = Subsets(self._space, gate)
        if not (habit.steady and self._steadily(subsets)):
            if habit.steady:  # as it seemed
                gate.forget(repeats=repeats_for(Habit(self._measured(), gate.signature), repeats))
                subsets.forget()
            self._once(subsets)
            self._rate = Habit(self._measured(), gate.signature).rate

    def _once(self, subsets: Subsets[C]) -> None:
        if subsets.current or self._rebase is None:
            reduce_units(subsets, hints=self._hints, seed=self._seed)
        self._settle(subsets)

    def _steadily(self, subsets: Subsets[C]) -> bool:
        """Search for a failure that is taken to be steady. Whether it was, as far as could be seen."""
        try:
            if self._repeats.first > 1:
                self._gate.doubt_after(DOUBT_AFTER)
            self._once(subsets)
            self._gate.confirm(self._repeats.first - 1)
        except Unsteady:
            return False
        return True

    def _measured(self) -> tuple[Answer, ...]:
        """Answers to the best case, enough for an idea of its rate."""
        return tuple(self._gate.ask(self._gate.best, RESULT) for _ in range(self._repeats.most))

    def _settle(self, subsets: Subsets[C]) -> None:
        """Shrink, and search for fewer units of what came out, until neither changes anything.

        The whole search is repeated, even where nothing was shrunk: halves of what it has left, or a single unit, may
        fail although nothing fails that is one unit less. Most of what it asks is known by then.
        """
        gate = self._gate
        while True:
            shrink_all(gate, self._shrinks)
            if not subsets.current:
                if self._rebase is None:
                    return
                subsets = Subsets(self._rebase(gate.best), gate)
            before = gate.best.digest
            reduce_units(subsets, seed=self._seed)
            if gate.best.digest == before:
                return
