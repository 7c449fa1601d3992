"""The one gate that every candidate goes through: memo, the total order, the same failure, statistics, the budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import msgspec

from graphprobe.reduce.journal import Journal
from graphprobe.reduce.outcome import Answer, Observer, OracleVerdict, Progress
from graphprobe.reduce.space import Candidate, Oracle

C = TypeVar("C", bound=Candidate)

CONFIRM = "confirm"


class Budget(msgspec.Struct, frozen=True):
    """When to stop. Answers out of a journal cost nothing.

    Attributes:
        max_calls: of the oracle; None for any number.
        max_seconds: wall time; None for any. A call that is under way is not cut short.
    """

    max_calls: int | None = None
    max_seconds: float | None = None


class BudgetSpent(Exception):
    """The budget does not allow another call. The driver of a reduction catches it."""


class Unsteady(Exception):
    """The best case did not fail as before when it was asked again. The driver of a reduction catches it."""


class Pass(msgspec.Struct):
    """What one pass of a reduction did.

    Attributes:
        proposed: candidates.
        unbuildable: of these, subsets of which no case can be made.
        known: of these, those whose verdict was known.
        asked: calls of the oracle and answers replayed; more than one per candidate where the failure is flaky.
        unresolved: candidates that could not be judged, or that failed in another way.
        accepted: candidates that became the best case.
        seconds: wall time of the answers; those of an earlier process are counted as they were then.
    """

    proposed: int = 0
    unbuildable: int = 0
    known: int = 0
    asked: int = 0
    unresolved: int = 0
    accepted: int = 0
    seconds: float = 0.0


def total(passes: Iterable[Pass]) -> Pass:
    """All of them together."""
    every = list(passes)
    return Pass(**{name: sum(getattr(one, name) for one in every) for name in Pass.__struct_fields__})


class Gate(Generic[C]):
    """Judges candidates and holds the simplest one that fails in the wanted way.

    Candidates are ordered by `(size, digest)`. A candidate becomes the best when it fails with the signature and comes
    before the best so far.

    Attributes:
        original: the case that the reduction began with.
        best: the simplest failing case so far.
        signature: of the failure looked for.
        repeats: asks of a candidate until it is taken to pass.
        calls: answers of the oracle in this process.
        replayed: answers out of the journal.
        passes: statistics by pass.
        others: signatures of other failures that came up, and how often.
        streak: failures of the wanted kind in a row, up to the latest answer.
    """

    def __init__(
        self,
        original: C,
        oracle: Oracle[C],
        *,
        budget: Budget | None = None,
        journal: Journal | None = None,
        on_best: Callable[[C], None] | None = None,
        on_progress: Observer | None = None,
    ) -> None:
        self.original = original
        self.best = original
        self.signature = ""
        self.repeats = 1
        self.calls = 0
        self.replayed = 0
        self.passes: dict[str, Pass] = {}
        self.others: dict[str, int] = {}
        self.streak = 0
        self._oracle = oracle
        self._budget = budget or Budget()
        self._journal = journal
        self._on_best = on_best
        self._on_progress = on_progress
        self._memo: dict[str, OracleVerdict] = {}
        self._doubt_after: int | None = None
        self._passed = 0
        self._started = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Since the gate was made."""
        return time.monotonic() - self._started

    def stats(self, by: str) -> Pass:
        """The statistics of a pass, to count into."""
        return self.passes.setdefault(by, Pass())

    def look_for(self, signature: str, *, repeats: int = 1) -> None:
        """Say which failure is wanted. The original is known to show it, and is announced as the best case so far."""
        self.signature = signature
        self.repeats = repeats
        self._memo[self.original.digest] = OracleVerdict.FAILS
        if self._on_best is not None:
            self._on_best(self.best)

    def doubt_after(self, candidates: int) -> None:
        """Confirm when so many candidates in a row did not fail; next time when twice as many did not."""
        self._doubt_after = candidates

    def confirm(self, streak: int = 1) -> None:
        """Ask the best case again until so many answers in a row, those to the latest candidates included, failed.

        Raises:
            Unsteady: if it does not fail as it did.
            BudgetSpent: before a call that the budget does not allow.
        """
        while self.streak < streak:
            self.ask(self.best, CONFIRM)
            if not self.streak:
                raise Unsteady

    def forget(self, *, repeats: int) -> None:
        """From now on ask candidates so often, those that were taken to pass anew."""
        self.repeats = repeats
        self._doubt_after = None
        self._memo = {digest: verdict for digest, verdict in self._memo.items() if verdict is OracleVerdict.FAILS}

    def consider(self, case: C, by: str) -> bool:
        """Whether the case fails in the wanted way and is simpler than the best, which it then is from now on.

        A case that is not simpler is not asked.
        """
        if not self._simpler(case):
            self.stats(by).proposed += 1
            self.stats(by).known += 1
            return False
        return self.judge(case, by) is OracleVerdict.FAILS

    def fails(self, case: C, by: str) -> bool:
        """Whether the case fails in the wanted way, simpler or not."""
        return self.judge(case, by) is OracleVerdict.FAILS

    def judge(self, case: C, by: str) -> OracleVerdict:
        """The verdict on a case; UNRESOLVED if it fails in another way. A failing case may become the best.

        Raises:
            BudgetSpent: before a call that the budget does not allow.
            Unsteady: see `doubt_after`.
        """
        stats = self.stats(by)
        stats.proposed += 1
        verdict = self._memo.get(case.digest)
        asked = verdict is None
        if verdict is None:
            verdict = self._memo[case.digest] = self._ask_repeatedly(case, by)
            stats.unresolved += verdict is OracleVerdict.UNRESOLVED
        else:
            stats.known += 1
        if verdict is OracleVerdict.FAILS and self._simpler(case):
            self.best = case
            stats.accepted += 1
            if self._on_best is not None:
                self._on_best(case)
        if asked:
            self._tell(by, verdict)
            self._passed = 0 if verdict is OracleVerdict.FAILS else self._passed + 1
            if self._doubt_after is not None and self._passed >= self._doubt_after:
                self._passed, self._doubt_after = 0, self._doubt_after * 2
                self.confirm()
        return verdict

    def ask(self, case: C, by: str) -> Answer:
        """One answer of the oracle, or the next one that the journal holds for this case.

        Raises:
            BudgetSpent: before a call that the budget does not allow.
        """
        stats = self.stats(by)
        answer = self._journal.replay(case.digest) if self._journal is not None else None
        if answer is not None:
            self.replayed += 1
        else:
            self._check_budget()
            started = time.monotonic()
            answer = self._oracle(case)
            self.calls += 1
            answer = Answer(
                answer.verdict,
                _storable(answer.signature),
                _storable(answer.detail),
                answer.seconds or time.monotonic() - started,
            )
            if self._journal is not None:
                self._journal.write(case.digest, by, answer)
        stats.asked += 1
        stats.seconds += answer.seconds
        wanted = answer.verdict is OracleVerdict.FAILS and answer.signature == self.signature
        self.streak = self.streak + 1 if wanted else 0
        return answer

    def _ask_repeatedly(self, case: C, by: str) -> OracleVerdict:
        """FAILS at the first failure; UNRESOLVED if two asks in a row, or the only one, could not be judged."""
        passed = False
        in_row = 0
        for _ in range(self.repeats):
            answer = self.ask(case, by)
            if answer.verdict is OracleVerdict.FAILS:
                if answer.signature == self.signature:
                    return OracleVerdict.FAILS
                self.others[answer.signature] = self.others.get(answer.signature, 0) + 1
            if answer.verdict is OracleVerdict.PASSES:
                passed = True
                in_row = 0
                continue
            in_row += 1
            if in_row == 2:
                break
        return OracleVerdict.PASSES if passed else OracleVerdict.UNRESOLVED

    def _tell(self, by: str, verdict: OracleVerdict) -> None:
        if self._on_progress is not None:
            now = (self.calls, self.replayed, self.elapsed_s)
            self._on_progress(Progress(self.original.size, self.best.size, *now, by, verdict))

    def _simpler(self, case: C) -> bool:
        return (case.size, case.digest) < (self.best.size, self.best.digest)

    def _check_budget(self) -> None:
        budget = self._budget
        if budget.max_calls is not None and self.calls >= budget.max_calls:
            raise BudgetSpent(f"the budget of {budget.max_calls} calls is spent")
        if budget.max_seconds is not None and self.elapsed_s >= budget.max_seconds:
            raise BudgetSpent(f"the budget of {budget.max_seconds:g} s is spent")


def _storable(text: str) -> str:
    """The text as it comes back from a file: a lone surrogate, which UTF-8 does not have, is spelled out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
