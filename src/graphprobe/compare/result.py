"""What a comparison is made of: slots, calls, findings, and the whole; docs/formats/comparison.md describes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from graphprobe.records import Int64

COMPARISON_SCHEMA = 2
"""Of the JSON document and of its rows. 1 lacks the verdict `differs`, the origin `unwritten`, and the findings
`changed_unseen`, `lost_gradient`, `data_order`, `unpaired` and `growth`; all of it can be read as 2."""

Verdict = Literal["ok", "candidate_worse", "candidate_better", "differs", "inconclusive"]
"""`differs`: the two do different things, and nothing tells which of them is right."""
Blame = Literal["", "local", "inherited", "state", "structure", "random", "unrecorded"]
Basis = Literal["digest", "values", "sample", "statistics", "scalar", "part", "none"]
Origin = Literal["", "computed", "state", "unrecorded", "unwritten"]
Rule = Literal["exact", "sequence", "renamed", "module", "moved"]
FindingKind = Literal[
    "wrong_value",
    "wrong_gradient",
    "nonfinite",
    "state",
    "scalar",
    "dtype",
    "shape",
    "replaced_call",
    "extra_call",
    "missing_call",
    "moved_call",
    "changed_unseen",
    "lost_gradient",
    "parameters",
    "data_order",
    "unrecorded_origin",
    "unpaired",
    "growth",
    "not_bitwise",
]
UNDECIDED_KINDS: frozenset[str] = frozenset({"unrecorded_origin", "unpaired", "growth"})
"""Kinds of findings that accuse nobody: they name what the dumps cannot decide."""
Outcome = Literal["same", "different", "undecided"]


class SlotSide(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One side of a slot, as its dump has it; None or empty is what the dump does not tell.

    Attributes:
        text: of an argument that is no tensor.
    """

    dtype: str = ""
    shape: tuple[Int64, ...] | None = None
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    l2: float | None = None
    nan: Int64 | None = None
    inf: Int64 | None = None
    text: str = ""


