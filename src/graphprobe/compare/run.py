"""A whole comparison: outlines, pairs, judged rows on disk, and at the end the decisions."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from graphprobe.compare.align import align
from graphprobe.compare.bitwise import hold_to_bits
from graphprobe.compare.carried import Carried, slots_of
from graphprobe.compare.judge import Judge, Task, name_of, split_between, world_of
from graphprobe.compare.locate import Located, locate
from graphprobe.compare.marks import Decision, Mark, family_of, mark_of, me_of, modules_of, spot_of
from graphprobe.compare.naming import canonical
from graphprobe.compare.options import Options, with_jobs
from graphprobe.compare.outline import OUTPUT_ROLES, fingerprint, outline_from_calls
from graphprobe.compare.pairing import CASTS, Ends, Lone, Plan, StepCalls, fed_alone_of, wires_of
from graphprobe.compare.precision import coarsens, precision_of
from graphprobe.compare.randomness import draws
from graphprobe.compare.result import (
    UNDECIDED_KINDS,
    CallName,
    CallResult,
    Counts,
    FindingKind,
    Side,
    SlotResult,
    Summary,
    WrongCall,
    finding_from,
)
from graphprobe.compare.result_file import Spool
from graphprobe.compare.workers import TOGETHER, blocks, judged
from graphprobe.errors import NotComparableError
from graphprobe.faces import ShowsItself
from graphprobe.store.calls import Call, CallDump, with_statistics

GRAPH_FORMAT = "graphprobe-graph"
"""Of a dump of compiled graphs, whose calls are kernels and nodes, and never the program's own."""

CONNECTED = 0.5
"""Share of calls that get something an earlier call gave, from which a dump counts as of the whole program."""

PARTS = 64
"""Parts of the program in which the growth of the error is told."""

LISTED = 100
"""Findings in the summary; rows have all."""

ALSO = 20
"""Calls of the same cause that a finding lists."""

UNDECIDED_LISTED = 20
"""Of those, findings that accuse nobody."""


ADVICE = "Seed both runs alike; of compiled code, set torch._inductor.config.fallback_random = True in both"
STATISTICS_ONLY = "compared by statistics only: a fault that doesn't change min, max, mean or L2 norm goes unnoticed"
SYSTEMATIC = "no element is beyond its noise; their statistics are: the error is the same for many elements"


