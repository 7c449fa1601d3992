"""Finds the calls that are wrong by themselves, from the marks of all pairs.

A call is *local* when what it gave differs by more than its own noise and what it got explain. What it got explains
`amplification · inherited`, with the amplification learnt from the calls like it (same operation and shapes: the
other layers), or a generous constant where there are few. Where the operation could be called again in float64 on
the very inputs it got, that answer counts instead.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from graphprobe.compare.doubt import doubts
from graphprobe.compare.marks import (
    GROWN,
    LARGE,
    OWN,
    REGION,
    REGION_NOISE,
    REWIRED,
    Decision,
    Inherited,
    Mark,
    inherited_by,
    inherited_by_backwards,
    inherited_by_collectives,
    pass_to_backwards,
)
from graphprobe.compare.places import Places, container_of, recorded_inside, steps_of_data
from graphprobe.compare.precision import out_of_line
from graphprobe.compare.result import UNDECIDED_KINDS, FindingKind, Verdict

FEW = 3
"""Calls of a group from which its own amplification is learnt."""

PEERS = 4.0
"""Times the median amplification of its group that a call may have."""

LEAST = 4.0
"""Amplification that any call may have."""

ALONE = 32.0
"""Amplification that a call without peers may have."""

SATURATED = 16.0
"""Inherited error, in units of the call's own allowance, from which its peers, which have less, are no measure."""

STATISTICS = 1.5
"""Times more that is explained where only statistics are there: one of them may hide what another shows."""

FLAT = 0.25
"""Inherited error, units of noise, below which the inputs count as that far off: half a rounding is always there."""

PEAK = 16.0
"""The largest z may exceed what is tolerated of its rms by this factor, times what the inputs' own peaks explain."""

REGION_LARGE = 1 / 16
"""Share of its values by which what a compiled region gives may be off by rounding, whatever its precision."""

REGION_STEP = 2.0
"""Units of noise, times the root of their number, by which the operations of a large compiled region may be off."""

SKIPPED, UNSURE, OK, WORSE = 1, 2, 3, 4


TOLD = Decision("differs", "inherited", None, "what it gets differs, as told of the call before it")


