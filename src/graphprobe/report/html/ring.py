"""Draws the observations of a watched run: loss and gradient norm, step by step, up to the one that went wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphprobe.report.document import Content
from graphprobe.report.html.render import html
from graphprobe.store.watch_file import Figure, StepObservation

WIDTH, HEIGHT, LEFT, BELOW = 720, 90, 70, 20
"""Of each drawing, in pixels; left of it and below is room for figures."""

_SVG = """{% for name, low, high, lines, lost, first, last in drawings %}
<figure class="growth">
<svg viewBox="0 0 {{ width }} {{ height + below }}" role="img" aria-labelledby="ring-{{ loop.index }}">
<text x="{{ left - 8 }}" y="12" text-anchor="end" font-size="12" fill="var(--muted)">{{ high }}</text>
<text x="{{ left - 8 }}" y="{{ height }}" text-anchor="end" font-size="12" fill="var(--muted)">{{ low }}</text>
{% for points in lines %}<polyline fill="none" stroke="var(--info)" stroke-width="2" points="{{ points }}"/>
{% endfor %}
{% for x in lost %}<line x1="{{ x }}" x2="{{ x }}" y1="0" y2="{{ height }}" stroke="var(--bad)" stroke-width="3"/>
{% endfor %}
<text x="{{ left }}" y="{{ height + 16 }}" font-size="12" fill="var(--muted)">step {{ first }}</text>
<text x="{{ width }}" y="{{ height + 16 }}" text-anchor="end" font-size="12" fill="var(--muted)">step {{ last }}</text>
</svg>
<figcaption id="ring-{{ loop.index }}" class="note">{{ name }}, steps {{ first }} to {{ last }}: from {{ low }} to
{{ high }}{% if lost %}; not finite in {{ lost | length }}{% endif %}.</figcaption></figure>
{% endfor %}"""


def ring_drawing(observations: Sequence[StepObservation]) -> Content:
    """Loss and gradient norm as lines, what is not finite as bars; empty where there are no two steps."""
    steps = [seen for seen in observations if seen.call is None]
    figures = {"Loss": [seen.loss for seen in steps], "Gradient norm": [seen.norm for seen in steps]}
    drawings = [_drawing(name, steps, values) for name, values in figures.items() if _numbers(values)]
    if len(steps) < 2 or not drawings:
        return ""
    return html(_SVG, drawings=drawings, width=WIDTH, height=HEIGHT, left=LEFT, below=BELOW)


def _numbers(values: Sequence[Figure | None]) -> list[float]:
    return [value for value in values if isinstance(value, (int, float)) and math.isfinite(value)]


def _drawing(name: str, steps: Sequence[StepObservation], values: Sequence[Figure | None]) -> tuple[object, ...]:
    low, high = min(_numbers(values)), max(_numbers(values))
    lines, lost = [list[str]()], list[str]()
    for i, value in enumerate(values):
        x = f"{LEFT + (WIDTH - LEFT - 4) * i / max(1, len(values) - 1):.1f}"
        if isinstance(value, (int, float)):
            share = (value - low) / (high - low) if high > low else 0.5
            lines[-1].append(f"{x},{HEIGHT - (HEIGHT - 6) * share:.1f}")
        else:
            lines.append([])
            lost += [x] if value is not None else []
    points = [" ".join(line) for line in lines if line]
    return name, f"{low:.4g}", f"{high:.4g}", points, lost, steps[0].step, steps[-1].step
