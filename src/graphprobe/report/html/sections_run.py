"""The report of a run: what was compiled, what the passes did, what breaks and recompiles, where the time went."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from graphprobe.analysis.breaks import BreakReport, GraphBreak
from graphprobe.analysis.breaks import report_from_run as breaks_of
from graphprobe.analysis.recompiles import Group, RecompileReport, function_name
from graphprobe.analysis.recompiles import report_from_run as recompiles_of
from graphprobe.analysis.steps import described
from graphprobe.analysis.steps import report_from_run as steps_of
from graphprobe.errors import ArtifactNotFoundError, GraphprobeError
from graphprobe.records import Event
from graphprobe.report.document import (
    Bullets,
    Card,
    Cards,
    Code,
    Content,
    DocumentVerdict,
    Excerpt,
    Facts,
    Grid,
    Muted,
    Note,
    Prose,
    Section,
    counted,
)
from graphprobe.report.explanation import facts_of
from graphprobe.report.graph_diff import GraphDiff, Node, NodePair, diff_sides, side_of
from graphprobe.report.html.curves import ring_drawing
from graphprobe.report.html.flame import Box, flame_section, largest, tree_from_steps
from graphprobe.report.html.page import Report
from graphprobe.report.html.panes import (
    CodeView,
    Link,
    Pane,
    graph_pane,
    launches_of,
    launches_section,
    links_from,
    places_of,
    source_pane,
    text_pane,
)
from graphprobe.report.html.sections_dump import report_from as dump_report
from graphprobe.report.html.sources import MOST_LETTERS, Sources, cut
from graphprobe.report.watched import watched_section
from graphprobe.store import layout
from graphprobe.store.layout import addresses_from_events
from graphprobe.store.reader import Model, Run
from graphprobe.store.step_file import read_steps

MOST_CODE_BYTES = 3 << 20
"""Of graphs and generated code in all; what is beyond is in the run."""

AROUND = 4
"""Lines of the program around each that a launch stems from."""

MOST_ROWS = 60
"""Cards and rows that are shown; the section says how many more there are."""

MOST_BYTES = 24 << 20
"""Text of graphs that is read for diffs in all: some tens of seconds at the most."""

MOST_NODES = 60
"""Nodes of one kind (added, removed, …) that a diff shows."""

_NUMBERS = "A run doesn't check correctness; `graphprobe diagnose` does."
_LOGS = "What the compiler did last, and its log: `graphprobe logs RUN`."


def code_section(run: Run, models: Sequence[Model], sources: Sources) -> Section | None:
    """A view for each graph that has generated code, as long as they fit in; None where there is none."""
    views: list[CodeView] = []
    room, left = MOST_CODE_BYTES, 0
    for model in models:
        for name, events in model.graphs().items():
            graph, code = _last(events, "graph", "pass"), _last(events, "code")
            if graph is None or code is None:
                continue
            size = (run.size_bytes(graph) or 0) + (run.size_bytes(code) or 0)
            if size > room:
                left += 1
                continue
            room -= size
            try:
                views.append(_view(run, f"model__{model.number} {name}", graph, code, _last(events, "ops"), sources))
            except ArtifactNotFoundError:
                left += 1
    if not views:
        return None
    note = ""
    if any(view.links for view in views):
        note = "Choose a launch, or click a line, to see what belongs together. "
    if left:
        note += f"{left} more graphs are in the run: graphprobe ls RUN."
    return Section("code", "Source, graph and generated code", "code", views, Note(note), counted(len(views), "graph"))


def _last(events: Sequence[Event], *kinds: str) -> Event | None:
    """The last artifact of a kind that has a file: of graphs, the one after the last pass."""
    found = [event for event in events if event.kind in kinds and event.path and event.where.subgraph is None]
    return found[-1] if found else None


def _view(run: Run, title: str, graph: Event, code: Event, ops: Event | None, sources: Sources) -> CodeView:
    launches = launches_of(run, ops)
    places = list(dict.fromkeys(p for launch in launches for p in places_of(launch, sources.short)))
    source, marks = source_pane(places, sources, around=AROUND)
    fx, nodes = graph_pane("FX graph after the last pass", str(graph.path), run.text(graph), sources)
    generated = text_pane("Generated code", str(code.path), run.text(code))
    panes: list[Pane] = [source, fx, generated]
    links: list[Link] = links_from(launches, marks, nodes, generated, sources)
    if not source.lines:
        panes = panes[1:]
        links = [Link(link.label, link.marks[1:]) for link in links]
    return CodeView(title, panes, links)


def breaks_section(report: BreakReport, sources: Sources) -> Section | None:
    """A card for each cause of graph breaks; None where nothing breaks."""
    if not report.found:
        return None
    own = [row for row in report.breaks if row.inside is None] or report.breaks
    body: list[Content] = [Cards([_break(row, sources) for row in own[:MOST_ROWS]])]
    if (left := len(report.breaks) - len(own[:MOST_ROWS])) > 0:
        body.append(Note(f"{left} more, in libraries or beyond {MOST_ROWS}: graphprobe explain RUN."))
    entries: list[Content] = []
    for row in report.own_uncompiled[:MOST_ROWS]:
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
    for group in report.groups[:MOST_ROWS]:
        function = counts.get((group.file, group.line, group.function))
        versions = ""
        if function is not None and function.versions is not None:
            versions = f"{function.versions} versions" + (f" of at most {function.limit}" if function.limit else "")
        cards.append(_group(group, versions, sources))
    left = len(report.groups) - MOST_ROWS
    body: list[Content] = [Cards(cards), Note(f"{left} more: graphprobe recompiles RUN." if left > 0 else "")]
    summary = f"{report.recompilations}, {counted(len(report.groups), 'cause')}"
    return Section("recompiles", "Recompilations", body=body, summary=summary)


def graphs_section(models: Sequence[Model], sources: Sources) -> Section | None:
    """A row for each compile."""
    if not models:
        return None
    rows: list[list[Content]] = []
    for model in models[:MOST_ROWS]:
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
    left = f"{len(models) - MOST_ROWS} more are in the run: graphprobe ls RUN." if len(models) > MOST_ROWS else ""
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


def passes_section(run: Run, models: Sequence[Model], sources: Sources) -> Section | None:
    """The timeline of every graph; None where no pass ran."""
    differ = _Differ(run, sources)
    graphs = []
    changed = ran = 0
    for model in models:
        addresses = {event.seq: address for address, event in addresses_from_events(model.events).items()}
        for graph, events in model.graphs().items():
            rows = [_row(event, addresses, differ) for event in events if event.kind in ("pass", "failure")]
            if rows:
                begin = min(row["at"] for row in rows)
                graphs.append({"title": f"model__{model.number} {graph}", "begin": begin, "passes": rows})
                ran += len(rows)
                changed += sum(bool(row["changed"]) for row in rows)
    if not graphs:
        return None
    # The graph on which most was done is the one to begin with.
    first = max(range(len(graphs)), key=lambda index: sum(bool(row["changed"]) for row in graphs[index]["passes"]))
    left = ""
    if differ.left:
        left = f"{differ.left} passes that changed a graph are without their diff: it would be too much for one file. "
        left += "graphprobe diff RUN --pass NAME shows it."
    data = {"graphs": graphs, "first": first}
    return Section("passes", "Passes", "passes", data, Note(left), f"{changed} of {ran} changed a graph")


def _row(event: Event, addresses: dict[int, str], differ: _Differ) -> dict[str, Any]:
    took = event.elapsed_ns or 0
    row: dict[str, Any] = {
        "name": event.where.pass_name or event.name,
        "phase": event.subsystem or event.where.phase or "",
        "at": event.time_ns - took,
        "took": event.elapsed_ns,
        "changed": event.changed is True,
        "before": event.nodes_before,
        "after": event.nodes_after,
        "added": len(event.added),
        "removed": len(event.removed),
    }
    if event.where.subgraph:
        row["subgraph"] = event.where.subgraph
    if event.kind == "failure":
        row["failed"] = event.message or "it raised"
    if event.changed:
        row["address"] = addresses.get(event.seq, "")
        row["diff"] = differ.diff(event)
    return row


class _Differ:
    """Diffs of passes, until the text that was read for them comes to `MOST_BYTES`."""

    def __init__(self, run: Run, sources: Sources) -> None:
        self.left = 0
        self._run, self._sources = run, sources
        self._by_path = {event.path: event for event in run.events() if event.path}
        self._read = 0

    def diff(self, event: Event) -> dict[str, Any] | None:
        """What the pass changed; None where it does not fit in, or a file is gone."""
        before = self._by_path.get(event.before or "")
        if before is None or event.path is None:
            return None
        size = (event.size_bytes or 0) + (before.size_bytes or 0)
        if self._read + size > MOST_BYTES:
            self.left += 1
            return None
        self._read += size
        try:
            sides = side_of(self._run, before), side_of(self._run, event)
        except ArtifactNotFoundError:
            return None
        return self._plain(diff_sides(*sides))

    def _plain(self, diff: GraphDiff) -> dict[str, Any]:
        graphs = []
        for graph in diff.graphs:
            if not graph.different:
                continue
            made: dict[str, Any] = {"graph": graph.graph, "unchanged": graph.unchanged}
            for name in ("removed", "added", "changed", "renamed"):
                found = getattr(graph, name)
                made[name] = [self._entry(name, one) for one in found[:MOST_NODES]]
                made[f"{name}_left"] = max(0, len(found) - MOST_NODES)
            made["moved"] = len(graph.moved)
            graphs.append(made)
        lines = [line[:MOST_LETTERS] for line in diff.lines[: MOST_NODES * 2]]
        return {"graphs": graphs, "lines": lines, "lines_left": len(diff.lines) - len(lines)}

    def _entry(self, name: str, one: Node | NodePair) -> list[Any]:
        """Name, type, expression and place of a node; of a pair both, or both names."""
        if isinstance(one, NodePair):
            pair = (one.before, one.after)
            return [node.name if name == "renamed" else self._entry(name, node) for node in pair]
        return [one.name, one.type, cut(one.expression), self._sources.linked(one.place)]


def report_from(path: Path, *, source_roots: Sequence[Path] = ()) -> Report:
    """The report of a run folder, or of the newest run in a folder of several: see `page_of`."""
    run = Run.open(path)
    models = run.models()
    manifest = run.manifest
    sources = Sources(Path.cwd(), given=source_roots, recorded=Path(manifest.cwd or "."), since_ns=manifest.started_ns)
    breaks, break_notes = breaks_of(run)
    recompiled = recompiles_of(run)
    try:
        flame, beside = tree_from_steps(read_steps(run), sources)
    except ArtifactNotFoundError:
        flame, beside = Box("compiling"), ""
    dumps = _dumps(run, sources)
    verdict = _verdict(run, models, breaks, recompiled, flame.ns)
    accusing = () if verdict.tone == "bad" else ("bad",)
    first = [one for one in dumps if one.verdict.tone in accusing]
    if first:
        verdict = replace(first[0].verdict, body=[*(one.verdict.body for one in first), verdict.body])
    watched = watched_section(run)
    steps = None
    if watched is not None:
        verdict, steps, drawn = watched
        steps = replace(steps, body=[*filter(None, [ring_drawing(drawn)]), steps.body])
    made = [
        steps,
        breaks_section(breaks, sources),
        recompiles_section(recompiled, sources),
        graphs_section(models, sources),
        passes_section(run, models, sources),
        code_section(run, models, sources),
        launches_section(run, models, sources),
        flame_section(flame, beside),
        _time_table(flame),
        *(section for one in dumps if one.verdict.tone not in accusing for section in one.sections),
        _missing(run, break_notes, recompiled),
    ]
    return Report(
        title=f"graphprobe: {' '.join(map(str, _command(manifest.argv)))}",
        subject=" ".join(shlex.quote(word) for word in _command(manifest.argv)) or run.run_dir.name,
        verdict=verdict,
        sections=[*(section for one in first for section in one.sections), *(one for one in made if one is not None)],
        sources=sources,
        facts=_facts(run),
    )


def _command(argv: Sequence[str]) -> list[str]:
    """The command line without the folder of the program that was called."""
    if not argv:
        return []
    program = Path(argv[0])
    return [program.parent.name if program.name == "__main__.py" else program.name, *argv[1:]]


def _dumps(run: Run, sources: Sources) -> list[Report]:
    """The reports of what `graphprobe run --dump` and `--dump-graph` wrote into the run's folder."""
    made = []
    for name, what in layout.DUMPS.items():
        folder, suffix = run.run_dir / name, "-compiled" if name == layout.GRAPHS else ""
        if not folder.is_dir():
            continue
        try:
            report = dump_report(folder, sources, suffix=suffix)
        except GraphprobeError as error:
            run.problems.append(f"{name} cannot be read: {error}")
        else:
            made.append(replace(report, sections=[replace(one, group=f"Dump: {what}") for one in report.sections]))
    return made


