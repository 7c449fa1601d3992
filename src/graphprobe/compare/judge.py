"""Measures every pair of slots of one pair of calls, without saying whose fault a difference is.

One run may have in parts what the other has whole: each of several ranks a part of a batch or weight, or a step its
batch in several parts, whose gradients add up.
"""

from __future__ import annotations

import ast
import functools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from graphprobe.compare.bitwise import DIGESTS
from graphprobe.compare.measures import (
    EQUAL,
    Measures,
    measure_statistics,
    measure_values,
    noise_unit,
)
from graphprobe.compare.outline import OUTPUT_ROLES, UNWRITTEN, Outline, role_of
from graphprobe.compare.result import CallName, CallResult, FindingKind, LocalTruth, Origin, Rule, SlotResult, Verdict
from graphprobe.compare.slots import (
    is_default,
    is_weight_by_name,
    of_node,
    pair_slots,
    same_names,
    scalar_difference,
    side_of,
)
from graphprobe.errors import ArtifactNotFoundError, SchemaError
from graphprobe.numerics.dtypes import DTYPES
from graphprobe.store.calls import Call, CallDump, CallSlot

INPLACE = "kwarg.inplace"
"""An argument that decides where a result is written, and nothing about its values."""

CACHED = 4096
"""Measured pairs of values that are remembered: an output is measured again as the next call's input."""

OWN_DTYPE = "in the dtype of the tensor"
"""What `facts["statistics"]` of a dump says where the reductions ran in each tensor's own dtype."""

SPLIT = 0.6
"""Share of the calls that must be there several times, with other shapes, for the batch of a step to count as split."""

FAR_OFF = 64.0
"""Units of noise from which data that is not of the first step is other data, and not what training made of it."""

UNEVEN = 0
"""In place of the number of parts: two ranks of one number of ranks, whose parts need not be of one size."""


class Replayer(Protocol):
    """Calls an operation again, in float64; `compare` itself knows no torch."""

    def truth(self, dump: CallDump, call: Call, forward: Call | None, arguments: Call) -> LocalTruth:
        """Judges what `call` recorded as its outputs.

        Args:
            dump: where the call is from.
            call: with values of its inputs and outputs.
            forward: of a backward, the call it belongs to.
            arguments: the call of the other side whose non-tensor arguments are to be used: its forward, of a backward.
        """
        ...


class Task(msgspec.Struct, kw_only=True, gc=False):
    """One pair to be judged.

    Attributes:
        places: the numbers of the two calls in their sequences, from 0.
        producers: for each slot of the candidate's call and of the reference's, which call gave it; see `Outline`.
        forward: of a backward: the candidate's and the reference's forward call, where they are known.
        strict_state: state must agree but for rounding; not so after a step of training.
        parts: into how many the step splits its batch on one side; 1 for a step that is whole on both.
    """

    number: int
    rank: int
    step: int
    rule: Rule
    candidate: Call
    reference: Call
    producers: tuple[tuple[int, ...], tuple[int, ...]]
    places: tuple[int, int]
    forward: tuple[Call | None, Call | None] = (None, None)
    strict_state: bool = True
    parts: int = 1


