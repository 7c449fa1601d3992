"""Recompilations as text: what was recompiled, why, and what to do."""

from __future__ import annotations

import os
from pathlib import Path

from graphprobe.analysis.recompile_facts import CodeLine
from graphprobe.analysis.recompiles import Function, Group, RecompileReport, function_name
from graphprobe.report.document import counted


def recompile_lines(report: RecompileReport, *, base: Path | None = None) -> list[str]:
    """The report line by line; files below `base` (default: the working directory) are named from there."""
    base = Path.cwd() if base is None else base
    if not report.functions:
        lines = ["no recompilations"]
    else:
        lines = [
            f"{counted(report.recompilations, 'recompilation')} of {counted(len(report.functions), 'function')}, "
            f"{counted(len(report.groups), 'cause')}"
        ]
        if report.allowed:
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


def _function_line(function: Function, base: Path) -> str:
    versions = "" if function.versions is None else f", {counted(function.versions, 'version')}"
    limit = "" if function.limit is None or function.versions is None else f" of at most {function.limit}"
    place = _place(CodeLine(function.file, function.line), base)
    text = counted(function.recompilations, "recompilation")
    shared = f", shared by {', '.join(function.owners)}" if function.owners else ""
    return f"{function_name(function.function)} ({place}): {text}{versions}{limit}{shared}"


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
    file = place.file
    if os.path.isabs(file) and Path(file).is_relative_to(base):
        file = str(Path(file).relative_to(base))
    return f"{file}:{place.line}" + (f" in {place.function}" if place.function else "")