def _time_table(flame: Box) -> Section | None:
    """The flame as a list: for a screen reader, and for those who want the figures."""
    if not flame.ns:
        return None
    rows: list[tuple[Content, ...]] = []
    for name, kind, ns, count in largest(flame):
        took = f"{ns / 1e9:.2f} s" if ns >= 1e9 else f"{ns / 1e6:.1f} ms"
        rows.append((took, f"{ns / flame.ns:.1%}", str(count), (f"{name} ", Muted(kind))))
    grid = Grid(("own time", "share", "count", "step"), rows, (0, 1, 2))
    name, _, ns, _ = largest(flame, 1)[0]
    return Section("slowest", "Slowest steps", body=grid, summary=f"{name}, {ns / flame.ns:.1%}")


def _missing(run: Run, notes: Sequence[str], recompiled: RecompileReport) -> Section | None:
    texts = list(dict.fromkeys([*run.manifest.missing, *run.problems, *notes, *recompiled.notes, *run.manifest.notes]))
    if not texts:
        return None
    return Section("missing", "What is missing", body=Bullets(texts), summary=counted(len(texts), "note"))


def _facts(run: Run) -> list[tuple[str, str]]:
    manifest = run.manifest
    rank = f"{manifest.rank} of {manifest.world_size}" if manifest.world_size > 1 else ""
    rows = [
        ("Run", str(run.run_dir)),
        ("Rank", rank),
        ("torch", manifest.torch or "not imported"),
        ("Python", manifest.python),
        ("Platform", manifest.platform),
        ("Devices", ", ".join(manifest.devices)),
        ("Caches bypassed", ", ".join(manifest.caches_bypassed)),
        ("graphprobe", manifest.graphprobe),
    ]
    return [row for row in rows if row[1]]


