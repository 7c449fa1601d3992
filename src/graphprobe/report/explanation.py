"""What `graphprobe explain` and `recompiles` print: breaks with what to write instead, and causes of recompilations."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from graphprobe.analysis.breaks import ERRORS, BreakReport, GraphBreak
from graphprobe.analysis.recompile_facts import CodeLine
from graphprobe.analysis.recompiles import Function, Group, RecompileReport, function_name
from graphprobe.report.document import Code, Content, Facts, Grid, Prose, counted
from graphprobe.report.terminal import Console, Paper, Text, console_for, grid_lines, near, print_closing
from graphprobe.report.visible import echo

WIDTH, LABEL = 100, 9
"""Columns at which prose is broken, and of a label with its colon."""

RESUMED = re.compile(r"(?:torch_dynamo_resume_in_)+([\w.]+?)_at_(\d+)(?:_at_\d+)*")
"""Dynamo's name of the function that goes on behind a break."""

OUTCOMES = {
    "behind": "none yet: this runs uncompiled, for the breaks before it; once they are mended, it breaks here",
    "continued": "compiled before and behind it",
    "rest": "what comes behind it in the function runs uncompiled",
    "function": "nothing of this function is compiled",
    "died": "the compile ended in an error, which the program gets; what comes before it is compiled",
    "raised": "raised as an error (fullgraph=True)",
}


def print_report(report: BreakReport, *, notes: Sequence[str] = (), base: Path | None = None) -> None:
    """The whole table; file names are shortened to what lies below `base` (the working directory)."""
    console = console_for()
    here = base or Path.cwd()
    graphs, ops = counted(len(report.graphs), "graph"), counted(sum(graph.ops or 0 for graph in report.graphs), "op")
    counts = f"{graphs}, {ops}, {counted(report.break_count, 'graph break')}, {_not_compiled(report)}"
    console.print(Text(counts, "bold red" if report.found else "bold green"))
    if report.graphs:
        _print_graphs(console, report, here)
    own = [row for row in report.breaks if row.inside is None] or report.breaks
    for number, row in enumerate(own, start=1):
        _print_break(console, number, row, here)
    for row in report.breaks if len(own) < len(report.breaks) else ():
        if row.inside is not None:
            library = "torch" if row.inside == "torch" else "Python's library"
            console.print(Text(f"also inside {library}: {row.kind} ×{row.count}, {_shortened(row.where, here)}", "dim"))
    _print_uncompiled(console, report, here)
    for note in notes:
        console.print(Text(f"not observed: {note}", "yellow"))


def print_found(row: GraphBreak, base: Path) -> None:
    """A break at the moment it is found, in a line on the standard error."""
    what = "error" if row.kind in ERRORS else "break"
    echo(f"graphprobe: {what}: {row.kind} at {_shortened(row.where, base)}: {row.cause}", err=True)


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
    here = base or Path.cwd()
    if not report.found:
        if undecided:
            print_closing(f"UNDECIDED: {undecided}", follow=follow["undecided"], style="bold yellow", file=file)
        else:
            print_closing("WHOLE: nothing breaks", follow=follow["whole"], style="bold green", file=file)
        return
    own = [row for row in report.breaks if row.inside is None] or report.breaks
    facts = [("first", f"{own[0].kind} at {_shortened(own[0].where, here)}")] if own else []
    facts += [("error", _shortened(row.error, here)) for row in report.died]
    told = [row for row in own[:1] if row.remedy]
    facts += [("instead" if row.tried else "untried", row.remedy.partition("; or ")[0]) for row in told]
    facts += [("behind", "Dynamo looks no further behind a break in uncompiled code: more may follow")] * report.hidden
    counts = f"{counted(report.break_count, 'graph break')}, {_not_compiled(report)}"
    if report.behind_count:
        counts += f", {counted(report.behind_count, 'place')} behind them"
    if report.died:
        counts += f", {counted(len(report.died), 'compile error')}"
    once = "change that line" if follow["breaks"][1] == "explain" else ""
    print_closing(f"BREAKS: {counts}", facts, follow=follow["breaks"], once=once, style="bold red", file=file)


def _not_compiled(report: BreakReport) -> str:
    return f"{counted(len(report.own_uncompiled), 'function')} not compiled"


def _print_graphs(console: Console, report: BreakReport, base: Path) -> None:
    console.print()
    rows: list[tuple[str, ...]] = []
    for number, graph in enumerate(report.graphs):
        where = _shortened(graph.where, base) if graph.where else "?"
        name = _shortened(graph.function or "", base).partition(",")[0]
        if name and not re.search(rf" in {re.escape(name)}(?:,|$)", where):
            where += f", of {name}"
        where += ", ended by a break" if graph.broken else ""
        ops, guards = ("?" if value is None else str(value) for value in (graph.ops, graph.guards))
        rows.append((str(number), graph.compile_id or "?", ops, guards, where))
    head, *lines = grid_lines(Grid(("graph", "compile", "ops", "guards", "begins at"), rows, (0, 2, 3)))
    console.print(Text(head, "bold"))
    for line in lines:
        console.print(Text(line))


def _print_break(console: Console, number: int, row: GraphBreak, base: Path) -> None:
    console.print()
    title = Text(f"{'error' if row.kind in ERRORS else 'break'} {number}: ", "bold")
    title.append(row.kind, "bold red")
    title.append(f" ×{row.count}  {_shortened(row.where, base)}")
    console.print(title)
    if row.source:
        console.print(Text(f"    {textwrap.shorten(row.source, WIDTH, placeholder=' …')}", "cyan"))
    Paper(console, width=WIDTH, label=LABEL).show(facts_of(row, lambda text: _shortened(text, base)), indent=2)


