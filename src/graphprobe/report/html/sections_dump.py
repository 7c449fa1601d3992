"""A dump as a report: what its observers found, where NaN and infinity begin, and every call with its numbers."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from graphprobe.compare.open import open_dump
from graphprobe.compare.outline import OUTPUT_ROLES
from graphprobe.compare.randomness import is_undefined
from graphprobe.numerics.dtypes import DTYPES
from graphprobe.records import Manifest, TensorStats
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
from graphprobe.report.html.page import Report
from graphprobe.report.html.render import html
from graphprobe.report.html.sources import Sources
from graphprobe.report.html.table import (
    CALLS,
    COLUMN_KEY,
    MAGNITUDE,
    MOST_CALLS,
    NONFINITE,
    RANGE,
    ROW_KEY,
    Cell,
    Column,
    Heat,
    Table,
    calls_sections,
)
from graphprobe.store.api_reader import ApiDump
from graphprobe.store.calls import Call, CallDump, CallSlot, WithStatistics
from graphprobe.store.dump_reader import (
    FINDINGS,
    Elements,
    FindingLine,
    Found,
    GraphCalls,
    Op,
    OutputProblem,
    findings_at,
)

MOST_FINDINGS = 100
"""Findings that the page has; a dump has up to a thousand of each kind."""
MOST_CARRIERS = 12
MOST_LINES = 6
"""Lines of the program that a kernel carries out."""
MOST_TEXT = 20_000
"""Characters of a traceback."""

FINDINGS_IN_WORDS = {
    "overflow": ("overflow", "overflows"),
    "overwritten": ("overwritten memory", "overwritten"),
    "exception": ("exception", "raised"),
}
"""What a finding of a kind is called, and in the table the call that it is about."""

_RANGE = """{{ text }}<svg viewBox="0 0 400 14" width="400" height="14" role="img"
aria-label="{{ text }}" style="display:block;max-width:100%;margin-top:.35rem"><rect width="400" height="14" rx="3"
fill="var(--panel)" stroke="var(--line)"/>
<rect x="{{ left }}" width="{{ width }}" height="14" fill="var(--bad)"/></svg>"""

HEALTH_TONES: dict[str, Tone] = {
    "overflows": "bad",
    "overwritten": "bad",
    "raised": "bad",
    "makes_NaN": "bad",
    "makes_infinity": "bad",
    "passes_on": "warn",
    "writes_infinity": "info",
    "finite": "good",
    "uninitialised": "info",
    "not_measured": "info",
}
"""What a call did. The first three are findings of the dump's observers. `writes_infinity`: the program says so, as in
a mask; `uninitialised`: memory as it was, `torch.empty`, whose numbers say nothing."""

HARMLESS = ("finite", "writes_infinity", "uninitialised", "not_measured")

WITH_SLOTS = 2_000
"""Calls whose slots are shown with their details: the first ones, and as many of those that are not finite."""

READ_BYTES = 256 << 20
"""Values that are read for their statistics, where the dump has values alone."""

UNREAD = f"Only the values that fit in {READ_BYTES >> 20} MiB were read; other calls are “not measured”."

COLUMNS = (
    Column(name="#", kind="number", help="Position in its step, in the order of execution"),
    Column(
        name="health", kind="verdict", tones=HEALTH_TONES, help="What its results hold, and whether it got that already"
    ),
    Column(name="call", wide=True, help="The call's name in the dump"),
    Column(name="max", kind="number", help="Largest finite number of its results"),
    Column(name="min", kind="number", help="Lowest finite number of its results"),
    Column(name="NaN", kind="number", help="Elements of its results that are NaN"),
    Column(name="Inf", kind="number", help="Elements of its results that are infinite"),
    Column(name="module", wide=True, help="The module that was running"),
    Column(name="line", kind="source", help="The line of the program"),
    Column(name="range", kind="number", help="Largest magnitude as a share of the largest number of its dtype"),
    Column(name="l2", kind="number", help="Root of the sum of squares of its first result"),
    Column(name="result", help="Dtype and shape of its first result"),
    Column(name="api", help="What was called"),
    Column(name="kind", help="api, module, optimizer, node or kernel"),
    Column(name="step", kind="number", help="Training step"),
    Column(name="rank", kind="number", help="Process"),
    Column(name="direction", help="Forward or backward"),
    Column(name="notes", wide=True, help="What a reader should know"),
    Column(name=ROW_KEY, kind="number", hidden=True),
    Column(name=COLUMN_KEY, kind="number", hidden=True),
)

SLOT_HEAD = ("value", "dtype, shape", "min", "max", "mean", "l2", "NaN", "+Inf", "−Inf", "zeros", "note")


def findings_section(found: list[Found], sources: Sources, suffix: str = "") -> Section | None:
    """An article for each finding; None where there are none."""
    if not found:
        return None
    cards = [Card(f"{n}. {sentence_of(one)}", _told(one, sources)) for n, one in enumerate(found[:MOST_FINDINGS], 1)]
    left = len(found) - MOST_FINDINGS
    body: list[Content] = [Cards(cards), Note(f"{left} more are in {FINDINGS}." if left > 0 else "")]
    counts = [
        counted(n, noun, noun if noun.endswith("memory") else "")
        for kind, (noun, _) in FINDINGS_IN_WORDS.items()
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
    tone: Tone = "bad" if line.kind in FINDINGS_IN_WORDS else "warn"
    word = FINDINGS_IN_WORDS.get(line.kind, (line.kind,))[0]
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
    if found.line.kind != "exception" or (raised := found.raised()) is None:
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


def report_from(
    path: Path, sources: Sources | None = None, *, source_roots: Sequence[Path] = (), suffix: str = ""
) -> Report:
    """The report of a dump: of graphs, of an API, or of another tool, as `graphprobe compare` takes it.

    Args:
        sources: finds the lines of the program; by default those below the working directory.
        source_roots: see `page_of`.
        suffix: of the sections' ids, where a page has several dumps.
    """
    dump = open_dump(path)
    sources = sources if sources is not None else _sources(path, dump, source_roots)
    found, unread = findings_at(path) if dump.format == "graphprobe-graph" else ([], [])
    section = findings_section(found, sources, suffix)
    said = {text: FINDINGS_IN_WORDS.get(one.line.kind, ("", ""))[1] for one in found for text in one.texts}
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
        manifests = [folder.manifest for folder in dump.folders if folder.manifest is not None]
    ran_in = next((Path(manifest.cwd) for manifest in manifests[:1] if manifest.cwd), path.resolve().parent)
    started = [manifest.started_ns for manifest in manifests if manifest.started_ns]
    return Sources(Path.cwd(), given=given, recorded=ran_in, since_ns=min(started, default=None))


def _verdict(found: list[Found], health: Health, sources: Sources, suffix: str) -> DocumentVerdict:
    rows: list[tuple[str, Content]] = []
    if found:
        first = found[0]
        tone: Tone = "bad"
        word, text = first.line.kind.upper() if first.line.kind in FINDINGS_IN_WORDS else "FOUND", sentence_of(first)
        if first.culprit is not None and (lines := lines_of(first.culprit, sources)):
            rows.append(("lines", lines))
        if len(found) > 1:
            rows.append(("more", Jump(f"findings{suffix}", f"{len(found):,} findings in all")))
    else:
        tone, word, text, rows = _seen(health, sources)
    if not health.calls:
        rows.append(("looked at", "no call"))
    else:
        rest = health.words["not_measured"]
        more = f", {rest:,} of them without numbers" if rest else ""
        rows.append(("looked at", (Jump(f"{CALLS}{suffix}", counted(health.calls, "call")), more)))
    return DocumentVerdict(tone, word, text, Facts(rows))


def _seen(health: Health, sources: Sources) -> tuple[Tone, str, str, list[tuple[str, Content]]]:
    """What the numbers of the calls come to, where no observer has found anything."""
    counts = health.words
    if health.begins is not None:
        word, call = health.begins
        rows: list[tuple[str, Content]] = [("call", Code(call.label)), *_line(call.source, sources)]
        if counts["passes_on"]:
            rows.append(("then", f"{counts['passes_on']:,} calls pass on what is not finite"))
        if others := counts["makes_NaN"] + counts["makes_infinity"] - 1:
            rows.append(("more", f"{counted(others, 'other call')} make NaN or infinity, too"))
        what = "NaN" if word == "makes_NaN" else "Infinity"
        where = f" in {call.module}" if call.module else ""
        return "bad", "NOT FINITE", f"{what} begins at {call.label}{where}: all that it got was finite.", rows
    if counts["passes_on"]:
        call = health.first["passes_on"]
        text = f"{call.label} gets NaN or infinity that no recorded call has made, and passes it on."
        return "warn", "NOT FINITE", text, _line(call.source, sources)
    if not health.calls:
        return "warn", "EMPTY", "The dump holds no call.", []
    if counts["not_measured"] == health.calls:
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


class Health:
    """Judges calls in the order of execution, and keeps what was seen in all of them.

    Attributes:
        words: how many of each of `HEALTH_TONES`.
        first: the first call of each, in the order of steps.
        begins: the first call that made NaN or infinity of what was finite, and its word.
    """

    def __init__(self, said: dict[str, str]) -> None:
        """`said`: by the text of a finding, which the notes of its call repeat, the word for such a call."""
        self.calls = 0
        self.words: Counter[str] = Counter()
        self.first: dict[str, Call] = {}
        self.begins: tuple[str, Call] | None = None
        self._said = said
        self._spoiled: set[tuple[object, ...]] = set()

    def word(self, call: Call, stats: dict[str, TensorStats]) -> str:
        """The word for a call; `stats` are those of its slots, by name, as `told` returns them."""
        word = self._word(call, stats)
        self.calls += 1
        self.words[word] += 1
        self.first.setdefault(word, call)
        if word in ("makes_NaN", "makes_infinity") and self.begins is None:
            self.begins = word, call
        if word not in HARMLESS:
            self._spoiled.add(_identity(call))
        return word

    def _word(self, call: Call, stats: dict[str, TensorStats]) -> str:
        for note in call.notes:
            word = self._said.get(note.removeprefix("overflow: "))
            if word:
                return word
        if is_undefined(call):
            return "uninitialised"
        results = [stats[slot.name] for slot in call.slots if slot.role in OUTPUT_ROLES and slot.name in stats]
        if not results:
            return "not_measured"
        nan, infinite = sum(one.nan for one in results), sum(map(infinite_of, results))
        if not nan and not infinite:
            return "finite"
        given = [stats[slot.name] for slot in call.slots if slot.role not in OUTPUT_ROLES and slot.name in stats]
        # A backward computes with what its forward has kept, too.
        if any(one.nan or infinite_of(one) for one in given) or _identity(call) in self._spoiled:
            return "passes_on"
        if not nan and any(slot.scalar is not None and "inf" in slot.scalar.text for slot in call.slots):
            return "writes_infinity"
        return "makes_NaN" if nan else "makes_infinity"


def told(slot: CallSlot) -> TensorStats | None:
    """What the statistics of a slot say of NaN and infinity; None where they say nothing.

    Other tools count neither, but their largest and lowest numbers are of all elements, so that these are NaN or
    infinite where an element is; that one is then counted.
    """
    stats = slot.stats
    if stats is None or not slot.known or "nan" in slot.known:
        return stats
    if "count" in slot.known or stats.max is None or stats.min is None:
        return None  # a dump of ours without this column: its largest number is of the finite elements
    if stats.max != stats.max or stats.min != stats.min:
        return msgspec.structs.replace(stats, nan=1)
    return msgspec.structs.replace(
        stats, positive_inf=int(math.isinf(stats.max)), negative_inf=int(math.isinf(stats.min))
    )


def infinite_of(stats: TensorStats) -> int:
    """How many elements are infinite."""
    return stats.positive_inf + stats.negative_inf


def _identity(call: Call) -> tuple[object, ...]:
    """The same for a call and for its backward."""
    return call.rank, call.step, call.kind, call.api, call.index


def dump_sections(
    dump: CallDump, sources: Sources, said: dict[str, str], suffix: str = ""
) -> tuple[list[Section], Health]:
    """The heat map, where there is more than one cell, and the table; nothing without calls.

    Args:
        said: by the text of a finding, which notes of calls repeat, the word for such a call.
        suffix: of the sections' ids.
    """
    table = Table("Calls" if not suffix else "Compiled operations", COLUMNS)
    heat, health = Heat((NONFINITE, RANGE, MAGNITUDE)), Health(said)
    filled = WithStatistics(dump, most_bytes=READ_BYTES)
    left = 0
    for call in (one for rank in dump.ranks() for step in dump.steps(rank) for one in filled.calls(rank, step)):
        if table.rows >= MOST_CALLS:
            left += 1
            continue
        judged = {slot.name: found for slot in call.slots if (found := told(slot)) is not None}
        word = health.word(call, judged)
        _add(call, judged, word, table, heat)
        if word not in HARMLESS:
            table.start_here()
            sources.linked(call.source)
        if table.rows <= WITH_SLOTS or (word not in HARMLESS and table.with_more < 2 * WITH_SLOTS):
            table.more(SLOT_HEAD, [_slot(slot) for slot in call.slots])
    constant = ("step", "rank", "direction", "kind", "notes", "module")
    notes = [f"{left:,} more calls are in the dump." if left else "", UNREAD if filled.unread else ""]
    return calls_sections(table, heat, sources, constant=constant, notes=notes, suffix=suffix), health


def _add(call: Call, judged: dict[str, TensorStats], word: str, table: Table, heat: Heat) -> None:
    given = [slot for slot in call.slots if slot.role in OUTPUT_ROLES]
    results = [(slot, slot.stats) for slot in given if slot.stats is not None]
    first = next((slot.meta for slot in given if slot.meta is not None), None)
    counts = [judged[slot.name] for slot in given if slot.name in judged]
    nan = float(sum(one.nan for one in counts)) if counts else None
    infinite = float(sum(map(infinite_of, counts))) if counts else None
    # Of other tools the largest number of a tensor with NaN is NaN.
    highest = max((one.max for _, one in results if one.max is not None and one.max == one.max), default=None)
    lowest = min((one.min for _, one in results if one.min is not None and one.min == one.min), default=None)
    share = max((found for slot, one in results if (found := _share(slot, one)) is not None), default=None)
    magnitude = None if highest is None or lowest is None else max(abs(highest), abs(lowest))
    broken = None if nan is None or infinite is None else nan + infinite
    seen = (broken, share, magnitude) if word != "uninitialised" else (None, None, None)
    at = heat.add(call.module, (call.rank, call.step, int(call.direction == "backward")), seen)
    cells: tuple[Cell, ...] = (
        call.position,
        word,
        call.label,
        highest,
        lowest,
        nan,
        infinite,
        call.module,
        call.source,
        share,
        results[0][1].l2 if results else None,
        f"{first.dtype}{list(first.shape)}" if first is not None else "",
        call.api,
        call.kind,
        call.step,
        call.rank,
        call.direction,
        "; ".join(call.notes),
        at[0],
        at[1],
    )
    table.add(cells)


def _share(slot: CallSlot, stats: TensorStats) -> float | None:
    """The largest magnitude as a share of what the dtype holds; infinite where the value is."""
    facts = DTYPES.get(slot.meta.dtype) if slot.meta is not None else None
    if facts is None or facts.is_exact:
        return None
    if infinite_of(stats):
        return math.inf
    ends = [abs(end) for end in (stats.min, stats.max) if end is not None and end == end]
    return max(ends) / facts.largest if ends else None


def _slot(slot: CallSlot) -> list[Cell]:
    if slot.meta is None:
        kind, text = ("", "") if slot.scalar is None else (slot.scalar.type, slot.scalar.text)
        return [slot.name, kind, *[None] * 8, text or slot.missing]
    names = ("min", "max", "mean", "l2", "nan", "positive_inf", "negative_inf", "zeros")
    form = f"{slot.meta.dtype}{list(slot.meta.shape)}"
    return [slot.name, form, *(getattr(slot.stats, name, None) for name in names), slot.missing]
