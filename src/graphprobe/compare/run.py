"""A whole comparison: outlines, pairs, judged rows on disk, and at the end the decisions."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from graphprobe.compare.align import align
from graphprobe.compare.jobs import with_jobs
from graphprobe.compare.judge import Judge, Task, name_of
from graphprobe.compare.locate import Decision, Located, locate
from graphprobe.compare.marks import Mark, mark_of, me_of, modules_of
from graphprobe.compare.measures import HUGE, noise_unit
from graphprobe.compare.options import Options
from graphprobe.compare.outline import OUTPUT_ROLES, outline_from_calls
from graphprobe.compare.pairing import Lone, Plan, StepCalls
from graphprobe.compare.precision import precision_of
from graphprobe.compare.result import UNDECIDED_KINDS, CallResult, Counts, Finding, Side, SlotResult, Summary
from graphprobe.compare.spool import Spool
from graphprobe.compare.workers import TOGETHER, blocks, judged
from graphprobe.store.calls import CallDump

CONNECTED = 0.5
"""Share of calls that get something an earlier call gave, from which a dump counts as of the whole program."""

PARTS = 64
"""Parts of the program in which the growth of the error is told."""

LISTED = 100
"""Findings in the summary; rows have all."""

UNDECIDED_LISTED = 20
"""Of those, findings that accuse nobody."""


class Comparison:
    """A finished comparison: `summary`, and `rows()` read from a temporary file that goes with `close()`."""

    def __init__(self, summary: Summary, spool: Spool, decisions: dict[int, Decision]) -> None:
        self.summary = summary
        self._spool, self._decisions = spool, decisions

    def rows(self) -> Iterator[CallResult]:
        """Every pair and every call without one, in the candidate's order of execution."""
        for row in self._spool.rows():
            yield decided(row, self._decisions.get(row.number))

    def row(self, number: int) -> CallResult:
        """The row of that number."""
        return decided(self._spool.row(number), self._decisions.get(number))

    def close(self) -> None:
        """Drop the rows."""
        self._spool.close()

    def __enter__(self) -> Comparison:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def compare_dumps(candidate: CallDump, reference: CallDump, options: Options | None = None) -> Comparison:
    """Compares two dumps of one program.

    Memory is bounded by the number of calls: about 1 kB each for the numbers that pairing and locating need. Values
    are read once, where their digests differ. Ranks and steps that only one side has are told, not compared.

    Raises:
        UsageError: options that exclude each other, or a package that an option needs is missing.
    """
    started = time.monotonic()
    chosen = with_jobs(options or Options(), candidate, reference)
    judge = Judge(candidate, reference, replayer=chosen.replayer)
    work = _Work(candidate, reference, chosen, judge)
    spool = Spool()
    try:
        for place in work.places():
            work.step(place, spool)
        located = locate(work.marks, connected=work.connected)
        comparison = Comparison(work.summary(located), spool, located.decisions)
        work.finish(comparison, located)
    except BaseException:
        spool.close()
        raise
    comparison.summary.seconds = time.monotonic() - started
    return comparison


class Place(NamedTuple):
    """A rank of the candidate, one of the reference, a step of both; `strict`: state must agree there."""

    rank: int
    other: int
    step: int
    strict: bool


