"""A comparison as one HTML file that needs nothing else: no network, no scripts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator

from jinja2 import Environment

from graphprobe.compare.result import CallResult, Summary
from graphprobe.report.comparison import KINDS, OUTCOMES, WORSE, accusing, causes, titled

ROWS = 20_000
"""Calls that the table shows, from the first; the files beside it have all."""

TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>graphprobe compare: {{ outcome }}</title>
<style>
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 110em; padding: 0 1em; color: #222; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; border-bottom: 2px solid #999; }
td { border-bottom: 1px solid #ddd; padding: .1em .6em .1em 0; vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; } code { font-size: 12px; }
.different, .candidate_worse { color: #b00020; } .same { color: #1b7f3b; } .undecided, .inconclusive { color: #946200; }
.candidate_better { color: #0b5cad; } .finding { border-left: 4px solid #b00020; padding-left: 1em; margin: 1em 0; }
.quiet { color: #777; } svg { background: #f6f6f6; }
</style></head><body>
<h1 class="{{ s.outcome }}">{{ outcome }}</h1>
<p>Candidate <code>{{ s.candidate.title }}</code> ({{ s.candidate.format }}), reference
<code>{{ s.reference.title }}</code> ({{ s.reference.format }}); {{ s.counts.pairs }} pairs of calls, compared by
{{ s.basis }}; {{ s.counts.candidate_only }} calls of the candidate and {{ s.counts.reference_only }} of the reference
have no partner.</p>
{% if s.precision %}<p>Precision:
{% for pair, n in s.precision.items() %}{{ pair }} ({{ n }}){{ "" if loop.last else ", " }}{% endfor %}.</p>{% endif %}
{% for title, f in findings %}{% set call = f.candidate or f.reference %}
<div class="finding"><h2>{{ title }}:
<code>{{ call.label }}</code></h2>
<p>{{ call.api }} {{ kinds[f.kind] }} ({{ f.direction }}).
{% if call.module %} Module <code>{{ call.module }}</code>.{% endif %}
{% if call.source %} Line <code>{{ call.source }}</code>.{% endif %} Step {{ f.step }}, rank {{ f.rank }}.
{% if f.slot %}<br><code>{{ f.slot }}</code>{% if f.worst is not none %} at {{ f.worst | list }}{% endif %}:
{{ worse[f.verdict] }}.{% endif %}</p>
<ul>{% for line in f.evidence %}<li>{{ line }}</li>{% endfor %}</ul>
{% if call.stack %}<pre class="quiet">{{ call.stack | join("\n") }}</pre>{% endif %}</div>
{% endfor %}
{% if points %}<h2>Error along the program</h2>
<svg viewBox="0 0 640 120" width="100%" height="120" role="img" aria-label="largest error, logarithmic">
<polyline fill="none" stroke="#b00020" stroke-width="1.5" points="{{ points }}"/></svg>
<p class="quiet">Largest error of each part, in units of noise, logarithmic from 1 to 10 million.</p>{% endif %}
{% if s.notes %}<h2>Notes</h2><ul>{% for note in s.notes %}<li>{{ note }}</li>{% endfor %}</ul>{% endif %}
<h2>Calls</h2>
<table><thead><tr><th>step</th><th>rank</th><th>candidate</th><th>reference</th><th>rule</th><th>module, line</th>
<th>got</th><th>gave</th><th>verdict</th><th>why</th></tr></thead><tbody>
{% for r in rows %}{% set call = r.candidate or r.reference %}<tr class="{{ '' if r.verdict != 'ok' else 'quiet' }}">
<td class="n">{{ r.step }}</td><td class="n">{{ r.rank }}</td>
<td>{% if r.candidate %}<code>{{ r.candidate.label }}</code>{% endif %}</td>
<td>{% if r.reference %}<code>{{ r.reference.label }}</code>{% endif %}</td><td>{{ r.rule or "none" }}</td>
<td>{{ call.module }} {{ call.source }}</td><td class="n">{{ "%.3g" | format(r.inherited) }}</td>
<td class="n">{{ "%.3g" | format(r.level) }}</td><td class="{{ r.verdict }}">{{ r.verdict }} {{ r.blame }}</td>
<td>{{ r.reason }}</td></tr>
{% endfor %}</tbody></table>
{% if left > 0 %}<p>{{ left }} more rows are in rows.jsonl and comparison.csv.</p>{% endif %}
</body></html>
"""


def html_from(summary: Summary, rows: Iterable[CallResult]) -> Iterator[str]:
    """The document, piece by piece; of the rows the first `ROWS`."""
    environment = Environment(autoescape=True, trim_blocks=False)
    total = summary.counts.pairs + summary.counts.candidate_only + summary.counts.reference_only
    word, _, meaning = OUTCOMES[summary.outcome]
    yield from environment.from_string(TEMPLATE).generate(
        s=summary,
        outcome=f"{word.capitalize()}: {meaning or causes(accusing(summary))}",
        findings=list(titled(summary.findings)),
        kinds=KINDS,
        worse=WORSE,
        points=_points(summary.growth),
        rows=itertools.islice(rows, ROWS),
        left=total - ROWS,
    )


def _points(levels: list[float]) -> str:
    if not any(levels):
        return ""
    width = 640 / max(1, len(levels) - 1)
    heights = [min(7.0, max(0.0, math.log10(max(v, 1e-9)))) / 7 * 110 for v in levels]
    return " ".join(f"{i * width:.1f},{115 - h:.1f}" for i, h in enumerate(heights))
