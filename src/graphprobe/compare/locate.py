"""Whose fault it is: from the marks of all pairs to the calls that are wrong by themselves.

A call is *local* when what it gave differs by more than its own noise and what it got explain. What it got explains
`amplification · inherited`, with the amplification learnt from the calls like it (same operation and shapes: the
other layers), or a generous constant where there are few. Where the operation could be called again in float64 on
the very inputs it got, that answer counts instead.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from graphprobe.compare.marks import Mark
from graphprobe.compare.precision import out_of_line
from graphprobe.compare.result import UNDECIDED_KINDS, Blame, FindingKind, Verdict

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

REWIRED = 4.0
"""Times the largest error so far from which an input that comes from elsewhere is another value."""

SKIPPED, UNSURE, OK, WORSE = 1, 2, 3, 4


class Decision(msgspec.Struct, frozen=True):
    """What is said of one row. `kind` is that of the finding; None where the call is no cause."""

    verdict: Verdict = "ok"
    blame: Blame = ""
    kind: FindingKind | None = None
    reason: str = ""


@dataclass(slots=True)
class Located:
    """All decisions by row number, those of innocents left out, and what should be said besides."""

    decisions: dict[int, Decision] = field(default_factory=dict)
    random: list[int] = field(default_factory=list)
    undefined: int = 0
    unsure: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Forward:
    inherited: float = 0.0
    z: float = 0.0
    exact: bool = False
    classes: bool = False


def locate(marks: Sequence[Mark], *, connected: bool = True) -> Located:
    """Decides on every row.

    Args:
        marks: in the order of the rows: rank by rank, step by step, as the candidate executed.
        connected: most calls get what others have given, so that an input that nobody gave is state. A dump of a
            few calls is not, and of those only parameters and buffers are held to be state.
    """
    result = Located()
    forwards = _forwards(marks)
    inherited = {m.number: _inherited(m, forwards) for m in marks if not m.side}
    factors = _amplifications(marks, inherited)
    odd = out_of_line([m for m in marks if not m.side])
    places = _Places(marks)
    seen_states: set[int] = set()
    seen_unrecorded: set[int] = set()
    formal: set[tuple[int, int, int]] = set()
    highest = 0.0
    here = (-1, -1)
    for mark in marks:
        if here != (mark.rank, mark.step):
            here, highest = (mark.rank, mark.step), 0.0
        if mark.side:
            _unpaired(mark, places, result)
            continue
        decision = _structure(mark, places, highest, result)
        decision = decision or _state(mark, seen_states, connected)
        decision = decision or _form(mark, odd.get(mark.number))
        got = inherited[mark.number]
        if not mark.values:
            # Statistics hide much of an error: what comes later may have got more than they show.
            got = _Forward(max(got.inherited, highest), max(got.z, highest), got.exact, got.classes)
        decision = decision or _numbers(mark, got, factors.get(mark.group), result)
        if decision is None or decision.kind is None:
            decision = _unrecorded(mark, seen_unrecorded, connected, highest) or decision
        if decision is not None and mark.backward and (mark.rank, mark.step, mark.me) in formal:
            decision = Decision(decision.verdict, "inherited", None, "its forward call differs in form, as told above")
        if decision is not None:
            result.decisions[mark.number] = decision
            if decision.kind in ("scalar", "shape", "dtype"):
                formal.add((mark.rank, mark.step, mark.me))
        highest = max(highest, mark.level)
    _drop_containers(marks, result)
    _pass_on(marks, result)
    return result


def _forwards(marks: Sequence[Mark]) -> dict[tuple[int, int, int], _Forward]:
    """What the backward of a call works on besides its gradient: inputs and outputs of the forward."""
    found: dict[tuple[int, int, int], _Forward] = {}
    for m in marks:
        if m.backward or m.side:
            continue
        got = found.setdefault((m.rank, m.step, m.me), _Forward())
        got.inherited = max(got.inherited, m.inherited, m.level)
        got.z = max(got.z, m.inherited_z, m.z)
        got.exact = got.exact or m.exact_in or m.exact_out
        got.classes = got.classes or bool(m.class_in or m.class_out)
    return found


def _inherited(mark: Mark, forwards: dict[tuple[int, int, int], _Forward]) -> _Forward:
    own = _Forward(mark.inherited, mark.inherited_z, mark.exact_in, bool(mark.class_in))
    forward = forwards.get((mark.rank, mark.step, mark.me)) if mark.backward else None
    if forward is None:
        return own
    return _Forward(
        max(own.inherited, forward.inherited),
        max(own.z, forward.z),
        own.exact or forward.exact,
        own.classes or forward.classes,
    )


def _amplifications(marks: Sequence[Mark], inherited: dict[int, _Forward]) -> dict[int, list[float]]:
    groups: dict[int, list[float]] = {}
    for m in marks:
        if not m.side and not m.random and not m.undefined:
            ratio = max(0.0, m.level - m.own) / max(inherited[m.number].inherited, FLAT * m.unit) if m.unit else 0.0
            groups.setdefault(m.group, []).append(ratio)
    return groups


class _Places:
    """Rows by position, on either side."""

    def __init__(self, marks: Sequence[Mark]) -> None:
        self._rows: dict[tuple[int, int, int, int], Mark] = {}
        self._forwards = {(m.rank, m.step, m.me) for m in marks if not m.backward}
        for m in marks:
            self._rows[(m.rank, m.step, 2 if m.side == 2 else 1, m.position)] = m
            if m.side == 0:
                self._rows[(m.rank, m.step, 2, m.partner)] = m

    def at(self, like: Mark, side: int, position: int) -> Mark | None:
        """The row of a call of the candidate (1) or the reference (2) in the rank and step of `like`."""
        return self._rows.get((like.rank, like.step, side, position))

    def follows_forward(self, mark: Mark) -> bool:
        """Whether it is the backward of a recorded call, which is there or not as that one is: dumps of some formats
        and devices lack backwards of calls that were made."""
        return mark.backward and (mark.rank, mark.step, mark.me) in self._forwards

    def first_lone(self, mark: Mark) -> Mark:
        """Upstream of a call without a partner, the first of its chain of such calls."""
        while True:
            sources = (self.at(mark, mark.side, p) for _, a, b in mark.wired if (p := max(a, b)) >= 0)
            before = next((m for m in sources if m is not None and m.side == mark.side), None)
            if before is None or before.position >= mark.position:
                return mark
            mark = before


def _unpaired(mark: Mark, places: _Places, result: Located) -> None:
    """A call without a partner is a fault where another stands in its place and nobody uses what it gives."""
    if mark.side == 1 and mark.opposite >= 0 and not mark.consumed and not mark.kept:
        result.decisions[mark.number] = _replaced(mark, places)


def _replaced(mark: Mark, places: _Places) -> Decision:
    return Decision("candidate_worse", "structure", "replaced_call", "the reference calls another operation here")


def _structure(mark: Mark, places: _Places, highest: float, result: Located) -> Decision | None:
    for level, mine, theirs in mark.wired:
        if level <= REWIRED * max(highest, FLAT * mark.unit):
            continue
        producer = places.at(mark, 1, mine) if mine >= 0 else None
        other = places.at(mark, 2, theirs) if theirs >= 0 else None
        if producer is not None and producer.side == 1:
            producer = places.first_lone(producer)
            if places.follows_forward(producer):
                return None
            if producer.number not in result.decisions:
                kind: FindingKind = "replaced_call" if producer.opposite >= 0 else "extra_call"
                what = "another operation stands in its place" if producer.opposite >= 0 else "the reference lacks it"
                text = f"{what}, and what it gives is used"
                result.decisions[producer.number] = Decision("candidate_worse", "structure", kind, text)
            return None
        if other is not None and other.side == 2:
            other = places.first_lone(other)
            if places.follows_forward(other):
                return None
            if other.number not in result.decisions:
                text = "the candidate lacks it, and the reference uses what it gives"
                result.decisions[other.number] = Decision("candidate_worse", "structure", "missing_call", text)
            return None
        if producer is not None and other is not None:
            return Decision("candidate_worse", "structure", "moved_call", "it gets the result of another call")
    return None


def _state(mark: Mark, seen: set[int], connected: bool) -> Decision | None:
    if not mark.state or not (connected or mark.parameter):
        return None
    if mark.state in seen:
        return Decision("candidate_worse", "inherited", None, "its state differs, as told above")
    seen.add(mark.state)
    return Decision(
        "candidate_worse", "state", "state", "a parameter, a buffer or data differs before anything was computed"
    )


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
        return Decision("candidate_worse", "local", "shape", "a shape differs")
    if mark.scalar:
        return Decision("candidate_worse", "local", "scalar", "an argument that is no tensor differs")
    if odd is not None and odd[0]:
        return Decision("candidate_worse" if odd[0] > 0 else "candidate_better", "local", "dtype", odd[1])
    return None


def _numbers(mark: Mark, got: _Forward, peers: list[float] | None, result: Located) -> Decision | None:
    differs = mark.level > mark.own or mark.exact_out or mark.class_out
    if mark.undefined:
        if not (differs or mark.exact_out or mark.class_out):
            return None
        result.undefined += 1
        return Decision("inconclusive", "random", None, "it gives memory that nobody has written to yet")
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


def _guess(mark: Mark, got: _Forward, peers: list[float] | None, kind: FindingKind) -> Decision | None:
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
    """A module is innocent of what happens inside it, if that was recorded."""
    inside: set[tuple[int, int, bool, int]] = set()
    guilty: set[tuple[int, int, bool, int]] = set()
    for m in marks:
        paths = m.modules[:-1] if m.kind == "module" else m.modules
        keys = [(m.rank, m.step, m.backward, path) for path in paths]
        if m.kind != "module" and not m.side:
            inside.update(keys)
        decision = result.decisions.get(m.number)
        if decision is not None and decision.kind is not None:
            guilty.update(keys)
    for m in marks:
        decision = result.decisions.get(m.number)
        if m.kind != "module" or decision is None or decision.kind is None or not m.modules:
            continue
        key = (m.rank, m.step, m.backward, m.modules[-1])
        numeric = decision.kind in ("wrong_value", "wrong_gradient", "nonfinite", "state", "unrecorded_origin")
        if key in guilty or (numeric and key in inside):
            result.decisions[m.number] = Decision("ok", "inherited", None, "what is wrong lies inside")


def _pass_on(marks: Sequence[Mark], result: Located) -> None:
    """After the first cause of a rank, what differs by more than its own noise is inherited from it."""
    begun: dict[int, Verdict] = {}
    for m in marks:
        decision = result.decisions.get(m.number)
        if decision is not None:
            if decision.kind is not None and begun.get(m.rank) != "candidate_worse":
                begun[m.rank] = "inconclusive" if decision.kind in UNDECIDED_KINDS else "candidate_worse"
            elif decision.verdict == "ok" and m.rank in begun:
                result.decisions[m.number] = Decision(begun[m.rank], "inherited", None, decision.reason)
            continue
        if m.rank in begun and not m.side and (m.level > m.own or m.exact_out or m.class_out):
            result.decisions[m.number] = Decision(begun[m.rank], "inherited", None, "what it got differs already")
