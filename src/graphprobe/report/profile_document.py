"""A profile of compile time as text, as JSON and as a page, and the difference of two."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from graphprobe.analysis.recompiles import function_name
from graphprobe.analysis.timing import (
    CacheRow,
    FunctionRow,
    Profile,
    TimingChange,
    TimingDiff,
    TimingSummary,
    read_profile,
    summary_of,
)
from graphprobe.report.document import (
    Code,
    Content,
    DocumentVerdict,
    Grid,
    Muted,
    Section,
    SourcePlace,
    Tone,
    counted,
)
from graphprobe.report.terminal import grid_lines, print_closing, print_lines

if TYPE_CHECKING:
    from graphprobe.report.html.page import Report

LONG_IMPORTS = 0.02
"""Share of the time of compiling from which imports before it are told."""

OWN_PASS = "; to be cached, your pass must be a torch._inductor.custom_graph_pass.CustomGraphPass with a uuid()"
TITLES = {"phases": "Phases, by time of their own", "passes": "Passes", "functions": "Functions"}
IDS = {"passes": "pass-times"}
"""Titles of the tables on the page, and ids of their sections where these are named otherwise."""

MOST_ROWS = 40
"""Rows of a table on the page."""

CACHE_NAMES = {"aot_autograd": "AOTAutograd", "fx_graph": "FX graph", "cpp": "C++ kernels"}


def document_from(profile: Profile) -> dict[str, Any]:
    """The JSON document of a profile: what `summary_of` gives, and what was run on which torch. Times in ns."""
    summary = summary_of(profile)
    head = {name: getattr(profile, name) for name in ("program", "torch", "wall_ns", "cpu_ns", "exit_code", "error")}
    body: dict[str, Any] = msgspec.to_builtins(summary)
    return head | {"accounted": summary.accounted} | body | {"notes": profile.notes}


def print_profile(profile: Profile, *, top: int = 10, file: IO[str] | None = None) -> None:
    """Print the summary, the `top` slowest of everything."""
    print_lines(profile_lines(profile, top=top), file=file)


def print_end(profile: Profile, file_name: str, *, file: IO[str] | None = None) -> None:
    """Print the last lines: how long compiling took, the slowest phase, and the command for the report."""
    summary = summary_of(profile)
    follow = ["graphprobe", "report", file_name]
    if not summary.compile_ns:
        print_closing("NOTHING COMPILED: there is no time to show", follow=follow, style="bold yellow", file=file)
        return
    phases = [("slowest", f"{row.name}, {_s(row.self_ns)} s") for row in summary.phases[:1]]
    for row in summary.passes:
        if (own := profile.own_passes.get(row.name.rpartition(".")[2])) and row.total_ns >= summary.compile_ns / 10:
            near = own.replace(f"{os.getcwd()}{os.sep}", "")
            phases.append(("your pass", f"{row.name.rpartition('.')[2]} = {near}, {_s(row.total_ns)} s"))
    share = f", {summary.compile_ns / profile.wall_ns:.0%} of the program's time" if profile.wall_ns else ""
    print_closing(f"COMPILING: {_s(summary.compile_ns)} s{share}", phases, follow=follow, file=file)


def print_end_of_diff(diff: TimingDiff, after: str) -> None:
    """Print the last lines: which profile took longer to compile, the largest change, and the next command."""
    change = diff.compile_after_ns - diff.compile_before_ns
    word, style = ("SLOWER", "bold red") if change > 0 else ("FASTER", "bold green") if change else ("SAME", "bold")
    phases = [("largest", f"{row.name}, {row.delta_ns / 1e9:+.3f} s") for row in diff.phases[:1]]
    verdict = f"{word}: compiling took {abs(change) / 1e9:.3f} s {'more' if change > 0 else 'less'} in {after}"
    print_closing(verdict, phases, follow=["graphprobe", "report", after], style=style)


def profile_lines(profile: Profile, *, top: int) -> list[str]:
    """The summary as lines of plain text."""
    summary = summary_of(profile)
    lines = list(head_lines(profile, summary))
    counts = {"passes": len(summary.passes), "functions": len(summary.functions)}
    for name, grid in grids_of(summary, top=top).items():
        count = counts.get(name, 0)
        told = f"{name}, slowest {min(top, count)} of {count}" if count else f"{name}, by time of their own"
        lines += ["", told, *grid_lines(grid, indent=2)]
    return lines


def grids_of(summary: TimingSummary, *, top: int, place: Callable[[str], Content] = SourcePlace) -> dict[str, Grid]:
    """The tables `phases`, `passes` and `functions`, as far as there is anything in them, with the `top` slowest rows.

    Args:
        place: shows a `file:line` of the program.
    """
    passes: list[tuple[Content, ...]] = [
        (_s(row.total_ns), str(row.count), _s(row.longest_ns), Code(row.name)) for row in summary.passes
    ]
    functions = [_function_row(row, place) for row in summary.functions]
    grids = {
        "phases": Grid(("s", "%", "CPU s", "count", "phase"), _phase_rows(summary, top), (0, 1, 2, 3)),
        "passes": Grid(("s", "count", "longest", "pass"), passes[:top], (0, 1, 2), _left(len(passes), top)),
        "functions": Grid(
            ("forward s", "backward s", "id", "function"), functions[:top], (0, 1, 2), _left(len(functions), top)
        ),
    }
    return {name: grid for name, grid in grids.items() if grid.rows}


def diff_lines(diff: TimingDiff, before: str, after: str, *, top: int) -> list[str]:
    """The changes as lines of plain text."""
    change = diff.compile_after_ns - diff.compile_before_ns
    share = f" ({change / diff.compile_before_ns:+.0%})" if diff.compile_before_ns else ""
    lines = [
        f"compiling took {_s(diff.compile_before_ns)} s in {before}",
        f"           and {_s(diff.compile_after_ns)} s in {after}: {change / 1e9:+.3f} s{share}",
    ]
    lines += [f"note: {note}" for note in diff.notes]
    for title, changes in (("phases, by time of their own", diff.phases), ("passes", diff.passes)):
        if changes:
            lines += ["", f"{title}: largest {min(top, len(changes))} changes of {len(changes)}"]
            rows = [_change_row(change) for change in changes[:top]]
            lines += grid_lines(Grid(("change s", "before", "after", "count", ""), rows, (0, 1, 2, 3)), indent=2)
    return lines


def head_lines(profile: Profile, summary: TimingSummary) -> Iterator[str]:
    """What was run, and what took how long, before the tables."""
    ended = "" if profile.error is None else f"; it failed with {profile.error}"
    yield f"{profile.program or 'profile'}: {_s(profile.wall_ns)} s on torch {profile.torch}{ended}"
    if not summary.compile_ns:
        yield "nothing was compiled"
    else:
        yield (
            f"compiling: {_s(summary.compile_ns)} s ({_s(summary.compile_cpu_ns)} s CPU of its threads), "
            f"{counted(len(summary.functions), 'compile id')}, "
            f"{summary.accounted:.1%} of the time in named phases"
        )
    if summary.imports_ns > LONG_IMPORTS * summary.compile_ns:
        yield f"before it: {_s(summary.imports_ns)} s to import the compiler"
    if summary.elsewhere_count:
        yield (
            f"beside it: {_s(summary.elsewhere_ns)} s in {summary.elsewhere_count} C++ builds on threads of their own"
        )
    for cache in summary.caches:
        yield _cache_line(cache)
    if summary.warm:
        yield "warm: caches had results, so this is not the time of a compile from nothing"
    for note in profile.notes:
        yield f"note: {note}"


def _cache_line(row: CacheRow) -> str:
    name = CACHE_NAMES.get(row.cache, row.cache)
    if row.cache == "cpp":
        return f"{name}: {row.hits} from the cache, {row.misses} compiled"
    counts = [("hits", row.hits), ("misses", row.misses), ("bypassed", row.bypassed), ("off", row.disabled)]
    told = ", ".join(f"{count} {what}" for what, count in counts if count or what in ("hits", "misses"))
    reasons = f" ({'; '.join(row.reasons)})" if row.reasons else ""
    advice = OWN_PASS if any("custom" in reason and "pass" in reason for reason in row.reasons) else ""
    return f"{name} cache: {told}{reasons}{advice}"


def _phase_rows(summary: TimingSummary, top: int) -> list[tuple[Content, ...]]:
    whole = summary.compile_ns or 1
    rows: list[tuple[Content, ...]] = [
        (_s(row.self_ns), f"{row.self_ns / whole:.1%}", _s(row.cpu_ns), str(row.count), _with_gloss(row.name, row.what))
        for row in summary.phases[:top]
    ]
    rest = summary.phases[top:]
    if rest:
        spent, cpu = sum(row.self_ns for row in rest), sum(row.cpu_ns for row in rest)
        count = str(sum(row.count for row in rest))
        rows.append((_s(spent), f"{spent / whole:.1%}", _s(cpu), count, f"({len(rest)} more phases)"))
    return rows


def _with_gloss(name: str, what: str) -> Content:
    return (Code(name), Muted(f"  — {what}")) if what else Code(name)


def _function_row(row: FunctionRow, place: Callable[[str], Content]) -> tuple[Content, ...]:
    cell: list[Content] = [function_name(row.function or "?")]
    cell += ["  ", place(row.where)] if row.where else []
    cell += [f"  failed: {row.failure}"] if row.failure else []
    cell += ["  (recompiled)"] if row.recompile_reason else []
    return _s(row.forward_ns), _s(row.backward_ns), row.compile_id, tuple(cell)


def _left(count: int, top: int) -> str:
    return f"and {count - top} more: graphprobe profile --top {count} PROFILE.json" if count > top else ""


def _change_row(change: TimingChange) -> tuple[Content, ...]:
    counts = str(change.count_before)
    if change.count_after != change.count_before:
        counts += f" -> {change.count_after}"
    name = _with_gloss(change.name, change.what)
    return f"{change.delta_ns / 1e9:+.3f}", _s(change.before_ns), _s(change.after_ns), counts, name


def _s(ns: int) -> str:
    return f"{ns / 1e9:.3f}"


def report_from(path: Path, *, source_roots: Sequence[Path] = ()) -> Report:
    """The report of a profile: see `page_of`."""
    from graphprobe.report.html.flame import flame_section, tree_from_profile
    from graphprobe.report.html.page import Report
    from graphprobe.report.html.sources import Sources

    profile = read_profile(path)
    summary = summary_of(profile)
    sources = Sources(Path.cwd(), given=source_roots)
    tone, word, sentence = _judged(summary, profile.error)
    counts = {"phases": len(summary.phases), "passes": len(summary.passes), "functions": len(summary.functions)}
    flame = flame_section(tree_from_profile(profile, sources))
    grids = grids_of(summary, top=MOST_ROWS, place=sources.place)
    tables = [Section(IDS.get(k, k), TITLES[k], body=grid, summary=str(counts[k])) for k, grid in grids.items()]
    return Report(
        title=f"graphprobe: compile time of {profile.program or path.name}",
        subject=profile.program or str(path),
        verdict=DocumentVerdict(tone, word, sentence, list(head_lines(profile, summary))[1:]),
        sections=[*([flame] if flame is not None else []), *tables],
        sources=sources,
        facts=[("torch", profile.torch), ("Python", profile.python), ("graphprobe", profile.graphprobe)],
    )


def _judged(summary: TimingSummary, error: str | None) -> tuple[Tone, str, str]:
    if error is not None:
        return "bad", "FAILED", f"The program ended with {error}"
    if not summary.compile_ns:
        return "warn", "NOTHING COMPILED", "The program ended, and nothing was compiled."
    slowest = summary.phases[0] if summary.phases else None
    where = f", most of it in {slowest.name} ({slowest.self_ns / summary.compile_ns:.0%})" if slowest else ""
    return "info", "COMPILE TIME", f"Compiling took {summary.compile_ns / 1e9:.1f} s{where}."
