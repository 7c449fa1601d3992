"""A comparison of two dumps as a report: the first divergence, all findings, where the error grows, and every call."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from graphprobe.compare.outline import OUTPUT_ROLES
from graphprobe.compare.result import CallResult, SlotResult, SlotSide, Summary
from graphprobe.compare.result_file import read_rows, read_summary, rows_file
from graphprobe.report.comparison import (
    BASIS,
    WORSE,
    accusing,
    call_of,
    card_of,
    notes_of,
    outcome_of,
    titled,
    what_is_wrong,
)
from graphprobe.report.document import (
    Bullets,
    Cards,
    Code,
    Content,
    DocumentVerdict,
    Facts,
    Jump,
    Muted,
    Section,
    Tone,
    counted,
)
from graphprobe.report.html.page import Report
from graphprobe.report.html.render import Html, html
from graphprobe.report.html.sources import Sources
from graphprobe.report.html.table import (
    CALLS,
    COLUMN_KEY,
    ERROR,
    MOST_CALLS,
    NONFINITE,
    ROW_KEY,
    Cell,
    Column,
    Heat,
    Table,
    calls_sections,
)

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
    "value", "candidate", "reference", "error", "max z", "max ulp", "max abs", "cosine", "worst at", "verdict",
    "why",
)  # fmt: skip

WIDTH, HEIGHT, LEFT, BELOW, ABOVE = 900, 190, 62, 26, 10
TOP = 7.0
"""Of the drawing of the error: pixels, and decades from 1 unit of noise up."""

_SVG = """<figure class="growth"><svg viewBox="0 0 {{ width }} {{ height }}" role="img" aria-labelledby="growth-said">
{% for y, label in lines %}<line x1="{{ left }}" x2="{{ width }}" y1="{{ y }}" y2="{{ y }}" stroke="var(--line)"/>
<text x="{{ left - 8 }}" y="{{ y + 4 }}" text-anchor="end" font-size="12" fill="var(--muted)">{{ label }}</text>
{% endfor %}<polyline fill="none" stroke="var(--bad)" stroke-width="2" stroke-linejoin="round" points="{{ points }}"/>
<circle cx="{{ peak[0] }}" cy="{{ peak[1] }}" r="4" fill="var(--bad)"/>
<text x="{{ left }}" y="{{ height - 6 }}" font-size="12" fill="var(--muted)">first call</text>
<text x="{{ width }}" y="{{ height - 6 }}" text-anchor="end" font-size="12" fill="var(--muted)">last call</text></svg>
<figcaption id="growth-said" class="note">Largest error of what the calls gave in each of {{ parts }} equal parts of
the program, in units of rounding noise: {{ first }} in the first, {{ most }} at most, in part {{ at }}, {{ last }} in
the last.
</figcaption></figure>
"""


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
            sources.linked(call_of(row).source)
            table.more(SLOT_HEAD, [_slot(slot) for slot in row.slots])
    constant = ("step", "rank", "direction", "rule", "reference")
    note = f"{left:,} more rows are in rows.jsonl and comparison.csv." if left else ""
    return calls_sections(
        table, heat, sources, constant=constant, notes=[note], without="; comparison.csv has its rows"
    )


def _add(row: CallResult, table: Table, heat: Heat) -> None:
    call, other = call_of(row), row.reference
    outputs = [slot for slot in row.slots if slot.role in OUTPUT_ROLES]
    largest = max((slot.max_abs for slot in outputs if slot.max_abs is not None), default=None)
    sides = [slot.candidate for slot in outputs if slot.candidate is not None]
    counts = [count for side in sides for count in (side.nan, side.inf) if count is not None]
    broken = sum(counts) if counts else None
    level = _measure(row.level)
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
        None if alone else _measure(row.inherited),
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


def _measure(error: float) -> float:
    return math.inf if error >= WITHOUT_MEASURE else error


def _slot(slot: SlotResult) -> list[Cell]:
    return [
        slot.name,
        _side(slot.candidate),
        _side(slot.reference),
        _measure(slot.level),
        _measure(slot.z),
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
    shape = "" if side.shape is None else str(list(side.shape))
    spread = "" if side.min is None or side.max is None else f" {side.min:.4g} … {side.max:.4g}"
    return f"{side.dtype}{shape}{spread}"


def report_from(path: Path, *, source_roots: Sequence[Path] = ()) -> Report:
    """The report of a folder that `graphprobe compare --out` wrote, or of its `comparison.json`: see `page_of`."""
    summary = read_summary(path)
    rows = rows_file(path)
    there = rows.is_file()
    if not there:
        summary.notes = [*summary.notes, f"{rows} is not there, so that the report has no table of calls"]
    sources = Sources(Path.cwd(), given=source_roots, recorded=rows.resolve().parent)
    return report_of(summary, read_rows(path) if there else (), sources=sources)


def report_of(summary: Summary, rows: Iterable[CallResult], *, sources: Sources | None = None) -> Report:
    """The report of a comparison.

    Args:
        rows: in the order of `rows.jsonl`.
        sources: finds the lines of the program; by default those below the working directory.
    """
    found = sources if sources is not None else Sources(Path.cwd())
    word, tone, said = outcome_of(summary)
    # First, as the lines that a page shows are limited.
    cards = [
        card_of(title, finding, found.place, also=len(finding.also)) for title, finding in titled(summary.findings)
    ]
    verdict = DocumentVerdict(tone, word, _sentence(summary, said), Facts(_first(summary, found)))
    sections = []
    if cards:
        order = f"{len(cards)}, in the order of execution"
        sections.append(Section("findings", "Findings", body=Cards(cards), summary=order))
    if any(summary.growth):
        most = f"up to {max(summary.growth):.3g} units of noise"
        sections.append(Section("growth", "Error along the program", body=_drawn(summary.growth), summary=most))
    sections += comparison_sections(rows, found)
    basis = BASIS.get(summary.basis, summary.basis)
    sections.append(Section("compared", "What was compared", body=_compared(summary), summary=basis))
    sides = summary.candidate.title, summary.reference.title
    facts = [*zip(("candidate", "reference"), sides, strict=True), ("compared in", f"{summary.seconds:.1f} s")]
    return Report(f"graphprobe compare: {word.capitalize()}", " against ".join(sides), verdict, sections, found, facts)


def _sentence(summary: Summary, said: str) -> str:
    if summary.outcome != "different" or summary.first is None:
        return f"{said[0].upper()}{said[1:]}."
    call = call_of(summary.first)
    where = f" in {call.module}" if call.module else ""
    return f"{call.label}{where} {what_is_wrong(summary.first)}."


def _first(summary: Summary, sources: Sources) -> list[tuple[str, Content]]:
    """The facts below the verdict."""
    first = summary.first
    rows: list[tuple[str, Content]] = []
    if first is not None:
        source = call_of(first).source
        noise = f"{first.level:.3g} units of rounding noise; it got {first.inherited:.3g}"
        rows += [("line", sources.place(source))] if source else []
        rows += [("error", noise)] if first.level else []
        rows += [("side", WORSE[first.verdict])] if WORSE[first.verdict] else []
    more = accusing(summary) - 1
    if more > 0:
        rows.append(("more", Jump("findings", counted(more, "more cause"))))
    if summary.counts.pairs:
        how = f", {BASIS.get(summary.basis, summary.basis)}"
        rows.append(("compared", (Jump(CALLS, f"{summary.counts.pairs:,} pairs of calls"), how)))
    return rows


def _compared(summary: Summary) -> list[Content]:
    counts = summary.counts
    rows: list[tuple[str, Content]] = []
    for name, side in (("candidate", summary.candidate), ("reference", summary.reference)):
        facts = ", ".join(f"{fact} {value}" for fact, value in side.facts.items())
        rows.append((name, [(Code(side.title), f" ({side.format})"), *([Muted(facts)] if facts else [])]))
    alone = f"{counts.candidate_only:,} calls of the candidate, {counts.reference_only:,} of the reference"
    listed = {
        "pairs of calls": f"{counts.pairs:,}",
        "without a partner": alone if counts.candidate_only or counts.reference_only else "",
        "paired by": _listed(counts.by_rule),
        "values compared by": _listed(counts.by_basis),
        "verdicts": _listed(counts.by_verdict),
        "run again in float64": counted(counts.replayed, "call") if counts.replayed else "",
        "precision": ", ".join(f"{pair} ({n:,})" for pair, n in summary.precision.items()),
    }
    rows += [row for row in listed.items() if row[1]]
    return [Facts(rows), Bullets(notes_of(summary), "What a reader should know", "info")]


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in sorted(counts.items(), key=lambda pair: -pair[1]))


def _drawn(levels: list[float]) -> Html:
    """A line over the parts of the program; 1 unit of noise and less is the ground."""
    down = HEIGHT - BELOW - ABOVE
    step = (WIDTH - LEFT) / max(1, len(levels) - 1)

    def height(value: float) -> float:
        decades = min(TOP, max(0.0, math.log10(max(value, 1e-9))))
        return round(ABOVE + down * (1 - decades / TOP), 1)

    places = [(round(LEFT + i * step, 1), height(value)) for i, value in enumerate(levels)]
    at = max(range(len(levels)), key=levels.__getitem__)
    return html(
        _SVG,
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        lines=[(height(10.0**n), label) for n, label in ((0, "≤ 1"), (2, "100"), (4, "10⁴"), (6, "10⁶"))],
        points=" ".join(f"{x},{y}" for x, y in places),
        peak=places[at],
        parts=len(levels),
        first=f"{levels[0]:.3g}",
        most="without measure" if levels[at] >= 1e30 else f"{levels[at]:.3g}",
        at=at + 1,
        last=f"{levels[-1]:.3g}",
    )