class Judge:
    """Measures pairs of calls of two dumps. Safe to be used by several threads at once.

    Attributes:
        alike: whether one tool wrote both dumps, so that what one of them lacks was not there.
        problems: values that could not be read, in words, one a cause.
    """

    def __init__(self, candidate: CallDump, reference: CallDump, *, replayer: Replayer | None = None) -> None:
        self._candidate, self._reference = candidate, reference
        self._replayer = replayer
        self._parts = parts_between(candidate, reference)
        self.alike = candidate.format == reference.format
        self._cache: dict[object, Measures] = {}
        self._reductions: dict[tuple[str, str], float] = {}
        self.problems: dict[str, int] = {}

    def judge(self, task: Task) -> CallResult:
        """The measured pair; verdicts and blame are still those of an innocent."""
        mine, theirs = task.candidate, task.reference
        slots: list[SlotResult] = []
        if same_names(mine.slots, theirs.slots):
            for a, b, made in zip(mine.slots, theirs.slots, zip(*task.producers, strict=True), strict=True):
                same = a.digest == b.digest  # also where neither has one, as of scalars
                slots.append((same and _equal(task, a, b, made)) or self._slot(task, a, b, made))
        else:
            ours = dict(zip((s.name for s in mine.slots), task.producers[0], strict=True))
            others = dict(zip((s.name for s in theirs.slots), task.producers[1], strict=True))
            for x, y in pair_slots(mine.slots, theirs.slots):
                some = (ours.get(x.name) if x else None, others.get(y.name) if y else None)
                slots.append(self._slot(task, x, y, some))
        parts = self._parts if self._parts > 1 or mine.rank == theirs.rank else UNEVEN
        parts = task.parts if task.parts > 1 else parts
        if parts != 1:
            slots = with_parts(slots, parts, () if parts != UNEVEN else (mine, theirs))
        level = max([s.level for s in slots if s.role in OUTPUT_ROLES], default=0.0)
        inherited = max([s.level for s in slots if s.role not in OUTPUT_ROLES], default=0.0)
        truth, other = self._truths(task, slots)
        return CallResult(
            number=task.number,
            rank=task.rank,
            step=task.step,
            direction=mine.direction,
            rule=task.rule,
            candidate=name_of(mine),
            reference=name_of(theirs),
            slots=tuple(slots),
            level=level,
            inherited=inherited,
            truth=truth,
            reference_truth=other,
        )

    def distance(self, mine: tuple[Call, CallSlot], theirs: tuple[Call, CallSlot]) -> Measures:
        """How far two values of any two calls are apart. Both have a `meta` of one shape."""
        task = Task(
            number=-1,
            rank=mine[0].rank,
            step=mine[0].step,
            rule="moved",
            candidate=mine[0],
            reference=theirs[0],
            producers=((), ()),
            places=(-1, -1),
        )
        a, b = mine[1].meta, theirs[1].meta
        assert a is not None and b is not None
        return EQUAL if 0 in a.shape else self._measure(task, mine[1], theirs[1], (a.dtype, b.dtype))

    def _truths(self, task: Task, slots: Sequence[SlotResult]) -> tuple[LocalTruth | None, LocalTruth | None]:
        if self._replayer is None:
            return None, None
        outputs = [s for s in slots if s.role in OUTPUT_ROLES]
        differs = any((s.basis == "values" and s.reason) or s.level > 0 for s in outputs)
        if not differs or not any(s.basis == "values" for s in outputs):
            return None, None
        mine, theirs = task.candidate, task.reference
        arguments = task.forward[1] if mine.direction == "backward" and task.forward[1] is not None else theirs
        return (
            self._replayer.truth(self._candidate, mine, task.forward[0], arguments),
            self._replayer.truth(self._reference, theirs, task.forward[1], arguments),
        )

    def _slot(
        self, task: Task, mine: CallSlot | None, theirs: CallSlot | None, made: tuple[int | None, int | None]
    ) -> SlotResult:
        if mine is not None and theirs is not None and mine.meta is not None and theirs.meta is not None:
            shape, other = mine.meta.shape, theirs.meta.shape
            if shape == other or (task.candidate.direction == "backward" and math.prod(shape) == math.prod(other)):
                dtypes = mine.meta.dtype, theirs.meta.dtype
                role = role_of(task.candidate, mine)
                origin = _origin(role, made, task.candidate.api, mine, theirs)
                if origin == "unwritten":
                    measured = Measures(basis="none", reason="uninitialized memory: not compared")
                else:
                    measured = EQUAL if 0 in shape else self._measure(task, mine, theirs, dtypes)
                return _filled(mine, theirs, role, measured, origin, strict=task.strict_state)
        shown = mine if mine is not None else theirs
        assert shown is not None
        result = SlotResult(
            name=shown.name,
            role=role_of(task.candidate, shown),
            reference_name=theirs.name if theirs is not None and theirs.name != shown.name else "",
            candidate=side_of(mine),
            reference=side_of(theirs),
        )
        if mine is None or theirs is None:
            return _one_sided(result, mine, theirs, task, told=self.alike)
        if mine.meta is None or theirs.meta is None:
            return _scalars(result, mine, theirs, _roundoff_of(task), self.alike)
        text = f"shape {list(mine.meta.shape)} for {list(theirs.meta.shape)}"
        return msgspec.structs.replace(result, fault="shape", reason=text)

    def _measure(self, task: Task, mine: CallSlot, theirs: CallSlot, dtypes: tuple[str, str]) -> Measures:
        same_kind = mine.digest_kind == theirs.digest_kind and dtypes[0] == dtypes[1]
        if mine.digest and mine.digest == theirs.digest and same_kind:
            return EQUAL
        key = (_key(task, mine), _key(task, theirs), dtypes)
        found = self._cache.get(key)
        if found is None:
            found = self._measured(task, mine, theirs, dtypes)
            if len(self._cache) >= CACHED:
                self._cache.clear()
            self._cache[key] = found
        return found

    def _measured(self, task: Task, mine: CallSlot, theirs: CallSlot, dtypes: tuple[str, str]) -> Measures:
        trouble = ""
        if mine.value and theirs.value:
            try:
                a = self._candidate.values(task.candidate, mine)
                b = self._reference.values(task.reference, theirs)
            except (ArtifactNotFoundError, SchemaError, OSError) as error:
                trouble = f"values could not be read: {error}"
                self.problems[trouble] = self.problems.get(trouble, 0) + 1
            else:
                if a.size == b.size and mine.sampled == theirs.sampled:
                    a, b = (a, b) if a.shape == b.shape else (a.reshape(-1), b.reshape(-1))
                    ends = (mine.stats, theirs.stats) if mine.stats is not None and theirs.stats is not None else None
                    return measure_values(a, b, dtypes, sampled=mine.sampled, ends=ends)
                trouble = "samples of different size"
        known = _both_know(mine.known, theirs.known)
        if mine.stats is not None and theirs.stats is not None and known:
            reduction = self._reductions.get(dtypes)
            if reduction is None:
                reduction = self._reductions[dtypes] = self._reduction(dtypes)
            found = measure_statistics(mine.stats, theirs.stats, known, dtypes, reduction=reduction)
            comparable = mine.digest_kind == theirs.digest_kind and dtypes[0] == dtypes[1]
            if not found.unequal and comparable and mine.digest and theirs.digest:  # equal ones were not measured
                found = msgspec.structs.replace(found, unequal=1, reason=DIGESTS)
            return msgspec.structs.replace(found, reason=found.reason or trouble) if trouble else found
        return Measures(basis="none", reason=trouble or mine.missing or theirs.missing or "no values, no statistics")

    def _reduction(self, dtypes: tuple[str, str]) -> float:
        """See `measure_statistics`: u of the dtype that a side computed its statistics in, at least of float32."""
        own = [
            DTYPES[dtype].unit_roundoff
            for dump, dtype in zip((self._candidate, self._reference), dtypes, strict=True)
            if OWN_DTYPE in dump.facts.get("statistics", "") and dtype in DTYPES
        ]
        return max(*own, 2.0**-24, 0.0) if own or not self.alike else 0.0