class _Work:
    def __init__(self, candidate: CallDump, reference: CallDump, options: Options, judge: Judge) -> None:
        self.candidate, self.reference, self.options, self.judge = candidate, reference, options, judge
        self.marks: list[Mark] = []
        self.counts = Counts()
        self.notes: list[str] = []
        self._fed = self._asked = 0
        self._number = 0
        self._by_rule: Counter[str] = Counter()
        self._by_basis: Counter[str] = Counter()
        self._nothing: Counter[str] = Counter()

    @property
    def connected(self) -> bool:
        """See `locate`."""
        return self._fed >= CONNECTED * self._asked

    def places(self) -> Iterator[Place]:
        """Ranks and steps that both have."""
        pairs = self._ranks()
        for rank, other in pairs:
            a, b = self.candidate.steps(rank), self.reference.steps(other)
            steps = [s for s in a if s in b and _wanted(s, self.options.steps)]
            for mine_or_theirs, name in ((a, "candidate"), (b, "reference")):
                alone = [s for s in mine_or_theirs if s not in steps and _wanted(s, self.options.steps)]
                if alone:
                    self.notes.append(f"steps {_listed(alone)} of rank {rank} are in the {name} only")
            for number, step in enumerate(steps):
                yield Place(rank, other, step, number == 0)

    def _ranks(self) -> list[tuple[int, int]]:
        """Which rank is held against which: the same, or each against the only one that the reference has."""
        mine = [r for r in self.candidate.ranks() if _wanted(r, self.options.ranks)]
        theirs = self.reference.ranks()
        if len(theirs) == 1 and mine and (len(mine) > 1 or mine != list(theirs)):
            self.notes.append(
                f"ranks {_listed(mine)} of the candidate are held against rank {theirs[0]} of the reference"
            )
            return [(rank, theirs[0]) for rank in mine]
        pairs = [(rank, rank) for rank in mine if rank in theirs]
        for ranks, name in ((mine, "candidate"), (theirs, "reference")):
            shared = [rank for rank, _ in pairs]
            alone = [r for r in ranks if r not in shared and _wanted(r, self.options.ranks)]
            if alone:
                self.notes.append(f"ranks {_listed(alone)} of the {name} have no counterpart and were not compared")
        return pairs

    def step(self, place: Place, spool: Spool) -> None:
        """Judges one step of one rank, row by row to `spool`."""
        mine = StepCalls(self.candidate, place.rank, place.step)
        theirs = StepCalls(self.reference, place.other, place.step)
        outlines = outline_from_calls(mine.first()), outline_from_calls(theirs.first())
        for outline in outlines:
            self._asked += len(outline)
            self._fed += outline.fed
        plan = Plan(
            place.rank,
            place.step,
            outlines,
            align(*outlines),
            place.strict,
            number=self._number,
            keep_forward=self.options.replayer is not None or self.options.replay_remotely,
        )
        titles = self.candidate.title, self.reference.title
        told = self.options.on_progress or (lambda _: None)
        where = f"rank {place.rank}, step {place.step}"
        entries = judged(plan.entries(mine.again(), theirs.again()), self.judge, self.options, titles)
        number = 0
        for block in blocks(entries, TOGETHER):
            told(f"{where}: call {number} of {len(outlines[0])}")
            number += len(block)
            done = [self._lone(entry) if isinstance(entry, Lone) else self._pair(entry, plan) for entry in block]
            for row, mark in done:
                self.marks.append(mark)
                spool.append(row)
        self._number = plan.number

    def _pair(self, entry: tuple[Task, CallResult], plan: Plan) -> tuple[CallResult, Mark]:
        task, row = entry
        mark = mark_of(task, row)
        place = task.places
        mark.wired = _wires(plan, row, *place)
        mark.consumed = bool(plan.outlines[0].consumed[place[0]])
        mark.position, mark.partner = place
        self.counts.pairs += 1
        self.counts.slots += len(row.slots)
        self.counts.replayed += int(row.truth is not None and row.truth.answer != "skipped")
        self._by_rule[task.rule] += 1
        for slot in row.slots:
            if slot.candidate is not None and slot.candidate.dtype:
                self._by_basis[slot.basis] += 1
        if mark.nothing:
            self._nothing[next((s.reason for s in row.slots if s.basis == "none" and s.reason), "no data")] += 1
        return row, mark

    def _lone(self, lone: Lone) -> tuple[CallResult, Mark]:
        mine = lone.side == 1
        if mine:
            self.counts.candidate_only += 1
        else:
            self.counts.reference_only += 1
        row = CallResult(
            number=lone.number,
            rank=lone.rank,
            step=lone.step,
            direction=lone.call.direction,
            candidate=name_of(lone.call) if mine else None,
            reference=None if mine else name_of(lone.call),
            reason=lone.reason,
        )
        mark = Mark(
            number=lone.number,
            rank=lone.rank,
            step=lone.step,
            position=lone.place,
            kind=lone.call.kind,
            backward=lone.call.direction == "backward",
            me=me_of(lone.call),
            modules=modules_of(lone.call),
            side=lone.side,
            opposite=lone.opposite,
            consumed=lone.consumed,
            kept=lone.kept,
            wired=tuple((0.0, p, -1) for p in lone.producers if p >= 0),
        )
        return row, mark

    def summary(self, located: Located) -> Summary:
        """Without findings, which need the rows."""
        self.counts.by_rule, self.counts.by_basis = dict(self._by_rule), dict(self._by_basis)
        bases = {name for name in self._by_basis if name not in ("scalar", "none", "digest", "part")}
        notes = self.notes + located.notes
        if bases == {"statistics"}:
            notes.append("compared by statistics only: a fault that leaves them as they are stays unseen")
        if located.random:
            notes.append(
                f"{len(located.random)} calls draw random numbers that differ; what follows from them is not judged"
            )
        if located.undefined:
            notes.append(f"{located.undefined} calls give memory that nobody has written to yet; it is not compared")
        if located.unsure:
            notes.append(f"{len(located.unsure)} calls differ from their float64 run on both sides, and are not judged")
        if self._by_basis["part"]:
            notes.append(
                f"{self._by_basis['part']} values are parts of something that the other side has otherwise, "
                "or were made from such; they are not compared"
            )
        for reason, times in self._nothing.most_common(5):
            notes.append(f"{times} calls could not be compared: {reason}")
        notes.extend(f"{text} ({times} times)" for text, times in self.judge.problems.items())
        if not self.connected:
            notes.append("few inputs come from recorded calls: inputs that differ are not held to be state")
        return Summary(
            outcome="same",
            candidate=_side(self.candidate),
            reference=_side(self.reference),
            basis="mixed" if len(bases) > 1 else next(iter(bases), "digest" if self._by_basis["digest"] else "none"),
            counts=self.counts,
            precision={k.replace(">", " -> "): v for k, v in precision_of(self.marks).most_common()},
            growth=_growth(self.marks),
            notes=notes,
        )

    def finish(self, comparison: Comparison, located: Located) -> None:
        """Findings, counts of verdicts and the outcome, from the rows."""
        summary = comparison.summary
        verdicts: Counter[str] = Counter()
        causes = {n: d.kind for n, d in located.decisions.items() if d.kind is not None}
        room = {False: LISTED - UNDECIDED_LISTED, True: UNDECIDED_LISTED}
        for mark in self.marks:
            if not mark.side:
                decision = located.decisions.get(mark.number)
                verdicts["ok" if decision is None else decision.verdict] += 1
        for number, kind in sorted(causes.items()):
            if room[kind in UNDECIDED_KINDS]:
                room[kind in UNDECIDED_KINDS] -= 1
                summary.findings.append(finding_of(comparison.row(number), kind))
        if len(causes) > len(summary.findings):
            summary.notes.append(f"{len(causes) - len(summary.findings)} more findings are in the rows")
        summary.findings.sort(key=lambda f: (f.step, f.row))
        summary.counts.by_verdict = dict(verdicts)
        accused = [finding for finding in summary.findings if finding.kind not in UNDECIDED_KINDS]
        summary.first = next(iter(accused or summary.findings), None)
        if accused:
            summary.outcome = "different"
        elif causes or located.random or located.unsure or not self._compared():
            summary.outcome = "undecided"

    def _compared(self) -> bool:
        return any(self._by_basis[basis] for basis in ("digest", "values", "sample", "statistics"))


