"""Parts of the report of a run that need no script: graph breaks, recompilations, the graphs."""

from __future__ import annotations

from collections.abc import Sequence

from graphprobe.analysis.breaks import BreakReport, GraphBreak
from graphprobe.analysis.recompile_facts import Place
from graphprobe.analysis.recompiles import Group, RecompileReport, function_name
from graphprobe.report.explain import OUTCOMES
from graphprobe.report.html.section import Html, Section, html, joined, prose
from graphprobe.report.html.sources import Sources
from graphprobe.store.reader import Model

MOST = 60
"""Cards and rows that are shown; the section says how many more there are."""

_BREAK = """<article class="card"><h3>{{ b.kind.replace('-', ' ') }}
{% if b.count > 1 %}<span class="muted">×{{ b.count }}</span>{% endif %}</h3>
<p>{{ where }} in <code>{{ b.function }}</code></p>
{% if b.source %}<pre class="culprit"><code>{{ b.source }}</code></pre>{% endif %}
<dl class="known"><dt>Why</dt><dd>{{ cause }}</dd><dt>Write instead</dt><dd>{{ remedy }}</dd>
<dt>Effect</dt><dd>{{ effect }}{% if b.consequence %}, because {{ consequence }}{% endif %}</dd></dl></article>"""
_UNCOMPILED = """<h3>Not compiled</h3><ul>{% for row, where, cause, remedy in rows %}
<li><code>{{ row.function }}</code> ({{ where }}): {{ cause }}
{% if row.kind != "break" %}<br>{{ remedy }}{% endif %}</li>{% endfor %}</ul>"""
_GROUP = """<article class="card"><h3>{{ cause }} <span class="muted">×{{ g.count }}</span></h3>
<p><code>{{ name }}</code> at {{ defined }}{% if versions %}<span class="muted">, {{ versions }}</span>{% endif %}</p>
<dl class="known">
{% if guard %}<dt>{{ "First used" if g.where_from == "first use" else "Guard" }}</dt><dd>{{ guard }}</dd>{% endif %}
{% if g["values"] %}<dt>Values</dt><dd><code>{{ g["values"][:12] | join(", ") }}</code></dd>{% endif %}
{% if callers %}<dt>Called from</dt><dd>{{ callers }}</dd>{% endif %}
<dt>What to do</dt><dd>{% for text in remedies %}<p>{{ text }}</p>{% endfor %}</dd>
</dl></article>"""
_GRAPHS = """<div class="wrap"><table><thead><tr><th>Graph</th><th>Function</th><th class="n">Ops</th>
<th class="n">Guards</th><th class="n">Time</th><th>Why it was compiled</th></tr></thead><tbody>
{% for row in rows %}<tr><td class="whole"><code>{{ row.name }}</code><br><span class="muted">{{ row.id }}</span></td>
<td>{{ row.function }}<br>{{ row.where }}</td><td class="n">{{ row.ops }}</td><td class="n">{{ row.guards }}</td>
<td class="n">{{ row.took }}</td><td>{{ row.why }}</td></tr>
{% endfor %}</tbody></table></div>
{% if left %}<p class="note">{{ left }} more are in the run: graphprobe ls RUN.</p>{% endif %}"""


def breaks_section(report: BreakReport, sources: Sources) -> Section | None:
    """A card for each cause of graph breaks; None where nothing breaks."""
    if not report.found:
        return None
    own = [row for row in report.breaks if row.inside is None] or report.breaks
    cards = [_break(row, sources) for row in own[:MOST]]
    parts = [html('<div class="cards">{{ cards }}</div>', cards=joined(cards))] if cards else []
    if len(report.breaks) > len(cards):
        parts.append(
            html(
                '<p class="note">{{ n }} more, in libraries or beyond {{ most }}: graphprobe explain RUN.</p>',
                n=len(report.breaks) - len(cards),
                most=MOST,
            )
        )
    if report.own_uncompiled:
        rows = [
            (row, _link(row.file, row.line, sources), prose(row.cause), prose(row.remedy))
            for row in report.own_uncompiled[:MOST]
        ]
        parts.append(html(_UNCOMPILED, rows=rows))
    summary = f"{report.break_count} in {len(own)} place{'' if len(own) == 1 else 's'}"
    return Section("breaks", "Graph breaks", html=joined(parts), summary=summary)


def recompiles_section(report: RecompileReport, sources: Sources) -> Section | None:
    """A card for each cause of recompilations; None where nothing was compiled again."""
    if not report.groups:
        return None
    counts = {(f.file, f.line, f.function): f for f in report.functions}
    cards = []
    for group in report.groups[:MOST]:
        function = counts.get((group.file, group.line, group.function))
        versions = ""
        if function is not None and function.versions is not None:
            versions = f"{function.versions} versions" + (f" of at most {function.limit}" if function.limit else "")
        cards.append(_group(group, versions, sources))
    parts = [html('<div class="cards">{{ cards }}</div>', cards=joined(cards))]
    if len(report.groups) > MOST:
        parts.append(html('<p class="note">{{ n }} more: graphprobe recompiles RUN.</p>', n=len(report.groups) - MOST))
    summary = f"{report.recompilations}, {len(report.groups)} cause{'' if len(report.groups) == 1 else 's'}"
    return Section("recompiles", "Recompilations", html=joined(parts), summary=summary)


def graphs_section(models: Sequence[Model], sources: Sources) -> Section | None:
    """A row for each compile."""
    if not models:
        return None
    rows = []
    for model in models[:MOST]:
        facts = model.compile
        took = (facts.get("timings_ms") or {}).get("entire_frame")
        guards = facts.get("guards")
        reason = str(facts.get("recompile_reason") or facts.get("reason") or "").partition("\n")[0]
        if facts.get("restart_of") is not None:
            reason = f"model__{facts['restart_of']} was started over"
        rows.append(
            {
                "name": f"model__{model.number}",
                "id": model.compile_id or "",
                "function": function_name(str(facts.get("function") or "")),
                "where": _link(facts.get("file"), facts.get("line"), sources),
                "ops": facts.get("ops", ""),
                "guards": "" if guards is None else len(guards),
                "took": "" if took is None else f"{took / 1e3:.2f} s",
                "why": reason,
            }
        )
    text = html(_GRAPHS, rows=rows, left=max(0, len(models) - MOST))
    return Section("graphs", "Graphs", html=text, summary=f"{len(models)} compiled")


def _break(row: GraphBreak, sources: Sources) -> Html:
    return html(
        _BREAK,
        b=row,
        where=_link(row.file, row.line, sources),
        cause=prose(row.cause),
        remedy=prose(row.remedy),
        consequence=prose(row.consequence),
        effect=OUTCOMES[row.outcome],
    )


def _group(group: Group, versions: str, sources: Sources) -> Html:
    guard = _place(group.where, sources) if group.where is not None and group.kind != "limit-reached" else ""
    return html(
        _GROUP,
        g=group,
        cause=prose(group.cause),
        remedies=[prose(text) for text in group.remedies],
        name=function_name(group.function),
        defined=_link(group.file, group.line, sources),
        versions=versions,
        guard=guard,
        callers=joined([_place(place, sources) for place in group.callers], "<br>"),
    )


def _place(place: Place, sources: Sources) -> Html:
    return _link(place.file, place.line, sources)


def _link(file: str | None, line: int | None, sources: Sources) -> Html:
    if not file:
        return Html("")
    return sources.html(sources.short(f"{file}:{line}")) if line else html("<code>{{ file }}</code>", file=file)
