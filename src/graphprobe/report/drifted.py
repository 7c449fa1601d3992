"""Two trainings held against each other, in words: the verdict, how fast they part, and the step that leaves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from graphprobe.report.document import Code, Content, DocumentVerdict, Facts, Section, Tone
from graphprobe.report.html.curves import HIGHEST, LOWEST, parting_drawing
from graphprobe.report.html.page import Report
from graphprobe.report.terminal import Paper, console_for, near, print_closing
from graphprobe.report.watched import LABEL, WIDTH, facts_of_answer
from graphprobe.store.watch_file import Drift, Growth, read_drift

COLUMNS = 64
"""Of a drawn trajectory."""

BARS = " ▁▂▃▄▅▆▇█"

VERDICTS: dict[str, tuple[str, Tone, str]] = {
    "rounding": ("ROUNDING", "good", "bold green"),
    "leaves": ("LEAVES", "bad", "bold red"),
    "other": ("ANOTHER RUN", "warn", "bold yellow"),
    "undecided": ("UNDECIDED", "warn", "bold yellow"),
}
"""The word, its tone, and its style on a terminal."""


def facts_of_drift(drift: Drift, base: Path | None = None) -> list[tuple[str, Content]]:
    """What is known of two trainings, by labels; what is not known is left out."""
    moved = drift.moved_growth
    rows: list[tuple[str, Content]] = [
        ("steps", f"{drift.steps} compared{f', {drift.held} made again from the same state' if drift.held else ''}"),
        ("grows", f"{_told(drift.growth)} each step" if drift.growth is not None else ""),
        ("moved runs", f"{', '.join(map(_told, moved))} each step" if moved else ""),
    ]
    outside = drift.outside
    if outside is not None:
        more = f" and {outside.others} more" if outside.others else ""
        rows.append(("outside", f"{outside.what}{more}, {outside.size / outside.limit:.3g} times what rounding makes"))
        if outside.answer is not None and outside.answer.operation is not None:
            rows += facts_of_answer(outside.answer, base)
        elif outside.answer is not None:
            rows.append(("diagnosis", "compiled afresh, the calls of the step are right"))
            rows += [("note", note) for note in outside.answer.notes]
    rows += [(name, Code(near(folder, base))) for name, folder in drift.runs.items() if not name.startswith("moved")]
    rows += [("note", note) for note in drift.notes]
    return [(label, content) for label, content in rows if content]


def verdict_of_drift(drift: Drift) -> DocumentVerdict:
    """The verdict, and below it what is known."""
    word, tone, _ = VERDICTS[drift.verdict]
    return DocumentVerdict(tone, word, f"{drift.sentence}.", Facts(facts_of_drift(drift)))


def report_from(path: Path, *, source_roots: Sequence[Path] = ()) -> Report:
    """The report of a drift's JSON: see `page_of`."""
    drift = read_drift(path)
    drawing = parting_drawing(drift)
    return Report(
        title=f"graphprobe: {VERDICTS[drift.verdict][0]} in {path.name}",
        subject=str(path),
        verdict=verdict_of_drift(drift),
        sections=[Section("parting", "How the runs part", body=drawing)] if drawing else [],
    )


def trajectory_lines(drift: Drift) -> list[str]:
    """How far each trajectory is from the uncompiled one, drawn over the steps: a bar a part, as high as its decade."""
    moved = [sizes for name, sizes in drift.deviations.items() if name.startswith("moved")]
    drawn = {name: sizes for name, sizes in drift.deviations.items() if not name.startswith("moved")}
    if moved:
        drawn["moved, most"] = [max(sizes) for sizes in zip(*moved, strict=False)]
    if not any(drawn.values()):
        return []
    lines = [f"{name:12} {_bars(sizes)} {sizes[-1]:.1g}" for name, sizes in drawn.items() if sizes]
    return [*lines, f"{'':12} step 1 to {drift.steps}; a bar is one decade and more, from 1e-9 to 1"]


def _bars(sizes: Sequence[float]) -> str:
    columns = min(COLUMNS, len(sizes))
    parts = [sizes[i * len(sizes) // columns : (i + 1) * len(sizes) // columns] for i in range(columns)]
    return "".join(BARS[_height(max(part))] for part in parts)


def _height(size: float) -> int:
    if size <= 0:
        return 0
    share = (math.log10(size) - LOWEST) / (HIGHEST - LOWEST)
    return 1 + int(min(0.999, max(0.0, share)) * (len(BARS) - 1))


def _told(growth: Growth) -> str:
    return f"{growth.factor:.3f} ± {growth.error:.3f}"


def print_drift(drift: Drift, *, base: Path | None = None, file: IO[str] | None = None) -> None:
    """Print the verdict with what is known; paths below `base`, an absolute one, are relative to it."""
    word, _, style = VERDICTS[drift.verdict]
    paper = Paper(console_for(file), width=WIDTH, label=LABEL)
    paper.prose(f"{word}: {drift.sentence}.", style=style)
    paper.show(Facts(facts_of_drift(drift, base)), indent=3)
    paper.gap()
    for line in trajectory_lines(drift):
        paper.prose(line, indent=3)


def print_end_of_drift(drift: Drift, *, follow: Sequence[str], base: Path | None = None) -> None:
    """Print the verdict in a line, and the next command."""
    word, _, style = VERDICTS[drift.verdict]
    found = drift.outside.answer.operation if drift.outside is not None and drift.outside.answer is not None else None
    where = f"{found.op} at {near(found.source, base)}" if found is not None and found.source else ""
    name = f"{word} in step {drift.step}: {drift.what}" if drift.step is not None else f"{word}: {drift.sentence}"
    print_closing(name, [("first", where)], follow=[*follow], style=style)
