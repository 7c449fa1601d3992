"""Runs shrinking passes until none of them finds anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from graphprobe.reduce.gate import Gate
from graphprobe.reduce.space import Candidate, Shrink

C = TypeVar("C", bound=Candidate)


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