def _verdict(
    run: Run, models: Sequence[Model], breaks: BreakReport, recompiled: RecompileReport, compile_ns: int
) -> DocumentVerdict:
    """The verdict with its figures; `compile_ns` is 0 where it is not known."""
    verdict = _ended_badly(run, models) or _compiled(run, models, breaks, recompiled)
    figures: list[tuple[str, Content]] = [
        ("graphs compiled", str(len(models))),
        ("graph breaks", str(breaks.break_count)),
        ("recompilations", str(recompiled.recompilations)),
        ("time compiling", f"{compile_ns / 1e9:.1f} s" if compile_ns else "not known"),
    ]
    body: list[Content] = [Facts(figures, large=True), Prose(_LOGS if verdict.tone == "bad" else _NUMBERS)]
    if run.manifest.world_size > 1:
        rank = f"This is rank {run.manifest.rank} of {run.manifest.world_size}"
        body.append(f"{rank}; each has a run folder of its own.")
    return replace(verdict, body=body)


def _ended_badly(run: Run, models: Sequence[Model]) -> DocumentVerdict | None:
    culprit = steps_of(run).culprit
    where = f" It was in this step: {described(culprit)}." if culprit is not None else ""
    if run.state == "failed":
        return DocumentVerdict("bad", "FAILED", f"The program ended with {_head(run.manifest.exception)}.{where}")
    if run.state == "killed":
        return DocumentVerdict("bad", "KILLED", f"The process is gone and did not close the run.{where}")
    failures = [event for event in run.events() if event.kind == "failure"]
    if failures:
        what = f"{failures[0].where.pass_name or failures[0].name} raised {_head(failures[0].message)}"
        return DocumentVerdict("bad", "COMPILE FAILED", f"The program ran to its end, but {what}.")
    # What was started over failed on the way, and that is how tracing goes.
    restarted = {model.compile.get("restart_of") for model in models}
    failed = [model for model in models if model.compile.get("failure") and model.number not in restarted]
    if failed:
        name = function_name(str(failed[0].compile.get("function") or "a function"))
        what = _head(str(failed[0].compile["failure"]))
        return DocumentVerdict(
            "bad", "COMPILE FAILED", f"The program ran to its end, but {name} was not compiled: {what}."
        )
    if run.state == "running":
        return DocumentVerdict("info", "RUNNING", "The program was still running when this was written.")
    return None