def _equal(task: Task, mine: CallSlot, theirs: CallSlot, made: tuple[int, int]) -> SlotResult | None:
    """What `Judge` says of two slots of one name with the same bits, without looking further; None for others."""
    if mine.scalar is not None and mine.scalar == theirs.scalar and mine.meta is theirs.meta is None:
        side = side_of(mine)
        role = role_of(task.candidate, mine)
        return SlotResult(name=mine.name, role=role, candidate=side, reference=side, basis="scalar")
    if not mine.digest or mine.digest != theirs.digest or mine.digest_kind != theirs.digest_kind:
        return None
    if mine.meta is None or theirs.meta is None:
        return None
    if mine.meta.dtype != theirs.meta.dtype or mine.meta.shape != theirs.meta.shape:
        return None
    role = role_of(task.candidate, mine)
    side = side_of(mine)
    return SlotResult(
        name=mine.name,
        role=role,
        candidate=side,
        reference=side if mine.known == theirs.known and theirs.stats is not None else side_of(theirs),
        basis="digest",
        cosine=1.0,
        max_abs=0.0,
        max_relative=0.0,
        within_1_1000=1.0,
        within_5_1000=1.0,
        accuracy=EQUAL.accuracy,
        origin=_origin(role, made, task.candidate.api, mine, theirs),
    )


