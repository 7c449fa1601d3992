"""What the overflow, watch and exception modes of a dump found: culprit, line, victim, elements, and how to see it."""

from __future__ import annotations

import shlex

from graphprobe.report.document import (
    Badge,
    Card,
    Cards,
    Code,
    Command,
    Content,
    Facts,
    Folded,
    Grid,
    Listing,
    Muted,
    Note,
    Section,
    Tone,
)
from graphprobe.report.html.render import html
from graphprobe.report.html.sources import Sources
from graphprobe.store.dump_findings import FINDINGS, Elements, FindingLine, Found, Op, OutputProblem

MOST = 100
"""Findings that the page has; a dump has up to a thousand of each kind."""
MOST_CARRIERS = 12
MOST_LINES = 6
"""Lines of the program that a kernel carries out."""
MOST_TEXT = 20_000
"""Characters of a traceback."""

KINDS: dict[str, tuple[Tone, str]] = {
    "overflow": ("bad", "overflow"),
    "overwritten": ("bad", "overwritten memory"),
    "exception": ("bad", "exception"),
}

_RANGE = """{{ text }}<svg viewBox="0 0 400 14" width="400" height="14" role="img"
aria-label="{{ text }}" style="display:block;max-width:100%;margin-top:.35rem"><rect width="400" height="14" rx="3"
fill="var(--panel)" stroke="var(--line)"/>
<rect x="{{ left }}" width="{{ width }}" height="14" fill="var(--bad)"/></svg>"""


def findings_section(found: list[Found], sources: Sources) -> Section | None:
    """An article for each finding; None where there are none."""
    if not found:
        return None
    cards = [Card(f"{n}. {sentence_of(one)}", _told(one, sources)) for n, one in enumerate(found[:MOST], 1)]
    left = len(found) - MOST
    body: list[Content] = [Cards(cards), Note(f"{left} more are in {FINDINGS}." if left > 0 else "")]
    counts = [f"{n} {_many(KINDS[kind][1], n)}" for kind in KINDS if (n := sum(one.line.kind == kind for one in found))]
    return Section("findings", "Findings", body=body, summary=", ".join(counts) or f"{len(found)}")


def sentence_of(found: Found) -> str:
    """The finding in one short sentence."""
    line, culprit = found.line, found.culprit
    name = culprit.op if culprit is not None else "something outside of any op"
    where = f" in {culprit.module}" if culprit is not None and culprit.module else ""
    if line.kind == "overflow":
        what = " and ".join(dict.fromkeys(map(_what, line.problems))) or "what is not finite"
        return f"{name}{where} makes {what} of what was finite."
    if line.kind == "overwritten":
        victim = line.victim or Op()
        return f"{name}{where} overwrites {victim.value or victim.op or 'a value'} while it is still needed."
    if line.kind == "exception":
        return f"{name}{where} raised."
    return line.text


def lines_of(op: Op, sources: Sources) -> list[Content]:
    """The program's lines that an operation carries out, its own first; empty where none is known."""
    places = dict.fromkeys(sources.short(place) for place in (op.source, *op.sources) if place)
    return [(at := sources.place(place), " ", Code(at.line, muted=True)) for place in list(places)[:MOST_LINES]]


def _told(found: Found, sources: Sources) -> list[Content]:
    line = found.line
    rows = _op_rows("operation", found.culprit, sources) if found.culprit is not None else []
    if line.kind == "overflow":
        rows += _overflow_rows(found, sources)
    elif line.kind == "overwritten":
        rows += _overwritten_rows(line, sources)
    rows.append(("step", _place(found)))
    if line.file:
        rows.append(("values", Code(line.file)))
    tone, word = KINDS.get(line.kind, ("warn", line.kind))
    return [(Badge(tone, word), " ", _plain(line)), Facts(rows), *_exception(found)]


def _plain(line: FindingLine) -> str:
    if line.kind == "overflow":
        return "All that it read was finite, or infinite in another way; what it wrote is not."
    if line.kind == "overwritten" and line.culprit is not None:
        if line.declared:
            return "Two values that are both still needed share memory: it was reused too early."
        return "It does not say that it writes there, so everything after it computes with the wrong values."
    return line.text


