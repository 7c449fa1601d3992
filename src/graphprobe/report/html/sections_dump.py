"""A dump as a report: what its observers found, where NaN and infinity begin, and every call with its numbers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from graphprobe.compare.open import open_dump
from graphprobe.records import Manifest
from graphprobe.report.document import (
    Badge,
    Bullets,
    Card,
    Cards,
    Code,
    Command,
    Content,
    DocumentVerdict,
    Excerpt,
    Facts,
    Folded,
    Grid,
    Jump,
    Listing,
    Muted,
    Note,
    Section,
    Tone,
    counted,
)
from graphprobe.report.html.dump_table import Health, dump_sections
from graphprobe.report.html.heat import CALLS
from graphprobe.report.html.page import Report
from graphprobe.report.html.render import html
from graphprobe.report.html.sources import Sources
from graphprobe.store.api_reader import ApiDump
from graphprobe.store.calls import CallDump
from graphprobe.store.dump_reader import FINDINGS, Elements, FindingLine, Found, Op, OutputProblem, findings_at
from graphprobe.store.dump_reader import open_dump as open_graphs
from graphprobe.store.graph_calls import GraphCalls

MOST_FINDINGS = 100
"""Findings that the page has; a dump has up to a thousand of each kind."""
MOST_CARRIERS = 12
MOST_LINES = 6
"""Lines of the program that a kernel carries out."""
MOST_TEXT = 20_000
"""Characters of a traceback."""

FINDING_BADGES: dict[str, tuple[Tone, str]] = {
    "overflow": ("bad", "overflow"),
    "overwritten": ("bad", "overwritten memory"),
    "exception": ("bad", "exception"),
}

_RANGE = """{{ text }}<svg viewBox="0 0 400 14" width="400" height="14" role="img"
aria-label="{{ text }}" style="display:block;max-width:100%;margin-top:.35rem"><rect width="400" height="14" rx="3"
fill="var(--panel)" stroke="var(--line)"/>
<rect x="{{ left }}" width="{{ width }}" height="14" fill="var(--bad)"/></svg>"""

WORDS = {"overflow": "overflows", "overwritten": "overwritten", "exception": "raised"}
"""Of a call that a finding is about, in the table."""

HEADS = {"overflow": "OVERFLOW", "overwritten": "OVERWRITTEN", "exception": "EXCEPTION"}


def findings_section(found: list[Found], sources: Sources, suffix: str = "") -> Section | None:
    """An article for each finding; None where there are none."""
    if not found:
        return None
    cards = [Card(f"{n}. {sentence_of(one)}", _told(one, sources)) for n, one in enumerate(found[:MOST_FINDINGS], 1)]
    left = len(found) - MOST_FINDINGS
    body: list[Content] = [Cards(cards), Note(f"{left} more are in {FINDINGS}." if left > 0 else "")]
    counts = [
        f"{n} {_many(FINDING_BADGES[kind][1], n)}"
        for kind in FINDING_BADGES
        if (n := sum(one.line.kind == kind for one in found))
    ]
    return Section(f"findings{suffix}", "Findings", body=body, summary=", ".join(counts) or f"{len(found)}")


def sentence_of(found: Found) -> str:
    """The finding in one short sentence."""
    line, culprit = found.line, found.culprit
    name = culprit.op if culprit is not None else "something outside of any op"
    place = culprit and (culprit.module or Path(culprit.source).name)
    where = f" {'in' if culprit and culprit.module else 'at'} {place}" if place else ""
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
    tone, word = FINDING_BADGES.get(line.kind, ("warn", line.kind))
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
    step = found.overflows()
    if step.uncompiled:
        rows.append(("uncompiled", step.uncompiled.removeprefix("uncompiled, ")))
    if carriers := step.carriers:
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


def report_from(
    path: Path, sources: Sources | None = None, *, source_roots: Sequence[Path] = (), suffix: str = ""
) -> Report:
    """The report of a dump: of graphs, of an API, or of another tool, as `graphprobe compare` takes it.

    Args:
        sources: finds the lines of the program; by default those below the working directory.
        source_roots: see `sources.Sources`.
        suffix: of the sections' ids, where a page has several dumps.

    Raises:
        RunNotFoundError: nothing is there.
        UsageError: something is there, and it is no dump.
        SchemaError: it was written by a newer graphprobe.
    """
    dump = open_dump(path)
    sources = sources if sources is not None else _sources(path, dump, source_roots)
    found, unread = findings_at(path) if dump.format == "graphprobe-graph" else ([], [])
    section = findings_section(found, sources, suffix)
    said = {text: WORDS.get(one.line.kind, "") for one in found for text in one.texts}
    sections, health = dump_sections(dump, sources, said, suffix)
    verdict = _verdict(found, health, sources, suffix)
    made = [section] if section is not None else []
    made += sections
    made.append(Section(f"dump{suffix}", "The dump", body=_facts(dump, health, unread), summary=dump.format))
    return Report(
        title=f"graphprobe dump: {verdict.word}: {dump.title}",
        subject=dump.title,
        verdict=verdict,
        sections=made,
        sources=sources,
    )


def _sources(path: Path, dump: CallDump, given: Sequence[Path]) -> Sources:
    """Finds lines of the program, and says which files were written to since."""
    manifests: list[Manifest] = []
    if isinstance(dump, ApiDump):
        manifests = [one.manifest for one in dump.by_rank.values()]
    elif isinstance(dump, GraphCalls):
        manifests = [folder.manifest for folder in open_graphs(path).folders if folder.manifest is not None]
    ran_in = next((Path(manifest.cwd) for manifest in manifests[:1] if manifest.cwd), path.resolve().parent)
    started = [manifest.started_ns for manifest in manifests if manifest.started_ns]
    return Sources(Path.cwd(), given=given, recorded=ran_in, since_ns=min(started, default=None))


def _verdict(found: list[Found], health: Health, sources: Sources, suffix: str) -> DocumentVerdict:
    rows: list[tuple[str, Content]] = []
    if found:
        first = found[0]
        tone: Tone = "bad"
        word, text = HEADS.get(first.line.kind, "FOUND"), sentence_of(first)
        if first.culprit is not None and (lines := lines_of(first.culprit, sources)):
            rows.append(("lines", lines))
        if len(found) > 1:
            rows.append(("more", Jump(f"findings{suffix}", f"{len(found):,} findings in all")))
    else:
        tone, word, text, rows = _seen(health, sources)
    if not health.calls:
        rows.append(("looked at", "no call"))
    else:
        rest = health.words.get("not_measured", 0)
        more = f", {rest:,} of them without numbers" if rest else ""
        rows.append(("looked at", (Jump(f"{CALLS}{suffix}", counted(health.calls, "call")), more)))
    return DocumentVerdict(tone, word, text, Facts(rows))


def _seen(health: Health, sources: Sources) -> tuple[Tone, str, str, list[tuple[str, Content]]]:
    """What the numbers of the calls come to, where no observer has found anything."""
    counts = health.words
    if health.begins is not None:
        word, call = health.begins
        rows: list[tuple[str, Content]] = [("call", Code(call.label)), *_line(call.source, sources)]
        if counts.get("passes_on"):
            rows.append(("then", f"{counts['passes_on']:,} calls pass on what is not finite"))
        if others := counts.get("makes_NaN", 0) + counts.get("makes_infinity", 0) - 1:
            rows.append(("more", f"{counted(others, 'other call')} make NaN or infinity, too"))
        what = "NaN" if word == "makes_NaN" else "Infinity"
        where = f" in {call.module}" if call.module else ""
        return "bad", "NOT FINITE", f"{what} begins at {call.label}{where}: all that it got was finite.", rows
    if counts.get("passes_on"):
        call = health.first["passes_on"]
        text = f"{call.label} gets NaN or infinity that no recorded call has made, and passes it on."
        return "warn", "NOT FINITE", text, _line(call.source, sources)
    if not health.calls:
        return "warn", "EMPTY", "The dump holds no call.", []
    if counts.get("not_measured", 0) == health.calls:
        return "info", "DUMP", f"{counted(health.calls, 'call')}, with no numbers to judge by.", []
    return "good", "FINITE", "No NaN or infinity in the dumped calls.", []


def _line(source: str | None, sources: Sources) -> list[tuple[str, Content]]:
    at = sources.place(source)
    return [("line", [at, Excerpt(at.line)])] if source else []


def _facts(dump: CallDump, health: Health, unread: list[str]) -> list[Content]:
    ranks = dump.ranks()
    steps = sorted({step for rank in ranks for step in dump.steps(rank)})
    shown = ", ".join(map(str, steps[:12])) + (f", … {steps[-1]}" if len(steps) > 12 else "")
    rows = [("folder", dump.title), ("format", dump.format), ("calls", f"{health.calls:,}"), ("steps", shown)]
    rows += [("ranks", ", ".join(map(str, ranks)))] if len(ranks) > 1 else []
    rows += [(name.replace("_", " "), value) for name, value in dump.facts.items() if name != "ranks"]
    rows += [(word.replace("_", " "), f"{count:,}") for word, count in sorted(health.words.items())]
    return [Facts(rows), Bullets([*dump.problems(), *unread], "What is missing", "warn")]
