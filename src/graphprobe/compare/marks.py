"""What is kept in memory of each judged pair, to find out whose fault a difference is; and what is said of it."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from graphprobe.compare.cancellation import cancelled
from graphprobe.compare.carried import GRADIENT_NOISE, Stray, distance_of, rms_of
from graphprobe.compare.judge import Task
from graphprobe.compare.measures import noise_unit
from graphprobe.compare.naming import canonical
from graphprobe.compare.outline import OUTPUT_ROLES
from graphprobe.compare.randomness import draws, is_collective, is_overwritten, overwrites
from graphprobe.compare.result import Blame, CallResult, FindingKind, SlotResult, Verdict
from graphprobe.compare.slots import of_node
from graphprobe.numerics.dtypes import DTYPES, FLOAT32, accumulation_roundoff
from graphprobe.store.calls import Call

REGION = 8
REGION_NOISE = 64.0
"""Calls without a partner, on one side, beyond which they are a part of the program that the other side runs in
another way, compiled as a whole, say; and the units of noise that such a part may add."""

REWIRED = 4.0
"""Times the largest error so far from which an input that comes from elsewhere is another value."""

GROWN = 1024.0
LARGE = 0.5
"""Units of noise, or share of the values, by which results may differ that nobody is to blame for; beyond, no verdict
says that two programs are the same."""

OWN = 4.0
"""Noise, rms of z, that any operation may add."""

SUM = 2.0
"""Times sqrt(K)·u_acc/u, what a sum over K terms may add."""

TFLOAT32 = 2.0**-11
"""u of the products of float32 that a device computes from ten bits of each number."""


class Region(NamedTuple):
    """What the records of one call tell of compiled code; without `unit` it is none.

    Attributes:
        unit: u of the coarsest dtype in which the code of either side computes, gets or gives values.
        operations: in the larger of the two.
        judged: whether results that differ by much more than `unit` are wrong. They need not be where a record does not
            know all that is inside, or where rounding may turn results into others altogether.
    """

    unit: float = 0.0
    operations: int = 0
    judged: bool = False


class Mark(msgspec.Struct, gc=False, kw_only=True):
    """One pair, or one call without a partner.

    Attributes:
        position: in the candidate, in the reference for a call that only that has.
        group: hash of operation, direction and shapes: the calls that should behave alike.
        family: hash of operation, direction and kind, for dtypes.
        me: hash of kind, api, index, of a module its path, too; a backward finds its forward by it.
        modules: hashes of the paths of all modules that it lies in, the innermost last.
        inherited, level: u·rms(z) of what the call got and gave: errors relative to the values, so that a float32
            result of bfloat16 inputs is held against those. `inherited_z`, `z`: u times the largest z.
        stepped: of a step of an optimizer, for each parameter how far its gradients are apart, relative to the rms of
            the largest gradient, and its level.
        unit: the largest u of what it gave.
        own: allowance of noise that the call itself may add, in the same measure.
        exact_in, exact_out: integers or booleans differ in what it got and gave.
        class_in, class_out: classes differ; of what it gave +1 the candidate is worse, −1 the reference.
        state: hash of the state that differs, 0 if none does.
        unrecorded: hash of an input of unrecorded origin that differs, 0 if none does; `unrecorded_level`: by how much.
        state_level: of state that training has changed, by how much it differs.
        part: something of it is a part of what the other side has otherwise.
        scalar, shape, random, values: flags. `undefined`: it reads memory that nobody has written to, and does not
            overwrite all of it.
        gradient: of gradients that it gets after backward calls, and that no call is known to give, how far they are
            apart, in units of what those calls explain, which is `explained`; −1 without any.
        other_parameters: a step of an optimizer that has a parameter on one side alone.
        kept: it gives back what it got.
        cast: it is a call without a partner that converts to a coarser dtype.
        spot: hash of operation, direction and line of the program; what is wrong at one spot has one cause.
        given: hashes of what the candidate and the reference got from outside, or drew, where that differs.
        lost: of a backward, gradients that one side lacks: 1 the candidate, 2 the reference, and the hash of the
            argument's name.
        fed_alone: inputs from calls without a partner: hash of the argument's name, and the producers.
        truths: answers of the replay for candidate and reference, see `LocalTruth`; empty where nobody asked.
        dtypes: pairs of dtypes of floating-point slots, `reference>candidate`.
        wired: inputs that come from elsewhere: (level, z, candidate's producer, reference's producer).
        strays: inputs that are what a call gave on one side alone.
        collective: what it gives is made of what all ranks give.
        compiled: it is compiled code on one of the sides, recorded as a whole, or the backward of such.
        region: what the records of that tell of its inside.
        partner: position of the partner; −1 for none. `side`: 0 both, 1 candidate only, 2 reference only.
        opposite: of an unpaired call of the candidate, the position of what stands in its place; −1 for none.
    """

    number: int
    rank: int
    step: int
    position: int
    kind: str
    backward: bool
    group: int = 0
    family: int = 0
    me: int = 0
    modules: tuple[int, ...] = ()
    inherited: float = 0.0
    inherited_z: float = 0.0
    level: float = 0.0
    stepped: tuple[tuple[float, float], ...] = ()
    z: float = 0.0
    own: float = 0.0
    unit: float = 0.0
    exact_in: bool = False
    exact_out: bool = False
    class_in: int = 0
    class_out: int = 0
    state: int = 0
    unrecorded: int = 0
    unrecorded_level: float = 0.0
    state_level: float = 0.0
    spot: int = 0
    given: tuple[int, int] = (0, 0)
    lost: tuple[tuple[int, int], ...] = ()
    fed_alone: tuple[tuple[int, int, int], ...] = ()
    parameter: bool = False
    scalar: bool = False
    shape: bool = False
    random: bool = False
    undefined: bool = False
    values: bool = False
    nothing: bool = False
    part: bool = False
    moved: bool = False
    gradient: float = -1.0
    explained: float = 0.0
    other_parameters: bool = False
    kept: bool = False
    cast: bool = False
    consumed: bool = False
    truths: tuple[str, str] = ("", "")
    dtypes: tuple[str, ...] = ()
    wired: tuple[tuple[float, float, int, int], ...] = ()
    strays: tuple[Stray, ...] = ()
    collective: bool = False
    compiled: bool = False
    region: Region = Region()
    partner: int = -1
    side: int = 0
    opposite: int = -1


class Decision(msgspec.Struct, frozen=True):
    """What is said of one row. `kind` is that of the finding; None where the call is no cause.

    Attributes:
        after, before: numbers of the paired rows between which a call without a partner stands; -1 where unknown.
        instead: number of the row of what the other side calls in its place; -1 for nothing.
    """

    verdict: Verdict = "ok"
    blame: Blame = ""
    kind: FindingKind | None = None
    reason: str = ""
    after: int = -1
    before: int = -1
    instead: int = -1


def mark_of(task: Task, result: CallResult) -> Mark:
    """The mark of a judged pair."""
    call = task.candidate
    compiled = call.is_compiled or task.reference.is_compiled
    mark = Mark(
        number=result.number,
        rank=result.rank,
        step=result.step,
        position=call.position,
        kind=call.kind,
        backward=call.direction == "backward",
        group=_group(call),
        family=family_of(call),
        me=me_of(call),
        modules=modules_of(call),
        random=draws(call) or draws(task.reference),
        spot=spot_of(call),
        moved=task.rule == "moved",
        collective=is_collective(call.api),
        compiled=compiled,
        region=region_of(call, task.reference) if compiled else Region(),
        partner=task.reference.position,
        truths=(
            result.truth.answer if result.truth else "",
            result.reference_truth.answer if result.reference_truth else "",
        ),
    )
    _add_slots(mark, result, call)
    mark.own = _own(task) * mark.unit
    return mark


def region_of(candidate: Call, reference: Call) -> Region:
    """What is known of a pair of calls of which at least one is compiled code."""
    calls = candidate, reference
    compiled = [call.compiled for call in calls if call.is_compiled]
    if not compiled:
        return Region()
    names = {slot.meta.dtype for call in calls for slot in call.slots if slot.meta is not None}
    judged, operations = True, 0
    for region in compiled:
        if region is None:
            judged = False
            continue
        judged = judged and not region.unknown and not region.unsteady
        operations = max(operations, region.operations)
        names.update(region.dtypes, (text.rpartition(" ")[2] for text in region.autocast))
    units = (TFLOAT32 if name == "tfloat32" else noise_unit(name, name) for name in names)
    return Region(max(units, default=0.0), operations, judged)


class Inherited(msgspec.Struct, gc=False):
    """What a call got of errors, and its forward, of a backward: level, z, whether whole numbers and classes differ."""

    inherited: float = 0.0
    z: float = 0.0
    exact: bool = False
    classes: bool = False


def inherited_by_backwards(marks: Sequence[Mark]) -> dict[tuple[int, int, int], Inherited]:
    """What the backward of a call works on besides its gradient: inputs and outputs of the forward."""
    found: dict[tuple[int, int, int], Inherited] = {}
    for m in marks:
        if m.backward or m.side:
            continue
        got = found.setdefault((m.rank, m.step, m.me), Inherited())
        got.inherited = max(got.inherited, m.inherited, m.level)
        got.z = max(got.z, m.inherited_z, m.z)
        got.exact = got.exact or m.exact_in or m.exact_out
        got.classes = got.classes or bool(m.class_in or m.class_out)
    return found


def inherited_by(mark: Mark, forwards: dict[tuple[int, int, int], Inherited]) -> Inherited:
    own = Inherited(mark.inherited, mark.inherited_z, mark.exact_in, bool(mark.class_in))
    forward = forwards.get((mark.rank, mark.step, mark.me)) if mark.backward else None
    if forward is None:
        return own
    return Inherited(
        max(own.inherited, forward.inherited),
        max(own.z, forward.z),
        own.exact or forward.exact,
        own.classes or forward.classes,
    )


def inherited_by_collectives(
    marks: Sequence[Mark], inherited: Sequence[Inherited]
) -> dict[tuple[int, int, bool], Inherited]:
    """What the calls of one collective get on all ranks together."""
    found: dict[tuple[int, int, bool], Inherited] = {}
    for m in marks:
        if m.collective and not m.side:
            here, got = (m.step, m.me, m.backward), inherited[m.number]
            found[here] = Inherited(*map(max, *map(msgspec.structs.astuple, (found.get(here, Inherited()), got))))
    return found


def pass_to_backwards(marks: Sequence[Mark]) -> None:
    """Let the backward of compiled code know what the record of the forward tells."""
    forwards = {(m.rank, m.step, m.me): m for m in marks if m.compiled}
    for m in marks:
        forward = forwards.get((m.rank, m.step, m.me)) if m.backward and not m.side else None
        if forward is not None:
            m.compiled, m.region, m.random = True, forward.region, forward.random


def add_up_between_ranks(marks: Sequence[Mark], world: int) -> None:
    """Hold gradients against what the backwards of all ranks explain; nothing exceeds that of ranks nobody recorded."""
    most: dict[int, dict[int, float]] = {}
    for m in marks:
        ranks = most.setdefault(m.step, {})
        ranks[m.rank] = max(ranks.get(m.rank, 0.0), m.explained)
    unseen = len({m.rank for m in marks}) < world
    for m in marks:
        if m.gradient > 0:
            others = math.inf if unseen else sum(most[m.step].values()) - most[m.step][m.rank]
            m.gradient *= m.explained / (m.explained + others)


def me_of(call: Call) -> int:
    """What forward and backward of a call have in common, on either side; modules are counted each by its path."""
    return hash((call.kind, call.api, call.index, call.module if call.kind == "module" else ""))


def modules_of(call: Call) -> tuple[int, ...]:
    """Hashes of the paths of the modules that a call lies in, the outermost first; a module's own path is the last."""
    return _path_hashes(call.module)


