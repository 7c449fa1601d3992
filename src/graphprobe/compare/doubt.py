"""What stands against saying that two programs are the same, where no call is accused."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from graphprobe.compare.marks import GROWN, LARGE, REGION_NOISE, REWIRED, Decision, Mark, grown
from graphprobe.compare.places import Places
from graphprobe.compare.precision import coarsest


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
