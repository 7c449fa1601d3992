"""A call of a script as the script makes it: with all that was compiled before, and with its objects as they are now.

Each function is diagnosed compiled afresh. What was compiled for another call, or for another function with the same
code, may still be taken where it does not fit; that shows here alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
import torch

from graphprobe.diagnose.ladder import Ladder
from graphprobe.diagnose.program import Call, Program
from graphprobe.diagnose.rungs import RungReport
from graphprobe.diagnose.script_calls import FIRST
from graphprobe.engine.forked_child import isolated
from graphprobe.internals import after_fork
from graphprobe.internals.dynamo.dynamo_taps import compiled_before
from graphprobe.judge.judging import Difference, compare
from graphprobe.judge.observation import Observation, ObservationRecord, read
from graphprobe.judge.uncompiled import Reference, roundoff_of
from graphprobe.settings.limits import STEP_LIMIT_S, TimeBudget

GROSS = 0.01
"""Relative rms error from which on the values of a call are looked into: rounding has been judged before."""

ONCE = "made again, the same call is right"

T = TypeVar("T")

_RECORDS = list[ObservationRecord]


def is_looked_at(number: int) -> bool:
    """Whether the call of this number, from 1, is one of those that are looked at."""
    return number <= FIRST or number & (number - 1) == 0


def with_guards(diagnose: Callable[[], T]) -> T:
    """What this returns where guards are checked, whatever stance the program has taken: it compiles anew."""
    with torch.compiler.set_stance("default"):
        return diagnose()


def is_compiled(fn: Any) -> bool:
    """Whether Dynamo has compiled code for a function's own code object."""
    code = getattr(fn, "__code__", None)
    return code is not None and f"{code.co_name} ({code.co_filename}:{code.co_firstlineno})" in compiled_before()


def differences_in_place(
    fn: Callable[..., Any], compiled: Callable[..., Any], call: Call, budget: TimeBudget, *, afresh: bool = True
) -> list[Difference] | None:
    """What a call gives otherwise where the compiled function is called as it is, and not where it is compiled afresh.

    None where that cannot be told: the program draws random numbers, differs from itself, or cannot be forked. Numbers
    are compared roughly, see `judged_in_place`.

    Args:
        fn: uncompiled.
        compiled: what the script calls.
        budget: for at most four runs.
        afresh: False: what it gives otherwise compiled afresh, too, counts as well.

    Raises:
        NoTimeLeft: the budget was ended meanwhile.
    """
    if not after_fork.can_fork():
        return None
    program = Program(fn, [call])

    def run(function: Callable[..., Any], *, afresh: bool = False) -> list[Observation] | None:
        step, left_s = partial(_run, program, function, afresh), min(STEP_LIMIT_S, budget.left_s)
        outcome = isolated(step, timeout_s=left_s, wait=budget.check)
        return None if outcome.value is None else [read(record) for record in msgspec.convert(outcome.value, _RECORDS)]

    expected, got = run(fn), run(compiled)
    if expected is None or got is None:
        return None
    found = _gross(expected, got)
    if not found:
        return []
    if _gross(expected, run(fn)):
        return None
    again = run(compiled, afresh=True) if afresh else expected
    return [] if again is None or _gross(expected, again) else found


def _run(program: Program, function: Callable[..., Any], afresh: bool) -> list[ObservationRecord] | None:
    if afresh:
        torch.compiler.reset()
        torch.compiler.set_stance("default")  # the program may have asked for no guards, or for no compilation
    state = torch.get_rng_state()
    records = program.run(lambda fn: function)
    return records if torch.equal(state, torch.get_rng_state()) else None


def _gross(expected: list[Observation] | None, got: list[Observation] | None) -> list[Difference]:
    if expected is None or got is None:
        return []
    values = [v for call in expected for v in (*call.outputs, *call.inputs) if isinstance(v, torch.Tensor)]
    roundoff = roundoff_of(values)
    found = compare(Reference([expected], roundoff=roundoff), got)
    return [d for d in found if d.certain or d.z * roundoff >= GROSS]


def judged_in_place(
    ladder: Ladder, compiled: Callable[..., Any], seen: ObservationRecord | None = None
) -> list[Difference]:
    """What is certainly wrong with the call of a ladder's program, made as the script makes it.

    `seen`: what came of it in the script, which is looked at, too, if the call made again is right.
    """
    ladder.reference = ladder.uncompiled()
    if ladder.reference is None:
        return []
    ladder.runner.begin("as the script calls it")
    report = ladder.answer(partial(_report, ladder.program, compiled), RungReport)
    wrong = [] if report is None else ladder.differences(report)
    if wrong or seen is None:
        return wrong
    once = ladder.differences(RungReport(calls=[seen]))
    return [msgspec.structs.replace(one, text=f"{one.text}; {ONCE}") for one in once]


def _report(program: Program, compiled: Callable[..., Any]) -> RungReport:
    return RungReport(calls=program.run(lambda fn: compiled))
