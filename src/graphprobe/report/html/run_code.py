"""Source, FX graph and generated code of each graph of a run, side by side, linked by what is launched."""

from __future__ import annotations

from collections.abc import Sequence

from graphprobe.errors import ArtifactNotFoundError
from graphprobe.records import Event
from graphprobe.report.document import Note, Section, counted
from graphprobe.report.html.launches import launches_of, places_of
from graphprobe.report.html.panes import CodeView, Link, Pane, graph_pane, links_from, source_pane, text_pane
from graphprobe.report.html.sources import Sources
from graphprobe.store.reader import Model, Run

MOST_BYTES = 3 << 20
"""Of graphs and generated code in all; what is beyond is in the run."""

AROUND = 4
"""Lines of the program around each that a launch stems from."""


def code_section(run: Run, models: Sequence[Model], sources: Sources) -> Section | None:
    """A view for each graph that has generated code, as long as they fit in; None where there is none."""
    views: list[CodeView] = []
    room, left = MOST_BYTES, 0
    for model in models:
        for direction, events in model.directions().items():
            graph, code = _last(events, "graph", "pass"), _last(events, "code")
            if graph is None or code is None:
                continue
            size = (run.size_bytes(graph) or 0) + (run.size_bytes(code) or 0)
            if size > room:
                left += 1
                continue
            room -= size
            try:
                views.append(
                    _view(run, f"model__{model.number} {direction}", graph, code, _last(events, "ops"), sources)
                )
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
