"""What the overflow, watch and exception modes of a dump found: culprit, line, victim, elements, and how to see it."""

from __future__ import annotations

import shlex

from graphprobe.report.html.findings_file import FINDINGS, Elements, Found, Line, Op, Problem
from graphprobe.report.html.section import Html, Section, Tone, badge, html
from graphprobe.report.html.sources import Sources

MOST = 100
"""Findings that the page has; a dump has up to a thousand of each kind."""
MOST_CARRIERS = 12
MOST_LINES = 6
"""Lines of the program that a kernel carries out."""
MOST_TEXT = 20_000
"""Characters of a traceback."""

Row = tuple[str, str | Html]
"""A label, and what is known."""

KINDS: dict[str, tuple[Tone, str]] = {
    "overflow": ("bad", "overflow"),
    "overwritten": ("bad", "overwritten memory"),
    "exception": ("bad", "exception"),
}

_ARTICLE = """<article class="card" aria-labelledby="{{ id }}"><h3 id="{{ id }}">{{ title }}</h3>
<p>{{ badge }} {{ said }}</p>
<dl class="known">{% for label, value in rows %}<dt>{{ label }}</dt><dd>{{ value }}</dd>
{% endfor %}</dl>{{ more }}</article>
"""
_OP = """<code>{{ name }}</code>{% if target and target != name %} <span class="muted">{{ target }}</span>{% endif %}"""
_LINES = """{% for link, line in lines %}<div>{{ link }}
{%- if line %} <code class="muted">{{ line }}</code>{% endif %}</div>
{% endfor %}"""
_PROBLEMS = """<table><thead><tr><th scope="col">output</th><th scope="col">holds</th><th scope="col">elements</th>
<th scope="col">dtype, shape</th><th scope="col">first at</th></tr></thead><tbody>
{% for p in problems %}<tr><td><code>{{ p.output }}</code></td><td>{{ p.what }}</td>
<td>{{ p.elements }} of {{ p.of }}</td>
<td><code>{{ p.dtype }}{{ p.shape }}</code></td><td><code>{{ p.first }}</code></td></tr>
{% endfor %}</tbody></table>"""
_RANGE = """{{ text }}{% if width %}<svg viewBox="0 0 400 14" width="400" height="14" role="img"
aria-label="{{ text }}" style="display:block;max-width:100%;margin-top:.35rem"><rect width="400" height="14" rx="3"
fill="var(--panel)" stroke="var(--line)"/><rect x="{{ left }}" width="{{ width }}" height="14" fill="var(--bad)"/></svg>
{% endif %}"""
_COMMAND = '<div class="command" data-copy><code>python {{ file }}</code></div>'
_TRACEBACK = """<details><summary>{{ title }}</summary>
<div class="scroll fixed" tabindex="0" role="region" aria-label="{{ title }}"><pre>{{ text }}</pre></div></details>"""
_LIST = "{% for line in lines %}<div>{{ line }}</div>{% endfor %}"


def findings_section(found: list[Found], sources: Sources) -> Section | None:
    """An article for each finding; None where there are none."""
    if not found:
        return None
    articles = [_article(number, one, sources) for number, one in enumerate(found[:MOST], 1)]
    left = len(found) - MOST
    text = html(
        '<div class="cards">{% for one in articles %}{{ one }}{% endfor %}</div>'
        "{% if left > 0 %}<p class='note'>{{ left }} more are in {{ file }}.</p>{% endif %}",
        articles=articles,
        left=left,
        file=FINDINGS,
    )
    counts = [f"{n} {_many(KINDS[kind][1], n)}" for kind in KINDS if (n := sum(one.line.kind == kind for one in found))]
    return Section("findings", "Findings", html=text, summary=", ".join(counts) or f"{len(found)}")


def sentence_of(found: Found) -> str:
    """The finding in one short sentence."""
    line, culprit = found.line, found.culprit
    name = culprit.op if culprit is not None else "something outside of any op"
    where = f" in {culprit.module}" if culprit is not None and culprit.module else ""
    if line.kind == "overflow":
        what = " and ".join(dict.fromkeys(map(_what, line.problems))) or "what is not finite"
        return f"{name}{where} makes {what} of what was finite."
    if line.kind == "overwritten":
        victim = line.victim or Op()
        return f"{name}{where} overwrites {victim.value or victim.op or 'a value'} while it is still needed."
    if line.kind == "exception":
        return f"{name}{where} raised."
    return line.text


def lines_html(op: Op, sources: Sources) -> Html:
    """The program's lines that an operation carries out, its own first; empty where none is known."""
    places = dict.fromkeys(sources.short(place) for place in (op.source, *op.sources) if place)
    lines = [(sources.html(place), sources.line(place)) for place in list(places)[:MOST_LINES]]
    return html(_LINES, lines=lines) if lines else Html("")


