"""Two dumps that are the same within noise, held against each other bit for bit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from graphprobe.compare.outline import OUTPUT_ROLES
from graphprobe.compare.result import CallResult, SlotResult, Summary, finding_from

Bits = Literal["equal", "other", "unknown", "nothing"]
"""`nothing`: there are none to compare, as of an argument that one side alone tells, or memory never written."""

DIGESTS = "statistics agree, and the digests do not"
"""The reason of a slot of which the bits are known to differ, and nothing else."""


def hold_to_bits(summary: Summary, rows: Iterable[CallResult]) -> None:
    """Make of a summary that says `same` one that says whether the bits are: `different` with the first call that gets
    the same bits and gives others, `undecided` where some bits are not in the dumps.

    −0 counts as 0, and any NaN as any other.

    Args:
        rows: all, in the candidate's order of execution.
    """
    first: tuple[CallResult, SlotResult] | None = None
    around: tuple[CallResult, SlotResult] | None = None
    unknown = 0
    for row in rows:
        if row.rule is None or row.candidate is None:
            continue
        bits = [(slot, bits_of(slot)) for slot in row.slots]
        unknown += sum(one == "unknown" for _, one in bits)
        other = [slot for slot, one in bits if one == "other"]
        if not other:
            continue
        gave = next((slot for slot in other if slot.role in OUTPUT_ROLES), None)
        alike = all(one in ("equal", "nothing") for slot, one in bits if slot.role not in OUTPUT_ROLES)
        if gave is not None and alike and row.candidate.kind != "module":
            _accuse(summary, row, gave, "it gets the same bits on both sides, and gives others")
            return
        if gave is not None and alike:
            around = around or (row, gave)
        first = first or (row, other[0])
    if around is not None:
        _accuse(
            summary, *around, "it gets the same bits on both sides, and gives others; no call inside of it is known"
        )
    elif first is not None:
        _accuse(summary, *first, "the first call in which bits differ; what gave them is not known")
    elif unknown:
        summary.outcome = "undecided"
        summary.notes.insert(0, f"same within noise; of {unknown} values the dumps have neither bits nor digests")


def bits_of(slot: SlotResult) -> Bits:
    """Whether the two sides of a slot have the same bits."""
    if slot.origin == "unwritten":
        return "nothing"
    if slot.basis == "digest":
        return "equal"
    if slot.basis == "scalar":
        return "other" if slot.reason else "equal"
    if slot.fault is not None or slot.verdict != "ok":
        return "other"
    if slot.basis == "values":
        return "other" if slot.max_abs else "equal"
    if slot.basis in ("statistics", "sample"):
        return "other" if slot.level > 0 or slot.max_abs or slot.reason == DIGESTS else "unknown"
    tensors = [side for side in (slot.candidate, slot.reference) if side is not None and side.shape is not None]
    return "unknown" if len(tensors) == 2 else "nothing"


def _accuse(summary: Summary, row: CallResult, slot: SlotResult, why: str) -> None:
    size = f", by up to {slot.max_abs:.3g}" if slot.max_abs else ""
    ulp = f", {slot.ulp:.3g} units in the last place" if slot.ulp else ""
    summary.outcome = "different"
    evidence = why, f"{slot.name} differs{size}{ulp}: no more than the noise"
    summary.first = finding_from(row, "not_bitwise", "differs", slot, evidence)
    summary.findings = [summary.first, *summary.findings]
