"""How far rounding may take a program's results: runs in float64, and runs with every narrow result rounded anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from graphprobe.diagnose.program import EdgeRun, Program, RoundedRun, UndefinedRun
from graphprobe.engine.reference import array_from, is_noisy
from graphprobe.engine.rounding import MORE_RUNS, RUNS
from graphprobe.engine.undefined import WAYS, noise_of_gaps
from graphprobe.engine.values import capture, from_bytes, to_bytes
from graphprobe.judge.judging import ENOUGH, PARTS, Difference, far_off, not_moved_as_far
from graphprobe.judge.observation import Observation, ObservationRecord, read
from graphprobe.judge.uncompiled import Reference
from graphprobe.numerics.noise import CHUNK, Array, flat, widen
from graphprobe.numerics.verdict import NARROW

PERTURBED = 3
"""Float64 runs of the program on perturbed inputs."""

MORE_PERTURBED = (4, 7, 8, 11, 12, 15, 16, 19)
"""Seeds of further ones, up and down in turns: of three, two are off by the same. In one element of a hundred these are
nearer to the exact result than they usually are by a factor of ten."""

SINGLE = 2.0**-24
"""u of float32: inputs are moved by no more where the roundings of narrower dtypes are measured by themselves."""

T = TypeVar("T")

SHIFT, LEAST_SHIFT = 16.0, 1e-6
"""Runs are of another program where their mean is apart from the centre by so many times their own scatter, and by this
share of the centre's rms."""

FAR_SHIFT = 1e-2
"""Of the centre's rms: what a single run is moved by less than tells roundings as well as three, for gross errors."""

SOME, EVERY = 1 << 22, 8
"""Of tensors of so many elements, each eighth piece is looked at."""


class Runner(Protocol):
    """Runs a step, on the program as it was before its first call if it takes one; None where that was impossible."""

    def __call__(self, step: Callable[..., T], kind: type[T]) -> T | None:
        """What the step returned, which is of this kind."""
        ...


def measure(reference: Reference, run: Runner, *, few: bool = False) -> list[str]:
    """Fill in the runs of a reference that the noise is taken from; returns what could not be measured.

    `few`: one perturbed run is enough for now, if nothing in the program is narrow, or is moved far by it.
    """
    _measure_undefined(reference, run)
    problems = list(_measure_roundings(reference, run))
    if not problems:
        own = partial(_rounded, run, reference, range(MORE_RUNS), least=0.0)
        reference.further = {**reference.further, "own": [own], "edges": [partial(_at_edges, run, reference)]}
    watched = not problems  # what watches ops changes this program, or ends it

    def wide(seed: int | None, *, rough: bool = False) -> list[Observation] | None:
        step = partial(Program.run_wide, seed=seed, roundoff=reference.moved, rough=rough)
        return _calls(run(step, list[ObservationRecord]), reference)

    centre = wide(None)
    if centre is None:
        return [*problems, "the program could not be run in float64"]

    def moved(seeds: Sequence[int], rough: bool) -> list[list[Observation]]:
        return [calls for seed in seeds if (calls := wide(seed, rough=rough))]

    rough, seeds = watched, range(PERTURBED)
    perturbed = moved(seeds[:1], rough) if few and not reference.rounded else []
    if perturbed and not run(lambda _: _is_shifted_in_any(centre, perturbed, FAR_SHIFT), bool):
        reference.wide, reference.perturbed = centre, perturbed
        later = [partial(moved, more, rough) for more in ([2], [1], MORE_PERTURBED)]
        reference.further = {**reference.further, "perturbed": later}
        return problems
    perturbed += moved(seeds[len(perturbed) :], rough)
    if run(lambda _: _is_another_program(centre, perturbed), bool):
        rough = False
        perturbed = moved(seeds, rough)
    if len(perturbed) == PERTURBED:
        reference.wide, reference.perturbed = centre, perturbed
        reference.further = {**reference.further, "perturbed": [partial(moved, MORE_PERTURBED, rough)]}
    return problems


def explained(reference: Reference, calls: Sequence[Observation], run: Runner, judge: Runner) -> bool:
    """Whether runs in the program's own precision explain all that differs in calls; False says nothing.

    It takes no float64 run; once there are some, they tell. `judge` makes a step in a process of its own. Of three runs
    all are by chance near each other in one element of many thousands: what few numbers they leave open is judged by
    three more.
    """
    if (
        reference.wide is not None
        or reference.roundoff >= NARROW
        or judge(partial(far_off, reference, calls), bool) is not False
    ):
        return False
    if reference.moved_inputs is None:
        reference.moved_inputs = []
        if not _measure_roundings(reference, run) and not reference.rounded and not reference.exact:
            reference.moved_inputs = _moved_inputs(run, reference, range(PERTURBED))
    if not reference.moved_inputs:
        return False
    left = judge(partial(not_moved_as_far, reference, calls), list[Difference])
    numbers = left is not None and not any(d.certain for d in left)
    if left and numbers and len(left) <= ENOUGH and len(reference.moved_inputs) == PERTURBED:
        reference.moved_inputs += _moved_inputs(run, reference, range(PERTURBED, 2 * PERTURBED))
        left = judge(partial(not_moved_as_far, reference, calls, left), list[Difference])
    return left == []


def _moved_inputs(run: Runner, reference: Reference, seeds: range) -> list[list[Observation]]:
    """The program in its own precision, once for each seed; empty if any run made other calls."""
    records = [run(partial(Program.run_moved, seed=seed), list[ObservationRecord]) for seed in seeds]
    found = [_calls(record, reference) for record in records]
    return [calls for calls in found if calls is not None] if all(found) else []