def _article(number: int, found: Found, sources: Sources) -> Html:
    line = found.line
    tone, word = KINDS.get(line.kind, ("warn", line.kind))
    rows: list[Row] = _op_rows("operation", found.culprit, sources) if found.culprit is not None else []
    if line.kind == "overflow":
        rows += _overflow_rows(found, sources)
    elif line.kind == "overwritten":
        rows += _overwritten_rows(line, sources)
    rows.append(("step", _place(found)))
    if line.file:
        rows.append(("values", html("<code>{{ f }}</code>", f=line.file)))
    return html(
        _ARTICLE,
        id=f"finding-{number}",
        title=f"{number}. {sentence_of(found)}",
        badge=badge(tone, word),
        said=_plain(line),
        rows=rows,
        more=_exception(found) if line.kind == "exception" else "",
    )


def _plain(line: Line) -> str:
    if line.kind == "overflow":
        return "All that it read was finite, or infinite in another way; what it wrote is not."
    if line.kind == "overwritten" and line.culprit is not None:
        if line.declared:
            return "Two values that are both still needed share memory: it was reused too early."
        return "It does not say that it writes there, so everything after it computes with the wrong values."
    return line.text


def _op_rows(label: str, op: Op, sources: Sources) -> list[Row]:
    rows: list[Row] = [(label, html(_OP, name=op.op or "", target=op.target or op.op_type))]
    if lines := lines_html(op, sources):
        rows.append(("line" if len({op.source, *op.sources}) == 1 else "lines", lines))
    modules = op.modules or ([op.module] if op.module else [])
    if modules:
        rows.append(("module", html("<code>{{ m }}</code>", m=", ".join(modules[:MOST_LINES]))))
    if op.fx_nodes:
        text = ", ".join(op.fx_nodes[:MOST_CARRIERS]) + (", …" if len(op.fx_nodes) > MOST_CARRIERS else "")
        rows.append(("FX nodes", html("<code>{{ n }}</code>", n=text)))
    return rows


def _overflow_rows(found: Found, sources: Sources) -> list[Row]:
    problems = [
        {
            "output": problem.output,
            "what": _what(problem),
            "elements": f"{problem.elements:,}",
            "of": f"{problem.of:,}",
            "dtype": problem.dtype,
            "shape": problem.shape,
            "first": ", ".join(map(str, problem.first[:4])),
        }
        for problem in found.line.problems
    ]
    rows: list[Row] = [("wrote", html(_PROBLEMS, problems=problems))] if problems else []
    carriers = found.carriers()
    if carriers:
        lines = [
            html("<code>{{ op }}</code> {{ link }}", op=one.op or "", link=sources.html(sources.short(one.source)))
            for one in carriers[:MOST_CARRIERS]
        ]
        if len(carriers) > MOST_CARRIERS:
            lines.append(html("and {{ n }} more", n=len(carriers) - MOST_CARRIERS))
        rows.append(("passed on by", html(_LIST, lines=lines)))
    if found.line.repro:
        rows.append(("see it", html(_COMMAND, file=shlex.quote(str(found.folder / found.line.repro)))))
    return rows


def _overwritten_rows(line: Line, sources: Sources) -> list[Row]:
    rows: list[Row] = []
    if line.victim is not None:
        named = _op_rows("victim", line.victim, sources)
        rows = [(label if label == "victim" else f"its {label}", value) for label, value in named]
        if line.victim.slot:
            value = html("<code>{{ v }}</code>, {{ s }}", v=line.victim.value, s=line.victim.slot)
            rows.insert(1, ("its value", value))
    rows.append(("overwritten", _range(line.elements or Elements())))
    if line.intact_after:
        rows.append(("last intact", html("after <code>{{ op }}</code>", op=line.intact_after)))
    return rows


def _range(elements: Elements) -> Html:
    first, last, of = elements.first, elements.last, elements.of
    if elements.changed is None or first is None or last is None or not of:
        return html("some of {{ of }} elements; only a digest was kept", of=of)
    text = f"elements {first:,} to {last:,} of {of:,}, {elements.changed:,} of them changed"
    left = round(400 * first / of, 1)
    return html(_RANGE, text=text, left=left, width=max(2.0, round(400 * (last + 1) / of - left, 1)))


def _exception(found: Found) -> Html:
    raised = found.raised()
    if raised is None:
        return Html("")
    texts = {"Traceback up to the operation": raised.traceback, "The calls that led to it": raised.callers}
    parts = (html(_TRACEBACK, title=title, text=text[-MOST_TEXT:]) for title, text in texts.items() if text)
    return Html("".join(parts))


def _what(problem: Problem) -> str:
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


def _many(noun: str, count: int) -> str:
    return noun if count == 1 or noun.endswith("memory") else f"{noun}s"