@functools.lru_cache(maxsize=256)
def _both_know(mine: tuple[str, ...], theirs: tuple[str, ...]) -> frozenset[str]:
    return frozenset(mine) & frozenset(theirs)


def name_of(call: Call) -> CallName:
    """Where a call is to be found."""
    return CallName(
        position=call.position,
        label=call.label,
        kind=call.kind,
        api=call.api,
        module=call.module,
        source=call.source,
        stack=call.stack,
    )


def _key(task: Task, slot: CallSlot) -> object:
    if slot.digest:
        return (slot.digest_kind, slot.digest)
    if slot.value:
        return (task.rank, task.step, slot.value)
    return (slot.stats, slot.known)


def _roundoff_of(task: Task) -> float:
    """u of the coarsest floating-point dtype around the call."""
    names = [s.meta.dtype for call in (task.candidate, task.reference) for s in call.slots if s.meta is not None]
    return max((DTYPES[name].unit_roundoff for name in names if name in DTYPES), default=0.0)


def _one_sided(
    result: SlotResult, mine: CallSlot | None, theirs: CallSlot | None, task: Task, *, told: bool
) -> SlotResult:
    """`told`: both formats name every argument alike, so that one that is missing was not given.

    Of two formats, one may tell arguments as the program gave them, and another those that torch passes on, defaults
    included: then one that is missing says nothing.
    """
    slot = mine if mine is not None else theirs
    assert slot is not None
    side = "candidate" if mine is not None else "reference"
    reason = f"only the {side} has it"
    fault: FindingKind | None = None
    inputs = slot.role not in OUTPUT_ROLES and task.candidate.direction == "forward"
    if told and inputs and task.candidate.kind == task.reference.kind == "api" and task.rule != "renamed":
        if slot.scalar is not None and slot.name != INPLACE and not is_default(slot.scalar, slot.name):
            fault, reason = "scalar", f"{slot.scalar.text} is given to the {side} only"
        elif slot.meta is not None:
            fault, reason = "shape", f"a tensor of shape {list(slot.meta.shape)} is given to the {side} only"
    elif told and slot.role == "parameter" and task.candidate.kind == task.reference.kind == "optimizer":
        fault, reason = "parameters", f"{slot.name.removeprefix('parameter.')} is stepped in the {side} only"
        call = task.candidate if mine is not None else task.reference
        tied = [s.name for s in call.slots if s is not slot and s.role == "parameter" and s.digest == slot.digest != ""]
        reason += f"; it equals {tied[0].removeprefix('parameter.')}, and may have been tied to it" if tied else ""
    elif not told and inputs and slot.scalar is not None and not is_default(slot.scalar, slot.name):
        reason += ", and may be a default that the other format does not tell: not compared"
    elif of_node(slot.name):
        reason += ": what leaves an autograd node, which need not be the gradient of an argument"
    return msgspec.structs.replace(result, reason=reason, fault=fault)


def _scalars(result: SlotResult, mine: CallSlot, theirs: CallSlot, roundoff: float, same_format: bool) -> SlotResult:
    if mine.scalar is None or theirs.scalar is None:
        if mine.meta is not None or theirs.meta is not None:
            scalar = mine.scalar or theirs.scalar
            none = scalar is not None and is_default(scalar)
            return msgspec.structs.replace(
                result,
                fault="scalar" if none and mine.role == "input" else None,
                reason="a tensor on one side, no tensor on the other",
            )
        return result
    if mine.name == INPLACE:
        return result
    difference = scalar_difference(mine.scalar, theirs.scalar, roundoff=roundoff, same_format=same_format)
    if difference and mine.role in OUTPUT_ROLES:  # what a call returns follows from what it did
        return msgspec.structs.replace(result, basis="scalar", reason=difference)
    return msgspec.structs.replace(result, basis="scalar", reason=difference, fault="scalar" if difference else None)


