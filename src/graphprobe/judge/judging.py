"""Compares an observed call with the uncompiled one, and lists differences that rounding does not explain."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np
import torch

from graphprobe.engine.forked_child import doing
from graphprobe.engine.reference import array_from, dtype_of, is_noisy
from graphprobe.engine.rounding import FAR, RUNS, judge_narrow, of_few, roundings_apart
from graphprobe.engine.undefined import chosen
from graphprobe.engine.value_file import is_stored_once
from graphprobe.engine.values import equal_bits
from graphprobe.errors import Raised
from graphprobe.findings import Kind, Worst
from graphprobe.judge.effects import differing
from graphprobe.judge.observation import Observation
from graphprobe.judge.uncompiled import Asked, Reference, Spot
from graphprobe.judge.worst import tells, worst_exact, worst_number, worst_scalar
from graphprobe.numerics.divergence import RunValues
from graphprobe.numerics.noise import CHUNK, Array, Noise, flat, sigma_from_runs, widen
from graphprobe.numerics.verdict import judge, judge_exact, judge_unrounded, off_alone, tolerated

Weight = Literal["certain", "unsure", "better", "undefined"]
"""`unsure`: it differs, and cannot be judged. `better`: the uncompiled program is the one that is further off.
`undefined`: it differs only where torch leaves open what comes out."""

EXCUSED: tuple[Weight, ...] = ("better", "undefined")
"""They do not count."""

PARTS = ("outputs", "inputs", "gradients")
"""Of a call."""

ENOUGH = 8
"""Numbers of one part of a call that are certainly wrong, after which the others need not be judged, too: one, of any
part, where perturbed runs are few. More that moved inputs do not explain are left to the float64 run."""

UNSTEADY = "the uncompiled program gives another value each time it runs"

DOUBTFUL = 64.0
"""How much too large a statistic may be because three runs by chance are near each other: then more are made."""

SURE_OF_CHANCE = 8
"""Runs that are enough to tell by one that is alone what chance does."""

WEIGHTS: dict[str, Weight] = {"worse": "certain", "unsure": "unsure", "better": "better"}

DECIDED = "a rounding decides which elements are finite"

TOO_FAR = "its rounding may be larger than its values"

UNEXPLAINED = "and no rounding explains what it is uncompiled"

OTHER_RMS, OTHER_MOVES = 1e-3, 32.0
"""The float64 run is of another program if it is apart from the uncompiled one by this relative rms, and by so many
times what perturbed inputs or other roundings move."""


class Difference(msgspec.Struct, frozen=True):
    """One way in which a call differs from the uncompiled one.

    Attributes:
        kind: of the finding it becomes.
        call: number of the call.
        where: `outputs[0]`, `inputs[2]`, `gradients[1]`, the name of what a side effect is to, or empty.
        text: with figures.
        z: largest error in units of noise; inf for what is no number.
        weight: whether it counts.
        worst: the worst element of values that differ; None where no values are compared, and in what comes after the
            first certain difference.
        log: what was raised, whole, for a report; empty where nothing was.
    """

    kind: Kind
    call: int
    where: str
    text: str
    z: float = float("inf")
    weight: Weight = "certain"
    worst: Worst | None = None
    log: str = ""

    @property
    def certain(self) -> bool:
        """Whether it is wrong beyond doubt."""
        return self.weight == "certain"


def worst_of(differences: Sequence[Difference]) -> Worst | None:
    """The worst element of the first difference that counts; None if that one is not of values."""
    first = next((d for d in differences if d.certain), None)
    return first.worst if first is not None else None


def log_of(differences: Sequence[Difference]) -> str:
    """What the first difference that counts has raised; empty if that one is no exception."""
    first = next((d for d in differences if d.certain), None)
    return first.log if first is not None else ""


def identical(reference: Reference, got: Sequence[Observation]) -> bool:
    """Whether every call is bit for bit as uncompiled, so that nothing has to be judged."""
    eager = reference.eager[0]
    return len(eager) == len(got) and all(_same(reference, i, call) for i, call in enumerate(got))


def _same(reference: Reference, call: int, got: Observation) -> bool:
    eager = reference.eager[0][call]
    if eager.raised is not None or got.raised is not None:
        return eager.raised is not None and got.raised is not None
    if eager.shared != got.shared or eager.structure != got.structure or any(_effects(reference, call, got)):
        return False
    # Layouts count where the user sees them.
    return all(_all_equal(getattr(eager, part), getattr(got, part), stride=part == "outputs") for part in PARTS)


def far_off(reference: Reference, got: Sequence[Observation]) -> bool:
    """Whether any number is off by more than roundings usually add up to, see `FAR`."""
    return any(
        not is_stored_once(expected, mine, j) and roundings_apart(expected[j], mine[j]) > FAR
        for eager, call in zip(reference.eager[0], got, strict=False)
        for expected, mine in ((getattr(eager, part), getattr(call, part)) for part in PARTS)
        for j in range(min(len(expected), len(mine)))
    )


def not_moved_as_far(
    reference: Reference, got: Sequence[Observation], only: Sequence[Difference] = ()
) -> list[Difference]:
    """What differs, but for numbers that inputs two roundings off move as far; no more than it takes to give up.

    Numbers are unsure, all else is certain. `only`: look at the numbers of these alone.
    """
    look = _Look(None, doing, only_moved=True, only={(d.call, d.where) for d in only})
    found: list[Difference] = []
    for difference in (d for i, call in enumerate(got) for d in _compare_call(reference, i, call, look)):
        found.append(difference)
        if difference.certain or len(found) > ENOUGH:
            break
    return found


def _all_equal(expected: Sequence[Any], mine: Sequence[Any], *, stride: bool) -> bool:
    """Whether two lists hold the same bits, one pair in memory at a time."""
    return len(expected) == len(mine) and all(
        is_stored_once(expected, mine, j) or equal_bits(expected[j], mine[j], stride=stride)
        for j in range(len(expected))
    )


def compare(
    reference: Reference,
    got: Sequence[Observation],
    *,
    better: list[Difference] | None = None,
    enough: int | None = None,
    tell: Callable[[str], None] = lambda what: None,
) -> list[Difference]:
    """Every difference, call by call; empty when all are as they should be.

    `better` gets those in which the uncompiled program is the one that is further off, or that torch leaves open;
    `tell` what is being judged. Where `enough` numbers of the outputs, inputs or gradients of a call are certainly
    wrong, those that follow are looked at for dtype, shape and strides only. The first certain difference, and those
    before it, have their worst element.
    """
    found: list[Difference] = []
    look = _Look(enough, tell)
    for i, result in enumerate(got):
        for difference in _compare_call(reference, i, result, look):
            found.append(difference)
            look.for_worst = look.for_worst and not difference.certain
    if better is not None:
        better += [d for d in found if d.weight in EXCUSED]
    return [d for d in found if d.weight not in EXCUSED]


@dataclass
class _Look:
    """How closely values are looked at: see `compare`.

    Attributes:
        for_worst: for the worst element of what differs, too.
        only_moved: numbers are right only if moved inputs move them as far, see `Reference.moved_inputs`.
        only: calls and places whose numbers are looked at; empty: all.
    """

    enough: int | None
    tell: Callable[[str], None]
    for_worst: bool = True
    only_moved: bool = False
    only: Collection[tuple[int, str]] = ()


class Judged(msgspec.Struct):
    """What `judged` sends back from a process of its own.

    Attributes:
        differences, better: as of `compare`.
        asks: which runs of the reference are needed first; empty: none.
    """

    differences: list[Difference] = []
    better: list[Difference] = []
    asks: Asked | Literal[""] = ""


class _MoreRuns(Exception):
    """Somebody has asked for further runs."""

    def __init__(self, which: Asked) -> None:
        super().__init__(which)
        self.which = which


def judged(reference: Reference, got: Sequence[Observation], *, doubting: bool = False) -> Judged:
    """As `compare`, but that no further runs are made.

    `doubting`: runs that are few are enough only to say that something is wrong.
    """

    def ask(which: Asked) -> list[list[Observation]]:
        raise _MoreRuns(which)

    found = Judged()
    try:
        asking = replace(
            reference, further={which: [partial(ask, which)] * len(left) for which, left in reference.further.items()}
        )
        found.differences = compare(asking, got, better=found.better, enough=ENOUGH, tell=doing)
        if doubting and reference.few and not any(d.certain for d in found.differences):
            found.asks = "perturbed"
    except _MoreRuns as asked:
        found.asks = asked.which
    return found


def _compare_call(reference: Reference, i: int, got: Observation, look: _Look) -> Iterator[Difference]:
    eager = reference.eager[0][i]
    if eager.raised is not None or got.raised is not None:
        yield from _exceptions(eager.raised, got.raised, i)
        return
    for part in PARTS:
        expected, mine = getattr(eager, part), getattr(got, part)
        if len(expected) != len(mine):
            kind: Kind = "wrong_gradient" if part == "gradients" else "wrong_shape"
            yield Difference(kind, i, part, f"{len(mine)} {part}, uncompiled {len(expected)}")
            continue
        wrong = 0
        for j in range(len(expected)):
            look.tell(f"judging {part}[{j}] of {len(expected)}")
            if is_stored_once(expected, mine, j):
                continue
            closely = look.for_worst or not reference.few
            numbers = look.enough is None or (closely and wrong < look.enough)
            for difference in _compare_value(Spot(reference, i, part, j), expected[j], mine[j], look, numbers=numbers):
                wrong += difference.certain and is_noisy(expected[j])
                yield difference
    yield from _containers(reference, i, got)
    if eager.shared != got.shared:
        lost, new = eager.shared - got.shared, got.shared - eager.shared
        what = [f"outputs that no longer share memory: {len(lost)}"] if lost else []
        what += [f"outputs that now share memory: {len(new)}"] if new else []
        yield Difference("aliasing", i, "outputs", "; ".join(what))
    yield from _effects(reference, i, got)


def _containers(reference: Reference, call: int, got: Observation) -> Iterator[Difference]:
    """Other types of lists, tuples and dicts, or other keys, around the same values."""
    runs = [run[call].structure for run in reference.eager]
    known = bool(runs[0]) and bool(got.structure) and len(got.outputs) == len(reference.eager[0][call].outputs)
    if known and got.structure != runs[0] and len(set(runs)) == 1:
        yield Difference("wrong_value", call, "outputs", f"returned {got.structure:.80}, uncompiled {runs[0]:.80}")


def _effects(reference: Reference, call: int, got: Observation) -> Iterator[Difference]:
    """What the call has left otherwise in lists, counters, attributes, globals and generators."""
    runs = [run[call] for run in reference.eager if run[call].effects is not None]
    if not runs or got.effects is None:
        return
    (before, after), others = runs[0].effects or ({}, {}), [run.effects[1] for run in runs[1:] if run.effects]
    for effect in differing(before, after, got.effects[1], others, compiled_before=got.effects[0]):
        text = f"{effect.got}, uncompiled {effect.expected}"
        yield Difference("side_effect", call, effect.where, text)


def _exceptions(eager: Raised | None, got: Raised | None, call: int) -> Iterator[Difference]:
    if got is None and eager is not None:
        text = f"uncompiled it raises {eager.short}; compiled it does not"
        yield Difference("missing_exception", call, "", text)
    elif got is not None and eager is None:
        kind: Kind = "crash_compile" if got.while_compiling else "crash_runtime"
        yield Difference(kind, call, "", got.short, log=got.log)


def _compare_value(spot: Spot, e: Any, m: Any, look: _Look, *, numbers: bool) -> Iterator[Difference]:
    call, where = spot.call, spot.where
    if not isinstance(e, torch.Tensor) or not isinstance(m, torch.Tensor):
        if (e is not None or m is not None) and not equal_bits(e, m) and not spot.unsteady():
            kind: Kind = "wrong_gradient" if spot.part == "gradients" else "wrong_value"
            worst = worst_scalar(spot.label, e, m)
            yield Difference(kind, call, where, f"{spot.label} is {_brief(m)}, uncompiled {_brief(e)}", worst=worst)
        return
    if e.dtype == torch.float64 and e.dim() == 0 and spot.unsteady():
        return
    if e.dtype != m.dtype:
        yield Difference("wrong_dtype", call, where, f"dtype {m.dtype}, uncompiled {e.dtype}")
        return
    if e.shape != m.shape:
        yield Difference("wrong_shape", call, where, f"shape {tuple(m.shape)}, uncompiled {tuple(e.shape)}")
        return
    if spot.part == "outputs" and strides(e) != strides(m):
        yield Difference("wrong_stride", call, where, f"stride {m.stride()}, uncompiled {e.stride()}")
    if equal_bits(e, m) or (is_noisy(e) and not numbers) or (look.only and (call, where) not in look.only):
        return
    if is_noisy(e) and spot.reference.moved_inputs and _is_moved_as_far(spot, e, m):
        return
    if look.only_moved:
        weight: Weight = "unsure" if is_noisy(e) else "certain"
        yield Difference(_kind_of_value(spot, e, m), call, where, "moved inputs do not move it as far", weight=weight)
        return
    judge_value = _judge_numbers if is_noisy(e) else _judge_exact
    answer = judge_value(spot, e, m)
    if answer is not None and answer.weight == "certain" and spot.reference.make("edges"):
        answer = judge_value(spot, e, m)
    if answer is not None and answer.weight not in EXCUSED and (open_ := spot.undefined()) is not None:
        m = chosen(open_, e, m)
        answer = None if equal_bits(e, m) else judge_value(spot, e, m)
        answer = answer or ValueDifference("undefined", "; ".join(spot.reference.left_open) or DECIDED)
    if answer is not None:
        worst = _worst(spot, e, m) if look.for_worst and answer.weight not in EXCUSED else None
        if worst is not None and not math.isfinite(worst.off) and not tells(worst):
            answer = replace(answer, weight="unsure", text=f"{answer.text}; {TOO_FAR}")
        yield Difference(_kind_of_value(spot, e, m), call, where, answer.text, answer.z, answer.weight, worst)


def _worst(spot: Spot, e: torch.Tensor, m: torch.Tensor) -> Worst:
    if not is_noisy(e):
        return worst_exact(spot.label, e, m)
    reference = spot.reference
    wide = _float64(spot, e)
    known = not reference.exact and (wide is not None or bool(spot.arrays(reference.rounded)))
    return worst_number(spot.label, e, m, wide, spot.sigma(wide) if known else None)


def _float64(spot: Spot, e: torch.Tensor) -> Array | None:
    """What the float64 run gives in this place; None if it says nothing about the program."""
    wide = spot.array(spot.reference.wide)
    return None if wide is None or wide.shape != tuple(e.shape) or _is_another(spot, wide, array_from(e)) else wide


def strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides that address something."""
    if tensor.numel() == 0:
        return ()
    return tuple(step if size > 1 else 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _kind_of_value(spot: Spot, e: torch.Tensor, m: torch.Tensor) -> Kind:
    if spot.part == "gradients":
        return "wrong_gradient"
    before = spot.before()
    if isinstance(before, torch.Tensor) and before.shape == m.shape and equal_bits(before, m):
        return "lost_mutation"
    if is_noisy(e) and not all(torch.equal(test(e), test(m)) for test in (torch.isfinite, torch.isnan)):
        return "nonfinite"
    return "wrong_value"


@dataclass(frozen=True)
class ValueDifference:
    """How two values differ; there is none where rounding explains it."""

    weight: Weight
    text: str
    z: float = float("inf")


def _judge_exact(spot: Spot, e: torch.Tensor, m: torch.Tensor) -> ValueDifference | None:
    """Whole numbers and truth values: they may differ only where roundings decide them."""
    wrong = (e.cpu() != m.cpu()).cpu()
    wide = spot.of(spot.reference.wide)
    if isinstance(wide, torch.Tensor) and wide.shape == e.shape and bool((wide.cpu() == m.cpu())[wrong].all()):
        own = [spot.of(run) for run in spot.reference.rounded or spot.reference.in_own_precision()]
        if not own or any(bool((run.cpu() != e.cpu())[wrong].any()) for run in own if isinstance(run, torch.Tensor)):
            return ValueDifference("better", "without the roundings of the program, it is as compiled")
        return ValueDifference("unsure", f"in float64 it is as compiled, {UNEXPLAINED}")
    reference = spot.reference
    runs = [*reference.perturbed, *reference.rounded, *reference.edges, *reference.eager[1:], reference.wide]
    values = [v for run in runs if isinstance(v := spot.of(run), torch.Tensor) and v.shape == e.shape]
    moved = [(value.cpu() != e.cpu()).cpu() for value in values]
    times = sum(moved, torch.zeros(e.shape, dtype=torch.int64))
    never = int((wrong & (times == 0)).sum())
    known = np.isin(array_from(m.cpu()[wrong]), np.concatenate([array_from(v).reshape(-1) for v in (e, *values)])).all()
    if spot.reference.roundoff > 0 and not never:
        if spot.unsteady():
            return ValueDifference("unsure", UNSTEADY)
        if known:
            return None
        return ValueDifference("unsure", "a rounding decides it, and no uncompiled run gave what it is compiled")
    sensible = bool(times.any()) or (spot.reference.rounds and not spot.reference.few)
    if sensible and spot.reference.make("perturbed"):
        return _judge_exact(spot, e, m)
    alone = max((int((one & (times == 1)).sum()) for one in moved), default=0)
    if known and 0 < never <= alone and len(values) >= SURE_OF_CHANCE and not spot.unsteady():
        return None  # which elements change is a matter of chance, and a run is alone in as many
    text = judge_exact(array_from(m), array_from(e)).reason
    return ValueDifference("unsure", f"{UNSTEADY}; {text}") if spot.unsteady() else ValueDifference("certain", text)


def _judge_numbers(spot: Spot, e: torch.Tensor, m: torch.Tensor) -> ValueDifference | None:
    """Floating-point and complex numbers: in units of the noise of each element."""
    reference, facts = spot.reference, dtype_of(e)
    if reference.exact:
        return _judge_unrounded(spot, e, m)
    values, wide = spot.arrays(spot.eager_runs()), _float64(spot, e)
    runs = spot.arrays(reference.perturbed if wide is not None else [])
    if spot.arrays(reference.rounded):
        return _judge_narrow(spot, m, wide, runs)
    if wide is None:
        unjudged = _without_reference(e, m, reference.roundoff)
        if unjudged is not None and not reference.draws and spot.arrays(reference.in_own_precision()):
            return _judge_by_own(spot, m)
        unsteady = unjudged is not None and unjudged.weight == "certain" and spot.unsteady()
        return ValueDifference("unsure", UNSTEADY) if unsteady else unjudged
    noise = Noise(spot.sigma(wide) / facts.unit_roundoff)
    legitimate, limits = [RunValues(array, facts) for array in values], tolerated(facts)
    legitimate += [RunValues(array, facts) for array in spot.arrays(reference.edges[:RUNS])]
    answer = judge(RunValues(array_from(m), facts), wide, noise, legitimate, thresholds=limits, flush=True, brief=True)
    if answer.answer == "candidate_worse" and answer.statistic != "class":
        unit = min(reference.moved, facts.unit_roundoff)
        alone = None if reference.few else off_alone(array_from(m), wide, runs, facts, unit, limits)
        if (answer.excess < DOUBTFUL or alone is not None) and reference.make("perturbed"):
            return _judge_numbers(spot, e, m)
        if alone is not None and len(runs) >= SURE_OF_CHANCE:
            others = RunValues(np.where(alone, wide, array_from(m)), facts)
            answer = judge(others, wide, noise, legitimate, thresholds=limits, flush=True, brief=True)
    if answer.answer == "candidate_better":
        return ValueDifference("better", answer.reason)
    if answer.answer != "candidate_worse":
        return None
    z = answer.candidate.max if answer.candidate.max else float("inf")
    itself = spot.unsteady() and any(
        judge(run, wide, noise, legitimate[:1], thresholds=limits, flush=True, brief=True).answer == "candidate_worse"
        for run in legitimate[1 : len(values)]
    )
    return (
        ValueDifference("unsure", f"{UNSTEADY}; {answer.reason}", z)
        if itself
        else ValueDifference("certain", answer.reason, z)
    )


def _is_moved_as_far(spot: Spot, e: torch.Tensor, m: torch.Tensor) -> bool:
    runs, facts, centre = spot.arrays(spot.reference.moved_inputs or ()), dtype_of(e), array_from(e)
    if not runs or any(run.shape != centre.shape for run in runs):
        return False
    noise = Noise(of_few(sigma_from_runs(centre, runs, 2 * facts.unit_roundoff), len(runs)))
    answer = judge(RunValues(array_from(m), facts), centre, noise, thresholds=tolerated(facts), flush=True, brief=True)
    return answer.answer == "ok"


def _judge_unrounded(spot: Spot, e: torch.Tensor, m: torch.Tensor) -> ValueDifference | None:
    """Numbers that no operator of the program rounds: each has to be there as it is."""
    got, wide = RunValues(array_from(m), dtype_of(m)), spot.array(spot.reference.wide)
    answer = judge_unrounded(got, array_from(e))
    if answer.answer == "ok":
        return None
    if wide is not None and wide.shape == tuple(m.shape) and judge_unrounded(got, wide).answer == "ok":
        return ValueDifference("unsure", f"in float64 it is as compiled, {UNEXPLAINED}; {answer.reason}")
    if spot.unsteady():
        return ValueDifference("unsure", f"{UNSTEADY}; {answer.reason}")
    return ValueDifference("certain", f"{answer.reason}; no operator of this program rounds")


def _judge_narrow(
    spot: Spot, m: torch.Tensor, wide: Array | None, perturbed: Sequence[Array]
) -> ValueDifference | None:
    """Numbers of a program that rounds to a narrow dtype somewhere; nothing is accused before more runs are made."""
    reference = spot.reference
    eager = [value for run in reference.eager if isinstance(value := spot.of(run), torch.Tensor)]

    def answer(rounded: Sequence[Sequence[Observation]]) -> tuple[str, str, float]:
        return judge_narrow(m, eager, wide, perturbed, spot.arrays(rounded), reference.narrowest)

    said, text, z = answer(reference.rounded[:RUNS])
    if said in ("worse", "unsure"):
        reference.make("rounded")
        said, text, z = answer(reference.rounded)
    return None if said == "ok" else ValueDifference(WEIGHTS[said], text, z)


def _judge_by_own(spot: Spot, m: torch.Tensor) -> ValueDifference | None:
    """Numbers that the float64 run says nothing about. Sums are made in any order, which these runs do not show: what
    they would accuse is certain only where it is far beyond them. What is as the float64 run may be right."""
    reference = spot.reference
    eager = [value for run in reference.eager if isinstance(value := spot.of(run), torch.Tensor)]
    facts, wide, own = dtype_of(eager[0]), spot.array(reference.wide), spot.arrays(reference.own)
    said, text, z = judge_narrow(m, eager, None, [], own, facts.unit_roundoff)
    if said not in ("worse", "unsure"):
        return None
    if wide is not None and wide.shape == tuple(m.shape):
        noise = Noise(spot.sigma(wide) / facts.unit_roundoff)
        alike = judge(RunValues(array_from(m), facts), wide, noise, thresholds=tolerated(facts), flush=True, brief=True)
        if alike.answer != "candidate_worse":
            return ValueDifference("unsure", f"in float64 it is as compiled, {UNEXPLAINED}; {text}", z)
    centre, got = array_from(eager[0]), array_from(m)
    gap, size = _apart([got], centre, got)
    scatter, _ = _apart(own, centre, got)
    same = all(np.array_equal(test(centre), test(got)) for test in (np.isnan, np.isinf))
    far = said == "worse" and (gap > max(OTHER_RMS * size, OTHER_MOVES * scatter) or not same)
    return ValueDifference("certain" if far else "unsure", text, z)


def _apart(runs: Sequence[Array], centre: Array, other: Array) -> tuple[float, float]:
    """The largest rms by which a run is off, and the rms of the centre: where the centre and the other are finite."""
    largest, size = 0.0, 0.0
    for run in runs:
        sums, count = np.zeros(2), 0
        for low in range(0, centre.size, CHUNK):
            part = slice(low, low + CHUNK)
            middle = widen(flat(centre)[part])
            with np.errstate(invalid="ignore"):  # the same infinity in both
                step = widen(flat(run)[part]) - middle
            finite = np.isfinite(middle) & np.isfinite(flat(other)[part])
            if not (finite.all() and np.isfinite(step).all()):
                middle, step = middle[finite], np.nan_to_num(step[finite], posinf=0, neginf=0)
            sums += [np.vdot(step, step).real, np.vdot(middle, middle).real]
            count += step.size
        off, size = np.sqrt(sums / max(1, count))
        largest = max(largest, float(off))
    return largest, float(size)


def _is_another(spot: Spot, wide: Array, eager: Array) -> bool:
    """Whether the float64 run computes something else than the program, so that it says nothing about it: it drew
    other numbers, or something hangs on the dtype, or on which tensors these are."""
    reference = spot.reference
    gap, size = _apart([eager], wide, eager)
    size = size or _apart([wide], eager, wide)[1]
    if size == 0.0 or gap <= OTHER_RMS * size:
        return False
    moved, _ = _apart(spot.arrays(reference.perturbed), wide, eager)
    if gap <= OTHER_MOVES * max(moved, reference.roundoff * size):
        return False
    own = spot.arrays([] if reference.draws else reference.rounded or reference.in_own_precision())
    return reference.draws or (bool(own) and gap > OTHER_MOVES * _apart(own, eager, wide)[0])


def _without_reference(e: torch.Tensor, m: torch.Tensor, roundoff: float) -> ValueDifference | None:
    """Only the class of each element is certain."""
    e, m = (torch.view_as_real(one.resolve_conj()) if one.is_complex() else one for one in (e, m))
    e, m = (one.float() if one.dtype.itemsize < torch.float32.itemsize else one for one in (e, m))
    off, size = (float(torch.linalg.vector_norm(one, dtype=torch.float64)) for one in (m - e, e))
    if not math.isfinite(off + size):
        if not all(torch.equal(of(e), of(m)) for of in (torch.isnan, torch.isposinf, torch.isneginf)):
            text = "NaN or infinity where the uncompiled program has a number, or the reverse"
            return ValueDifference("certain", text)
        finite = torch.isfinite(e)
        if not finite.any():
            return None
        e, m = e[finite].double(), m[finite].double()
        largest = max(e.abs().max(), m.abs().max())
        return _without_reference(e / largest, m / largest, roundoff)
    gap = off / max(size, 1e-300)
    if gap <= 256 * roundoff:
        return None
    text = f"relative rms difference {gap:.3g}; there is no float64 reference to judge it by"
    return ValueDifference("unsure", text, gap / roundoff)


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {tuple(value.shape)}"
    return repr(value)[:80]
