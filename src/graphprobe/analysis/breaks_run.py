"""The graph breaks of a run, from its folder."""

from __future__ import annotations

from graphprobe.analysis.breaks import BreakReport, GraphSeen, report_from_facts
from graphprobe.analysis.breaks_facts import BreakFact, UncompiledFact, UserFrame, facts_from_lines
from graphprobe.store import layout
from graphprobe.store.files import read_file
from graphprobe.store.reader import Model, Run

TAP = "graph_breaks"


def report_from_run(run: Run) -> tuple[BreakReport, list[str]]:
    """The report, and in words what the run cannot tell.

    A run of before breaks were recorded has those that ended a graph, without their whole reason.
    """
    models = run.models()
    superseded = {model.compile.get("restart_of") for model in models}
    graphs = [_graph(model) for model in models if model.number not in superseded]
    notes: list[str] = []
    breaks: list[BreakFact] = []
    uncompiled: list[UncompiledFact] = []
    state = run.manifest.taps.get(TAP)
    if state is None or state.startswith("missing"):
        notes.append("breaks before which there was no graph, and functions left uncompiled, were not recorded")
        breaks = [fact for model in models if model.number not in superseded for fact in _from_compile(model)]
    else:
        try:
            data = read_file(run.tool_dir / layout.BREAKS)
        except FileNotFoundError:
            data = b""
        except OSError as error:
            data = b""
            notes.append(f"{layout.BREAKS} cannot be read: {error.strerror}")
        breaks, uncompiled, unread = facts_from_lines(data)
        if unread:
            notes.append(f"{unread} lines of {layout.BREAKS} cannot be read")
    return report_from_facts(graphs, breaks, uncompiled), [*notes, *run.problems]


def _graph(model: Model) -> GraphSeen:
    facts = model.compile
    where = facts.get("begins")
    if where is None and facts.get("file"):
        where = f"{facts['file']}:{facts.get('line')} in {facts.get('function')}"
    guards = facts.get("guards")
    return GraphSeen(
        compile_id=model.compile_id,
        ops=facts.get("ops"),
        where=where,
        guards=None if guards is None else len(guards),
        broken=bool(facts.get("graph_break")),
        function=facts.get("function"),
    )


def _from_compile(model: Model) -> list[BreakFact]:
    found = model.compile.get("graph_break")
    if not found:
        return []
    return [
        BreakFact(
            reason=str(found.get("reason", "")),
            stack=[_frame(place) for place in found.get("user_stack") or ()],
            compile_id=model.compile_id,
            function=str(model.compile.get("function") or ""),
            file=str(model.compile.get("file") or ""),
            first_line=model.compile.get("line"),
        )
    ]


def _frame(place: str) -> UserFrame:
    """From `file:line in function`."""
    where, _, function = place.rpartition(" in ")
    file, _, line = where.rpartition(":")
    return UserFrame(
        file=file or where, line=int(line) if line.isdecimal() and len(line) < 10 else None, function=function
    )