def _origin(role: str, made: tuple[int | None, int | None], api: str, mine: CallSlot, theirs: CallSlot) -> Origin:
    """Where a value is from. A dump that does not tell what holds tensors leaves that to the names of arguments."""
    if UNWRITTEN in made:
        return "unwritten"
    if role in OUTPUT_ROLES or role == "grad_output":
        return "computed"
    named = role in ("parameter", "buffer")
    if made[0] is None or made[1] is None:
        return "state" if named else ""
    if (made[0] < 0 and (named or mine.held)) or (made[1] < 0 and (named or theirs.held)):
        return "state"
    if made[0] >= 0 or made[1] >= 0:
        return "computed"
    if mine.held or theirs.held:
        return "state"
    if mine.held is None and theirs.held is None and is_weight_by_name(api, mine.name):
        return "state"
    return "unrecorded"


def _filled(mine: CallSlot, theirs: CallSlot, role: str, m: Measures, origin: Origin, *, strict: bool) -> SlotResult:
    meta, other = mine.meta, theirs.meta
    assert meta is not None and other is not None
    same = meta.dtype == other.dtype
    exact = noise_unit(meta.dtype, other.dtype) == 0.0
    fault: FindingKind | None = None
    reason = m.reason
    verdict: Verdict = "ok"
    if m.mismatched:
        fault = "nonfinite"
        verdict = "candidate_worse" if m.candidate_worse else "candidate_better"
        reason = f"{m.mismatched} elements are NaN, Inf or finite where the other side's are not"
    elif exact and m.unequal and m.basis != "none":
        fault, reason = "wrong_value", reason or f"{m.unequal} elements differ by up to {m.max_abs or 0:g}"
    elif m.level and not reason:
        reason = f"largest error {m.max_abs or 0:.3g}, rms {m.level:.3g} and at most {m.z:.3g} units of noise"
    strict = strict or (origin == "unrecorded" and (exact or m.level > FAR_OFF))
    if strict and m.basis != "none" and (m.unequal if same else not m.rounding):
        what = "differs though nothing has computed it" if same else "is not the other side's, rounded"
        if origin == "state":
            fault, reason = "state", f"{what}: {reason or 'statistics differ'}"
        elif origin == "unrecorded":
            fault, verdict = "unrecorded_origin", "ok"
            reason = f"no recorded call gave it, and no module holds it: {reason or 'statistics differ'}"
    worst = None
    if m.worst is not None and m.basis == "values":
        size = math.prod(meta.shape)
        worst = tuple(int(i) for i in np.unravel_index(m.worst % max(1, size), meta.shape)) if meta.shape else ()
    elif m.worst is not None:
        worst = (m.worst,)
    return SlotResult(
        name=mine.name,
        role=role,
        reference_name=theirs.name if theirs.name != mine.name else "",
        candidate=side_of(mine),
        reference=side_of(theirs),
        basis=m.basis,
        level=0.0 if exact else m.level,
        z=m.z,
        ulp=m.ulp,
        cosine=m.cosine,
        max_abs=m.max_abs,
        max_relative=m.max_relative,
        within_1_1000=m.within_1_1000,
        within_5_1000=m.within_5_1000,
        accuracy=m.accuracy,
        worst=worst,
        origin=origin,
        fault=fault,
        verdict=verdict,
        reason=reason,
    )


def world_of(dump: CallDump) -> int:
    """How many ranks the run had, of which the dump may have fewer."""
    told = dump.facts.get("world_size", "")
    return max(int(told) if told.isdecimal() and len(told) < 10 else 1, len(dump.ranks()), 1)


def parts_between(candidate: CallDump, reference: CallDump) -> int:
    """Into how many parts one of the runs splits what the other has whole: the ratio of their ranks, at least 1.

    1 too where the one is no multiple of the other.
    """
    few, many = sorted((world_of(candidate), world_of(reference)))
    return many // few if many % few == 0 else 1