class Comparison(ShowsItself):
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
        NotComparableError: one is of compiled graphs, and the other of API calls.
    """
    _check_kinds(candidate, reference)
    started = time.monotonic()
    candidate, reference = with_statistics(candidate), with_statistics(reference)
    chosen = with_jobs(options or Options(), candidate, reference)
    found = _compared(candidate, reference, chosen)
    if found.summary.outcome == "same" and {"values", "sample"} & found.summary.counts.by_basis.keys():
        plain = msgspec.structs.replace(chosen, replayer=None, remote_replayer="")
        again = _compared(Statistics(candidate), Statistics(reference), plain)
        found, other = (again, found) if again.summary.outcome == "different" else (found, again)
        other.close()
        if found is again:
            found.summary.notes = [SYSTEMATIC, *(n for n in found.summary.notes if n != STATISTICS_ONLY)]
    if chosen.exact and found.summary.outcome == "same":
        hold_to_bits(found.summary, found.rows())
    found.summary.seconds = time.monotonic() - started
    return found


class Statistics:
    """A dump whose calls have statistics in the place of values, wherever both are there.

    An error that is the same for all elements may be within the noise of each and far beyond that of their mean or l2:
    a factor of 1.02 in bfloat16.
    """

    def __init__(self, dump: CallDump) -> None:
        self._dump = dump
        self.title, self.format, self.facts = dump.title, dump.format, dump.facts
        self.ranks, self.steps, self.values, self.problems = dump.ranks, dump.steps, dump.values, dump.problems

    def calls(self, rank: int, step: int) -> Iterator[Call]:
        """See `CallDump`."""
        for call in self._dump.calls(rank, step):
            slots = tuple(
                msgspec.structs.replace(slot, value="", sampled=False) if slot.value and slot.stats else slot
                for slot in call.slots
            )
            yield msgspec.structs.replace(call, slots=slots)


def _compared(candidate: CallDump, reference: CallDump, chosen: Options) -> Comparison:
    judge = Judge(candidate, reference, replayer=chosen.replayer)
    work = _Work(candidate, reference, chosen, judge)
    spool = Spool()
    try:
        for place in work.places():
            work.step(place, spool)
        complete = not (candidate.problems() or reference.problems())
        located = locate(
            work.marks,
            connected=work.connected,
            alike=judge.alike,
            loose=work.loose(),
            split=work.split,
            complete=complete,
            world=max(world_of(candidate), world_of(reference)),
        )
        comparison = Comparison(work.summary(located), spool, located.decisions)
        work.finish(comparison, located)
    except BaseException:
        spool.close()
        raise
    return comparison


def _check_kinds(candidate: CallDump, reference: CallDump) -> None:
    graph = [dump.format == GRAPH_FORMAT for dump in (candidate, reference)]
    if graph[0] != graph[1]:
        of = "compiled graphs", "API calls"
        mine, theirs = of if graph[0] else of[::-1]
        raise NotComparableError(
            f"the dumps cannot be compared: {candidate.title} is of {mine}, {reference.title} of {theirs}",
            hint="dump both with --dump, or both with --dump-graph",
        )


class RankStep(NamedTuple):
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
        self.gaps: list[str] = []
        self.ends = Ends(judge)
        self.carried = Carried()
        self.split: dict[tuple[int, int], int] = {}
        self._fed = self._asked = 0
        self._number = 0
        self._by_rule: Counter[str] = Counter()
        self._by_basis: Counter[str] = Counter()
        self._nothing: Counter[str] = Counter()

    @property
    def connected(self) -> bool:
        """See `locate`."""
        return self._fed >= CONNECTED * self._asked

    def places(self) -> Iterator[RankStep]:
        """Ranks and steps that both have."""
        pairs = self._ranks()
        for rank, other in pairs:
            a, b = self.candidate.steps(rank), self.reference.steps(other)
            both = frozenset(a).intersection(b)
            steps = [s for s in a if s in both and _wanted(s, self.options.steps)]
            for mine_or_theirs, name in ((a, "candidate"), (b, "reference")):
                alone = [s for s in mine_or_theirs if s not in both and _wanted(s, self.options.steps)]
                if alone:
                    self.gaps.append(f"steps {_listed(alone)} of rank {rank} are in the {name} only")
            for number, step in enumerate(steps):
                yield RankStep(rank, other, step, number == 0)

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
                self.gaps.append(f"ranks {_listed(alone)} of the {name} have no counterpart and were not compared")
        return pairs

    def step(self, place: RankStep, spool: Spool) -> None:
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
            parts=split_between(*outlines),
            keep_forward=self.options.replayer is not None or bool(self.options.remote_replayer),
        )
        if plan.parts > 1:
            self._note_split(plan)
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

    def _note_split(self, plan: Plan) -> None:
        place = (plan.rank, plan.step)
        self.split[place] = plan.parts
        whole = any(plan.outlines[0].steps[i] for i, j in enumerate(plan.alignment.partner) if j >= 0)
        if not whole:
            self.gaps.append(
                f"step {plan.step} of rank {plan.rank}: one side takes the batch in {plan.parts} parts, and no step of "
                "an optimizer was recorded in which what the parts add up to could be compared"
            )

    def _pair(self, entry: tuple[Task, CallResult], plan: Plan) -> tuple[CallResult, Mark]:
        task, row = entry
        self.ends.add_pair(task)
        mark = mark_of(task, row)
        place = task.places
        mark.wired = wires_of(plan, task, row)
        mark.gradient, mark.explained = self.carried.gradient(task, row)
        mark.strays = self.carried.strays(task, row)
        if task.candidate.kind == "optimizer":
            self.carried.add(task)
        mark.fed_alone = fed_alone_of(plan, task)
        mark.given = _given(task, row, random=mark.random)
        mark.consumed = bool(plan.outlines[0].consumed[place[0]])
        mark.position, mark.partner = place
        self.counts.pairs += 1
        self.counts.slots += len(row.slots)
        self.counts.replayed += int(row.truth is not None and row.truth.answer != "skipped")
        self._by_rule[task.rule] += 1
        for slot in row.slots:
            if slot.candidate is not None and slot.candidate.dtype:
                self._by_basis[slot.basis] += 1
        if lost := _lost_result(task, row):
            self._nothing[lost] += 1
        elif mark.nothing:
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
        self.ends.add(lone)
        mark = Mark(
            number=lone.number,
            rank=lone.rank,
            step=lone.step,
            position=lone.place,
            kind=lone.call.kind,
            backward=lone.call.direction == "backward",
            family=family_of(lone.call),
            spot=spot_of(lone.call),
            me=me_of(lone.call),
            modules=modules_of(lone.call),
            side=lone.side,
            opposite=lone.opposite,
            consumed=lone.consumed,
            kept=lone.kept,
            random=draws(lone.call),
            parameter=any(slot.held for slot in lone.call.slots),
            cast=canonical(lone.call.api) in CASTS and coarsens(lone.call),
            wired=tuple((0.0, 0.0, p, -1) for p in lone.producers if p >= 0),
        )
        return row, mark

    def loose(self) -> frozenset[int]:
        """See `Ends.loose`."""
        return self.ends.loose(mixed=any(a != b for a, b in (pair.split(">") for pair in precision_of(self.marks))))

    def summary(self, located: Located) -> Summary:
        """Without findings, which need the rows."""
        self.counts.by_rule, self.counts.by_basis = dict(self._by_rule), dict(self._by_basis)
        bases = {name for name in self._by_basis if name not in ("scalar", "none", "digest", "part")}
        for reason, times in self._nothing.most_common(5):
            self.gaps.append(f"{times} calls could not be compared: {reason}")
        notes = self.gaps + self.notes
        if bases == {"statistics"}:
            notes.append(STATISTICS_ONLY)
        if located.random:
            notes.append(
                f"{len(located.random)} calls draw random numbers that differ; what follows from them is not judged"
            )
            notes.append(ADVICE)
        if located.unwritten:
            notes.append(f"{len(located.unwritten)} calls read uninitialized memory, and give different results")
        if located.unsure:
            notes.append(f"{len(located.unsure)} calls differ from their float64 run on both sides, and are not judged")
        if self._by_basis["part"]:
            notes.append(
                f"{self._by_basis['part']} values are parts of something that the other side has otherwise, "
                "or shards of each rank, or were made from such; they are not compared"
            )
        alone = self.counts.candidate_only + self.counts.reference_only
        if alone and not self.judge.alike:
            notes.append(f"{alone} calls have no partner: the two formats do not write down the same calls")
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
                summary.findings.append(found_at(comparison, number, kind, located))
        if len(causes) > len(summary.findings):
            summary.notes.append(f"{len(causes) - len(summary.findings)} more findings are in the rows")
        summary.findings.sort(key=lambda f: (f.step, f.rank, f.row))
        summary.counts.by_verdict = dict(verdicts)
        accused = [finding for finding in summary.findings if finding.kind not in UNDECIDED_KINDS]
        summary.first = next(iter(accused or summary.findings), None)
        compared = any(self._by_basis[basis] for basis in ("digest", "values", "sample", "statistics"))
        if accused:
            summary.outcome = "different"
        elif causes or located.random or located.unwritten or located.unsure or not compared:
            summary.outcome = "undecided"
        elif self.gaps or summary.candidate.problems or summary.reference.problems or self.judge.problems:
            summary.outcome = "undecided"
            summary.notes.insert(0, "what was compared is the same, but not everything could be compared")


def _lost_result(task: Task, row: CallResult) -> str:
    """Why a result of a call could not be compared, where a dump says why it has none; empty where all could."""
    sides = task.candidate.slots, task.reference.slots
    lost = {slot.name: slot.missing for slots in sides for slot in slots if slot.missing and slot.role in OUTPUT_ROLES}
    names = [s.name for s in row.slots if s.name in lost and s.basis == "none" and not s.fault] if lost else []
    return lost[names[0]] if names else ""


def _given(task: Task, row: CallResult, *, random: bool) -> tuple[int, int]:
    """Hashes of the first value from outside that differs, or of what was drawn; zeros where none does."""
    for slot in row.slots:
        drawn = random and slot.role in OUTPUT_ROLES and (slot.level > 0 or slot.fault)
        if slot.fault != "unrecorded_origin" and not drawn:
            continue
        mine, theirs = slots_of(task, slot)
        found = fingerprint(mine) if mine else None, fingerprint(theirs) if theirs else None
        if None not in found:
            return hash(found[0]), hash(found[1])
    return 0, 0


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


def found_at(comparison: Comparison, number: int, kind: FindingKind, located: Located) -> WrongCall:
    """The finding of one row, with its neighbours and the other calls of the same cause."""
    decision = located.decisions[number]
    finding = finding_of(comparison.row(number), kind)
    around = [_name(comparison, n, finding) for n in (decision.after, decision.before)]
    evidence = list(finding.evidence)
    changes: dict[str, CallName] = {}
    if decision.instead >= 0:
        other = comparison.row(decision.instead)
        if finding.candidate is None:
            changes["candidate"] = other.candidate or finding.reference  # type: ignore[assignment]
        elif other.reference is not None:
            changes["reference"] = other.reference
    if all(around):
        mine = changes.get("candidate", finding.candidate)
        theirs = changes.get("reference", finding.reference)
        calls = " and ".join(
            f"the {side} calls {call.label if call is not None else 'nothing'}"
            for side, call in (("reference", theirs), ("candidate", mine))
        )
        if kind == "changed_unseen":
            calls = "nothing was recorded that could have changed the value"
        evidence.insert(1, f"between {around[0]} and {around[1]}, {calls}")
    also = located.also.get(number, [])
    names = tuple(_name(comparison, n, finding) for n in also[:ALSO])
    return msgspec.structs.replace(finding, evidence=tuple(evidence), also=names, also_count=len(also), **changes)


def _name(comparison: Comparison, number: int, finding: WrongCall) -> str:
    """The label of the call of a row, and where it is, unless in the step and rank of the finding."""
    row = comparison.row(number) if number >= 0 else None
    call = (row.candidate or row.reference) if row is not None else None
    if row is None or call is None:
        return ""
    place = [f"step {row.step}"] * (row.step != finding.step) + [f"rank {row.rank}"] * (row.rank != finding.rank)
    return call.label + f" in {', '.join(place)}" * bool(place)


def finding_of(row: CallResult, kind: FindingKind) -> WrongCall:
    """The finding that a decided row is the cause of."""
    worst = _worst_slot(row, kind)
    evidence = [row.reason]
    for truth, side in ((row.truth, "candidate"), (row.reference_truth, "reference")):
        if truth is not None and truth.reason:
            evidence.append(f"{side} against float64: {truth.answer}, {truth.reason}")
    if worst is not None and worst.reason:
        evidence.append(f"{worst.name}: {worst.reason}")
    return finding_from(row, kind, row.verdict, worst, evidence)


def _worst_slot(row: CallResult, kind: str) -> SlotResult | None:
    named = [s for s in row.slots if s.fault == kind]
    if kind in ("wrong_value", "wrong_gradient", "nonfinite"):
        named = [s for s in row.slots if s.role in OUTPUT_ROLES and (s.level > 0 or s.fault)]
        if row.truth is not None and row.truth.slots:
            named = [s for s in named if s.name in row.truth.slots] or named
    return max(named, key=lambda s: (s.fault is not None, s.z), default=None)


def _growth(marks: list[Mark]) -> list[float]:
    """Largest error of each part, in units of the commonest u."""
    paired = [m for m in marks if not m.side]
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