def facts_of(row: GraphBreak, near: Callable[[str], str]) -> Facts:
    """Why it breaks, what to write instead, and what comes of it; `near` shortens the places in a text."""
    led_to = f", because {row.consequence}" if row.consequence and row.outcome != "behind" else ""
    rows: list[tuple[str, Content]] = [
        ("cause", Prose(row.cause)),
        ("instead" if row.tried else "untried", row.remedy and Prose(row.remedy)),
        ("effect", Prose(f"{OUTCOMES[row.outcome]}{led_to}")),
        ("error", row.error and near(row.error)),
    ]
    if row.kind == "unsupported":
        rows += [("torch", Prose(words)) for words in (row.explanation, *row.hints)]
    rows.append(("torch", Code(f"{row.gb_id} {row.url}") if row.url else ""))
    return Facts([(label, content) for label, content in rows if content])


def _print_uncompiled(console: Console, report: BreakReport, base: Path) -> None:
    own = report.own_uncompiled
    if own:
        console.print()
        console.print(Text("not compiled", "bold"))
    for row in own:
        at = _shortened(f"{row.file}:{row.line}", base)
        times = f" ×{row.count}" if row.count > 1 else ""
        console.print(Text(f"  {row.function} ({at}){times}: {_shortened(row.cause, base)}"))
        if row.kind != "break":
            Paper(console, width=WIDTH, label=LABEL).show(Facts([("instead", Prose(row.remedy))]), indent=2)
    others = len(report.uncompiled) - len(own)
    if others:
        console.print(Text(f"not compiled, of torch and Python's library: {counted(others, 'function')}", "dim"))


def _shortened(text: str, base: Path) -> str:
    """Paths below `base` without what they share with it; a continuation named after its function."""
    return RESUMED.sub(r"\1, behind line \2", text.replace(f"{base}{os.sep}", ""))


def recompile_lines(report: RecompileReport, *, base: Path | None = None) -> list[str]:
    """The report line by line; files below `base` (default: the working directory) are named from there."""
    base = Path.cwd() if base is None else base
    lines = [_counts(report) if report.functions else "no recompilations"]
    if report.functions and report.allowed:
        lines.append(f"allowed: {report.allowed} of each function; {'exceeded' if report.unwanted else 'kept'}")
    for function in report.functions:
        lines += ["", _function_line(function, base)]
        for group in report.groups:
            if (group.file, group.line, group.function) == (function.file, function.line, function.function):
                lines += _group_lines(group, base)
    if report.notes or not report.complete:
        lines.append("")
        lines += [f"note: {note}" for note in report.notes]
    if not report.complete:
        lines.append("incomplete: there may be more recompilations than are listed")
    return lines


def _counts(report: RecompileReport) -> str:
    recompilations, functions = report.recompilations, len(report.functions)
    return (
        f"{counted(recompilations, 'recompilation')} of {counted(functions, 'function')}, "
        f"{counted(len(report.groups), 'cause')}"
    )


def print_end_of_recompiles(report: RecompileReport, target: Sequence[str], *, problem: str | None, run: bool) -> None:
    """Print the last lines: the verdict, the first cause with its remedy, and the next command.

    Args:
        target: the program, or the run, as it was typed.
        problem: what the program failed with.
        run: `target` is a run.
    """
    follow = ["graphprobe", "report" if run else "recompiles", *target]
    causes = [group for group in report.groups if group.kind != "limit-reached"]  # which is what comes of the others
    facts: list[tuple[str, str]] = []
    for first in (causes or report.groups)[:1]:
        facts += [("first", group_line(first)), *(("remedy", remedy) for remedy in first.remedies[:1])]
    if report.unwanted:
        once = "" if run else "remove the first cause"
        print_closing(f"RECOMPILES: {_counts(report)}", facts, follow=follow, once=once, style="bold red")
        return
    if problem is not None or not report.complete:
        why = problem or "there may be more recompilations than are listed"
        follow = ["graphprobe", "logs" if run else "run", *target]
        print_closing(f"UNDECIDED: {why}", facts, follow=follow, style="bold yellow")
        return
    verdict = f"ALLOWED: {_counts(report)}" if report.functions else "STEADY: nothing was compiled again"
    follow = ["graphprobe", "explain" if run else "profile", *target]
    print_closing(verdict, facts, follow=follow, style="bold green")


def _function_line(function: Function, base: Path) -> str:
    versions = "" if function.versions is None else f", {counted(function.versions, 'version')}"
    limit = "" if function.limit is None or function.versions is None else f" of at most {function.limit}"
    place = _place(CodeLine(function.file, function.line), base)
    text = counted(function.recompilations, "recompilation")
    shared = f", shared by {', '.join(function.owners)}" if function.owners else ""
    return f"{function_name(function.function)} ({place}): {text}{versions}{limit}{shared}"


def group_line(group: Group) -> str:
    """A cause in one line."""
    return f"{group.kind} in {function_name(group.function)}: {group.cause}"


def _group_lines(group: Group, base: Path) -> list[str]:
    lines = [f"  {group.kind} ×{group.count}: {group.cause}"]
    if group.where is not None and group.kind != "limit-reached":
        lines.append(
            f"    {'first used' if group.where_from == 'first use' else 'guard'} at {_place(group.where, base)}"
        )
    lines += [f"    called from {_place(caller, base)}" for caller in group.callers]
    lines += [f"    {'        ' if number else 'remedy: '}{text}" for number, text in enumerate(group.remedies)]
    if group.kind in ("other", "unexplained") and group.torch_says:
        lines.append(f"    torch: {group.torch_says}")
    return lines


def _place(place: CodeLine, base: Path) -> str:
    return near(f"{place.file}:{place.line}", base) + (f" in {place.function}" if place.function else "")
