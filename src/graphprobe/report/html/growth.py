"""The error along the program as a small drawing, logarithmic, with its numbers in words."""

from __future__ import annotations

import math

from graphprobe.report.html.render import Html, html

WIDTH, HEIGHT, LEFT, BELOW, ABOVE = 900, 190, 62, 26, 10
TOP = 7.0
"""Decades from 1 unit of noise up."""

_SVG = """<figure class="growth"><svg viewBox="0 0 {{ width }} {{ height }}" role="img" aria-labelledby="growth-said">
{% for y, label in lines %}<line x1="{{ left }}" x2="{{ width }}" y1="{{ y }}" y2="{{ y }}" stroke="var(--line)"/>
<text x="{{ left - 8 }}" y="{{ y + 4 }}" text-anchor="end" font-size="12" fill="var(--muted)">{{ label }}</text>
{% endfor %}<polyline fill="none" stroke="var(--bad)" stroke-width="2" stroke-linejoin="round" points="{{ points }}"/>
<circle cx="{{ peak[0] }}" cy="{{ peak[1] }}" r="4" fill="var(--bad)"/>
<text x="{{ left }}" y="{{ height - 6 }}" font-size="12" fill="var(--muted)">first call</text>
<text x="{{ width }}" y="{{ height - 6 }}" text-anchor="end" font-size="12" fill="var(--muted)">last call</text></svg>
<figcaption id="growth-said" class="note">Largest error of what the calls gave in each of {{ parts }} equal parts of
the program, in units of rounding noise: {{ first }} in the first, {{ most }} at most, in part {{ at }}, {{ last }} in
the last.
</figcaption></figure>
"""


def growth_svg(levels: list[float]) -> Html:
    """A line over the parts of the program; 1 unit of noise and less is the ground."""
    down = HEIGHT - BELOW - ABOVE
    step = (WIDTH - LEFT) / max(1, len(levels) - 1)

    def height(value: float) -> float:
        decades = min(TOP, max(0.0, math.log10(max(value, 1e-9))))
        return round(ABOVE + down * (1 - decades / TOP), 1)

    places = [(round(LEFT + i * step, 1), height(value)) for i, value in enumerate(levels)]
    at = max(range(len(levels)), key=levels.__getitem__)
    return html(
        _SVG,
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        lines=[(height(10.0**n), label) for n, label in ((0, "≤ 1"), (2, "100"), (4, "10⁴"), (6, "10⁶"))],
        points=" ".join(f"{x},{y}" for x, y in places),
        peak=places[at],
        parts=len(levels),
        first=f"{levels[0]:.3g}",
        most="without measure" if levels[at] >= 1e30 else f"{levels[at]:.3g}",
        at=at + 1,
        last=f"{levels[-1]:.3g}",
    )