def _op_rows(label: str, op: Op, sources: Sources) -> list[tuple[str, Content]]:
    name, target = op.op or "", op.target or op.op_type
    rows: list[tuple[str, Content]] = [(label, (Code(name), " ", Muted(target if target != name else "")))]
    if lines := lines_of(op, sources):
        rows.append(("line" if len(lines) == 1 else "lines", lines))
    modules = op.modules or ([op.module] if op.module else [])
    if modules:
        rows.append(("module", Code(", ".join(modules[:MOST_LINES]))))
    if op.fx_nodes:
        more = ", …" if len(op.fx_nodes) > MOST_CARRIERS else ""
        rows.append(("FX nodes", Code(", ".join(op.fx_nodes[:MOST_CARRIERS]) + more)))
    return rows


def _overflow_rows(found: Found, sources: Sources) -> list[tuple[str, Content]]:
    problems: list[list[Content]] = [
        [
            Code(one.output),
            _what(one),
            f"{one.elements:,} of {one.of:,}",
            Code(f"{one.dtype}{one.shape}"),
            Code(", ".join(map(str, one.first[:4]))),
        ]
        for one in found.line.problems
    ]
    rows: list[tuple[str, Content]] = []
    if problems:
        rows.append(("wrote", Grid(("output", "holds", "elements", "dtype, shape", "first at"), problems)))
    if carriers := found.carriers():
        lines: list[Content] = [
            (Code(one.op or ""), " ", sources.place(one.source)) for one in carriers[:MOST_CARRIERS]
        ]
        left = len(carriers) - MOST_CARRIERS
        rows.append(("passed on by", [*lines, *([f"and {left} more"] if left > 0 else [])]))
    if found.line.repro:
        rows.append(("see it", Command(f"python {shlex.quote(str(found.folder / found.line.repro))}")))
    return rows


def _overwritten_rows(line: FindingLine, sources: Sources) -> list[tuple[str, Content]]:
    rows: list[tuple[str, Content]] = []
    if line.victim is not None:
        named = _op_rows("victim", line.victim, sources)
        rows = [(label if label == "victim" else f"its {label}", value) for label, value in named]
        if line.victim.slot:
            rows.insert(1, ("its value", (Code(line.victim.value), f", {line.victim.slot}")))
    rows.append(("overwritten", _range(line.elements or Elements())))
    if line.intact_after:
        rows.append(("last intact", ("after ", Code(line.intact_after))))
    return rows


def _range(elements: Elements) -> Content:
    first, last, of = elements.first, elements.last, elements.of
    if elements.changed is None or first is None or last is None or not of:
        return f"some of {of} elements; only a digest was kept"
    text = f"elements {first:,} to {last:,} of {of:,}, {elements.changed:,} of them changed"
    left = round(400 * first / of, 1)
    return html(_RANGE, text=text, left=left, width=max(2.0, round(400 * (last + 1) / of - left, 1)))


def _exception(found: Found) -> list[Content]:
    raised = found.raised() if found.line.kind == "exception" else None
    if raised is None:
        return []
    texts = {"Traceback up to the operation": raised.traceback, "The calls that led to it": raised.callers}
    return [Folded(title, Listing(text[-MOST_TEXT:], title)) for title, text in texts.items() if text]


def _what(problem: OutputProblem) -> str:
    if problem.kind == "saturated":
        return f"the {'largest' if problem.sign == '+' else 'lowest'} {problem.dtype}"
    return "NaN" if problem.kind == "nan" else f"{'−' if problem.sign == '-' else '+'}infinity"


def _place(found: Found) -> str:
    line = found.line
    step = "" if line.step is None else str(line.step)
    if found.steps:
        step += f" and {len(found.steps):,} more, up to {found.steps[-1]}"
    direction = line.direction or (line.culprit.direction if line.culprit is not None else None)
    return ", ".join(part for part in (step, direction, f"model {line.model}" if line.model else "") if part)


def _many(noun: str, count: int) -> str:
    return noun if count == 1 or noun.endswith("memory") else f"{noun}s"
