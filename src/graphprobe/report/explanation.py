"""What `graphprobe explain` prints: graphs, breaks with what to write instead, functions that were not compiled."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from graphprobe.analysis.breaks import ERRORS, BreakReport, GraphBreak
from graphprobe.report.document import Code, Content, Facts, Grid, Prose, counted
from graphprobe.report.terminal import Console, Paper, Text, console_for, grid_lines, print_closing
from graphprobe.report.visible import echo

WIDTH, LABEL = 100, 9
"""Columns at which prose is broken, and of a label with its colon."""

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


def print_found(row: GraphBreak, base: Path) -> None:
    """A break at the moment it is found, in a line on the standard error."""
    what = "error" if row.kind in ERRORS else "break"
    echo(f"graphprobe: {what}: {row.kind} at {_near(row.where, base)}: {row.cause}", err=True)


def print_end(
    report: BreakReport,
    *,
    follow: Mapping[str, Sequence[str]],
    undecided: str = "",
    base: Path | None = None,
    file: IO[str] | None = None,
) -> None:
    """The last lines: whether anything breaks, where the first break is, and what to do.

    Args:
        follow: the next command by verdict: "whole", "undecided" and "breaks".
        undecided: why nothing may be concluded from a report without breaks; empty if there is no such reason.
    """
    near = base or Path.cwd()
    if not report.found:
        if undecided:
            print_closing(f"UNDECIDED: {undecided}", follow=follow["undecided"], style="bold yellow", file=file)
        else:
            print_closing("WHOLE: nothing breaks", follow=follow["whole"], style="bold green", file=file)
        return
    own = [row for row in report.breaks if row.inside is None] or report.breaks
    facts = [("first", f"{own[0].kind} at {_near(own[0].where, near)}")] if own else []
    facts += [("error", _near(row.error, near)) for row in report.died]
    facts += [("instead", row.remedy.partition("; or ")[0]) for row in own[:1]]  # the rest is in the list
    facts += [("behind", "Dynamo looks no further behind a break in uncompiled code: more may follow")] * report.hidden
    counts = f"{counted(report.break_count, 'graph break')}, {_not_compiled(report)}"
    if report.died:
        counts += f", {counted(len(report.died), 'compile error')}"
    once = "change that line" if follow["breaks"][1] == "explain" else ""
    print_closing(f"BREAKS: {counts}", facts, follow=follow["breaks"], once=once, style="bold red", file=file)


def _not_compiled(report: BreakReport) -> str:
    return f"{counted(len(report.own_uncompiled), 'function')} not compiled"


def _print_counts(console: Console, report: BreakReport) -> None:
    ops = sum(graph.ops or 0 for graph in report.graphs)
    counts = [
        counted(len(report.graphs), "graph"),
        counted(ops, "op"),
        counted(report.break_count, "graph break"),
        _not_compiled(report),
    ]
    console.print(Text(", ".join(counts), "bold red" if report.found else "bold green"))


def _print_graphs(console: Console, report: BreakReport, base: Path) -> None:
    console.print()
    rows: list[tuple[str, ...]] = []
    for number, graph in enumerate(report.graphs):
        where = _near(graph.where, base) if graph.where else "?"
        name = _near(graph.function or "", base).partition(",")[0]
        if name and not re.search(rf" in {re.escape(name)}(?:,|$)", where):
            where += f", of {name}"
        where += ", ended by a break" if graph.broken else ""
        rows.append((str(number), graph.compile_id or "?", _number(graph.ops), _number(graph.guards), where))
    head, *lines = grid_lines(Grid(("graph", "compile", "ops", "guards", "begins at"), rows, (0, 2, 3)))
    console.print(Text(head, "bold"))
    for line in lines:
        console.print(Text(line))


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
    _paper(console).show(facts_of(row, lambda text: _near(text, base)), indent=2)


def facts_of(row: GraphBreak, near: Callable[[str], str]) -> Facts:
    """Why it breaks, what to write instead, and what comes of it; `near` shortens the places in a text."""
    led_to = f", because {row.consequence}" if row.consequence else ""
    rows: list[tuple[str, Content]] = [
        ("cause", Prose(row.cause)),
        ("instead", Prose(row.remedy)),
        ("effect", Prose(f"{OUTCOMES[row.outcome]}{led_to}")),
    ]
    if row.error:
        rows.append(("error", near(row.error)))
    if row.kind == "unsupported":
        rows += [("torch", Prose(words)) for words in (row.explanation, *row.hints)]
    if row.url:
        rows.append(("torch", Code(f"{row.gb_id} {row.url}")))
    return Facts(rows)


def _paper(console: Console) -> Paper:
    return Paper(console, width=WIDTH, label=LABEL)


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
            _paper(console).show(Facts([("instead", Prose(row.remedy))]), indent=2)
    others = len(report.uncompiled) - len(own)
    if others:
        console.print(Text(f"not compiled, of torch and Python's library: {counted(others, 'function')}", "dim"))


def _of(inside: str) -> str:
    return "torch" if inside == "torch" else "Python's library"


def _near(text: str, base: Path) -> str:
    """Paths below `base` without what they share with it; a continuation named after its function."""
    return RESUMED.sub(r"\1, behind line \2", text.replace(f"{base}{os.sep}", ""))
