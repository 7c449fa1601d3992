"""What `graphprobe explain` prints: graphs, breaks with what to write instead, functions that were not compiled."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from graphprobe.analysis.breaks import ERRORS, BreakReport, GraphBreak
from graphprobe.report.closing import print_closing
from graphprobe.report.terminal import Console, Text, console_for

WIDTH = 100
"""Prose is broken here."""

RESUMED = re.compile(r"(?:torch_dynamo_resume_in_)+([\w.]+?)_at_(\d+)(?:_at_\d+)*")
"""Dynamo's name of the function that goes on behind a break."""

OUTCOMES = {
    "continued": "compiled before and behind it",
    "rest": "what comes behind it in the function runs uncompiled",
    "function": "the whole function runs uncompiled",
    "died": "the compile ended in an error, which the program gets; what comes before it is compiled",
    "raised": "raised as an error (fullgraph=True)",
}


def print_report(
    report: BreakReport, *, notes: Sequence[str] = (), base: Path | None = None, file: IO[str] | None = None
) -> None:
    """The whole table; file names are shortened to what lies below `base` (the working directory)."""
    console = console_for(file)
    near = base or Path.cwd()
    _print_counts(console, report)
    if report.graphs:
        _print_graphs(console, report, near)
    own = [row for row in report.breaks if row.inside is None] or report.breaks
    for number, row in enumerate(own, start=1):
        _print_break(console, number, row, near)
    for row in report.breaks if len(own) < len(report.breaks) else ():
        if row.inside is not None:
            console.print(
                Text(f"also inside {_of(row.inside)}: {row.kind} ×{row.count}, {_near(row.where, near)}", "dim")
            )
    _print_uncompiled(console, report, near)
    for note in notes:
        console.print(Text(f"not observed: {note}", "yellow"))


def print_end(
    report: BreakReport, *, undecided: str = "", base: Path | None = None, file: IO[str] | None = None
) -> None:
    """The last lines: whether anything breaks, where the first break is, and what to do.

    Args:
        undecided: why nothing may be concluded from a report without breaks; empty if there is no such reason.
    """
    near = base or Path.cwd()
    if not report.found:
        word, style = (f"UNDECIDED: {undecided}", "yellow") if undecided else ("WHOLE: nothing breaks", "green")
        print_closing(word, style=f"bold {style}", file=file)
        return
    own = [row for row in report.breaks if row.inside is None] or report.breaks
    facts = [("first", f"{own[0].kind} at {_near(own[0].where, near)}")] if own else []
    facts += [("error", _near(row.error, near)) for row in report.died]
    facts.append(("next", "write what stands behind `instead`, and explain it again"))
    counts = f"{_counted(report.break_count, 'graph break')}, {_not_compiled(report)}"
    if report.died:
        counts += f", {_counted(len(report.died), 'compile error')}"
    print_closing(f"BREAKS: {counts}", facts, style="bold red", file=file)


def _not_compiled(report: BreakReport) -> str:
    return f"{_counted(len(report.own_uncompiled), 'function')} not compiled"


def _print_counts(console: Console, report: BreakReport) -> None:
    ops = sum(graph.ops or 0 for graph in report.graphs)
    counts = [
        _counted(len(report.graphs), "graph"),
        _counted(ops, "op"),
        _counted(report.break_count, "graph break"),
        _not_compiled(report),
    ]
    console.print(Text(", ".join(counts), "bold red" if report.found else "bold green"))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _print_graphs(console: Console, report: BreakReport, base: Path) -> None:
    console.print()
    console.print(Text(f"{'graph':>5}  {'compile':<9}  {'ops':>4}  {'guards':>6}  begins at", "bold"))
    for number, graph in enumerate(report.graphs):
        numbers = f"{_number(graph.ops):>4}  {_number(graph.guards):>6}"
        ended = ", ended by a break" if graph.broken else ""
        where = _near(graph.where, base) if graph.where else "?"
        name = _near(graph.function or "", base).partition(",")[0]
        if name and not re.search(rf" in {re.escape(name)}(?:,|$)", where):
            where += f", of {name}"
        console.print(Text(f"{number:>5}  {graph.compile_id or '?':<9}  {numbers}  {where}{ended}"))


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)


def _print_break(console: Console, number: int, row: GraphBreak, base: Path) -> None:
    console.print()
    title = Text(f"{'error' if row.kind in ERRORS else 'break'} {number}: ", "bold")
    title.append(row.kind, "bold red")
    title.append(f" ×{row.count}  {_near(row.where, base)}")
    console.print(title)
    if row.source:
        console.print(Text(f"    {textwrap.shorten(row.source, WIDTH, placeholder=' …')}", "cyan"))
    led_to = f", because {row.consequence}" if row.consequence else ""
    _paragraph(console, "cause", row.cause)
    _paragraph(console, "instead", row.remedy)
    _paragraph(console, "effect", f"{OUTCOMES[row.outcome]}{led_to}")
    if row.error:
        _paragraph(console, "error", _near(row.error, base))
    if row.kind == "unsupported":
        for words in (row.explanation, *row.hints):
            _paragraph(console, "torch", words)
    if row.url:
        console.print(Text(f"  {'torch':<8} {row.gb_id} {row.url}", "dim"))


def _paragraph(console: Console, label: str, words: str) -> None:
    lines = textwrap.wrap(words, WIDTH - 11, break_long_words=False, break_on_hyphens=False) or [""]
    for index, line in enumerate(lines):
        console.print(Text(f"  {label if index == 0 else '':<8} {line}"))


def _print_uncompiled(console: Console, report: BreakReport, base: Path) -> None:
    own = report.own_uncompiled
    if own:
        console.print()
        console.print(Text("not compiled", "bold"))
    for row in own:
        at = _near(f"{row.file}:{row.line}", base)
        times = f" ×{row.count}" if row.count > 1 else ""
        console.print(Text(f"  {row.function} ({at}){times}: {_near(row.cause, base)}"))
        if row.kind != "break":
            _paragraph(console, "instead", row.remedy)
    others = len(report.uncompiled) - len(own)
    if others:
        console.print(Text(f"not compiled, of torch and Python's library: {_counted(others, 'function')}", "dim"))


def _of(inside: str) -> str:
    return "torch" if inside == "torch" else "Python's library"


def _near(text: str, base: Path) -> str:
    """Paths below `base` without what they share with it; a continuation named after its function."""
    return RESUMED.sub(r"\1, behind line \2", text.replace(f"{base}{os.sep}", ""))
