"""A diagnosis on the terminal: the whole of it, its last lines, and the few for the message of a failing test."""

from __future__ import annotations

import linecache
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from graphprobe.findings import Diagnosis
from graphprobe.report.closing import print_closing
from graphprobe.report.diagnosis import (
    VERDICTS,
    beside,
    facts_of,
    foremost,
    in_short,
    is_proven,
    sentence,
    told,
    values_in_words,
)
from graphprobe.report.document import Card, SourcePlace
from graphprobe.report.terminal import STYLES, Paper, console_for, lines_of

WIDTH, LABEL = 80, 13
"""Columns at which prose is broken, and of a label with its colon."""

NOTES, NOTE_LENGTH = 5, 300
"""Notes of an undecided diagnosis that a failing test shows, and their letters."""


def print_diagnosis(diagnosis: Diagnosis, *, name: str, base: Path | None = None, file: IO[str] | None = None) -> None:
    """Print a diagnosis.

    Args:
        name: of what was diagnosed.
        base: absolute; paths below it are shown relative to it.
        file: standard output by default.
    """
    paper = Paper(console_for(file), width=WIDTH, label=LABEL)
    word, tone, meaning = VERDICTS[diagnosis.verdict]
    if diagnosis.verdict == "fault":
        count = len(diagnosis.findings)
        meaning = ("one fault appears" if count == 1 else f"{count} faults appear") + " only when it is compiled"
    compiles = diagnosis.compiles  # to look into; the program as its user compiles it is not counted
    graphs = f", {compiles} graph{'s' if compiles > 1 else ''} compiled to look inside" if compiles else ""
    paper.prose(f"{word}: {name}: {meaning} ({diagnosis.seconds:.0f} s{graphs}).", style=f"bold {STYLES[tone]}")
    for number, finding in enumerate(diagnosis.findings, 1):
        folder = _near(finding.dossier, base) if finding.dossier is not None else None
        paper.show(Card(f"{number}. {sentence(finding)}", told(finding, lambda at: _place(at, base), folder)))
    rest = beside(diagnosis)
    if rest:
        paper.gap()
        paper.show(rest)


def print_end(
    diagnoses: Sequence[Diagnosis], *, verdict: str, name: str, base: Path | None = None, file: IO[str] | None = None
) -> None:
    """Print the last lines of everything: the verdict, and of the first fault where it is and how to see it.

    Args:
        diagnoses: each printed already.
        verdict: of all of them together, "healthy", "fault" or "undecided".
        name: of what was diagnosed, with how many of what where they are several.
        base, file: as for `print_diagnosis`.
    """
    findings = [finding for diagnosis in diagnoses for finding in diagnosis.findings]
    word, tone, _ = VERDICTS[verdict]
    facts: list[tuple[str, str]] = []
    if findings:
        first = foremost(findings)
        place = [_near(first.source, base) if first.source else "", f"in {first.module}" if first.module else ""]
        facts.append(("fault", in_short(first)))
        facts.append(("where", " ".join(part for part in place if part)))
        if is_proven(first):
            dossier = _near(str(first.dossier), base)
            facts.append(("proof", f"python {shlex.quote(str(Path(dossier) / 'repro.py'))}"))
            facts.append(("next", f"graphprobe reduce {shlex.quote(dossier)}"))
    elif verdict == "undecided":
        facts.append(("why", next((note for d in diagnoses for note in d.notes), "")[:WIDTH]))
    print_closing(f"{word}: {name}", facts, style=f"bold {STYLES[tone]}", file=file)


def lines_from(diagnosis: Diagnosis) -> list[str]:
    """What was found, finding by finding, or why nothing could be told; empty of a healthy diagnosis."""
    lines: list[str] = []
    for finding in diagnosis.findings:
        lines.append(f"{sentence(finding)} Stage: {finding.stage}.")
        lines += [f"  {words}" for words in [values_in_words(finding)] if words]
        for label, value in facts_of(finding, SourcePlace, finding.dossier).rows:
            first, *further = (line for line, *_ in lines_of(value))
            lines += [f"  {label}: {first}", *(f"    {line}" for line in further)]
    if diagnosis.verdict == "undecided":
        lines += [f"- {_one_line(note)}" for note in diagnosis.notes[:NOTES]]
    return lines


def first_line_from(diagnosis: Diagnosis) -> str:
    """The first finding in one line, with the program's line; the first note of an undecided diagnosis."""
    for finding in diagnosis.findings:
        place = f" at {finding.source}" if finding.source else ""
        return f"{sentence(finding).rstrip('.')}{place}. Stage: {finding.stage}."
    return _one_line(diagnosis.notes[0]) if diagnosis.notes else ""


def repros_from(diagnosis: Diagnosis) -> list[str]:
    """The script of each finding that has a proof."""
    return [str(Path(str(f.dossier)) / "repro.py") for f in diagnosis.findings if is_proven(f)]


def _near(path: str, base: Path | None) -> str:
    """As short as it can be and still lead there."""
    return str(Path(path).relative_to(base)) if base is not None and Path(path).is_relative_to(base) else path


def _place(source: str, base: Path | None) -> SourcePlace:
    file, _, number = source.rpartition(":")
    line = linecache.getline(file, int(number)).strip() if file and number.isdecimal() else ""
    return SourcePlace(_near(source, base), line=line)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= NOTE_LENGTH else line[: NOTE_LENGTH - 1] + "…"
