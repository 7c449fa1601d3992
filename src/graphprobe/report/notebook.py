"""A result as a notebook shows it, the verdict first; and the text that `print` gives of it, as on the terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphprobe.analysis.breaks import BreakReport
from graphprobe.analysis.timing import Profile, summary_of
from graphprobe.compare.run import Comparison
from graphprobe.findings import Diagnosis, FunctionDiagnosis
from graphprobe.report import comparison, diagnosis, explanation, profile_document
from graphprobe.report.document import (
    Card,
    Code,
    Content,
    DocumentVerdict,
    Facts,
    Folded,
    Listing,
    SourcePlace,
    counted,
)
from graphprobe.report.drifted import print_drift, verdict_of_drift
from graphprobe.report.html.render import html
from graphprobe.report.run_document import print_run
from graphprobe.store.reader import Run
from graphprobe.store.watch_file import Drift

CARDS = 3
"""Findings that a notebook shows; `print` has all."""

COLOURS = {"bad": "#c0262d", "warn": "#946200", "good": "#1a7f37", "info": "#0b5cad"}

_PAGE = """<div class="graphprobe" style="border-left:4px solid {{ colour }};padding:.2em 1em;max-width:60em">
<p><strong style="color:{{ colour }}">{{ verdict.word }}</strong> {{ verdict.sentence }}</p>
{{ verdict.body | show }}
</div>
"""


def html_of(result: Any) -> str:
    """The result as a piece of HTML that asks for nothing from anywhere and needs no script; all text is escaped."""
    verdict = verdict_of(result)
    return str(html(_PAGE, verdict=verdict, colour=COLOURS[verdict.tone]))


def verdict_line(result: Any) -> str:
    """The verdict, in a line."""
    verdict = verdict_of(result)
    return f"{verdict.word}: {verdict.sentence.rstrip('.')}"


def text_of(result: Any) -> str:
    """The result as the terminal shows it, without the last line that names a command."""
    file = io.StringIO()
    if isinstance(result, Diagnosis):
        diagnosis.print_diagnosis(result, name=_name(result), base=Path.cwd(), file=file)
    elif isinstance(result, Comparison):
        comparison.print_comparison(result.summary, file=file)
    elif isinstance(result, Profile):
        profile_document.print_profile(result, file=file)
    elif isinstance(result, Drift):
        print_drift(result, base=Path.cwd(), file=file)
    elif isinstance(result, Run):
        print_run(result, file=file)
    else:
        raise TypeError(f"{type(result).__name__} is no result that graphprobe shows")
    return file.getvalue().rstrip("\n")


def verdict_of(result: Any) -> DocumentVerdict:
    """What is shown of a result: its verdict, and below it what is known; raises TypeError of anything else."""
    if isinstance(result, Diagnosis):
        return _of_diagnosis(result)
    if isinstance(result, Drift):
        return verdict_of_drift(result)
    if isinstance(result, Comparison):
        summary = result.summary
        word, tone, told = comparison.outcome_of(summary)
        cards = [
            comparison.card_of(title, finding, SourcePlace, also=comparison.SHOWN)
            for title, finding in comparison.titled(summary.findings[:CARDS])
        ]
        sides = Facts([("candidate", Code(summary.candidate.title)), ("reference", Code(summary.reference.title))])
        return DocumentVerdict(tone, word, f"{told}.", [sides, *_some(cards, len(summary.findings))])
    if isinstance(result, Profile):
        head, *lines = profile_document.head_lines(result, summary_of(result))
        tables = profile_document.grids_of(summary_of(result), top=5)
        return DocumentVerdict("info", "PROFILE", head, [*lines, *tables.values()])
    if isinstance(result, Run):
        return _of_run(result)
    if isinstance(result, DocumentVerdict):
        return result
    raise TypeError(f"{type(result).__name__} is no result that graphprobe shows")


def breaks_of(report: BreakReport, notes: Sequence[str]) -> DocumentVerdict:
    """What is shown of graph breaks; `notes`: what could not be observed."""
    cards = [
        Card((row.kind, " at ", SourcePlace(row.where)), explanation.facts_of(row, str))
        for row in report.breaks[:CARDS]
    ]
    counts = f"{counted(len(report.graphs), 'graph')}, {counted(report.break_count, 'graph break')}"
    body: list[Content] = [*_some(cards, len(report.breaks)), *(f"Not observed: {note}" for note in notes)]
    if report.found:
        return DocumentVerdict("bad", "BREAKS", f"{counts}.", body)
    if notes or not report.graphs:
        return DocumentVerdict("warn", "UNDECIDED", f"{counts}.", body)
    return DocumentVerdict("good", "WHOLE", f"{counts}: nothing breaks.", body)


def _of_diagnosis(result: Diagnosis) -> DocumentVerdict:
    word, tone, _ = diagnosis.VERDICTS[result.verdict]
    cards = [
        Card(f"{number}. {diagnosis.sentence(one)}", diagnosis.told(one, SourcePlace, one.dossier))
        for number, one in enumerate(result.findings[:CARDS], 1)
    ]
    sentence = f"{_name(result)}: {diagnosis.meaning_of(result)} ({result.seconds:.0f} s)."
    rest = [*diagnosis.last_bits(result), *diagnosis.beside(result)]
    more: list[Content] = [Folded("what was checked, and notes", rest)] if rest else []
    if result.verdict == "undecided":
        more = rest
    return DocumentVerdict(tone, word, sentence, [*_some(cards, len(result.findings)), *more])


def _of_run(run: Run) -> DocumentVerdict:
    gaps = [*run.problems, *run.manifest.missing]
    rows: list[tuple[str, Content]] = [("folder", Code(str(run.run_dir)))]
    rows += [("missing", gap) for gap in gaps]
    if run.manifest.exception:
        rows.append(("ended by", run.manifest.exception))
    counts = f"{counted(len(run.models()), 'model')}, {counted(len(run.artifacts()), 'file')}."
    bad = run.state in ("failed", "killed")
    body: list[Content] = [Facts(rows), Folded("what it holds", Listing(text_of(run), "The run as a tree"))]
    return DocumentVerdict("bad" if bad else "warn" if gaps else "good", run.state.upper(), counts, body)


def _name(result: Diagnosis) -> str:
    return result.function if isinstance(result, FunctionDiagnosis) else "the program"


def _some(cards: list[Card], count: int) -> list[Content]:
    return [*cards, *([f"and {count - CARDS} more; print() has them"] if count > CARDS else [])]
