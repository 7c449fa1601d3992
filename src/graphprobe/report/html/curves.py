"""Draws what is known of steps: loss and gradient norm of a watched run, and how far runs of a drift are apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from graphprobe.report.document import Content
from graphprobe.report.html.render import html
from graphprobe.store.watch_file import Drift, Figure, StepObservation

WIDTH, HEIGHT, LEFT, BELOW = 720, 90, 70, 20
"""Of each drawing, in pixels; left of it and below is room for figures."""

LOWEST, HIGHEST = -9.0, 0.0
"""Decades of a deviation that a drawing tells apart."""

PARTING = "Relative difference of loss and gradients, the median of each step, on a logarithmic scale"

_SVG = """{% for one in drawings %}
<figure class="growth">
<svg viewBox="0 0 {{ width }} {{ height + below }}" role="img" aria-labelledby="ring-{{ loop.index }}">
<text x="{{ left - 8 }}" y="12" text-anchor="end" font-size="12" fill="var(--muted)">{{ one.high }}</text>
<text x="{{ left - 8 }}" y="{{ height }}" text-anchor="end" font-size="12" fill="var(--muted)">{{ one.low }}</text>
{% if one.band %}<polygon fill="var(--muted)" fill-opacity="0.3" points="{{ one.band }}"/>
{% endif %}
{% for points in one.lines %}<polyline fill="none" stroke="var(--info)" stroke-width="2" points="{{ points }}"/>
{% endfor %}
{% for x in one.bars %}<line x1="{{ x }}" x2="{{ x }}" y1="0" y2="{{ height }}" stroke="var(--bad)" stroke-width="3"/>
{% endfor %}
<text x="{{ left }}" y="{{ height + 16 }}" font-size="12" fill="var(--muted)">step {{ one.first }}</text>
<text x="{{ width }}" y="{{ height + 16 }}" text-anchor="end" font-size="12"
 fill="var(--muted)">step {{ one.last }}</text>
</svg>
<figcaption id="ring-{{ loop.index }}" class="note">{{ one.caption }}.</figcaption></figure>
{% endfor %}"""


def ring_drawing(observations: Sequence[StepObservation]) -> Content:
    """Loss and gradient norm as lines, what is not finite as bars; empty where there are no two steps."""
    steps = [seen for seen in observations if seen.call is None]
    figures = {"Loss": [seen.loss for seen in steps], "Gradient norm": [seen.norm for seen in steps]}
    drawings = [_drawing(name, steps, values) for name, values in figures.items() if _numbers(values)]
    return _drawn(drawings) if len(steps) > 1 else ""


def parting_drawing(drift: Drift) -> Content:
    """How far the compiled run, or the second of two, is from the other, over the steps; empty without two steps."""
    moved = [*zip(*(sizes for name, sizes in drift.deviations.items() if name.startswith("moved")), strict=False)]
    line = next((sizes for name, sizes in drift.deviations.items() if not name.startswith("moved")), [])
    if len(line) < 2:
        return ""
    around = [*enumerate(map(max, moved)), *reversed([*enumerate(map(min, moved))])]
    caption = f"{PARTING}{'; the band is what moved runs do' * bool(moved)}"
    drawing: dict[str, object] = {"low": "1e-9", "high": "1", "first": 1, "last": len(line), "bars": []}
    if drift.step is not None:
        drawing["bars"], caption = [_x(drift.step - 1, len(line))], f"{caption}; the bar is step {drift.step}"
    drawing |= {"lines": [_points(enumerate(line), len(line))], "band": _points(around, len(line)), "caption": caption}
    return _drawn([drawing])


def _drawn(drawings: Sequence[dict[str, object]]) -> Content:
    return html(_SVG, drawings=drawings, width=WIDTH, height=HEIGHT, left=LEFT, below=BELOW) if drawings else ""


def _x(i: int, count: int) -> str:
    return f"{LEFT + (WIDTH - LEFT - 4) * i / max(1, count - 1):.1f}"


def _point(i: int, count: int, share: float) -> str:
    return f"{_x(i, count)},{HEIGHT - (HEIGHT - 6) * share:.1f}"


def _points(sizes: Iterable[tuple[int, float]], count: int) -> str:
    decades = ((i, max(LOWEST, math.log10(size)) if size > 0 else LOWEST) for i, size in sizes)
    return " ".join(_point(i, count, (min(HIGHEST, one) - LOWEST) / (HIGHEST - LOWEST)) for i, one in decades)


def _numbers(values: Sequence[Figure | None]) -> list[float]:
    return [value for value in values if isinstance(value, (int, float)) and math.isfinite(value)]


def _drawing(name: str, steps: Sequence[StepObservation], values: Sequence[Figure | None]) -> dict[str, object]:
    low, high = min(_numbers(values)), max(_numbers(values))
    lines, lost = [list[str]()], list[str]()
    for i, value in enumerate(values):
        if isinstance(value, (int, float)):
            lines[-1].append(_point(i, len(values), (value - low) / (high - low) if high > low else 0.5))
        else:
            lines.append([])
            lost += [_x(i, len(values))] if value is not None else []
    points, first, last = [" ".join(line) for line in lines if line], steps[0].step, steps[-1].step
    caption = f"{name}, steps {first} to {last}: from {low:.4g} to {high:.4g}"
    caption += f"; not finite in {len(lost)}" if lost else ""
    drawing: dict[str, object] = {"low": f"{low:.4g}", "high": f"{high:.4g}", "lines": points, "bars": lost, "band": ""}
    return drawing | {"first": first, "last": last, "caption": caption}
