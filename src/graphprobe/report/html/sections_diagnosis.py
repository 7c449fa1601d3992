"""The report of a diagnosis: what is wrong, where, how sure that is, and how to see it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from graphprobe.findings import Finding, FunctionDiagnosis
from graphprobe.report.diagnosis import STAGES, VERDICTS, details, is_proven, reason_of, sentence, values_in_words
from graphprobe.report.html.diagnosis_file import (
    FINDING,
    Diagnosed,
    proof_of,
    read_diagnosed,
)
from graphprobe.report.html.graph_window import window_section
from graphprobe.report.html.ladder import ladder_section
from graphprobe.report.html.proof import code_section, proof_section, recorded_line
from graphprobe.report.html.section import Html, Report, Section, Tone, Verdict, badge, html
from graphprobe.report.html.sources import Sources

TONES: dict[str, Tone] = {"fault": "bad", "healthy": "good", "undecided": "warn"}
ORDER = ("fault", "undecided", "healthy")

MOST_FUNCTIONS = 20
"""Functions of a script that get sections of their own: those with a fault first."""

_FACTS = """<dl class="known">
{% for label, value in facts %}<dt>{{ label }}</dt><dd>{{ value }}</dd>
{% endfor %}</dl>"""
_COMMAND = """<div class="command" data-copy><code>{{ command }}</code></div>
<p class="note">Exits 1 while the fault is there, 0 once it is gone. Needs torch only.</p>"""
_CULPRIT = """{{ link }}{% if line %}<pre class="culprit"><code>{{ line }}</code></pre>{% endif %}"""
_CARD = """<article class="card"><h3>{{ number }}. {{ sentence }}</h3>{{ facts }}</article>"""
_LIST = """<h3>{{ title }}</h3><ul class="checks">{% for text in texts %}<li>{{ badge }} {{ text }}</li>
{% endfor %}</ul>"""
_DETAILS = """<details><summary>what was measured</summary>{% for text in texts %}<p>{{ text }}</p>{% endfor %}
</details>"""
_LARGEST = """<p class="note">The largest error among the operations that passed is {{ z }} times what rounding
explains, at <code>{{ n }}</code>.</p>"""
_FUNCTIONS = """<div class="wrap"><table>
<thead><tr><th>Function</th><th>Verdict</th><th>What</th><th class="n">Seconds</th></tr></thead>
<tbody>{% for name, link, verdict, what, seconds in rows %}<tr><td><code>{{ name }}</code> {{ link }}</td>
<td class="whole">{{ verdict }}</td><td>{{ what }}</td><td class="n">{{ seconds }}</td></tr>
{% endfor %}</tbody></table></div>
{% if left > 0 %}
<p class="note">The parts below are of the first {{ most }}; {{ left }} more are in the JSON.</p>{% endif %}"""


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
    worst = min((d.verdict for d in found.diagnoses), key=ORDER.index)
    name = found.target or str(path)
    sections: list[Section] = []
    shown = sorted(found.diagnoses, key=lambda d: ORDER.index(d.verdict))
    if len(shown) > 1:
        sections.append(_functions(shown, sources))
    for number, diagnosis in enumerate(shown[:MOST_FUNCTIONS] if len(shown) > 1 else shown):
        if number == 0 or diagnosis.verdict != "healthy":
            prefix = f"f{number}-" if len(shown) > 1 else ""
            sections += _sections(diagnosis, found, sources, prefix)
    return Report(
        title=f"graphprobe: {VERDICTS[worst][0]}: {name}",
        subject=name,
        verdict=_verdict(worst, shown, found, sources),
        sections=sections,
        sources=sources,
    )


def _verdict(worst: str, shown: list[FunctionDiagnosis], found: Diagnosed, sources: Sources) -> Verdict:
    word, _, meaning = VERDICTS[worst]
    findings = [finding for diagnosis in shown for finding in diagnosis.findings]
    if worst != "fault" or not findings:
        meaning = meaning or "a fault was found, and the file does not say which"
        meaning = meaning[:1].upper() + meaning[1:]
        facts = _measured(shown) if not found.partial else []
        notes = [note for diagnosis in shown for note in diagnosis.notes]
        if worst == "undecided" and notes:
            facts.insert(0, ("Why", notes[0]))
        if found.ended:
            facts.append(("The script", found.ended))
        text = html(_FACTS, facts=facts) if facts else Html("")
        return Verdict(TONES[worst], word, f"{meaning}.", text)
    # The one that comes with a proof says most.
    first = next((one for one in findings if is_proven(_dict(one))), findings[0])
    said = sentence(_dict(first))
    stage = STAGES.get(first.stage, first.stage)
    facts = [("Where", html("It goes wrong in {{ stage }}.", stage=stage) if first.stage != "unknown" else Html(stage))]
    facts = _values(first) + facts + _place(first, found, sources) + _sure(first)
    if len(findings) > 1:
        where = "functions" if len(shown) > 1 else "findings"
        facts.append(("More", html('<a href="#{{ where }}">{{ n }} faults in all</a>', where=where, n=len(findings))))
    if found.ended:
        facts.append(("The script", found.ended))
    return Verdict(TONES[worst], word, said, html("{{ facts }}{{ see }}", facts=_facts(facts), see=_see(first, found)))


def _sections(diagnosis: FunctionDiagnosis, found: Diagnosed, sources: Sources, prefix: str) -> list[Section]:
    made: list[Section] = []
    if diagnosis.rungs and not found.partial:
        made.append(ladder_section(diagnosis.to_json()))
    for number, finding in enumerate(diagnosis.findings, 1):
        of = f"-{number}" if len(diagnosis.findings) > 1 else ""
        folder = proof_of(finding, found.path)
        window = window_section(folder, sources, culprit=finding.node, suffix=of)
        made += [s for s in (code_section(finding, folder, sources, of), window) if s]
    if len(diagnosis.findings) > 1 or (prefix and diagnosis.findings):
        cards = [_card(number, finding, found, sources) for number, finding in enumerate(diagnosis.findings, 1)]
        text = html('<div class="cards">{% for card in cards %}{{ card }}{% endfor %}</div>', cards=cards)
        made.insert(0, Section("findings", "All findings", html=text, summary=_counted(len(cards), "fault")))
    made += [s for s in (_checked(diagnosis, found), *_proofs(diagnosis, found)) if s]
    if not prefix:
        return made
    return [replace(section, id=f"{prefix}{section.id}", group=diagnosis.function) for section in made]


def _proofs(diagnosis: FunctionDiagnosis, found: Diagnosed) -> list[Section | None]:
    many = len(diagnosis.findings) > 1
    return [
        proof_section(finding, proof_of(finding, found.path), f"-{number}" if many else "")
        for number, finding in enumerate(diagnosis.findings, 1)
    ]


def _functions(shown: list[FunctionDiagnosis], sources: Sources) -> Section:
    rows = []
    for diagnosis in shown:
        what = " ".join(sentence(_dict(finding)) for finding in diagnosis.findings) or VERDICTS[diagnosis.verdict][2]
        name, bracket, place = diagnosis.function.partition(" (")
        place, _, call = place.partition(")")
        link = sources.html(sources.short(place)) if bracket else Html("")
        rows.append(
            (
                f"{name}{call}",
                link,
                badge(TONES[diagnosis.verdict], diagnosis.verdict),
                what,
                f"{diagnosis.seconds:.1f}",
            )
        )
    counts = [f"{n} {word}" for word in ORDER if (n := sum(d.verdict == word for d in shown))]
    left = sum(d.verdict != "healthy" for d in shown) - MOST_FUNCTIONS
    text = html(_FUNCTIONS, rows=rows, left=left, most=MOST_FUNCTIONS)
    return Section("functions", "Functions", html=text, summary=", ".join(counts))


def _card(number: int, finding: Finding, found: Diagnosed, sources: Sources) -> Html:
    stage = STAGES.get(finding.stage, finding.stage)
    facts = [
        *_values(finding),
        ("Where", Html(html("{{ s }}", s=stage))),
        *_place(finding, found, sources),
        *_sure(finding),
    ]
    body = html("{{ facts }}{{ see }}", facts=_facts(facts), see=_see(finding, found))
    return html(_CARD, number=number, sentence=sentence(_dict(finding)), facts=body)


def _place(finding: Finding, found: Diagnosed, sources: Sources) -> list[tuple[str, Html]]:
    """Rows that say where, each with a label."""
    folder = proof_of(finding, found.path)
    rows: list[tuple[str, Html]] = []
    if finding.source:
        place = sources.short(finding.source)
        rows.append(
            (
                "Your line",
                html(
                    _CULPRIT,
                    link=sources.html(place),
                    # The file may have changed since.
                    line=recorded_line(folder, finding.source) or sources.line(place),
                ),
            )
        )
    if finding.module:
        rows.append(("Module", html("<code>{{ m }}</code>", m=finding.module)))
    if finding.op:
        node = html(", node <code>{{ n }}</code>", n=finding.node) if finding.node else ""
        rows.append(("Operation", html("<code>{{ op }}</code>{{ node }}", op=finding.op, node=node)))
    if finding.pass_:
        rows.append(("Pass", html("<code>{{ p }}</code>", p=finding.pass_)))
    if finding.kernel:
        rows.append(("Kernel", html("<code>{{ k }}</code>", k=finding.kernel)))
    if finding.also:
        rows.append(("May also be", html("<code>{{ also }}</code>", also=", ".join(finding.also))))
    return rows


def _sure(finding: Finding) -> list[tuple[str, Html]]:
    """Rows that say how sure it is; figures in units of noise are folded away."""
    rows: list[tuple[str, Html]] = []
    plain = _dict(finding)
    if finding.flaky_rate < 1:
        rows.append(("Flaky", html("it failed in {{ r }} of the repeats, not in all", r=f"{finding.flaky_rate:.0%}")))
    label, reason = reason_of(plain)
    if reason:
        rows.append((label.capitalize(), html("{{ r }}", r=reason)))
    measured = details(plain)
    if measured:
        rows.append(("Details", html(_DETAILS, texts=measured)))
    return rows


def _values(finding: Finding) -> list[tuple[str, Html]]:
    """The row with the worst element."""
    words = values_in_words(_dict(finding))
    return [("Values", html("{{ words }}", words=words))] if words else []


def _see(finding: Finding, found: Diagnosed) -> Html:
    folder = proof_of(finding, found.path) if is_proven(_dict(finding)) else None
    if folder is None:
        gone = (
            f"The proof, {finding.dossier}, is not at hand."
            if is_proven(_dict(finding))
            else "No program that shows it by itself could be made."
        )
        return html('<p class="note">{{ gone }}</p>', gone=gone)
    return html(_COMMAND, command=f"python {shlex.quote(str(folder / 'repro.py'))}")


def _checked(diagnosis: FunctionDiagnosis, found: Diagnosed) -> Section | None:
    if found.partial:
        return None
    parts = []
    if diagnosis.ruled_out:
        parts.append(html(_LIST, title="Checked, and right", texts=diagnosis.ruled_out, badge=badge("good", "")))
    if diagnosis.largest_z.node:
        largest = diagnosis.largest_z
        parts.append(html(_LARGEST, z=f"{largest.z:.3g}", n=largest.node))
    if diagnosis.notes:
        parts.append(html(_LIST, title="Not checked, and other notes", texts=diagnosis.notes, badge=badge("warn", "")))
    if not parts:
        return None
    summary = f"{len(diagnosis.ruled_out)} checked, {_counted(len(diagnosis.notes), 'note')}"
    return Section("checked", "What was ruled out", html=Html("".join(parts)), summary=summary)


def _measured(shown: list[FunctionDiagnosis]) -> list[tuple[str, Any]]:
    largest = max((d.largest_z for d in shown), key=lambda one: one.z)
    facts: list[tuple[str, Any]] = []
    if largest.node:
        facts.append(
            (
                "Largest error",
                html(
                    "{{ z }} times what rounding explains, at <code>{{ n }}</code>; a fault is far above 4",
                    z=f"{largest.z:.3g}",
                    n=largest.node,
                ),
            )
        )
    compiles = sum(d.compiles for d in shown)
    facts.append(
        ("Looked at", f"{_counted(compiles, 'graph')} compiled to kernels, in {sum(d.seconds for d in shown):.0f} s")
    )
    return facts


def _facts(rows: list[tuple[str, Any]]) -> Html:
    return html(_FACTS, facts=rows)


def _dict(finding: Finding) -> dict[str, Any]:
    """What the functions read that tell a finding in words."""
    plain: dict[str, Any] = msgspec.to_builtins(finding)
    return plain


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
