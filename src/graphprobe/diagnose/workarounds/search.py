"""Searches for a change with which a program that is wrong is right, and says what to write, or what was tried."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any

import msgspec

from graphprobe.diagnose.ladder import Ladder
from graphprobe.diagnose.rungs import RungReport
from graphprobe.diagnose.workarounds.candidates import Change, Pieces, WayAround, candidates, joined, together
from graphprobe.diagnose.workarounds.edits import PieceEdit, edits_at
from graphprobe.diagnose.workarounds.trial import Price, priced, tried
from graphprobe.engine.forked_child import Outcome
from graphprobe.findings import Finding, Workaround
from graphprobe.internals import after_fork
from graphprobe.judge.stage_table import Graphs
from graphprobe.judge.verdict import RungName, first_wrong

log = logging.getLogger(__name__)

MOST_S, SHARE = 60.0, 0.5
"""Seconds after which no other change is tried; it may be this share of the time that the diagnosis took, if more."""

LEAST_S = 5.0
"""With less time than this nothing is begun."""

MOST_WAYS = 24
"""Changes that are tried."""

POINTS: dict[RungName, Graphs] = {"dynamo": "dynamo", "aot": "aot", "passes": "post_grad"}
"""By the first rung that is wrong: the graphs on which a change can be tried without generating code."""

USELESS: dict[RungName, tuple[str, ...]] = {"dynamo": ("aot_eager", "eager", "lite"), "aot": ("aot_eager",)}
"""Backends and modes that change nothing where this is the first rung that is wrong."""

NOT_ALL = "no more changes were tried as a workaround after {seconds:.0f} s"


def find_workarounds(ladder: Ladder) -> None:
    """Add to each finding the changes that mend the program, or what was tried in vain.

    Nothing is tried against faults that come and go, which no run would tell from mended ones.
    """
    findings = ladder.result.findings
    steady = [f for f in findings if f.flaky_rate == 1 and f.kind != "not_bitwise"]
    able = after_fork.can_fork() or ladder.runner.fresh is not None
    if findings and steady == findings and able:
        ladder.runner.begin("workaround")
        _WaySearch(ladder, findings).run()


class _WaySearch:
    """The search for one program.

    Attributes:
        tried: the changes that were tried, in words.
        spare: a change that is right and leaves nothing compiled, with the program that it makes right.
    """

    def __init__(self, ladder: Ladder, findings: list[Finding]) -> None:
        self.ladder, self.findings = ladder, findings
        self.tried, self._count = list[str](), 0
        self.spare: tuple[Change, RungReport] | None = None
        first = first_wrong(ladder.states()) or ladder.top
        alike = len({f.stage for f in findings}) == 1  # else what helps against the first is not what helps against all
        self.point = POINTS.get(first) if alike and ladder.compilation.is_inductor else None
        self._useless = USELESS.get(first, ())
        self._began, self._found = time.monotonic(), False
        self._until = self._began + max(MOST_S, SHARE * (self._began - ladder.started))

    def run(self) -> None:
        """Try one change after the other, until one is right, worth its price, and right as text."""
        compilation = self.ladder.compilation
        each = [candidates(f, compilation, self._pieces(f), self._useless) for f in self.findings]
        for change in together(each, MOST_WAYS):
            if self._left_s < LEAST_S:
                break
            if (found := self._mended_by(change)) is not None and self._is_worth_it(*found):
                return
        if self.spare is not None and self._left_s >= LEAST_S and self._is_worth_it(*self.spare, last=True):
            return
        for finding in self.findings:
            finding.tried = list(dict.fromkeys(self.tried))
        if self._left_s < LEAST_S:
            spent = time.monotonic() - self._began
            self.ladder.result.notes.append(NOT_ALL.format(seconds=spent))

    @property
    def _left_s(self) -> float:
        return self._until - time.monotonic()

    def _pieces(self, finding: Finding) -> Pieces:
        def pieces() -> list[PieceEdit]:
            ops = [*filter(None, [finding.op]), *finding.also]
            lines = list(dict.fromkeys(filter(None, [finding.source, finding.called_from])))
            step = partial(edits_at, self.ladder.program, self.ladder.compilation, lines, ops)
            outcome = self._run(step)
            return [] if outcome is None else msgspec.convert(outcome.value, list[PieceEdit])

        return pieces

    def _run(self, step: Any, *, fresh: bool = False) -> Outcome | None:
        """What became of a step within the time that is left; None if it did not end well."""
        runner = self.ladder.runner
        limit_s, before = runner.limit_s, runner.fresh
        runner.limit_s = min(limit_s, max(LEAST_S, self._left_s))
        try:
            if fresh and before is None:
                runner.fresh = self.ladder.saved()
            outcome = runner.run(step, self.ladder.saved)
        finally:
            if runner.fresh is not before and runner.fresh is not None:
                runner.fresh.close()
            runner.limit_s, runner.fresh = limit_s, before
        return None if outcome.died or outcome.raised is not None else outcome

    def _report(self, change: Change, point: Graphs | None = None, *, as_text: bool = False) -> RungReport | None:
        """The program with a change, if it is right; `as_text`: in a process in which nothing else has run."""
        ladder, count = self.ladder, len(self.ladder.result.notes)
        renewed = not (as_text or ladder.compilation.entries)
        step = partial(tried, ladder.program, ladder.compilation, list(change), point=point, renewed=renewed)
        outcome = self._run(step, fresh=as_text)
        if outcome is None:
            return None
        report = msgspec.convert(outcome.value, RungReport)
        try:
            right = ladder.held(report, as_user=True).differences == []
        finally:
            del ladder.result.notes[count:]  # of a program that is not the user's
        where = "its text" if as_text else point or "the program"
        log.info("%s on %s: %s", [one.words for one in change], where, "right" if right else "wrong")
        return report if right else None

    def _mended_by(self, change: Change) -> tuple[Change, RungReport] | None:
        """The part of a change that is needed, with the program that it makes right; None where it does not."""
        asked = [name for one in change for name in one.arguments]
        point = None if asked else self.point
        self._count += 1
        self.tried += [one.words for one in change]
        report = self._report(change, point)
        while report is not None and (smaller := self._smaller(change, point)) is not None:
            change, report = smaller
        if report is not None and point is not None:
            report = self._report(change)
        return None if report is None else (change, report)

    def _smaller(self, change: Change, point: Graphs | None) -> tuple[Change, RungReport] | None:
        """A part of a change that is right, too: a half, or all but one."""
        middle = len(change) // 2
        parts = [change[:middle], change[middle:]] if middle else []
        if len(change) > 2:
            parts += [[*change[:i], *change[i + 1 :]] for i in range(len(change))]
        for part in parts:
            if self._left_s >= LEAST_S and (report := self._report(part, point)) is not None:
                return part, report
        return None

    def _is_worth_it(self, change: Change, report: RungReport, *, last: bool = False) -> bool:
        """Put a change that is right into the findings, if it is so as text, and no slower than uncompiled.

        `last`: it may leave nothing compiled.
        """
        if report.graphs == 0 and self.spare is None:
            self.spare = change, report
        if report.graphs == 0 and not last:
            return False
        change = joined(change, self.ladder.compilation)
        if not self._found:  # what is found is not lost for want of time
            self._found, self._until = True, max(self._until, time.monotonic() + MOST_S)
        if self._report(change, as_text=True) is None:
            return False
        price = self._price(change)
        if price is not None and price.is_too_high:
            return False
        for finding in self.findings:
            finding.workarounds = [self._workaround(one, finding, report, price) for one in change]
        return True

    def _price(self, change: Change) -> Price | None:
        if not after_fork.can_fork():
            return None
        outcome = self._run(partial(priced, self.ladder.program, self.ladder.compilation, list(change)))
        return None if outcome is None else msgspec.convert(outcome.value, Price)

    def _workaround(self, one: WayAround, finding: Finding, report: RungReport, price: Price | None) -> Workaround:
        top = self.ladder.seen(self.ladder.top).report
        return Workaround(
            kind=one.kind,
            code=one.code,
            place=one.place(finding, self.ladder.compilation.called_from),
            call_time=_ratio(price, price.compiled if price is not None else None),
            uncompiled_time=_ratio(price, price.uncompiled if price is not None else None),
            graphs=report.graphs,
            graph_breaks=max(0, report.breaks - (top.breaks if top is not None else 0)),
            tried=self._count,
        )


def _ratio(price: Price | None, other: float | None) -> float | None:
    return None if price is None or not other else round(price.changed / other, 2)
