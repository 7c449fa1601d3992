"""Parts of the report of a run that need no script: graph breaks, recompilations, the graphs."""

from __future__ import annotations

from collections.abc import Sequence

from graphprobe.analysis.breaks import BreakReport, GraphBreak
from graphprobe.analysis.recompiles import Group, RecompileReport, function_name
from graphprobe.report.document import (
    Bullets,
    Card,
    Cards,
    Code,
    Content,
    Excerpt,
    Facts,
    Grid,
    Muted,
    Note,
    Prose,
    Section,
    counted,
)
from graphprobe.report.explain import facts_of
from graphprobe.report.html.sources import Sources
from graphprobe.store.reader import Model

MOST = 60
"""Cards and rows that are shown; the section says how many more there are."""


def breaks_section(report: BreakReport, sources: Sources) -> Section | None:
    """A card for each cause of graph breaks; None where nothing breaks."""
    if not report.found:
        return None
    own = [row for row in report.breaks if row.inside is None] or report.breaks
    body: list[Content] = [Cards([_break(row, sources) for row in own[:MOST]])]
    if (left := len(report.breaks) - len(own[:MOST])) > 0:
        body.append(Note(f"{left} more, in libraries or beyond {MOST}: graphprobe explain RUN."))
    entries: list[Content] = []
    for row in report.own_uncompiled[:MOST]:
        remedy = (" ", Prose(row.remedy)) if row.kind != "break" else ()
        place = _place(row.file, row.line, sources)
        entries.append((Code(row.function), " (", place, "): ", Prose(row.cause), *remedy))
    body.append(Bullets(entries, "Not compiled"))
    summary = f"{report.break_count} in {counted(len(own), 'place')}"
    return Section("breaks", "Graph breaks", body=body, summary=summary)


def recompiles_section(report: RecompileReport, sources: Sources) -> Section | None:
    """A card for each cause of recompilations; None where nothing was compiled again."""
    if not report.groups:
        return None
    counts = {(f.file, f.line, f.function): f for f in report.functions}
    cards = []
    for group in report.groups[:MOST]:
        function = counts.get((group.file, group.line, group.function))
        versions = ""
        if function is not None and function.versions is not None:
            versions = f"{function.versions} versions" + (f" of at most {function.limit}" if function.limit else "")
        cards.append(_group(group, versions, sources))
    left = len(report.groups) - MOST
    body: list[Content] = [Cards(cards), Note(f"{left} more: graphprobe recompiles RUN." if left > 0 else "")]
    summary = f"{report.recompilations}, {counted(len(report.groups), 'cause')}"
    return Section("recompiles", "Recompilations", body=body, summary=summary)


def graphs_section(models: Sequence[Model], sources: Sources) -> Section | None:
    """A row for each compile."""
    if not models:
        return None
    rows: list[list[Content]] = []
    for model in models[:MOST]:
        facts = model.compile
        took = (facts.get("timings_ms") or {}).get("entire_frame")
        guards = facts.get("guards")
        reason = str(facts.get("recompile_reason") or facts.get("reason") or "").partition("\n")[0]
        if facts.get("restart_of") is not None:
            reason = f"model__{facts['restart_of']} was started over"
        function = function_name(str(facts.get("function") or ""))
        rows.append(
            [
                [Code(f"model__{model.number}"), Muted(model.compile_id or "")],
                [function, _place(facts.get("file"), facts.get("line"), sources)],
                str(facts.get("ops", "")),
                "" if guards is None else str(len(guards)),
                "" if took is None else f"{took / 1e3:.2f} s",
                reason,
            ]
        )
    left = f"{len(models) - MOST} more are in the run: graphprobe ls RUN." if len(models) > MOST else ""
    grid = Grid(("Graph", "Function", "Ops", "Guards", "Time", "Why it was compiled"), rows, (2, 3, 4), left)
    return Section("graphs", "Graphs", body=grid, summary=f"{len(models)} compiled")


def _break(row: GraphBreak, sources: Sources) -> Card:
    times: Content = Muted(f" ×{row.count}") if row.count > 1 else ""
    where = (_place(row.file, row.line, sources), " in ", Code(row.function))
    return Card((row.kind.replace("-", " "), times), [where, Excerpt(row.source), facts_of(row, str)])


def _group(group: Group, versions: str, sources: Sources) -> Card:
    rows: list[tuple[str, Content]] = []
    if group.where is not None and group.kind != "limit-reached":
        label = "first used" if group.where_from == "first use" else "guard"
        rows.append((label, _place(group.where.file, group.where.line, sources)))
    if group.values:
        rows.append(("values", Code(", ".join(group.values[:12]))))
    if group.callers:
        rows.append(("called from", [_place(caller.file, caller.line, sources) for caller in group.callers]))
    rows.append(("what to do", [Prose(text) for text in group.remedies]))
    name, place = Code(function_name(group.function)), _place(group.file, group.line, sources)
    where = (name, " at ", place, Muted(f", {versions}" if versions else ""))
    return Card((Prose(group.cause), Muted(f" ×{group.count}")), [where, Facts(rows)])


def _place(file: str | None, line: int | None, sources: Sources) -> Content:
    if not file:
        return ""
    return sources.place(f"{file}:{line}") if line else Code(file)