def family_of(call: Call) -> int:
    """Hash of operation, direction and kind."""
    return _family(call.kind, call.api, call.direction)


def spot_of(call: Call) -> int:
    """What calls of one operation from one line of the program have in common; modules of a class, likewise."""
    return hash((call.kind, canonical(call.api), call.direction, call.source))


@functools.lru_cache(maxsize=4096)
def _path_hashes(module: str) -> tuple[int, ...]:
    parts = module.split(".") if module else []
    return tuple(map(hash, itertools.accumulate(parts, "{}.{}".format)))


@functools.lru_cache(maxsize=4096)
def _family(kind: str, api: str, direction: str) -> int:
    return hash((kind, canonical(api), direction))


def _group(call: Call) -> int:
    optimizer = call.kind == "optimizer"  # see `role_of`
    shapes = [
        s.meta.shape
        for s in call.slots
        if s.meta is not None and s.role in OUTPUT_ROLES and not (optimizer and s.role == "grad_parameter")
    ]
    return hash((call.kind, canonical(call.api), call.direction, tuple(shapes)))


def _own(task: Task) -> float:
    """The allowance: K is the longest dimension around, or the ratio of elements got to elements given."""
    longest, got, gave, roundoff, accumulator = 1, 1, 0, 0.0, FLOAT32.unit_roundoff
    for call in (task.candidate, task.reference):
        optimizer = call.kind == "optimizer"
        for slot in call.slots:
            if slot.meta is None:
                continue
            facts = _tensor_facts(slot.meta.dtype, slot.meta.shape)
            if facts is None:
                continue
            size, length, own_roundoff, own_accumulator = facts
            if length > longest:
                longest = length
            role = slot.role
            if role in OUTPUT_ROLES and not (optimizer and role == "grad_parameter"):
                if size < gave or not gave:
                    gave = size
            elif size > got:
                got = size
            if own_roundoff > roundoff:
                roundoff, accumulator = own_roundoff, own_accumulator
    if not roundoff:
        return OWN
    terms = max(longest, got // max(1, gave))
    return OWN + SUM * math.sqrt(terms) * accumulator / roundoff


@functools.lru_cache(maxsize=4096)
def _tensor_facts(dtype: str, shape: tuple[int, ...]) -> tuple[int, int, float, float] | None:
    """Elements, longest dimension, u, and u of the sums; None of a dtype that the criterion has no facts about."""
    facts = DTYPES.get(dtype)
    if facts is None:
        return None
    return math.prod(shape), max(shape, default=1), facts.unit_roundoff, accumulation_roundoff(facts)


def _add_slots(mark: Mark, result: CallResult, call: Call) -> None:
    pairs = []
    compared = False
    for slot in result.slots:
        a, b = slot.candidate, slot.reference
        output = slot.role in OUTPUT_ROLES
        unit, pair = _dtypes(a.dtype, b.dtype) if a is not None and b is not None else (0.0, "")
        if slot.basis in ("digest", "scalar") and a is not None and b is not None and not slot.fault:
            compared = compared or slot.basis == "digest"
            if pair:
                pairs.append(pair)
            if output and unit > mark.unit:
                mark.unit = unit
            continue
        mark.part = mark.part or slot.basis == "part"
        if slot.origin == "unwritten":
            compared = True
            read = not (output or overwrites(call) or is_overwritten(call.api, slot.name))
            mark.undefined = mark.undefined or read
            continue
        if not output and slot.origin == "state" and not slot.fault:
            mark.state_level = max(mark.state_level, unit * slot.level)
        lacks = int(b is None) * 2 or int(a is None)
        if lacks and slot.role == "grad_input" and not of_node(slot.name):
            mark.lost = (*mark.lost, (lacks, hash(slot.name.removeprefix("grad_"))))
        compared = compared or slot.basis not in ("none", "scalar")
        if pair and slot.basis != "none":
            pairs.append(pair)
        if slot.basis in ("values", "sample"):
            mark.values = True
        if slot.fault is not None:
            _add_fault(mark, slot, call, unit)
        if output:
            mark.unit = max(mark.unit, unit)
            if slot.level:
                unit /= cancelled(call.api, mark.backward, slot, result.slots)
            mark.level, mark.z = max(mark.level, unit * slot.level), max(mark.z, unit * slot.z)
        elif slot.z or slot.level:
            mark.inherited = max(mark.inherited, unit * slot.level)
            mark.inherited_z = max(mark.inherited_z, unit * slot.z)
    if call.kind == "optimizer":
        mark.stepped = _stepped(result.slots)
    mark.dtypes = tuple(pairs)
    mark.nothing = not compared and any(s.candidate is not None and s.candidate.dtype for s in result.slots)


def grown(mark: Mark, unit: float) -> float:
    """The level of what a call gave; of parameters after a step, without those whose gradients are apart by rounding.

    Adam and its like divide a gradient by its own size: one that is zero but for rounding, as that of a bias that
    softmax takes out again, becomes a whole step in a direction that is noise. The rounding, of which `unit` is u, is
    that of the largest gradients, of which such a gradient is a difference.
    """
    if not mark.stepped:
        return mark.level
    return max((level for apart, level in mark.stepped if not 0 < apart <= GRADIENT_NOISE * unit), default=0.0)


def _stepped(slots: tuple[SlotResult, ...]) -> tuple[tuple[float, float], ...]:
    before = {slot.name.removeprefix("grad_parameter."): slot for slot in slots if slot.role == "grad_output"}
    largest = max((rms_of(slot) for slot in before.values()), default=0.0)
    found = []
    for slot in slots:
        gradient = before.get(slot.name.removeprefix("output."))
        a, b = slot.candidate, slot.reference
        if slot.role in OUTPUT_ROLES and slot.level and a is not None and b is not None:
            apart = distance_of(gradient) / largest if gradient is not None and largest else math.inf
            found.append((apart, noise_unit(a.dtype, b.dtype) * slot.level))
    return tuple(found)


def _add_fault(mark: Mark, slot: SlotResult, call: Call, unit: float) -> None:
    """What a slot with a fault adds."""
    fault = slot.fault
    exact = not _float(slot.reference.dtype if slot.reference else "")
    mark.scalar = mark.scalar or fault == "scalar"
    mark.shape = mark.shape or fault == "shape"
    mark.other_parameters = mark.other_parameters or fault == "parameters"
    if fault == "state":
        mark.state = hash((slot.reference, slot.candidate))
        held = any(s.held for s in call.slots if s.name == slot.name)
        mark.parameter = mark.parameter or held or slot.role in ("parameter", "buffer")
    if fault == "unrecorded_origin":
        mark.unrecorded = hash((slot.reference, slot.candidate))
        mark.unrecorded_level = math.inf if exact else max(mark.unrecorded_level, unit * slot.level)
    differs = fault == "wrong_value"
    if slot.role in OUTPUT_ROLES:
        mark.exact_out = mark.exact_out or differs
        if fault == "nonfinite":
            mark.class_out = 1 if slot.verdict == "candidate_worse" else mark.class_out or -1
    else:
        given = fault in ("state", "unrecorded_origin")
        mark.exact_in = mark.exact_in or differs or (given and exact)
        mark.class_in = mark.class_in or int(fault == "nonfinite" or (given and _classes_differ(slot)))


@functools.lru_cache(maxsize=256)
def _dtypes(candidate: str, reference: str) -> tuple[float, str]:
    """Their `noise_unit`, 0 where one has none; both, with `>` between them, where they are told and the reference's
    has a fraction. A name in a damaged file may have that sign in it."""
    if not candidate or not reference:
        return 0.0, ""
    pair = f"{reference.replace('>', '?')}>{candidate.replace('>', '?')}"
    return noise_unit(candidate, reference), pair if _float(reference) else ""


def _classes_differ(slot: SlotResult) -> bool:
    a, b = slot.candidate, slot.reference
    return a is not None and b is not None and (a.nan, a.inf) != (b.nan, b.inf)


def _float(dtype: str) -> bool:
    return dtype in DTYPES and not DTYPES[dtype].is_exact
