"""The calls of a comparison: the heat map of their errors, and the table with a row a pair."""

from __future__ import annotations

import math
from collections.abc import Iterable

from graphprobe.compare.result import CallResult, SlotResult, SlotSide
from graphprobe.report.document import Section, Tone
from graphprobe.report.html.heat import COLUMN_KEY, ERROR, MOST_CALLS, NONFINITE, ROW_KEY, Heat, calls_sections
from graphprobe.report.html.sources import Sources
from graphprobe.report.html.table import Cell, Column, Table

WITH_SLOTS = 1_000
"""Calls that are not fine whose slots are shown with their details."""

WITHOUT_MEASURE = 1e30
"""Stands in the rows for an error without measure."""

VERDICTS: dict[str, Tone] = {
    "candidate_worse": "bad",
    "differs": "bad",
    "candidate_better": "info",
    "inconclusive": "warn",
    "no_partner": "warn",
    "ok": "good",
}

COLUMNS = (
    Column(name="#", kind="number", help="Number of the row in rows.jsonl, in the order of execution"),
    Column(name="verdict", kind="verdict", tones=VERDICTS, help="Which side is worse, beyond what rounding explains"),
    Column(name="call", wide=True, help="The call in the candidate, or in the reference where the candidate has none"),
    Column(name="gave", kind="number", help="Largest error of what it gave, in units of rounding noise"),
    Column(name="got", kind="number", help="Largest error of what it got, in units of rounding noise"),
    Column(name="module", wide=True, help="The innermost module that was running"),
    Column(name="line", kind="source", help="The line of the program"),
    Column(name="max abs", kind="number", help="Largest absolute difference of what it gave, where values were there"),
    Column(name="NaN, Inf", kind="number", help="Elements of the candidate's results that are NaN or infinite"),
    Column(name="blame", help="Where the error comes from: the call itself, what it got, or a weight"),
    Column(name="why", wide=True, help="Why it is accused, or why it has no partner"),
    Column(name="api", help="What was called"),
    Column(name="step", kind="number", help="Training step"),
    Column(name="rank", kind="number", help="Process"),
    Column(name="direction", help="Forward or backward"),
    Column(name="rule", help="Why the two calls were paired"),
    Column(name="reference", wide=True, help="The call in the reference, where it is named otherwise"),
    Column(name=ROW_KEY, kind="number", hidden=True),
    Column(name=COLUMN_KEY, kind="number", hidden=True),
)

SLOT_HEAD = (
    "value",
    "candidate",
    "reference",
    "error",
    "max z",
    "max ulp",
    "max abs",
    "cosine",
    "worst at",
    "verdict",
    "why",
)


def comparison_sections(rows: Iterable[CallResult], sources: Sources) -> list[Section]:
    """The heat map, where there is more than one cell, and the table; nothing without rows."""
    table, heat = Table("Calls", COLUMNS), Heat((ERROR, NONFINITE))
    left = 0
    for row in rows:
        if table.rows >= MOST_CALLS:
            left += 1
            continue
        _add(row, table, heat)
        if row.verdict != "ok" and table.with_more < WITH_SLOTS:
            call = row.candidate or row.reference
            sources.link(sources.short(call.source if call is not None else ""))
            table.more(SLOT_HEAD, [_slot(slot) for slot in row.slots])
    constant = ("step", "rank", "direction", "rule", "reference")
    note = f"{left:,} more rows are in rows.jsonl and comparison.csv." if left else ""
    return calls_sections(
        table, heat, sources, constant=constant, notes=[note], without="; comparison.csv has its rows"
    )


def _add(row: CallResult, table: Table, heat: Heat) -> None:
    call = row.candidate or row.reference
    assert call is not None
    other = row.reference
    outputs = [slot for slot in row.slots if slot.role in ("output", "grad_input", "grad_parameter")]
    largest = max((slot.max_abs for slot in outputs if slot.max_abs is not None), default=None)
    broken = _nonfinite(outputs)
    level = math.inf if row.level >= WITHOUT_MEASURE else row.level
    got = math.inf if row.inherited >= WITHOUT_MEASURE else row.inherited
    at = heat.add(
        call.module,
        (row.rank, row.step, int(row.direction == "backward")),
        (level if row.rule is not None else None, None if broken is None else float(broken)),
    )
    alone = row.rule is None
    cells: tuple[Cell, ...] = (
        row.number,
        "no_partner" if alone and row.verdict == "ok" else row.verdict,
        call.label,
        None if alone else level,
        None if alone else got,
        call.module,
        call.source,
        largest,
        broken,
        row.blame,
        row.reason,
        call.api,
        row.step,
        row.rank,
        row.direction,
        row.rule or "none",
        other.label if other is not None and other.label != call.label else "",
        at[0],
        at[1],
    )
    table.add(cells)
    if row.verdict != "ok":
        table.start_here()


def _nonfinite(outputs: list[SlotResult]) -> int | None:
    counts = [
        (side.nan or 0) + (side.inf or 0) for slot in outputs if (side := slot.candidate) is not None and _counted(side)
    ]
    return sum(counts) if counts else None


def _counted(side: SlotSide) -> bool:
    return side.nan is not None or side.inf is not None


def _slot(slot: SlotResult) -> list[Cell]:
    return [
        slot.name,
        _side(slot.candidate),
        _side(slot.reference),
        math.inf if slot.level >= WITHOUT_MEASURE else slot.level,
        math.inf if slot.z >= WITHOUT_MEASURE else slot.z,
        slot.ulp,
        slot.max_abs,
        slot.cosine,
        "" if slot.worst is None else str(list(slot.worst)),
        slot.verdict.replace("_", " "),
        slot.reason,
    ]


def _side(side: SlotSide | None) -> str:
    if side is None:
        return "not there"
    if side.text:
        return side.text
    shape = "" if side.shape is None else f"[{', '.join(map(str, side.shape))}]"
    spread = "" if side.min is None or side.max is None else f" {side.min:.4g} … {side.max:.4g}"
    return f"{side.dtype}{shape}{spread}"