@dataclass(slots=True)
class Located:
    """All decisions by row number, those of innocents left out, and what should be said besides.

    Attributes:
        also: by number of a cause, the rows that have the same cause: of one line, in other layers, steps or ranks.
    """

    decisions: dict[int, Decision] = field(default_factory=dict)
    random: list[int] = field(default_factory=list)
    unwritten: list[int] = field(default_factory=list)
    unsure: list[int] = field(default_factory=list)
    also: dict[int, list[int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def locate(
    marks: Sequence[Mark],
    *,
    connected: bool = True,
    alike: bool = True,
    loose: Collection[int] = (),
    split: Collection[tuple[int, int]] = (),
) -> Located:
    """Decides on every row.

    Args:
        marks: in the order of the rows: rank by rank, step by step, as the candidate executed; the number of a row is
            its place.
        connected: most calls get what others have given, so that an input that nobody gave is state. A dump of a
            few calls is not, and of those only parameters and buffers are held to be state.
        alike: one tool wrote both dumps, so that a call that one side lacks was not made there.
        loose: rows of calls without a partner that give something which nothing recorded uses, and which the other
            side does not give.
        split: ranks and steps in which one side takes in several parts, one after the other, what the other takes at
            once: there, calls without a partner are parts, and only what they add up to can be compared.
    """
    loose = frozenset(m.number for m in marks if m.number in loose and (m.rank, m.step) not in split)
    walk = _Walk(marks, Places(marks, alike=alike), loose, split, connected)
    for mark in marks:
        walk.pass_by(mark)
    result = walk.result
    _drop_containers(marks, result)
    _join(marks, result)
    _pass_on(marks, result)
    if not any(d.kind is not None and d.kind not in UNDECIDED_KINDS for d in result.decisions.values()):
        whole = [m for m in marks if (m.rank, m.step) not in split or m.kind == "optimizer"]
        result.decisions.update(doubts(whole, walk.places, loose, result.decisions, random=bool(result.random)))
    return result


class _Walk:
    """The rows in their order: what has come up so far decides on what follows.

    Attributes:
        here: rank and step of the row; `highest` and `top` are the level and the z of what came up in it, `alone` how
            many calls without a partner either side has had there.
        entered: ranks and steps in which an error came in by something else than a paired call.
        parted: ranks and steps with parts, whose noise nobody has measured.
        formal: calls that differ in form, or get a weight that was changed: so do their backwards.
        alone_of_ranks: no other rank was recorded: what collectives get of others is not known.
        inside: of a module, what innocent modules inside it give.
        lacking: ranks in which a gradient is missing on one side: parameters are not changed by it.
        accused: ranks in which a cause was named.
        other_numbers: ranks in which whole numbers differ, such as tokens, because of a cause.
    """

    def __init__(
        self,
        marks: Sequence[Mark],
        places: Places,
        loose: Collection[int],
        split: Collection[tuple[int, int]],
        connected: bool,
    ) -> None:
        self.result = Located()
        self.marks = marks
        self.places, self.loose, self.split, self.connected = places, loose, split, connected
        forwards = inherited_by_backwards(marks)
        self.inherited = [inherited_by(m, forwards) for m in marks]
        self.alone_of_ranks = len({m.rank for m in marks}) == 1
        self.together = inherited_by_collectives(marks, self.inherited)
        self.factors = _amplifications(marks, self.inherited)
        self.odd = out_of_line([m for m in marks if not m.side])
        self.elsewhere = steps_of_data(marks)
        self.recorded = recorded_inside(marks)
        self.in_parts = any(mark.part for mark in marks)
        pass_to_backwards(marks)
        self.here = (-1, -1)
        self.highest = self.top = 0.0
        self.alone = [0, 0, 0]
        self.entered = set(split)
        self.parted: set[tuple[int, int]] = set()
        self.formal: set[tuple[int, int, int]] = set()
        self.inside: dict[tuple[int, int, bool, int], float] = {}
        self.lacking: set[int] = set()
        self.other_numbers: set[int] = set()
        self.seen_states: set[int] = set()
        self.seen_strays: set[tuple[int, int]] = set()
        self.seen_unrecorded: set[int] = set()
        self.accused: set[int] = set()

    def pass_by(self, mark: Mark) -> None:
        """Decides on the next row."""
        if self.here != (mark.rank, mark.step):
            self.here, self.highest, self.top, self.alone = (mark.rank, mark.step), 0.0, 0.0, [0, 0, 0]
        if mark.side:
            self.alone[mark.side] += 1
            if mark.side == 1 and mark.opposite >= 0 and not mark.consumed and mark.number in self.loose:
                _accuse(mark, None, self.places, self.result)
            return
        container = mark.kind == "module" and container_of(mark) in self.recorded and not mark.region.judged
        self.highest = max(self.highest, mark.state_level)
        decision = self._decision(mark, container)
        if decision is not None:
            self._decide(mark, decision)
        if not container:
            self.highest, self.top = max(self.highest, mark.level), max(self.top, mark.z)
        if mark.kind == "module" and mark.modules and (decision is None or decision.kind is None):
            for path in (0, *mark.modules[:-1]):
                around = (mark.rank, mark.step, mark.backward, path)
                self.inside[around] = max(self.inside.get(around, 0.0), mark.level)

    def _decision(self, mark: Mark, container: bool) -> Decision | None:
        """The first rule that names a cause; else what the last rule that says anything says."""
        got = self._got(mark)
        decision = self._from_elsewhere(mark, container)
        if decision is None or decision.kind is None:
            named = _data_order(mark, self.elsewhere) or self._strayed(mark)
            named = named or _state(mark, self.seen_states, self.connected)
            decision = named or _form(mark, self.odd.get(mark.number)) or decision
        in_part = self.here in self.split and mark.kind != "optimizer"
        if decision is None and not container and not in_part:
            decision = _numbers(mark, got, self.factors.get(mark.group), self.result)
            if decision is not None and decision.blame == "local" and mark.collective and self.alone_of_ranks:
                text = "it gives what other ranks gave to it, and the dumps are of one rank alone"
                decision = Decision("inconclusive", "unrecorded", "unrecorded_origin", text)
        if decision is None or decision.kind is None:
            decision = _unrecorded(mark, self.seen_unrecorded, self.connected, self.highest) or decision
        if decision is not None and decision.kind == "shape" and self._fed_a_cause(mark):
            return Decision(decision.verdict, "inherited", None, "a call told above changed what its forward call gave")
        if decision is not None and mark.backward and (mark.rank, mark.step, mark.me) in self.formal:
            return Decision(decision.verdict, "inherited", None, "its forward call differs, as told above")
        return decision

    def _got(self, mark: Mark) -> Inherited:
        """What the call got that explains what it gave."""
        got = self.inherited[mark.number]
        if mark.collective:
            got = self.together.get((mark.step, mark.me, mark.backward), got)
        if mark.kind == "module":
            within = self.inside.get(container_of(mark), 0.0)
            got = Inherited(max(got.inherited, within), max(got.z, within), got.exact, got.classes)
        self.lacking.update([mark.rank] if mark.lost else [])
        if mark.kind == "optimizer" and mark.rank in self.lacking:
            got = Inherited(math.inf, math.inf, got.exact, got.classes)
        if not mark.values:
            # Statistics hide much of an error: what comes later may have got more than they show.
            exact = got.exact or mark.rank in self.other_numbers
            got = Inherited(max(got.inherited, self.highest), max(got.z, self.highest), exact, got.classes)
        return got

    def _from_elsewhere(self, mark: Mark, container: bool) -> Decision | None:
        """See `_entered`, which is asked until it has an answer: what follows in this rank and step follows from it."""
        # Of ranks that share a batch, the gradients are averaged before the step, which no record shows.
        averaged = self.in_parts and mark.kind == "optimizer"
        if container or averaged or self.here in self.entered:
            return None
        self.parted.update([self.here] if mark.part else [])
        region = REGION_NOISE if max(self.alone) > REGION or self.here in self.parted else REWIRED * FLAT
        floor, peak = region * mark.unit, region * PEAK * OWN * mark.unit
        floor, peak = max(REWIRED * self.highest, floor), max(REWIRED * self.top, peak)
        decision = _entered(mark, self.places, floor, peak, self.result)
        if decision is not None:
            self.entered.add(self.here)
        return decision

    def _strayed(self, mark: Mark) -> Decision | None:
        """Something has changed a weight since a call gave it, which both sides made, and which gave the same."""
        for stray in mark.strays:
            at = self.places.at(mark, stray.side, stray.place)
            source = self.marks[stray.number] if stray.number >= 0 else at
            if source is None or (stray.kept and mark.rank in self.accused):
                continue
            known = 0.0 if source.side else max(source.level, source.state_level)
            if stray.level <= max(REWIRED * known, PEAK * OWN * mark.unit):
                continue
            if source.side:
                _accuse(self.places.first_lone(source), mark, self.places, self.result)
                return TOLD
            self.formal.add((mark.rank, mark.step, mark.me))
            if (mark.rank, stray.value) in self.seen_strays:
                return Decision("differs", "inherited", None, "what it gets was changed, as told above")
            self.seen_strays.add((mark.rank, stray.value))
            changed = "reference" if stray.side == 1 else "candidate"
            had = "got" if stray.kept else "gave"
            text = f"in the {changed}, {stray.name} was changed after a call {had} it, and no record shows by what"
            return Decision("differs", "structure", "changed_unseen", text, after=source.number, before=mark.number)
        return None

    def _fed_a_cause(self, mark: Mark) -> bool:
        """Whether what the forward call of a backward gave went into a call without a partner that is accused, be it
        through others that have none."""
        forward = self.places.forward_of(mark)
        causes = {n for n, d in self.result.decisions.items() if d.kind in ("extra_call", "missing_call")}
        lone = [m for m in map(self.marks.__getitem__, causes) if (m.rank, m.step) == (mark.rank, mark.step)]
        seen: set[int] = set()
        while forward is not None and lone:
            one = lone.pop()
            sources = [self.places.at(one, one.side, place) for *_, a, b in one.wired if (place := max(a, b)) >= 0]
            if any(source is forward for source in sources):
                return True
            seen.add(one.number)
            lone += [m for m in sources if m is not None and m.side == one.side and m.number not in seen]
        return False

    def _decide(self, mark: Mark, decision: Decision) -> None:
        self.result.decisions[mark.number] = decision
        self.accused.update([] if decision.kind is None else [mark.rank])
        self.other_numbers.update([mark.rank] if mark.exact_in or mark.exact_out else [])
        if decision.kind in ("scalar", "shape", "dtype"):
            self.formal.add((mark.rank, mark.step, mark.me))


def _amplifications(marks: Sequence[Mark], inherited: Sequence[Inherited]) -> dict[int, list[float]]:
    groups: dict[int, list[float]] = {}
    for m in marks:
        if not m.side and not m.random and not m.undefined:
            ratio = max(0.0, m.level - m.own) / max(inherited[m.number].inherited, FLAT * m.unit) if m.unit else 0.0
            groups.setdefault(m.group, []).append(ratio)
    return groups


def _accuse(lone: Mark, user: Mark | None, places: Places, result: Located, why: str = "") -> None:
    """A call without a partner is the cause; the candidate's is named where both sides have one there."""
    instead = places.instead_of(lone)
    if lone.side == 2 and instead is not None:
        lone, instead = instead, lone
    if lone.number in result.decisions:
        return
    kind: FindingKind
    if instead is not None:
        kind, text = "replaced_call", "another operation stands in its place, and gives something else"
    elif lone.side == 1:
        kind, text = "extra_call", "the reference lacks it, and what it gives is used"
    else:
        kind, text = "missing_call", "the candidate lacks it, and the reference uses what it gives"
    before = places.before(lone)
    result.decisions[lone.number] = Decision(
        "differs",
        "structure",
        kind,
        why or text,
        after=before.number if before is not None else -1,
        before=user.number if user is not None else -1,
        instead=instead.number if instead is not None else -1,
    )


def _entered(mark: Mark, places: Places, floor: float, peak: float, result: Located) -> Decision | None:
    """An error that comes in by something else than what a paired call gave, and that is larger than `floor`, or of
    one element than `peak`.

    What came in must have come from a call without a partner; or something has changed a value in between, which no
    record shows.
    """
    for lacks, name in mark.lost:
        forward = places.forward_of(mark)
        if forward is None or not places.alike:
            continue
        fed = next(((a, b) for n, a, b in forward.fed_alone if n == name), (-1, -1))
        source = places.at(mark, lacks, fed[lacks - 1]) if fed[lacks - 1] >= 0 else None
        side = "candidate" if lacks == 1 else "reference"
        if source is not None and source.side == lacks:
            text = f"what it gives carries no gradient back in the {side}, and the other side has one there"
            _accuse(places.first_lone(source) if not source.kept else source, forward, places, result, text)
            return TOLD
        return Decision("differs", "structure", "lost_gradient", f"the {side} computes no gradient of an argument")
    floor *= 1.0 if mark.values else STATISTICS
    for level, z, mine, theirs in mark.wired:
        passed = max(places.lone_above(mark, side, p, most=REGION) for side, p in ((1, mine), (2, theirs))) - 1
        noise = min(OWN * max(0, passed), REGION_NOISE) * mark.unit
        if level <= max(floor, noise) and z <= max(peak, PEAK * OWN * noise):
            continue
        producer = places.at(mark, 1, mine) if mine >= 0 else None
        other = places.at(mark, 2, theirs) if theirs >= 0 else None
        alone = (places.first_lone(c) for c in (producer, other) if c is not None and c.side)
        lone = next((c for c in alone if not c.kept), None)
        if lone is None and mark.backward:
            lone = places.last_lone(mark)
        if lone is not None:
            lone = places.first_lone(lone)
            if places.follows_forward(lone):
                return None
            _accuse(lone, mark, places, result)
            return TOLD
        if mark.backward:
            if not places.alike:
                return None
            text = "the gradient that it gets differs by more than all that was recorded before explains"
            return Decision("differs", "structure", "changed_unseen", text)
        if producer is not None and other is not None:
            if producer.side or other.side:
                continue
            return Decision("differs", "structure", "moved_call", "it gets the result of another call")
        source = producer if producer is not None else other
        if source is not None and not source.side:
            side_name = "reference" if producer is not None else "candidate"
            text = f"in the {side_name}, what it gets was changed after a call gave it, and no record shows by what"
            return Decision("differs", "structure", "changed_unseen", text, after=source.number, before=mark.number)
    return None


def _data_order(mark: Mark, elsewhere: dict[int, tuple[int, int]]) -> Decision | None:
    """The candidate gets now what the reference gets at another time, or in another rank."""
    there = elsewhere.get(mark.given[0]) if mark.given[0] else None
    if there is None or there == (mark.rank, mark.step):
        return None
    rank = f" of rank {there[0]}" if there[0] != mark.rank else ""
    text = f"it has what the reference has in step {there[1]}{rank}: the order of the data differs"
    return Decision("differs", "state", "data_order", text)


def _state(mark: Mark, seen: set[int], connected: bool) -> Decision | None:
    if not mark.state or not (connected or mark.parameter):
        return None
    if mark.state in seen:
        return Decision("differs", "inherited", None, "its state differs, as told above")
    seen.add(mark.state)
    return Decision("differs", "state", "state", "a parameter, a buffer or data differs before anything was computed")


def _unrecorded(mark: Mark, seen: set[int], connected: bool, highest: float) -> Decision | None:
    """An input that nobody gave and nothing holds; one that is no further off than the program already is, is its."""
    if not mark.unrecorded or not connected or mark.unrecorded_level <= REWIRED * highest:
        return None
    if mark.unrecorded in seen:
        return Decision("inconclusive", "inherited", None, "it gets what is told above, of unrecorded origin")
    seen.add(mark.unrecorded)
    text = "it gets another input, and no record tells from where: data, or the result of something that was not seen"
    return Decision("inconclusive", "unrecorded", "unrecorded_origin", text)


def _form(mark: Mark, odd: tuple[int, str] | None) -> Decision | None:
    if mark.shape:
        return Decision("differs", "local", "shape", "a shape differs")
    if mark.scalar:
        return Decision("differs", "local", "scalar", "an argument that is no tensor differs")
    if odd is not None and odd[0]:
        return Decision("candidate_worse" if odd[0] > 0 else "candidate_better", "local", "dtype", odd[1])
    return None


def _compiled(mark: Mark, got: Inherited, result: Located) -> Decision | None:
    """Compiled code is one call that hides many: what all of these may add, in the coarsest precision among them."""
    if got.exact or got.classes:
        return None
    what = "the backward of the compiled region" if mark.backward else "the compiled region"
    unit = mark.region.unit or mark.unit
    passed = ALONE * mark.inherited + LEAST * got.inherited
    deep = max(REGION_LARGE, REGION_STEP * unit * math.sqrt(mark.region.operations))
    limit = min(GROWN * unit, LARGE, deep) + passed * (1.0 if mark.values else STATISTICS)
    kind: FindingKind = "wrong_gradient" if mark.backward else "wrong_value"
    if mark.class_out:
        kind, text = "nonfinite", f"{what} gives NaN or Inf on one side, from inputs that have them on neither"
    elif mark.exact_out and got.inherited == 0.0:
        text = f"{what} gives other whole numbers, from inputs that agree"
    elif mark.level > limit:
        text = (
            f"{what} gives other results: error {mark.level / unit:.3g} units of noise of the coarsest precision "
            f"inside, where its operations and inputs explain {limit / unit:.3g}"
        )
    else:
        return None
    if mark.random:
        result.random.append(mark.number)
        return Decision("inconclusive", "random", None, "it draws random numbers")
    if not mark.region.judged:
        text = f"{text}; what happens inside is not known well enough to call that wrong"
        return Decision("inconclusive", "inherited", "growth", text)
    return Decision("differs", "local", kind, f"{text}; dumps of `--dump-graph` look inside")


def _numbers(mark: Mark, got: Inherited, peers: list[float] | None, result: Located) -> Decision | None:
    if mark.compiled:
        return _compiled(mark, got, result)
    differs = mark.level > mark.own or mark.exact_out or mark.class_out
    if mark.undefined:
        if not differs:
            return None
        result.unwritten.append(mark.number)
        return Decision("inconclusive", "random", None, "it reads uninitialized memory")
    if mark.random:
        if (differs and mark.level > mark.own + LEAST * got.inherited) or mark.exact_out or mark.class_out:
            result.random.append(mark.number)
            return Decision("inconclusive", "random", None, "it draws random numbers")
        return None
    mine, theirs = mark.truths
    kind: FindingKind = "wrong_gradient" if mark.backward else "wrong_value"
    if mine == WORSE and theirs != WORSE:
        found: FindingKind = "nonfinite" if mark.class_out > 0 else kind
        return Decision(
            "candidate_worse", "local", found, "wrong against the same operation in float64 on its own inputs"
        )
    if theirs == WORSE and mine == OK:
        text = "the reference is wrong against the same operation in float64 on its own inputs"
        return Decision("candidate_better", "local", kind, text)
    if mine == WORSE and theirs == WORSE:
        result.unsure.append(mark.number)
        return Decision(
            "inconclusive", "", None, "both sides differ from the operation in float64: it may not be what ran"
        )
    if not differs or (mine == OK and theirs in (OK, UNSURE, SKIPPED)):
        return None
    return _guess(mark, got, peers, kind)


def _guess(mark: Mark, got: Inherited, peers: list[float] | None, kind: FindingKind) -> Decision | None:
    """Without the operation in float64: by what went in and what came out."""
    if mark.class_out:
        if got.classes:
            return None
        verdict: Verdict = "candidate_worse" if mark.class_out > 0 else "candidate_better"
        return Decision(verdict, "local", "nonfinite", "NaN or Inf on one side, from inputs that have them on neither")
    if got.exact or got.classes:
        return None
    if mark.exact_out:
        if got.inherited == 0.0:
            return Decision("candidate_worse", "local", kind, "whole numbers differ, from inputs that agree")
        return None
    if mark.kind == "optimizer" and got.inherited > 0:
        return None  # a step divides by the size of the gradient: noise of any size may come out
    factor = ALONE
    if peers is not None and len(peers) >= FEW:
        factor = max(LEAST, PEERS * statistics.median(peers))
    if got.inherited > SATURATED * mark.own:
        factor = max(factor, ALONE)
    if not mark.values:
        factor *= STATISTICS
    limit = mark.own + factor * got.inherited
    if mark.level > limit:
        text = f"error {mark.level / mark.unit:.3g} units of noise, from inputs that explain {limit / mark.unit:.3g}"
        return Decision("candidate_worse", "local", kind, text)
    peak = PEAK * (mark.own + factor * got.z)
    if mark.values and mark.z > peak:
        text = f"an element is {mark.z / mark.unit:.3g} units of noise off, inputs explain {peak / mark.unit:.3g}"
        return Decision("candidate_worse", "local", kind, text)
    return None


def _drop_containers(marks: Sequence[Mark], result: Located) -> None:
    """A module is innocent of what happens inside a module in it; but where that gets something that its own outer
    module must have computed, from inputs that agree, the outer one is to blame."""
    guilty: dict[tuple[int, int, bool, int], list[int]] = {}
    for m in marks:
        decision = result.decisions.get(m.number)
        if decision is not None and decision.kind is not None:
            paths = m.modules[:-1] if m.kind == "module" else m.modules
            for path in (0, *paths) if m.kind != "module" or m.modules else ():
                guilty.setdefault((m.rank, m.step, m.backward, path), []).append(m.number)
    for m in marks:
        decision = result.decisions.get(m.number)
        if m.kind != "module" or m.compiled or decision is None or decision.kind is None:
            continue
        inner = [n for n in guilty.get(container_of(m), ()) if n != m.number]
        if not inner:
            continue
        kinds = {each.kind for n in inner if (each := result.decisions.get(n)) is not None and each.kind is not None}
        if kinds and kinds <= {"unrecorded_origin", "changed_unseen"} and decision.kind in ("wrong_value", "nonfinite"):
            for n in inner:
                result.decisions[n] = Decision("differs", "inherited", None, "its outer module computes what it gets")
        elif kinds:
            result.decisions[m.number] = Decision("ok", "inherited", None, "what is wrong lies inside")


def _join(marks: Sequence[Mark], result: Located) -> None:
    """What is wrong in one way at one line, in other layers, steps and ranks, is one cause: the first. So are all
    parameters and buffers that differ before anything was computed: other weights."""
    first: dict[tuple[object, ...], int] = {}
    for m in sorted(marks, key=lambda m: (m.step, m.rank, m.number)):
        decision = result.decisions.get(m.number)
        if decision is None or decision.kind is None:
            continue
        weights = decision.kind == "state" and m.parameter
        number = first.setdefault((decision.kind, decision.verdict, "weights" if weights else m.spot), m.number)
        if number != m.number:
            result.also.setdefault(number, []).append(m.number)
            why = "other weights, as told above" if weights else "the cause told above, from the same line"
            text = f"{decision.reason}: {why}"
            result.decisions[m.number] = Decision(decision.verdict, decision.blame, None, text)


def _pass_on(marks: Sequence[Mark], result: Located) -> None:
    """After the first cause of a rank, what differs by more than its own noise is inherited from it, with its verdict:
    where nothing tells which side is wrong there, nothing tells it of what follows."""
    begun: dict[int, Verdict] = {}
    for m in marks:
        decision = result.decisions.get(m.number)
        if decision is not None:
            if decision.kind is not None and begun.get(m.rank, "inconclusive") == "inconclusive":
                begun[m.rank] = decision.verdict
            elif decision.verdict == "ok" and m.rank in begun:
                result.decisions[m.number] = Decision(begun[m.rank], "inherited", None, decision.reason)
            continue
        if m.rank in begun and not m.side and (m.level > m.own or m.exact_out or m.class_out):
            result.decisions[m.number] = Decision(begun[m.rank], "inherited", None, "what it got differs already")
