"""A dump as a report: what its observers found, where NaN and infinity begin, and every call with its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from graphprobe.compare.open import open_dump
from graphprobe.records import Manifest
from graphprobe.report.document import (
    Bullets,
    Code,
    Content,
    DocumentVerdict,
    Excerpt,
    Facts,
    Jump,
    Section,
    Tone,
    counted,
)
from graphprobe.report.dump_health import Health
from graphprobe.report.html.dump_table import dump_sections
from graphprobe.report.html.heat import CALLS
from graphprobe.report.html.overflow import findings_section, lines_of, sentence_of
from graphprobe.report.html.page import Report
from graphprobe.report.html.sources import Sources
from graphprobe.store.api_reader import ApiDump
from graphprobe.store.calls import CallDump
from graphprobe.store.dump_findings import Found, findings_at
from graphprobe.store.dump_reader import open_dump as open_graphs
from graphprobe.store.graph_calls import GraphCalls

WORDS = {"overflow": "overflows", "overwritten": "overwritten", "exception": "raised"}
"""Of a call that a finding is about, in the table."""

HEADS = {"overflow": "OVERFLOW", "overwritten": "OVERWRITTEN", "exception": "EXCEPTION"}


def report_from(path: Path, sources: Sources | None = None, *, source_roots: Sequence[Path] = ()) -> Report:
    """The report of a dump: of graphs, of an API, or of another tool, as `graphprobe compare` takes it.

    Args:
        sources: finds the lines of the program; by default those below the working directory.
        source_roots: see `sources.Sources`.

    Raises:
        RunNotFoundError: nothing is there.
        UsageError: something is there, and it is no dump.
        SchemaError: it was written by a newer graphprobe.
    """
    dump = open_dump(path)
    sources = sources if sources is not None else _sources(path, dump, source_roots)
    found, unread = findings_at(path) if dump.format == "graphprobe-graph" else ([], [])
    section = findings_section(found, sources)
    said = {text: WORDS.get(one.line.kind, "") for one in found for text in one.texts}
    sections, health = dump_sections(dump, sources, said)
    verdict = _verdict(found, health, sources)
    made = [section] if section is not None else []
    made += sections
    made.append(Section("dump", "The dump", body=_facts(dump, health, unread), summary=dump.format))
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


def _verdict(found: list[Found], health: Health, sources: Sources) -> DocumentVerdict:
    rows: list[tuple[str, Content]] = []
    if found:
        first = found[0]
        tone: Tone = "bad"
        word, text = HEADS.get(first.line.kind, "FOUND"), sentence_of(first)
        if first.culprit is not None and (lines := lines_of(first.culprit, sources)):
            rows.append(("lines", lines))
        if len(found) > 1:
            rows.append(("more", Jump("findings", f"{len(found):,} findings in all")))
    else:
        tone, word, text, rows = _seen(health, sources)
    if not health.calls:
        rows.append(("looked at", "no call"))
    else:
        rest = health.words.get("not_measured", 0)
        more = f", {rest:,} of them without numbers" if rest else ""
        rows.append(("looked at", (Jump(CALLS, counted(health.calls, "call")), more)))
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
    return "good", "FINITE", "No call gave NaN or infinity, as far as the dump tells.", []


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
