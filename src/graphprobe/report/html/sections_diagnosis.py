"""The report of a diagnosis: what is wrong, where, how sure that is, and how to see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from graphprobe.findings import Finding, FunctionDiagnosis
from graphprobe.report.diagnosis import VERDICTS, beside, foremost, sentence, told
from graphprobe.report.document import (
    Badge,
    Card,
    Cards,
    Code,
    Content,
    DocumentVerdict,
    Facts,
    Grid,
    Jump,
    Section,
    SourcePlace,
    counted,
)
from graphprobe.report.html.graph_window import window_section
from graphprobe.report.html.ladder import ladder_section
from graphprobe.report.html.page import Report
from graphprobe.report.html.proof import code_section, proof_section, recorded_line
from graphprobe.report.html.sources import Sources
from graphprobe.store.diagnosis_file import FINDING, Diagnosed, proof_of, read_diagnosed

ORDER = ("fault", "undecided", "healthy")

MOST_FUNCTIONS = 20
"""Functions of a script that get sections of their own: those with a fault first."""


def report_from(path: Path, *, source_roots: Sequence[Path] = ()) -> Report:
    """The report of the JSON of a diagnosis, of a dossier, or of a folder of dossiers.

    Args:
        source_roots: see `sources.Sources`.

    Raises:
        UsageError: it is none of these.
    """
    found = read_diagnosed(path)
    written_ns = (path / FINDING if (path / FINDING).is_file() else path).stat().st_mtime_ns
    sources = Sources(Path.cwd(), given=source_roots, recorded=path.resolve().parent, since_ns=written_ns)
    shown = sorted(found.diagnoses, key=lambda d: ORDER.index(d.verdict))
    several = len(shown) > 1
    verdict = _verdict(shown, found, sources)
    sections = [_functions(shown, sources)] if several else []
    for number, diagnosis in enumerate(shown[:MOST_FUNCTIONS] if several else shown):
        if number == 0 or diagnosis.verdict != "healthy":
            sections += _sections(diagnosis, found, sources, f"f{number}-" if several else "")
    name = found.target or str(path)
    return Report(f"graphprobe: {verdict.word}: {name}", name, verdict, sections, sources)


def _verdict(shown: list[FunctionDiagnosis], found: Diagnosed, sources: Sources) -> DocumentVerdict:
    word, tone, meaning = VERDICTS[shown[0].verdict]
    findings = [finding for diagnosis in shown for finding in diagnosis.findings]
    rows: list[tuple[str, Content]] = []
    body: list[Content] = []
    if findings and word == "FAULT":
        first = foremost(findings)
        text = sentence(first)
        *body, facts = _told(first, found, sources)
        rows += facts.rows if isinstance(facts, Facts) else []
        if len(findings) > 1:
            rows.append(("more", Jump("functions" if len(shown) > 1 else "findings", f"{len(findings)} faults in all")))
    else:
        meaning = meaning or "a fault was found, and the file does not say which"
        text = f"{meaning[:1].upper()}{meaning[1:]}."
        notes = [note for diagnosis in shown for note in diagnosis.notes]
        rows += [("why", note) for note in notes[:1] if word == "UNDECIDED"]
        rows += _measured(shown) if not found.partial else []
    if found.ended:
        rows.append(("the script", found.ended))
    return DocumentVerdict(tone, word, text, [*body, Facts(rows)])


def _sections(diagnosis: FunctionDiagnosis, found: Diagnosed, sources: Sources, prefix: str) -> list[Section]:
    findings = diagnosis.findings
    made: list[Section | None] = []
    if len(findings) > 1 or (prefix and findings):
        cards = [Card(f"{n}. {sentence(one)}", _told(one, found, sources)) for n, one in enumerate(findings, 1)]
        made.append(Section("findings", "All findings", body=Cards(cards), summary=counted(len(cards), "fault")))
    if diagnosis.rungs and not found.partial:
        made.append(ladder_section(diagnosis))
    many = len(findings) > 1
    proofs = [(one, proof_of(one, found.path), f"-{n}" if many else "") for n, one in enumerate(findings, 1)]
    for finding, folder, suffix in proofs:
        made.append(code_section(finding, folder, sources, suffix))
        made.append(window_section(folder, sources, culprit=finding.node, suffix=suffix))
    if not found.partial and (rest := beside(diagnosis)):
        summary = f"{len(diagnosis.ruled_out)} checked, {counted(len(diagnosis.notes), 'note')}"
        made.append(Section("checked", "What was ruled out", body=rest, summary=summary))
    made += [proof_section(finding, folder, suffix) for finding, folder, suffix in proofs]
    sections = [section for section in made if section is not None]
    if not prefix:
        return sections
    return [replace(section, id=f"{prefix}{section.id}", group=diagnosis.function) for section in sections]


def _functions(shown: list[FunctionDiagnosis], sources: Sources) -> Section:
    rows: list[list[Content]] = []
    for diagnosis in shown:
        _, tone, meaning = VERDICTS[diagnosis.verdict]
        what = " ".join(map(sentence, diagnosis.findings)) or meaning
        name, bracket, place = diagnosis.function.partition(" (")
        place, _, call = place.partition(")")
        link = sources.place(place) if bracket else ""
        badge = Badge(tone, diagnosis.verdict)
        rows.append([(Code(f"{name}{call}"), " ", link), badge, what, f"{diagnosis.seconds:.1f}"])
    counts = [f"{n} {word}" for word in ORDER if (n := sum(d.verdict == word for d in shown))]
    left = sum(d.verdict != "healthy" for d in shown) - MOST_FUNCTIONS
    note = f"The parts below are of the first {MOST_FUNCTIONS}; {left} more are in the JSON." if left > 0 else ""
    grid = Grid(("Function", "DocumentVerdict", "What", "Seconds"), rows, numbers=(3,), left=note)
    return Section("functions", "Functions", body=grid, summary=", ".join(counts))


def _told(finding: Finding, found: Diagnosed, sources: Sources) -> list[Content]:
    folder = proof_of(finding, found.path)

    def place(source: str) -> SourcePlace:
        at = sources.place(source)
        # The file may have changed since.
        return replace(at, line=recorded_line(folder, source) or at.line)

    return told(finding, place, str(folder) if folder is not None else None)


def _measured(shown: list[FunctionDiagnosis]) -> list[tuple[str, Content]]:
    largest = max((d.largest_z for d in shown), key=lambda one: one.z)
    rows: list[tuple[str, Content]] = []
    if largest.node:
        error = f"{largest.z:.3g} times what rounding explains, at "
        rows.append(("largest error", (error, Code(largest.node), "; a fault is far above 4")))
    graphs = counted(sum(d.compiles for d in shown), "graph")
    rows.append(("looked at", f"{graphs} compiled to kernels, in {sum(d.seconds for d in shown):.0f} s"))
    return rows
