"""What differs before a call computes, in form, state or data; and what else forbids to say that all is the same."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from graphprobe.compare.marks import GROWN, LARGE, REGION_NOISE, REWIRED, Decision, Mark, grown
from graphprobe.compare.places import Places
from graphprobe.compare.precision import coarsest

GRADIENTS = (
    "its gradients differ by more than backward calls explain: they were not set to zero, set to zero or left out in "
    "between, or changed since, and no record shows by what"
)


def doubts(
    marks: Sequence[Mark], places: Places, loose: Collection[int], decisions: Collection[int], *, random: bool
) -> dict[int, Decision]:
    """Decisions by number of row, at most one of each kind of doubt.

    Args:
        loose: rows of calls without a partner that give something which nothing recorded uses, and which the other
            side does not give.
        decisions: rows of which something is said already.
        random: calls that draw random numbers differ, and all that is large may come from them.
    """
    found = dict(_unpaired(marks, places, loose, decisions))
    if not random:
        unit = max([coarsest(marks), *(m.region.unit for m in marks)])
        found.update(_changed(marks, unit) or _grown(marks, unit, decisions))
    return found


def _unpaired(
    marks: Sequence[Mark], places: Places, loose: Collection[int], decisions: Collection[int]
) -> Iterator[tuple[int, Decision]]:
    for m in marks:
        if places.alike and m.side and m.number in loose and m.number not in decisions:
            side, other = ("candidate", "reference") if m.side == 1 else ("reference", "candidate")
            text = f"only the {side} calls it; nothing recorded uses what it gives, and the {other} has no equal value"
            before = places.before(m)
            after = before.number if before is not None else -1
            yield m.number, Decision("inconclusive", "structure", "unpaired", text, after=after)
            return


def _changed(marks: Sequence[Mark], unit: float) -> dict[int, Decision]:
    """State of a module that is further apart than anything that was recorded before it. Between steps that were all
    recorded, training does not do that; what an optimizer does that no record shows, nobody knows."""
    if not {m.rank for m in marks if m.backward} <= {m.rank for m in marks if m.kind == "optimizer"}:
        return {}
    levels: dict[int, tuple[int, float]] = {}  # of each rank, the last step, and the most that anything is apart
    for m in marks:
        step, level = levels.get(m.rank, (m.step, 0.0))
        if m.rank in levels and m.step - step <= 1 and m.state_level > max(min(GROWN * unit, LARGE), REWIRED * level):
            text = (
                f"state of a module is {m.state_level / unit:.3g} units of noise apart, and all that was recorded "
                f"before at most {level / unit:.3g}: something changed it that no record shows"
            )
            return {m.number: Decision("inconclusive", "inherited", "growth", text)}
        levels[m.rank] = m.step, max(level, m.level, m.state_level, m.inherited)
    return {}


def _grown(marks: Sequence[Mark], unit: float, decisions: Collection[int]) -> dict[int, Decision]:
    """Results that are too far apart."""
    states: dict[tuple[int, int], float] = {}  # of parameters that earlier steps have changed
    for m in marks:
        here = (m.rank, m.step)
        states[here] = max(states.get(here, 0.0), m.state_level)
        limit = max(min(GROWN * unit, LARGE), REGION_NOISE * states[here])
        if not m.side and not m.random and grown(m, unit) > limit and m.number not in decisions:
            text = (
                f"the results are {grown(m, unit) / unit:.3g} units of noise apart: no call adds more than rounding "
                "may, and all together are too far apart to call the two the same"
            )
            return {m.number: Decision("inconclusive", "inherited", "growth", text)}
    return {}


def given_by_ranks(marks: Sequence[Mark], decisions: dict[int, Decision]) -> dict[int, Decision]:
    """Gradients that differ because of what is accused in another rank up to their step."""
    causes = [marks[n] for n, d in decisions.items() if d.kind is not None and d.reason != GRADIENTS]
    told = Decision("differs", "inherited", None, "another rank's part of them differs, see there")
    mine = [marks[n] for n, d in decisions.items() if d.reason == GRADIENTS]
    return {m.number: told for m in mine if any(c.rank != m.rank and c.step <= m.step for c in causes)}


def other_order(mark: Mark, elsewhere: dict[int, Mark]) -> Decision | None:
    """The candidate gets now what the reference gets at another time, or in another rank."""
    there = elsewhere.get(mark.given[0]) if mark.given[0] else None
    if there is None or there is mark:
        return None
    where = f"in step {there.step}" if there.step != mark.step else "at another call of the step"
    rank = f" of rank {there.rank}" if there.rank != mark.rank else ""
    text = f"it has what the reference has {where}{rank}: the order of the data differs"
    return Decision("differs", "state", "data_order", text)


def state_differs(mark: Mark, seen: set[int], connected: bool) -> Decision | None:
    """A parameter, a buffer or data that no call has changed."""
    if not mark.state or not (connected or mark.parameter):
        return None
    if mark.state in seen:
        return Decision("differs", "inherited", None, "its state differs, as told above")
    seen.add(mark.state)
    return Decision("differs", "state", "state", "a parameter, a buffer or data differs before anything was computed")


def unrecorded_differs(mark: Mark, seen: set[int], connected: bool, highest: float) -> Decision | None:
    """An input that nobody gave and nothing holds; one that is no further off than the program already is, is its."""
    if not mark.unrecorded or not connected or mark.unrecorded_level <= REWIRED * highest:
        return None
    if mark.unrecorded in seen:
        return Decision("inconclusive", "inherited", None, "it gets what is told above, of unrecorded origin")
    seen.add(mark.unrecorded)
    text = "it gets another input, and no record tells from where: data, or the result of something that was not seen"
    return Decision("inconclusive", "unrecorded", "unrecorded_origin", text)


def form_differs(mark: Mark, odd: tuple[int, str] | None) -> Decision | None:
    """A shape, an argument that is no tensor, or a precision unlike that of the peers."""
    if mark.shape:
        return Decision("differs", "local", "shape", "a shape differs")
    if mark.scalar:
        return Decision("differs", "local", "scalar", "an argument that is no tensor differs")
    if odd is not None and odd[0]:
        return Decision("candidate_worse" if odd[0] > 0 else "candidate_better", "local", "dtype", odd[1])
    return None
