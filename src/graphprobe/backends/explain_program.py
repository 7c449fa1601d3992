"""Watches what a program compiles, with the backends it names itself. torch is not imported for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from graphprobe.analysis.breaks import BreakReport
from graphprobe.analysis.breaks_facts import BreakFact, UncompiledFact
from graphprobe.backends.explanation import Break, ExplainedGraph, Explanation, Guard
from graphprobe.errors import last_line
from graphprobe.internals.dynamo.compile_facts import begins_at, calls_of
from graphprobe.internals.dynamo.dynamo_taps import current_compile_id
from graphprobe.internals.dynamo.frame_names import compiled_now
from graphprobe.internals.dynamo.graph_breaks import listen, tap_graphs


class ProgramWatch:
    """Notes every graph and every graph break of this process between `start` and `stop`."""

    def __init__(self) -> None:
        self._graphs: list[ExplainedGraph] = []
        self._pending: list[tuple[ExplainedGraph, Callable[[], list[dict[str, Any]]]]] = []
        self._breaks: list[BreakFact] = []
        self._uncompiled: list[UncompiledFact] = []
        self._notes: list[str] = []
        self._ends: list[Callable[[], None]] = []

    def start(self) -> None:
        """Put the taps in place, now or as soon as the program imports torch."""
        self._ends = [listen(self), tap_graphs(self)]

    def stop(self) -> None:
        """Take them out; safe to call twice."""
        while self._ends:
            self._ends.pop()()

    def graph(self, gm: Any, output_graph: Any, guards: Callable[[], list[dict[str, Any]]]) -> None:
        self._settle()
        nodes, named = list(calls_of(gm)), compiled_now()
        reason: Any = getattr(output_graph, "compile_subgraph_reason", None)
        ended = None
        if getattr(reason, "graph_break", False):
            stack = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in reason.user_stack]
            ended = Break(str(reason.reason), stack)
        noted = ExplainedGraph(
            compile_id=current_compile_id(),
            ops=[_name(node) for node in nodes],
            where=begins_at(nodes),
            function=None if named is None else named.name,
            graph_break=ended,
        )
        self._graphs.append(noted)
        self._pending.append((noted, guards))

    def graph_break(self, fact: BreakFact, backend: object) -> None:
        self._breaks.append(fact)

    def uncompiled(self, fact: UncompiledFact, backend: object) -> None:
        self._uncompiled.append(fact)

    def failed(self, what: str, details: str) -> None:
        note = f"{what}: {last_line(details)}"
        if note not in self._notes:
            self._notes.append(note)

    def output(self) -> Explanation:
        """What was seen so far; without the times, and with every break in `break_facts`."""
        self._settle()
        return Explanation(
            graphs=list(self._graphs),
            breaks_without_graph={},
            compile_times_s={},
            break_facts=list(self._breaks),
            uncompiled_facts=list(self._uncompiled),
            notes=list(self._notes),
        )

    def report(self) -> tuple[BreakReport, list[str]]:
        """The same, judged, and what could not be observed."""
        found = self.output()
        return found.report, found.notes

    def _settle(self) -> None:
        while self._pending:
            noted, read = self._pending.pop()
            noted.guards = [msgspec.convert(guard, Guard) for guard in read()]


def _name(node: Any) -> str:
    from graphprobe.backends.graphs import target_name  # imports torch, which is there by now

    return target_name(node)
