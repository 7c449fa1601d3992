"""Holds two trainings against each other by their observations: how fast they part, and the first step that jumps."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from graphprobe.store.watch_file import Drift, Figure, Growth, StepObservation

Steps = Sequence[StepObservation]

PARTED = 0.1
"""Relative deviation of the gradients from which on runs are apart: then it grows no more."""

FAR, JUMP = 64.0, 1000.0
"""How many times what the moved runs show, or without these what the run has shown before, is outside."""

LEAST, LASTS, WARM = 1e-4, 3, 8
"""Relative deviation below which nothing is outside; how many steps it has to be; steps before which none is."""

ANOTHER_LOSS, ANOTHER_SIZE = 0.02, 1e-4
"""Relative difference of the first loss, and of the norm of a parameter before it, that no rounding makes."""


def why_other(a: Steps, b: Steps) -> str:
    """Why these are no two runs of the same training, in words; empty if they may be."""
    if not a or not b:
        return f"the {'first' if not a else 'second'} run has no step of an optimizer"
    first, second = a[0], b[0]
    if first.names != second.names:
        return "they train other parameters"
    for name, x, y in zip(first.names, first.sizes, second.sizes, strict=True):
        if _apart(x, y) > ANOTHER_SIZE:
            return f"{name} differs before the first step: its norm is {_told(x)}, and {_told(y)}; other seeds?"
    if first.data and second.data and first.data != second.data:
        return "the data of step 1 differs"
    if _apart(first.loss, second.loss) > ANOTHER_LOSS:
        what = "data, random numbers or settings"
        return f"the loss of step 1 is {_told(first.loss)}, and {_told(second.loss)}: {what} differ"
    return ""


def data_differs_at(a: Steps, b: Steps) -> int | None:
    """The first step that the two runs take on other data, None where there is none, or it was not observed."""
    pairs = zip(a, b, strict=False)
    return next((x.step for x, y in pairs if x.data and y.data and x.data != y.data), None)


def deviations(a: Steps, b: Steps) -> list[float]:
    """Of each step, the median of the relative differences of loss and gradients."""
    pairs = zip(a, b, strict=False)
    return [statistics.median([apart for _, apart in _each(x, y)] or [0.0]) for x, y in pairs]


def growth_of(sizes: Sequence[float]) -> Growth | None:
    """By what factor a deviation grows each step until the runs are apart; None where that cannot be told.

    The slope of its logarithm by least squares. Neighbours are alike, so the error counts as many steps as are
    independent of each other (by the correlation of neighbouring residuals).
    """
    until = next((i for i, size in enumerate(sizes) if size >= PARTED), len(sizes))
    points = [(i, math.log(size)) for i, size in enumerate(sizes[:until]) if size > 0]
    if len(points) < WARM:
        return None
    slope, start = statistics.linear_regression(*zip(*points, strict=True))
    left = [y - start - slope * x for x, y in points]
    squares = sum(one * one for one in left)
    alike = sum(x * y for x, y in itertools.pairwise(left)) / squares if squares else 0.0
    alike = min(0.95, max(0.0, alike))
    count = max(3.0, len(points) * (1 - alike) / (1 + alike))
    middle = statistics.fmean(x for x, _ in points)
    spread = statistics.fmean((x - middle) ** 2 for x, _ in points)
    error = math.sqrt(squares / len(points) / spread / (count - 2))
    return Growth(factor=math.exp(slope), error=math.exp(slope) * error)


def first_outside(a: Steps, b: Steps, moved: Sequence[Steps]) -> tuple[int, str] | None:
    """The first step in which `b` leaves `a` faster than rounding lets it, and what does; None where there is none.

    What the moved runs, or without these the run itself, have shown in any earlier step is legitimate.
    """
    legitimate: dict[str, float] = {}
    outside = Counter[str]()
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        for other in (run[i] for run in moved if len(run) > i):
            for name, apart in _each(x, other):
                legitimate[name] = max(legitimate.get(name, 0.0), apart)
        factor, now = FAR if moved else JUMP, dict(_each(x, y))
        for name, apart in now.items():
            out = i >= WARM and apart > max(LEAST, factor * legitimate.get(name, math.inf))
            outside[name] = outside[name] + 1 if out else 0
            if not (moved or out):
                legitimate[name] = max(legitimate.get(name, 0.0), apart)
        lasting = [name for name, count in outside.items() if count >= LASTS]
        if lasting:
            named = max(lasting, key=lambda name: (name.startswith("gradient of"), now.get(name, 0.0)))
            return a[i - LASTS + 1].step, named
    return None


def held_together(a: Steps, b: Steps) -> Drift:
    """What became of two given runs."""
    if why := why_other(a, b):
        return Drift(verdict="other", sentence=f"these are not two runs of one training: {why}")
    steps, notes = min(len(a), len(b)), []
    if (other := data_differs_at(a, b)) is not None:
        notes.append(f"the data of step {other} differs; the steps before it were compared")
        steps = other - 1
    a, b = a[:steps], b[:steps]
    found, sizes = first_outside(a, b, ()), deviations(a, b)
    growth = growth_of(sizes)
    drift = Drift(verdict="rounding", sentence="", steps=steps, growth=growth, deviations={"b": sizes}, notes=notes)
    if found is None:
        drift.sentence = f"the runs part as rounding lets them, over {steps} steps"
    else:
        drift.verdict, (drift.step, drift.what) = "leaves", found
        drift.sentence = f"in step {found[0]} the {found[1]} leaves what rounding had done until then"
    return drift


def ranks_part(runs: Mapping[int, Steps]) -> Drift:
    """At which step the parameters of the ranks of one run part, by their digests, and which rank is alone."""
    seen = {
        rank: {s.step: dict(zip(s.names, s.digests, strict=True)) for s in steps if s.names}
        for rank, steps in runs.items()
    }
    common = sorted(set.intersection(*(set(steps) for steps in seen.values())))
    ranks = ", ".join(map(str, sorted(runs)))
    before = 0
    for step in common:
        names = dict.fromkeys(name for steps in seen.values() for name in steps[step])
        for name in names:
            digests = {rank: steps[step].get(name, "") for rank, steps in seen.items()}
            count = Counter(digests.values())
            if len(count) == 1:
                continue
            usual = count.most_common(1)[0]
            alone = [rank for rank, digest in digests.items() if digest != usual[0]] if usual[1] > len(runs) / 2 else []
            who = f"; rank {', '.join(map(str, alone))} is alone" if alone else ""
            since = f"between step {before} and step {step}" if before else f"before step {step}"
            sentence = f"the ranks part {since}, in {name}{who}"
            return Drift(verdict="leaves", sentence=sentence, step=step, what=name, steps=len(common))
        before = step
    if not common:
        return Drift(verdict="undecided", sentence=f"ranks {ranks} observed no step in common with each parameter")
    return Drift(
        verdict="rounding",
        sentence=f"ranks {ranks} hold the same parameters in each of {len(common)} steps",
        steps=len(common),
    )


def _each(x: StepObservation, y: StepObservation) -> Iterator[tuple[str, float]]:
    """The relative difference of each figure that both steps have."""
    if x.loss is not None and y.loss is not None:
        yield "loss", _apart(x.loss, y.loss)
    if x.norm is not None and y.norm is not None:
        yield "norm of all gradients", _apart(x.norm, y.norm)
    others = dict(zip(y.names, y.gradients, strict=True))
    for name, size in zip(x.names, x.gradients, strict=True):
        if name in others:
            yield f"gradient of {name}", _apart(size, others[name])


def _apart(x: Figure | None, y: Figure | None) -> float:
    if not (isinstance(x, float | int) and isinstance(y, float | int)):
        return 0.0 if x == y else 1.0
    return abs(x - y) / max(abs(x), abs(y)) if x != y else 0.0


def _told(value: Figure | None) -> str:
    return f"{value:.6g}" if isinstance(value, float | int) else str(value)