def _measure_undefined(reference: Reference, run: Runner) -> None:
    """Runs in which what torch leaves undefined is done in each way, if anything is."""
    for way in WAYS:
        found = run(partial(Program.run_undefined, way=way), UndefinedRun)
        calls = _calls(found.calls, reference) if found is not None else None
        if calls is not None and found is not None:
            reference.undefined.append(calls)
            reference.left_open = found.met
        elif not reference.undefined:
            return


def _measure_roundings(reference: Reference, run: Runner) -> list[str]:
    """Runs with narrow results rounded anew, a few at once and more where something would be accused without them."""
    if reference.problems is None:
        reference.problems = _roundings(reference, run)
    return reference.problems


def _roundings(reference: Reference, run: Runner) -> list[str]:
    first = run(partial(Program.run_rounded, seed=0), RoundedRun)
    if first is None:
        return ["the noise of the program's own roundings could not be measured"]
    reference.rounds = first.rounds
    calls = _calls(first.calls, reference)
    if calls is None or first.narrowest <= NARROW:
        return []
    runs = [calls, *_rounded(run, reference, range(1, RUNS))]
    if run(lambda _: _is_another_program(reference.eager[0], runs), bool):
        return ["watched op by op, the program computes something else: its own roundings were not measured"]
    reference.rounded, reference.narrowest, reference.moved = runs, first.narrowest, min(reference.roundoff, SINGLE)
    reference.further = {**reference.further, "rounded": [partial(_rounded, run, reference, range(RUNS, MORE_RUNS))]}
    return []


def _rounded(run: Runner, reference: Reference, seeds: range, *, least: float = NARROW) -> list[list[Observation]]:
    runs = (run(partial(Program.run_rounded, seed=seed, least=least), RoundedRun) for seed in seeds)
    return [calls for one in runs if one is not None and (calls := _calls(one.calls, reference))]


def _at_edges(run: Runner, reference: Reference) -> list[list[Observation]]:
    """Runs in the program's own precision, each result rounded anew, and some in which what is near the edge of a
    function is at it; empty where nothing is, so that no rounding is felt more than others are."""
    found: list[EdgeRun] = []
    for seed in (None, *range(RUNS)):
        one = run(partial(Program.run_at_edges, seed=seed), EdgeRun)
        if one is None or len(one.gaps[1]) == 0:
            return []
        found.append(one)
        if seed is None and not from_bytes(*one.gaps).restore():
            return []
    noise = noise_of_gaps([from_bytes(*one.gaps).restore() for one in found])
    if not noise:
        return []
    moved = partial(Program.run_at_edges, seed=None, noise=to_bytes(capture(noise, rng=False)))
    ways = (run(partial(moved, way=way), EdgeRun) for way in (0.0, 1.0, -1.0))
    runs = [*found[1:], *(one for one in ways if one is not None)]
    return [calls for one in runs if (calls := _calls(one.calls, reference))]


def _is_another_program(centre: Sequence[Observation], runs: Sequence[Sequence[Observation]]) -> bool:
    """Whether what watches the runs has changed what they compute: some composite ops take another way then."""
    return len(runs) > 1 and _is_shifted_in_any(centre, runs, LEAST_SHIFT)


def _is_shifted_in_any(centre: Sequence[Observation], runs: Sequence[Sequence[Observation]], least: float) -> bool:
    """Whether any value is shifted in the runs, see `SHIFT`; `least`: by this share of the centre's rms."""
    for i, call in enumerate(centre):
        for part in PARTS:
            for j, value in enumerate(getattr(call, part)):
                others = [o for run in runs for o in getattr(run[i], part)[j : j + 1]]
                alike = is_noisy(value) and all(is_noisy(o) and o.shape == value.shape for o in others)
                if alike and len(others) == len(runs):
                    arrays = [array_from(run) for run in others]
                    if _is_shifted(array_from(value), arrays, least):
                        return True
    return False


def _is_shifted(centre: Array, runs: Sequence[Array], least: float) -> bool:
    count, totals = 0, np.zeros(3)
    flat_centre, flat_runs = flat(centre), [flat(run) for run in runs]
    for low in range(0, centre.size, CHUNK * (1 if centre.size < SOME else EVERY)):
        part = slice(low, low + CHUNK)
        middle = widen(flat_centre[part])
        stacked = np.stack([run[part] for run in flat_runs], dtype=middle.dtype)
        with np.errstate(invalid="ignore"):  # the same infinity in both
            stacked -= middle
        finite = np.isfinite(stacked).all(axis=0)
        if not finite.all():
            middle, stacked = middle[finite], stacked[:, finite]
        count += middle.size
        mean = stacked.mean(axis=0)
        stacked -= mean
        totals += [_squares(mean), _squares(stacked) / len(stacked), _squares(middle)]
    gap, scatter, size = np.sqrt(totals / max(1, count))
    return bool(gap > SHIFT * scatter + least * size)


def _squares(values: Array) -> float:
    return float(np.vdot(values, values).real)


def _calls(records: list[ObservationRecord] | None, reference: Reference) -> list[Observation] | None:
    """The calls of a run, if it made all that the uncompiled program makes, and none raised."""
    calls = [read(record) for record in records or ()]
    whole = bool(calls) and len(calls) == len(reference.eager[0])
    return calls if whole and all(call.raised is None for call in calls) else None