def _wires(plan: Plan, row: CallResult, i: int, j: int) -> tuple[tuple[float, int, int], ...]:
    """Inputs that differ and whose producers are not each other's partners."""
    if not row.inherited and not any(slot.fault for slot in row.slots):
        return ()
    mine, theirs = plan.outlines[0].producers_of(i), plan.outlines[1].producers_of(j)
    if len(mine) != len(theirs):
        return ()
    found = []
    for slot, a, b in zip(row.slots, mine, theirs, strict=False):
        if slot.role in OUTPUT_ROLES or not (slot.level > 0 or slot.fault):
            continue
        lone = (a >= 0 and plan.alignment.partner[a] < 0) or (b >= 0 and plan.alignment.back[b] < 0)
        if (a >= 0 and b >= 0 and plan.alignment.partner[a] != b) or lone:
            found.append((HUGE if slot.fault else slot.level * _unit(slot), a, b))
    return tuple(found)


def _unit(slot: SlotResult) -> float:
    a, b = slot.candidate, slot.reference
    return noise_unit(a.dtype, b.dtype) if a is not None and b is not None and a.dtype and b.dtype else 0.0


def decided(row: CallResult, decision: Decision | None) -> CallResult:
    """The row with its verdict; each output that differs has the call's."""
    if decision is None:
        return row
    slots = []
    for slot in row.slots:
        if slot.role in OUTPUT_ROLES and (slot.level > 0 or slot.fault) and decision.blame != "structure":
            slot = msgspec.structs.replace(slot, verdict=decision.verdict, blame=decision.blame)
        elif slot.fault in UNDECIDED_KINDS and decision.kind != slot.fault:
            slot = msgspec.structs.replace(slot, verdict="inconclusive", blame="unrecorded")
        elif slot.fault is not None:
            slot = msgspec.structs.replace(slot, verdict=decision.verdict, blame=decision.blame)
        slots.append(slot)
    reason = decision.reason if not row.reason else f"{decision.reason}; {row.reason}"
    return msgspec.structs.replace(
        row, slots=tuple(slots), verdict=decision.verdict, blame=decision.blame, reason=reason
    )


