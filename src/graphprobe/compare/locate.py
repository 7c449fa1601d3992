"""Finds the calls that are wrong by themselves, from the marks of all pairs.

A call is *local* when what it gave differs by more than its own noise and what it got explain. What it got explains
`amplification · inherited`, with the amplification learnt from the calls like it (same operation and shapes: the
other layers), or a generous constant where there are few. Where the operation could be called again in float64 on
the very inputs it got, that answer counts instead.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Sequence

import msgspec

from graphprobe.compare.doubt import (
    GRADIENTS,
    doubts,
    form_differs,
    given_by_ranks,
    other_order,
    state_differs,
    unrecorded_differs,
)
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
    add_up_between_ranks,
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

NUMERIC = ("wrong_value", "wrong_gradient", "nonfinite", "growth")

TOLD = Decision("differs", "inherited", None, "what it gets differs, as told of the call before it")


class Located(msgspec.Struct):
    """All decisions by row number, those of innocents left out, and what should be said besides.

    Attributes:
        also: by number of a cause, the rows that have the same cause: of one line, in other layers, steps or ranks.
    """

    decisions: dict[int, Decision] = {}
    random: list[int] = []
    unwritten: list[int] = []
    unsure: list[int] = []
    also: dict[int, list[int]] = {}


def locate(
    marks: Sequence[Mark],
    *,
    connected: bool = True,
    alike: bool = True,
    loose: Collection[int] = (),
    split: Collection[tuple[int, int]] = (),
    complete: bool = True,
    world: int = 1,
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
        complete: all that was recorded could be read, so that a step of an optimizer that is not there was not taken.
        world: how many ranks the run had.
    """
    loose = frozenset(m.number for m in marks if m.number in loose and (m.rank, m.step) not in split)
    add_up_between_ranks(marks, world)
    walk = _Walk(marks, Places(marks, alike=alike), loose, split, connected, complete, world)
    for mark in marks:
        walk.pass_by(mark)
    result = walk.result
    result.decisions.update(given_by_ranks(marks, result.decisions))
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
        alone_of_ranks: not all ranks were recorded: what collectives get of others is not known.
        inside: of a module, what innocent modules inside it give.
        lacking: ranks in which a gradient is missing on one side: parameters are not changed by it.
        accused: ranks in which a cause was named.
        after: of each rank, how far off weights may be after the last step of its optimizer.
        drawn: ranks in which random numbers differ, so that what follows from them is no cause.
        other_numbers: ranks in which whole numbers differ, such as tokens, because of a cause.
    """

    def __init__(
        self,
        marks: Sequence[Mark],
        places: Places,
        loose: Collection[int],
        split: Collection[tuple[int, int]],
        connected: bool,
        complete: bool,
        world: int,
    ) -> None:
        self.result = Located()
        self.marks = marks
        self.places, self.loose, self.split, self.connected = places, loose, split, connected
        forwards = inherited_by_backwards(marks)
        self.inherited = [inherited_by(m, forwards) for m in marks]
        self.alone_of_ranks = len({m.rank for m in marks}) < max(world, 2)
        self.together = inherited_by_collectives(marks, self.inherited)
        self.factors = _amplifications(marks, self.inherited)
        self.odd = out_of_line([m for m in marks if not m.side], self._cast())
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
        self.drawn: set[int] = set()
        self.after: dict[int, tuple[float, float]] = {}
        self.other_parameters = {(m.rank, m.step) for m in marks if m.other_parameters}
        self.stepped = {m.rank for m in marks if m.kind == "optimizer" and not m.side and places.alike and complete}
        self.seen_states: set[int] = set()
        self.seen_strays: set[tuple[int, int]] = set()
        self.seen_unrecorded: set[int] = set()
        self.accused: set[int] = set()

    def _cast(self) -> dict[int, int]:
        """Of forward calls, the side that alone converts what they get."""
        found: dict[int, int] = {}
        for mark in self.marks:
            for _, *producers in mark.fed_alone if not mark.backward else ():
                for side, place in enumerate(producers, start=1):
                    source = self.places.at(mark, side, place) if place >= 0 else None
                    if source is not None and source.side == side and source.cast:
                        found[mark.number] = side
        return found

    def pass_by(self, mark: Mark) -> None:
        """Decides on the next row."""
        if self.here != (mark.rank, mark.step):
            self.here, self.highest, self.top, self.alone = (mark.rank, mark.step), 0.0, 0.0, [0, 0, 0]
        if mark.side:
            self.alone[mark.side] += 1
            loose = mark.side == 1 and mark.opposite >= 0 and not mark.consumed and mark.number in self.loose
            if mark.kind == "optimizer" and mark.rank in self.stepped:
                _accuse(mark, None, self.places, self.result, "a step of the optimizer that one side alone takes")
            elif loose and mark.rank not in self.drawn:
                _accuse(mark, None, self.places, self.result)
            return
        container = mark.kind == "module" and container_of(mark) in self.recorded and not mark.region.judged
        self.highest = max(self.highest, mark.state_level)
        decision = self._decision(mark, container)
        if decision is not None:
            self._decide(mark, decision)
        if mark.kind == "optimizer":
            self.after[mark.rank] = REWIRED * mark.level, REWIRED * mark.z
        if not container:
            self.highest, self.top = max(self.highest, mark.level), max(self.top, mark.z)
        if mark.kind == "module" and mark.modules and (decision is None or decision.kind is None):
            for path in (0, *mark.modules[:-1]):
                around = (mark.rank, mark.step, mark.backward, path)
                self.inside[around] = max(self.inside.get(around, 0.0), mark.level)

    def _decision(self, mark: Mark, container: bool) -> Decision | None:
        """The first rule that names a cause; else what the last rule that says anything says."""
        got = self._got(mark)
        drawn = mark.rank in self.drawn
        decision = self._from_elsewhere(mark, container, drawn=drawn)
        if decision is None or decision.kind is None:
            named = other_order(mark, self.elsewhere)
            if not drawn:
                named = named or self._strayed(mark) or state_differs(mark, self.seen_states, self.connected)
            decision = named or self._formal(mark) or decision
        in_part = self.here in self.split and mark.kind != "optimizer"
        if decision is None and not container and not in_part:
            decision = _numbers(mark, got, self.factors.get(mark.group), self.result)
            if decision is not None and decision.blame == "local" and mark.collective and self.alone_of_ranks:
                text = "its result is made of those of other ranks, and the dumps are not of all ranks"
                decision = Decision("inconclusive", "unrecorded", "unrecorded_origin", text)
        if drawn and decision is not None and decision.kind in NUMERIC and "worse" not in mark.truths:
            decision = Decision("inconclusive", "random", None, "random numbers that differ come before it")
        elif not drawn and mark.gradient < 0 and (decision is None or decision.kind is None):
            decision = unrecorded_differs(mark, self.seen_unrecorded, self.connected, self.highest) or decision
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

    def _formal(self, mark: Mark) -> Decision | None:
        """What differs in form; of what the program does with all parameters, as clipping, the optimizer tells."""
        if mark.other_parameters and mark.rank not in self.lacking:
            return Decision("differs", "structure", "parameters", "the optimizer steps a parameter on one side alone")
        decision = form_differs(mark, self.odd.get(mark.number))
        clipped = self.here in self.other_parameters and not (mark.modules or mark.backward)
        if decision is not None and decision.kind == "shape" and clipped:
            return Decision("differs", "inherited", None, "the optimizer steps other parameters, as told of it")
        return decision

    def _from_elsewhere(self, mark: Mark, container: bool, *, drawn: bool) -> Decision | None:
        """See `_entered`, which is asked until it has an answer: what follows in this rank and step follows from it."""
        # Of ranks that share a batch, the gradients are averaged before the step, which no record shows.
        averaged = self.in_parts and mark.kind == "optimizer"
        if container or averaged or self.here in self.entered:
            return None
        self.parted.update([self.here] if mark.part else [])
        known = drawn or mark.rank in self.accused or self.in_parts or self.here in self.other_parameters
        if not known and mark.gradient > (PEAK if max(self.alone) > REGION else 1.0):
            self.entered.add(self.here)
            return Decision("differs", "structure", "changed_unseen", GRADIENTS)
        region = REGION_NOISE if max(self.alone) > REGION or self.here in self.parted else REWIRED * FLAT
        floor, peak = region * mark.unit, region * PEAK * OWN * mark.unit
        floor, peak = max(REWIRED * self.highest, floor), max(REWIRED * self.top, peak)
        floor, peak = (math.inf, math.inf) if drawn else (floor, peak)
        decision = _entered(mark, self.places, floor, peak, self.result, self.after.get(mark.rank, (0.0, 0.0)))
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
        self.drawn.update([mark.rank] if mark.random and decision.blame == "random" else [])
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
    around = [-1 if m is None else m.number for m in (places.before(lone), user, instead)]
    result.decisions[lone.number] = Decision("differs", "structure", kind, why or text, *around)


def _entered(
    mark: Mark, places: Places, floor: float, peak: float, result: Located, stepped: tuple[float, float]
) -> Decision | None:
    """An error that comes in by something else than what a paired call gave, and that is larger than `floor`, or of
    one element than `peak`.

    stepped: the same two for what the last step of the optimizer makes of noise, where a weight came in.

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
        above = [places.lone_above(mark, side, p, most=REGION) for side, p in ((1, mine), (2, theirs))]
        noise = min(OWN * max(0, max(map(len, above)) - 1), REGION_NOISE) * mark.unit
        weights = stepped if any(one.parameter for one in itertools.chain(*above)) else (0.0, 0.0)
        if level <= max(floor, noise, weights[0]) and z <= max(peak, PEAK * OWN * noise, weights[1]):
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
            wired = "another result of the same call" if producer is other else "the result of another call"
            text = f"it is wired to {wired}"
            return Decision("differs", "structure", "moved_call", text)
        source = producer if producer is not None else other
        if source is not None and not source.side:
            side_name = "reference" if producer is not None else "candidate"
            text = f"in the {side_name}, what it gets was changed after a call gave it, and no record shows by what"
            return Decision("differs", "structure", "changed_unseen", text, after=source.number, before=mark.number)
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
    if mine == "worse" and theirs != "worse":
        found: FindingKind = "nonfinite" if mark.class_out > 0 else kind
        return Decision(
            "candidate_worse", "local", found, "wrong against the same operation in float64 on its own inputs"
        )
    if theirs == "worse" and mine == "ok":
        text = "the reference is wrong against the same operation in float64 on its own inputs"
        return Decision("candidate_better", "local", kind, text)
    if mine == "worse" and theirs == "worse":
        result.unsure.append(mark.number)
        return Decision(
            "inconclusive", "", None, "both sides differ from the operation in float64: it may not be what ran"
        )
    if not differs or (mine == "ok" and theirs in ("ok", "unsure", "skipped")):
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
        spot = "weights" if weights else "data" if decision.kind == "data_order" else m.spot
        number = first.setdefault((decision.kind, decision.verdict, spot), m.number)
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