class SlotResult(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """One pair of slots.

    Attributes:
        name: of the candidate's slot; `reference_name` where the other is called otherwise.
        basis: what was compared. `digest`: equal digests, nothing was read. `sample`: some of the elements. `part`:
            nothing, since between runs of different numbers of ranks one side has a part of the other's, or what was
            computed from it.
        level: rms of z, or with statistics the largest z of one; the error in units of noise.
        z: the largest z of an element or statistic.
        ulp: the largest error in units of the last place of the coarser dtype.
        cosine, max_abs, max_relative, within_1_1000, within_5_1000: as the source defines them; the last two are
            shares from 0 to 1.
        accuracy: the source's own rule: `Yes`, or `No` where cosine < 0.99 or max_abs > 0.001. Empty without values.
        worst: index of the element with the largest z, or of the first whose class is wrong.
        origin: `computed` by an earlier call of the dump; `state`: a parameter, a buffer, or a leaf that requires a
            gradient; `unwritten`: memory that nobody has written to yet; `unrecorded`: none of them, so it is data or
            the result of something unseen; or unknown.
        verdict, blame: filled in when the whole program has been seen.
        reason: one sentence.
    """

    name: str
    role: str
    reference_name: str = ""
    candidate: SlotSide | None = None
    reference: SlotSide | None = None
    basis: Basis = "none"
    level: float = 0.0
    z: float = 0.0
    ulp: float | None = None
    cosine: float | None = None
    max_abs: float | None = None
    max_relative: float | None = None
    within_1_1000: float | None = None
    within_5_1000: float | None = None
    accuracy: str = ""
    worst: tuple[Int64, ...] | None = None
    origin: Origin = ""
    fault: FindingKind | None = None
    verdict: Verdict = "ok"
    blame: Blame = ""
    reason: str = ""


class CallName(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """Where a call is to be found."""

    position: Int64
    label: str
    kind: str
    api: str
    module: str = ""
    source: str = ""
    stack: tuple[str, ...] = ()


class LocalTruth(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One side's result against the same operation in float64 on that side's own recorded inputs.

    Attributes:
        answer: `ok`, `worse`, `unsure`, or `skipped`, with the reason.
        slots: the outputs that are worse, by name; empty otherwise.
        z: largest error in units of noise, +Inf for a wrong class.
        excess: how much too large, in units of what is tolerated.
    """

    answer: Literal["ok", "worse", "unsure", "skipped"]
    reason: str = ""
    z: float = 0.0
    excess: float = 0.0
    slots: tuple[str, ...] = ()


class CallResult(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """One pair of calls, or a call that has no partner (then one of the two names is None).

    Attributes:
        number: of the row, from 0, in the candidate's order of execution.
        rule: why the two were paired.
        inherited: the largest level of what the call got.
        level: the largest level of what it gave.
        reason: why the call is accused, or why it has no partner.
    """

    number: Int64
    rank: Int64 = 0
    step: Int64 = 0
    direction: str = "forward"
    rule: Rule | None = None
    candidate: CallName | None = None
    reference: CallName | None = None
    slots: tuple[SlotResult, ...] = ()
    inherited: float = 0.0
    level: float = 0.0
    truth: LocalTruth | None = None
    reference_truth: LocalTruth | None = None
    verdict: Verdict = "ok"
    blame: Blame = ""
    reason: str = ""


class WrongCall(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One cause: a call that is wrong by itself, and not because of what it got; or a call that got something else
    and nobody can tell from where (`unrecorded_origin`, whose verdict is `inconclusive`).

    Attributes:
        row: number of the `CallResult`.
        candidate, reference: the call on each side; one is None for a call without a partner.
        slot: the slot with the largest error; empty where the fault is none of a slot.
        level, inherited: of the call.
        evidence: sentences, the strongest first.
        also: other calls with the same cause: from the same source line, in other layers, steps or ranks, as
            `label` or `label in step 3`; no more than 20 of them, and `also_count` of all.
    """

    kind: FindingKind
    verdict: Verdict
    row: Int64
    rank: Int64 = 0
    step: Int64 = 0
    direction: str = "forward"
    candidate: CallName | None = None
    reference: CallName | None = None
    slot: str = ""
    worst: tuple[Int64, ...] | None = None
    level: float = 0.0
    inherited: float = 0.0
    evidence: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    also_count: Int64 = 0


def finding_from(
    row: CallResult, kind: FindingKind, verdict: Verdict, slot: SlotResult | None, evidence: Iterable[str]
) -> WrongCall:
    """The finding that a row is the cause of; `slot` is the worst of the call."""
    return WrongCall(
        kind=kind,
        verdict=verdict,
        row=row.number,
        rank=row.rank,
        step=row.step,
        direction=row.direction,
        candidate=row.candidate,
        reference=row.reference,
        slot=slot.name if slot is not None else "",
        worst=slot.worst if slot is not None else None,
        level=row.level,
        inherited=row.inherited,
        evidence=tuple(filter(None, evidence)),
    )


class Counts(msgspec.Struct, kw_only=True):
    """How many of what."""

    pairs: Int64 = 0
    by_rule: dict[str, int] = {}
    slots: Int64 = 0
    by_basis: dict[str, int] = {}
    by_verdict: dict[str, int] = {}
    candidate_only: Int64 = 0
    reference_only: Int64 = 0
    replayed: Int64 = 0


class Side(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the two dumps."""

    title: str
    format: str
    facts: dict[str, str] = {}
    problems: tuple[str, ...] = ()


class Summary(msgspec.Struct, kw_only=True):
    """The whole.

    Attributes:
        outcome: `same`: no difference beyond noise. `different`: there are findings that accuse. `undecided`: neither
            can be said.
        basis: `values`, `statistics`, or `mixed`: what the verdict stands on.
        first: the first divergence: the finding that comes first in the candidate's order of execution, of those that
            accuse; of the others where none does.
        notes: what a reader should know: what could not be compared, and why.
        precision: how dtypes of the reference became those of the candidate, with counts: `float32 -> bfloat16`.
        growth: largest level of outputs in each of up to 64 equal parts of the program, in order.
    """

    schema: Int64 = COMPARISON_SCHEMA
    outcome: Outcome
    candidate: Side
    reference: Side
    basis: str = ""
    first: WrongCall | None = None
    findings: list[WrongCall] = []
    counts: Counts = msgspec.field(default_factory=Counts)
    precision: dict[str, int] = {}
    growth: list[float] = []
    notes: list[str] = []
    seconds: float = 0.0