def split_between(mine: Outline, theirs: Outline) -> int:
    """Into how many parts a step of one run splits the batch that the other takes at once; 1 where neither does.

    Then most of what the one calls, the other calls as many times more, with other shapes.
    """
    paths = Counter(mine.path), Counter(theirs.path)
    strong = Counter(mine.strong), Counter(theirs.strong)
    for few, many in ((0, 1), (1, 0)):
        ratios = Counter[int]()
        for path, count in paths[few].items():
            more = paths[many].get(path, 0)
            ratios[more // count if more % count == 0 else 0] += count
        parts, calls = max(((k, n) for k, n in ratios.items() if k > 1), key=lambda one: one[1], default=(1, 0))
        alike = (strong[few] & strong[many]).total()
        if parts > 1 and calls > SPLIT * paths[few].total() and alike < (1 - SPLIT) * paths[few].total():
            return parts
    return 1


def is_part(mine: Sequence[int], theirs: Sequence[int], parts: int) -> bool:
    """Whether two shapes differ in one dimension or two, in which the one has `parts` times as much, but for a rest."""
    if len(mine) != len(theirs):
        return False
    differing = [sorted(pair) for pair in zip(mine, theirs, strict=True) if pair[0] != pair[1]]
    if len(differing) not in (1, 2):  # a part of the batch, of a part of the columns
        return False
    return parts == UNEVEN or all(small in (large // parts, -(-large // parts)) for small, large in differing)


def with_parts(slots: list[SlotResult], parts: int, ranks: Sequence[Call] = ()) -> list[SlotResult]:
    """A part is noted, not accused, and neither is the value that the same call made of the part.

    ranks: the calls of two ranks, which have shards of their own, and numbers.
    """
    shards = bool(ranks) and all(call.has_shard for call in ranks)
    found = [_as_part(_as_shard(slot) if shards else slot, parts) for slot in slots]
    numbers = [str(call.rank) for call in ranks]
    own = any(
        slot.basis == "part" and [s.text for s in (slot.candidate, slot.reference) if s] == numbers for slot in found
    )
    if not own and all(slot.basis != "part" or not _has_shape(slot) for slot in found):
        return found
    return [
        msgspec.structs.replace(
            slot, basis="part", level=0.0, z=0.0, fault=None, verdict="ok", reason="made from a part: not compared"
        )
        if slot.role in OUTPUT_ROLES and (slot.level or slot.fault)
        else slot
        for slot in found
    ]


def _as_shard(slot: SlotResult) -> SlotResult:
    """A value of a call that has shards: each rank holds another one, by design."""
    if slot.role in OUTPUT_ROLES or not _has_shape(slot) or not (slot.level or slot.fault):
        return slot
    reason = "a shard of each rank: not compared"
    return msgspec.structs.replace(slot, basis="part", level=0.0, z=0.0, fault=None, verdict="ok", reason=reason)


def _as_part(slot: SlotResult, parts: int) -> SlotResult:
    a, b = slot.candidate, slot.reference
    if slot.fault not in ("shape", "scalar") or a is None or b is None:
        return slot
    if _has_shape(slot):
        assert a.shape is not None and b.shape is not None
        sizes: tuple[Sequence[int], Sequence[int]] = a.shape, b.shape
    else:
        sizes = _sizes(a.text), _sizes(b.text)
    if not is_part(*sizes, parts):
        return slot
    what = "parts of two ranks" if parts == UNEVEN else f"one of {parts} parts"
    return msgspec.structs.replace(slot, basis="part", fault=None, reason=f"{slot.reason}: {what}")


def _has_shape(slot: SlotResult) -> bool:
    return all(side is not None and side.shape is not None for side in (slot.candidate, slot.reference))


def _sizes(text: str) -> tuple[int, ...]:
    """The sizes that an argument is: one number or several; none for anything else."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return ()
    items = value if isinstance(value, list | tuple) else (value,)
    return tuple(items) if all(type(item) is int for item in items) else ()