def _compiled(run: Run, models: Sequence[Model], breaks: BreakReport, recompiled: RecompileReport) -> DocumentVerdict:
    if not models:
        return DocumentVerdict("warn", "NOTHING COMPILED", "The program ended, and nothing was given to a backend.")
    counts = [
        (breaks.break_count, "graph break", ""),
        (recompiled.recompilations, "recompilation", ""),
        (len(breaks.own_uncompiled), "function left uncompiled", "functions left uncompiled"),
    ]
    found = [counted(*count) for count in counts if count[0]]
    graphs = counted(len(models), "graph was", "graphs were")
    if found:
        listed = " and ".join([part for part in (", ".join(found[:-1]), found[-1]) if part])
        each = "which costs" if sum(number for number, *_ in counts) == 1 else "each of which costs"
        return DocumentVerdict("warn", "COULD BE FASTER", f"{graphs} compiled, with {listed}, {each} time.")
    if run.manifest.missing or run.problems:
        return DocumentVerdict("warn", "INCOMPLETE", f"{graphs} compiled; some of what was to be collected is missing.")
    return DocumentVerdict("good", "COMPILED", f"{graphs} compiled: no graph break, no recompilation, nothing missing.")


def _head(text: str | None) -> str:
    """The first line of an exception; the second one too where the first announces it."""
    lines = [line.strip() for line in (text or "").strip().splitlines() if line.strip()] or ["an exception"]
    head = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return head[:300].rstrip(".")
