"""A comparison of two dumps as a report: the first divergence, all findings, where the error grows, and every call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from graphprobe.compare.result import SCHEMA, CallName, CallResult, Finding, Summary
from graphprobe.errors import ArtifactNotFoundError, SchemaError
from graphprobe.report.comparison import OUTCOMES, WORSE, accusing, causes, titled, what_is_wrong
from graphprobe.report.html.comparison_table import CALLS, calls_sections
from graphprobe.report.html.growth import growth_svg
from graphprobe.report.html.section import Html, Report, Section, Tone, Verdict, badge, html, joined
from graphprobe.report.html.sources import Sources
from graphprobe.store.files import open_file, read_file
from graphprobe.store.schema import UNREADABLE

SUMMARY, ROWS = "comparison.json", "rows.jsonl"
"""What `graphprobe compare --out` writes and this reads."""

TONES: dict[str, Tone] = {"same": "good", "different": "bad", "undecided": "warn"}

_BASIS = {
    "values": "by values",
    "statistics": "by statistics only",
    "digest": "equal bit for bit",
    "mixed": "by values where both have them, else by statistics",
    "sample": "by samples of the values",
    "none": "nothing could be compared",
}

_FINDING = """<article class="finding" aria-labelledby="finding-{{ number }}">
<h3 id="finding-{{ number }}">{{ title }}: <code>{{ call.label }}</code></h3>
<p class="prose">{{ badge }} <code>{{ call.api }}</code> {{ what }} ({{ f.direction }}{{ place }}).</p>
<dl class="known">
{% if call.module %}<dt>module</dt><dd><code>{{ call.module }}</code></dd>
{% endif %}
{% if source %}<dt>line</dt><dd>{{ source }}{% if code %} <code class="muted">{{ code }}</code>{% endif %}</dd>
{% endif %}
{% if f.slot %}<dt>value</dt><dd><code>{{ f.slot }}</code>
{%- if f.worst is not none %}, worst at <code>{{ f.worst | list }}</code>{% endif %}</dd>
{% endif %}
{% if other %}<dt>in the reference</dt><dd><code>{{ other }}</code></dd>
{% endif %}
{% if f.also %}<dt>also</dt><dd>{% for label in f.also %}<code>{{ label }}</code>{% if not loop.last %}, {% endif %}
{%- endfor %}{% if f.also_count > f.also | length %} and {{ f.also_count - f.also | length }} more{% endif %}</dd>
{% endif %}
{% if f.level or f.inherited %}<dt>error</dt><dd>{{ "%.3g" | format(f.level) }} units of rounding noise in what it gave,
{{ "%.3g" | format(f.inherited) }} in what it got</dd>
{% endif %}
{% if f.evidence %}<dt>evidence</dt><dd>{% for line in f.evidence %}<p>{{ line }}</p>{% endfor %}</dd>
{% endif %}
</dl>
{% if call.stack %}<details><summary>The calls that led there</summary>
<pre>{{ call.stack | join("\n") }}</pre></details>
{% endif %}</article>
"""

_FACTS = """<dl class="known">
{% for side in sides %}<dt>{{ side[0] }}</dt><dd><code>{{ side[1].title }}</code> ({{ side[1].format }})
{%- if side[1].facts %}<br><span class="muted">
{%- for name, value in side[1].facts.items() %}{{ name }} {{ value }}{{ "" if loop.last else ", " }}{% endfor %}</span>
{%- endif %}</dd>
{% endfor %}
<dt>pairs of calls</dt><dd>{{ pairs }}</dd>
{% for label, counts in listed %}{% if counts %}<dt>{{ label }}</dt><dd>{{ counts }}</dd>
{% endif %}{% endfor %}</dl>
{% if notes %}<h3>What a reader should know</h3>
<ul>{% for note in notes %}<li>{{ note }}</li>{% endfor %}</ul>{% endif %}
"""


def report_from(path: Path, *, source_roots: Sequence[Path] = ()) -> Report:
    """The report of a folder that `graphprobe compare --out` wrote, or of its `comparison.json`.

    Args:
        source_roots: see `sources.Sources`.

    Raises:
        ArtifactNotFoundError: there is no `comparison.json`, or it cannot be read.
        SchemaError: it is none, or of a newer graphprobe.
    """
    file = path / SUMMARY if path.is_dir() else path
    summary = read_summary(file)
    rows = file.parent / ROWS
    there = rows.is_file()
    if not there:
        summary.notes = [*summary.notes, f"{rows} is not there, so that the report has no table of calls"]
    sources = Sources(Path.cwd(), given=source_roots, recorded=file.resolve().parent)
    return report_of(summary, _read_rows(rows) if there else (), sources=sources)


def report_of(summary: Summary, rows: Iterable[CallResult], *, sources: Sources | None = None) -> Report:
    """The report of a comparison.

    Args:
        rows: in the order of `rows.jsonl`.
        sources: finds the lines of the program; by default those below the working directory.
    """
    found = sources if sources is not None else Sources(Path.cwd())
    word, _, meaning = OUTCOMES[summary.outcome]
    findings = list(titled(summary.findings))
    for _, finding in findings:
        found.link(found.short(_call(finding).source))
    sections = _findings(findings, found)
    sections += calls_sections(rows, found)
    if any(summary.growth):
        told = f"up to {max(summary.growth):.3g} units of noise"
        sections.insert(
            1 if findings else 0,
            Section("growth", "Error along the program", html=growth_svg(summary.growth), summary=told),
        )
    sections.append(Section("compared", "What was compared", html=_facts(summary), summary=_basis(summary)))
    return Report(
        title=f"graphprobe compare: {word.capitalize()}",
        subject=f"{summary.candidate.title} against {summary.reference.title}",
        verdict=Verdict(TONES[summary.outcome], word, _sentence(summary, meaning), _first(summary, findings, found)),
        sections=sections,
        sources=found,
        facts=[
            ("candidate", summary.candidate.title),
            ("reference", summary.reference.title),
            ("compared in", f"{summary.seconds:.1f} s"),
        ],
    )


def read_summary(file: Path) -> Summary:
    """`comparison.json`. Raises as `report_from`."""
    try:
        document = msgspec.json.decode(read_file(file))
    except OSError as error:
        raise ArtifactNotFoundError(
            f"{file} cannot be read: {error.strerror}", hint="write it with `graphprobe compare A B --out FOLDER`"
        ) from error
    except UNREADABLE as error:
        raise SchemaError(f"{file} is no JSON: {error}", hint="write it again with `graphprobe compare`") from error
    version = document.get("schema") if isinstance(document, dict) else None
    if version not in range(1, SCHEMA + 1):
        raise SchemaError(
            f"{file} is of schema {version!r}; this graphprobe reads up to {SCHEMA}",
            hint="compare again, or use the graphprobe that wrote it",
        )
    try:
        return msgspec.convert(document, Summary)
    except UNREADABLE as error:
        raise SchemaError(
            f"{file} is no comparison: {error}", hint="write it again with `graphprobe compare`"
        ) from error


def _read_rows(file: Path) -> Iterator[CallResult]:
    decoder = msgspec.json.Decoder(CallResult)
    try:
        with open_file(file) as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    yield decoder.decode(line)
                except UNREADABLE as error:
                    raise SchemaError(
                        f"{file} line {number} is no row of a comparison: {error}",
                        hint="write it again with `graphprobe compare --out`",
                    ) from error
    except OSError as error:
        raise ArtifactNotFoundError(f"{file} cannot be read: {error.strerror}") from error


def _call(finding: Finding) -> CallName:
    call = finding.candidate or finding.reference
    assert call is not None
    return call


def _sentence(summary: Summary, meaning: str) -> str:
    if summary.outcome != "different" or summary.first is None:
        return f"{meaning[0].upper()}{meaning[1:]}." if meaning else f"{causes(accusing(summary)).capitalize()}."
    call = _call(summary.first)
    where = f" in {call.module}" if call.module else ""
    return f"{call.label}{where} {what_is_wrong(summary.first)}."


def _first(summary: Summary, findings: list[tuple[str, Finding]], sources: Sources) -> Html:
    """The facts below the verdict."""
    first = summary.first
    rows: list[tuple[str, Html]] = []
    if first is not None:
        call = _call(first)
        if call.source:
            rows.append(("line", sources.html(sources.short(call.source))))
        if first.level:
            rows.append(
                (
                    "error",
                    html(
                        "{{ n }} units of rounding noise; it got {{ m }}",
                        n=f"{first.level:.3g}",
                        m=f"{first.inherited:.3g}",
                    ),
                )
            )
        if WORSE[first.verdict]:
            rows.append(("side", html("{{ text }}", text=WORSE[first.verdict])))
    more = accusing(summary) - 1
    if more > 0:
        rows.append(
            ("more", html('<a href="#findings">{{ text }}</a>', text=f"{more} more cause{'s' if more > 1 else ''}"))
        )
    if summary.counts.pairs:
        rows.append(
            (
                "compared",
                html(
                    '<a href="#{{ id }}">{{ n }} pairs of calls</a>, {{ how }}',
                    id=CALLS,
                    n=f"{summary.counts.pairs:,}",
                    how=_basis(summary),
                ),
            )
        )
    return (
        html(
            '<dl class="known">{% for label, value in rows %}<dt>{{ label }}</dt><dd>{{ value }}</dd>{% endfor %}</dl>',
            rows=rows,
        )
        if rows
        else Html("")
    )


def _basis(summary: Summary) -> str:
    return _BASIS.get(summary.basis, summary.basis)


def _findings(findings: list[tuple[str, Finding]], sources: Sources) -> list[Section]:
    if not findings:
        return []
    parts = [_finding(number, title, finding, sources) for number, (title, finding) in enumerate(findings)]
    return [Section("findings", "Findings", html=joined(parts), summary=f"{len(parts)}, in the order of execution")]


def _finding(number: int, title: str, finding: Finding, sources: Sources) -> Html:
    call = _call(finding)
    other = finding.reference
    tone: Tone = "warn" if finding.verdict == "inconclusive" else "bad"
    if finding.verdict == "candidate_better":
        tone = "info"
    where = [f"step {finding.step}" if finding.step else "", f"rank {finding.rank}" if finding.rank else ""]
    return html(
        _FINDING,
        number=number,
        title=title,
        f=finding,
        call=call,
        badge=badge(tone, WORSE[finding.verdict] or finding.kind.replace("_", " ")),
        what=what_is_wrong(finding),
        place="".join(f", {text}" for text in where if text),
        source=sources.html(sources.short(call.source)),
        code=sources.line(call.source),
        other=other.label if other is not None and finding.candidate is not None and other.label != call.label else "",
    )


def _facts(summary: Summary) -> Html:
    counts = summary.counts
    return html(
        _FACTS,
        sides=[("candidate", summary.candidate), ("reference", summary.reference)],
        pairs=f"{counts.pairs:,}",
        listed=[
            ("without a partner", _alone(counts.candidate_only, counts.reference_only)),
            ("paired by", _listed(counts.by_rule)),
            ("values compared by", _listed(counts.by_basis)),
            ("verdicts", _listed(counts.by_verdict)),
            ("run again in float64", f"{counts.replayed:,} calls" if counts.replayed else ""),
            ("precision", ", ".join(f"{pair} ({n:,})" for pair, n in summary.precision.items())),
        ],
        notes=[*summary.notes, *summary.candidate.problems, *summary.reference.problems],
    )


def _alone(candidate: int, reference: int) -> str:
    if not candidate and not reference:
        return ""
    return f"{candidate:,} calls of the candidate, {reference:,} of the reference"


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in sorted(counts.items(), key=lambda pair: -pair[1]))