def finding_of(row: CallResult, kind: str) -> Finding:
    """The finding that a decided row is the cause of."""
    worst = _worst_slot(row, kind)
    evidence = [row.reason]
    for truth, side in ((row.truth, "candidate"), (row.reference_truth, "reference")):
        if truth is not None and truth.reason:
            evidence.append(f"{side} against float64: {truth.answer}, {truth.reason}")
    if worst is not None and worst.reason:
        evidence.append(f"{worst.name}: {worst.reason}")
    return Finding(
        kind=kind,  # type: ignore[arg-type]
        verdict=row.verdict,
        row=row.number,
        rank=row.rank,
        step=row.step,
        direction=row.direction,
        candidate=row.candidate,
        reference=row.reference,
        slot=worst.name if worst is not None else "",
        worst=worst.worst if worst is not None else None,
        level=row.level,
        inherited=row.inherited,
        evidence=tuple(text for text in evidence if text),
    )


def _worst_slot(row: CallResult, kind: str) -> SlotResult | None:
    named = [s for s in row.slots if s.fault == kind]
    if kind in ("wrong_value", "wrong_gradient", "nonfinite"):
        named = [s for s in row.slots if s.role in OUTPUT_ROLES and (s.level > 0 or s.fault)]
        if row.truth is not None and row.truth.slots:
            named = [s for s in named if s.name in row.truth.slots] or named
    return max(named, key=lambda s: (s.fault is not None, s.z), default=None)


def _growth(marks: list[Mark]) -> list[float]:
    """Largest error of each part, in units of the commonest u."""
    paired = [m for m in marks if not m.side and not m.undefined]
    units = Counter(m.unit for m in paired if m.unit)
    if not units:
        return []
    unit = units.most_common(1)[0][0]
    parts = min(PARTS, len(paired))
    edges = [len(paired) * k // parts for k in range(parts + 1)]
    return [round(max(m.level for m in paired[a:b]) / unit, 6) for a, b in itertools.pairwise(edges)]


def _side(dump: CallDump) -> Side:
    return Side(dump.title, dump.format, dict(dump.facts), tuple(dump.problems()))


def _wanted(number: int, chosen: frozenset[int] | None) -> bool:
    return chosen is None or number in chosen


def _listed(numbers: list[int]) -> str:
    text = ", ".join(str(n) for n in numbers[:8])
    return f"{text}, … ({len(numbers)})" if len(numbers) > 8 else text
