"""The report of a profile of `graphprobe profile`: where compile time went."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from graphprobe.analysis.recompiles import function_name
from graphprobe.analysis.timing import Summary, summary_of
from graphprobe.analysis.timing_records import read_profile
from graphprobe.report.html.flame import flame_section, tree_from_profile
from graphprobe.report.html.section import Html, Report, Section, Tone, Verdict, html
from graphprobe.report.html.sources import Sources
from graphprobe.report.profile import profile_lines

MOST = 40
"""Rows of a table; the rest is summed up in the last one."""

_TABLE = """<div class="wrap"><table><thead><tr>{% for name in head %}
<th{% if not loop.last %} class="n"{% endif %}>{{ name }}</th>{% endfor %}</tr></thead><tbody>
{% for row in rows %}<tr>{% for cell in row %}<td{% if not loop.last %} class="n"{% endif %}>{{ cell }}</td>
{% endfor %}</tr>{% endfor %}</tbody></table></div>
{% if left %}<p class="note">and {{ left }} more: graphprobe profile --top {{ all }} PROFILE.json</p>{% endif %}"""
_LINES = """{% for line in lines %}<p>{{ line }}</p>{% endfor %}"""


def report_from(path: Path, *, source_roots: Sequence[Path] = ()) -> Report:
    """The report of a profile; `source_roots` as `sources.Sources` has them.

    Raises:
        UsageError: it is none.
    """
    profile = read_profile(path)
    summary = summary_of(profile)
    sources = Sources(Path.cwd(), given=source_roots)
    tone, word, sentence = _judged(summary, profile.error)
    head = profile_lines(profile, top=1)
    # Behind the first line, what was run, and up to the first empty one, where the tables begin.
    lines = head[1 : head.index("")] if "" in head else head[1:]
    made = [
        flame_section(tree_from_profile(profile, sources)),
        _phases(summary),
        _passes(summary),
        _functions(summary, sources),
    ]
    return Report(
        title=f"graphprobe: compile time of {profile.program or path.name}",
        subject=profile.program or str(path),
        verdict=Verdict(tone, word, sentence, html(_LINES, lines=lines)),
        sections=[section for section in made if section is not None],
        sources=sources,
        facts=[("torch", profile.torch), ("Python", profile.python), ("graphprobe", profile.graphprobe)],
    )


def _judged(summary: Summary, error: str | None) -> tuple[Tone, str, str]:
    if error is not None:
        return "bad", "FAILED", f"The program ended with {error}"
    if not summary.compile_ns:
        return "warn", "NOTHING COMPILED", "The program ended, and nothing was compiled."
    slowest = summary.phases[0] if summary.phases else None
    where = f", most of it in {slowest.name} ({slowest.self_ns / summary.compile_ns:.0%})" if slowest else ""
    return "info", "COMPILE TIME", f"Compiling took {summary.compile_ns / 1e9:.1f} s{where}."


def _phases(summary: Summary) -> Section | None:
    whole = summary.compile_ns or 1
    rows = [
        (_s(row.self_ns), f"{row.self_ns / whole:.1%}", _s(row.cpu_ns), row.count, _named(row.name, row.what))
        for row in summary.phases
    ]
    head = ("s", "share", "CPU s", "count", "phase, by time of its own")
    return _section("phases", "Phases", head, rows)


def _passes(summary: Summary) -> Section | None:
    rows = [(_s(row.total_ns), row.count, _s(row.longest_ns), _named(row.name, "")) for row in summary.passes]
    return _section("pass-times", "Passes", ("s", "count", "longest", "pass"), rows)


def _functions(summary: Summary, sources: Sources) -> Section | None:
    rows = []
    for row in summary.functions:
        text = html(
            "{{ name }} {{ where }}{% if failure %} failed: {{ failure }}{% endif %}{{ ' (recompiled)' if again }}",
            name=function_name(row.function or "?"),
            where=sources.html(sources.short(row.where)),
            failure=row.failure,
            again=bool(row.recompile_reason),
        )
        rows.append((_s(row.forward_ns), _s(row.backward_ns), row.compile_id, text))
    return _section("functions", "Functions", ("forward s", "backward s", "id", "function"), rows)


def _section(id: str, title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> Section | None:
    if not rows:
        return None
    left = max(0, len(rows) - MOST)
    text = html(_TABLE, head=head, rows=rows[:MOST], left=left, all=len(rows))
    return Section(id, title, html=text, summary=str(len(rows)))


def _named(name: str, what: str) -> Html:
    return html("<code>{{ n }}</code>{% if w %} <span class='muted'>{{ w }}</span>{% endif %}", n=name, w=what)


def _s(ns: int) -> str:
    return f"{ns / 1e9:.3f}"
