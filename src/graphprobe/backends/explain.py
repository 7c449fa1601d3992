"""Explains what torch.compile makes of a function or a program: graphs, ops, breaks and why, guards, times.

Backends in here note what is compiled and why again, with any backend inside; `ProgramWatch` notes all of a program.
Importing this does not import torch.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from graphprobe.analysis.breaks import BreakReport, GraphBreak, GraphSeen, UncompiledFunction, judge, report_from_facts
from graphprobe.analysis.breaks_facts import BreakFact, HeardBreaks, TriedBreak, UncompiledFact
from graphprobe.internals.dynamo.compile_calls import CompileCalls, Compiled
from graphprobe.internals.dynamo.compile_facts import (
    begins_at,
    calls_of,
    compile_times_s,
    compiled_now,
    guard_reader,
)
from graphprobe.internals.dynamo.dynamo_taps import backend_name, current_compile_id, layers_of
from graphprobe.internals.dynamo.graph_breaks import BREAKS, listen, tap_graphs
from graphprobe.probe.recompile_watch import Recompiles

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from graphprobe.backends.explain_behind import Behind

BEHIND_S = 300.0
"""What looking behind the breaks of a program may take."""


class Break(msgspec.Struct, frozen=True):
    """Why a graph ended before its function did.

    Attributes:
        reason: in torch's words.
        stack: `file:line in function` of the program, the innermost last.
    """

    reason: str
    stack: list[str]


class Guard(msgspec.Struct, frozen=True):
    """A condition under which compiled code is used again.

    Attributes:
        source: what is looked at, e.g. `L['x']`; empty for a guard on global state.
        kind: torch's name of the check, e.g. `TENSOR_MATCH`.
        code: the checks as Python, where torch gives them so.
        where: `file:line` that made it necessary.
    """

    source: str
    kind: str | None
    code: list[str]
    where: str | None


class ExplainedGraph(msgspec.Struct):
    """One graph that Dynamo handed to the backend.

    Attributes:
        compile_id: torch's id of the compile.
        ops: what the graph calls, in order, nested graphs included.
        where: `file:line in function` of the first op.
        function: what was compiled; of a module its class.
        graph_break: why it ended early; None when it ended with the function.
        guards: those known when the backend had returned, with the code torch then made of them.
        backend_ns: time inside the inner backend. A backward that is compiled later is not in it.
        error: what the inner backend raised.
    """

    compile_id: str | None
    ops: list[str]
    where: str | None
    graph_break: Break | None
    function: str | None = None
    guards: list[Guard] = []
    backend_ns: int = 0
    error: str | None = None


class Explanation(msgspec.Struct):
    """Everything that was compiled while an ExplainWithBackend was in use.

    Attributes:
        graphs: in order of compiling; a recompile is a graph of its own.
        compile_times_s: seconds by phase of compiling, in torch's names; phases contain one another.
        break_facts: every break, also those before which there was no graph, in order.
        uncompiled_facts: the functions that Dynamo gave up on.
        notes: what could not be observed.
        tried: the places that break, those behind others too, with the remedies that were seen to work.
    """

    graphs: list[ExplainedGraph]
    compile_times_s: dict[str, float]
    break_facts: list[BreakFact] = []
    uncompiled_facts: list[UncompiledFact] = []
    notes: list[str] = []
    tried: list[TriedBreak] = []

    @property
    def report(self) -> BreakReport:
        """Graphs, breaks and functions left uncompiled, judged: what `graphprobe explain` prints."""
        seen = [
            GraphSeen(
                compile_id=graph.compile_id,
                ops=len(graph.ops),
                where=graph.where,
                function=graph.function,
                guards=len(graph.guards),
                broken=graph.graph_break is not None,
            )
            for graph in self.graphs
        ]
        return report_from_facts(seen, self.break_facts, self.uncompiled_facts, self.tried)

    @property
    def remedies(self) -> list[GraphBreak]:
        """Each cause of breaks once for each line of the program, with what to write instead."""
        return self.report.breaks

    @property
    def uncompiled(self) -> list[UncompiledFunction]:
        """The functions that Dynamo gave up on, with the cause."""
        return self.report.uncompiled

    @property
    def graph_count(self) -> int:
        """How many graphs were compiled."""
        return len(self.graphs)

    @property
    def op_count(self) -> int:
        """How many calls all graphs have together."""
        return sum(len(graph.ops) for graph in self.graphs)

    @property
    def breaks(self) -> list[Break]:
        """The breaks that ended a graph."""
        return [graph.graph_break for graph in self.graphs if graph.graph_break is not None]

    @property
    def breaks_without_graph(self) -> dict[str, int]:
        """Reason to count, of breaks before which there was nothing to compile."""
        left = Counter(fact.reason for fact in self.break_facts if not (fact.raised or fact.died))
        for ended in self.breaks:
            left[next((r for r in left if left[r] > 0 and (r in ended.reason or ended.reason in r)), "")] -= 1
        return dict(+left)

    @property
    def graph_break_count(self) -> int:
        """How many breaks there were, those without a graph included."""
        return len(self.breaks) + sum(self.breaks_without_graph.values())

    def to_json(self) -> str:
        """The same facts as one JSON object, with the counts, `remedies` and `uncompiled`."""
        names = ("graph_count", "graph_break_count", "op_count", "breaks_without_graph")
        counts = {name: getattr(self, name) for name in names}
        report: dict[str, Any] = msgspec.to_builtins(self.report)
        judged = {"remedies": report["breaks"], "uncompiled": report["uncompiled"]}
        return msgspec.json.encode({**counts, **msgspec.to_builtins(self), **judged}).decode()

    def _repr_html_(self) -> str:
        from graphprobe.report.notebook import breaks_of, html_of

        return html_of(breaks_of(self.report, self.notes))

    def __str__(self) -> str:
        counts = f"{self.graph_count} graphs, {self.graph_break_count} graph breaks, {self.op_count} ops"
        lines = [counts, *(line for index, graph in enumerate(self.graphs) for line in _lines(index, graph))]
        for reason, count in self.breaks_without_graph.items():
            lines.append(f"break before any op ({count}×): {reason.strip().splitlines()[0]}")
        for row in self.remedies:
            lines += [f"{row.kind} ({row.count}×) at {row.where}", f"  {row.cause}"]
            lines += [f"  {'instead' if row.tried else 'untried'}: {row.remedy}"] * bool(row.remedy)
        lines += [f"not observed: {note}" for note in self.notes]
        if self.compile_times_s:
            lines.append("compile times, in seconds (phases contain one another):")
            slowest_first = sorted(self.compile_times_s.items(), key=lambda item: -item[1])
            lines += [f"  {seconds:9.4f}  {name}" for name, seconds in slowest_first]
        return "\n".join(lines)


def _lines(index: int, graph: ExplainedGraph) -> list[str]:
    at = f", from {graph.where}" if graph.where else ""
    lines = [f"graph {index} [{graph.compile_id or '?'}]: {len(graph.ops)} ops{at}"]
    lines += [f"  {op}" for op in graph.ops]
    if graph.graph_break is not None:
        lines.append("  ended by a graph break: " + "\n    ".join(graph.graph_break.reason.strip().splitlines()))
        lines += [f"    at {frame}" for frame in graph.graph_break.stack]
    lines.append(f"  {len(graph.guards)} guards")
    lines += [f"    {guard.kind or 'guard'} {guard.source}".rstrip() for guard in graph.guards]
    lines.append(f"  {graph.backend_ns / 1e9:.4f} s in the backend")
    if graph.error is not None:
        lines.append(f"  the backend raised {graph.error}")
    return lines


class Heard(HeardBreaks):
    """What was observed of breaks; `on_break` takes each that was not there before."""

    def __init__(self, on_break: Callable[[GraphBreak], None] | None = None) -> None:
        super().__init__()
        self._on_break = on_break
        self._known: set[tuple[str, ...]] = set()

    def graph_break(self, fact: BreakFact, backend: object) -> None:
        if self.means(backend):
            self.breaks.append(fact)
            self.found(fact)

    def found(self, fact: BreakFact) -> None:
        """Tell of a break, if it is new."""
        if self._on_break is not None:
            row = judge(fact)
            new = (row.where, row.kind, row.cause) not in self._known
            self._known.add((row.where, row.kind, row.cause))
            if new:
                self._on_break(row)

    def explanation(self, graphs: list[ExplainedGraph], times_s: dict[str, float]) -> Explanation:
        """The breaks, with the rest of an Explanation."""
        lists = list(self.breaks), list(self.uncompiled_functions), list(self.notes)
        return Explanation(graphs, times_s, *lists)


class NotedGraphs:
    """Graphs in the order of compiling; their guards are read once their compiles have ended."""

    def __init__(self) -> None:
        self._graphs: list[ExplainedGraph] = []
        self._pending: list[tuple[ExplainedGraph, Callable[[], list[dict[str, Any]]]]] = []

    def add(self, gm: Any, ended_by: Any) -> ExplainedGraph:
        """Note a graph; `ended_by` is torch's reason why it ended."""
        from graphprobe.backends.graphs import target_name  # imports torch, which is there by now

        self.settled()
        nodes, named = list(calls_of(gm)), compiled_now()
        ended = None
        if getattr(ended_by, "graph_break", False):
            stack = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in ended_by.user_stack]
            ended = Break(str(ended_by.reason), stack)
        noted = ExplainedGraph(
            compile_id=current_compile_id(),
            ops=[target_name(node) for node in nodes],
            where=begins_at(nodes),
            function=None if named is None else named.name,
            graph_break=ended,
        )
        self._graphs.append(noted)
        return noted

    def guarded(self, noted: ExplainedGraph, guards: Callable[[], list[dict[str, Any]]]) -> None:
        """What gives the guards of a graph, later."""
        self._pending.append((noted, guards))

    def settled(self) -> list[ExplainedGraph]:
        """All of them, with the guards of compiles that have ended."""
        while self._pending:
            noted, read = self._pending.pop()
            noted.guards = [msgspec.convert(guard, Guard) for guard in read()]
        return list(self._graphs)


class ProgramWatch(Heard):
    """Notes every graph and every graph break of this process between `start` and `stop`, and looks behind breaks."""

    def __init__(self, on_break: Callable[[GraphBreak], None] | None = None) -> None:
        super().__init__(on_break)
        self._graphs = NotedGraphs()
        self._ends: list[Callable[[], object]] = []
        self._looking: Behind | None = None
        self._tried: list[TriedBreak] = []
        self._looked: set[object] = set()
        self._left_s = BEHIND_S
        self._calls = CompileCalls(lambda *call: None, after=self._called, failed=self._called)

    def start(self) -> None:
        """Put the taps in place, now or as soon as the program imports torch."""
        self._ends = [listen(self), tap_graphs(self), self._calls.remove]
        self._calls.install()

    def stop(self) -> None:
        """Take them out; safe to call twice."""
        while self._ends:
            self._ends.pop()()

    def graph(self, gm: Any, output_graph: Any, guards: Callable[[], list[dict[str, Any]]]) -> None:
        noted = self._graphs.add(gm, getattr(output_graph, "compile_subgraph_reason", None))
        self._graphs.guarded(noted, guards)

    def _called(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any], _: object) -> None:
        from graphprobe.backends.explain_behind import Behind, key_of

        keys = {key_of(fact) for fact in self.breaks} - {None}
        if keys <= self._looked or self._left_s <= 0:
            return
        begun, compiled.busy = time.monotonic(), True
        behind = Behind(compiled.fn, args, kwargs, dynamic=compiled.dynamic, budget_s=self._left_s, found=self.found)
        self._looking = behind
        try:
            behind.look()
        finally:
            self._looking, compiled.busy = None, False
            self._tried += behind.tried()
            self._looked |= {*keys, *behind.places}
            self._left_s -= time.monotonic() - begun

    def output(self) -> Explanation:
        """What was seen so far; without the times, and with every break in `break_facts`."""
        found = self.explanation(self._graphs.settled(), {})
        found.tried = [*self._tried, *(self._looking.tried() if self._looking is not None else ())]
        return found

    def report(self) -> tuple[BreakReport, list[str]]:
        """The same, judged, and what could not be observed."""
        found = self.output()
        return found.report, found.notes


class ExplainWithBackend:
    """A backend that does what the inner one does and notes every graph that comes along.

    Breaks are noted from when it is made until `close`, the end of a `with` block, or until nobody holds it any more;
    torch holds it as long as code that was compiled with it. Breaks of functions that are compiled with another such
    backend are left out.

    Attributes:
        graphs: Dynamo's graphs, in order of compiling.
        compiler_fn: the inner backend.
    """

    def __init__(self, inner: str | Callable[..., Any] = "eager") -> None:
        """`inner` is a name of graphprobe's or torch's, or a callable; a wrapped backend stays collected."""
        from graphprobe.backends.table import resolve

        self.compiler_fn = resolve(inner)
        self.__name__ = f"explain({inner if isinstance(inner, str) else backend_name(inner)})"
        self.graphs: list[GraphModule] = []
        self._noted = NotedGraphs()
        self._times_before = compile_times_s()
        self._heard = OwnBreaks(self)
        self._stop = weakref.finalize(self, listen(self._heard))
        self._stop.atexit = False

    def close(self) -> None:
        """Note no further breaks; graphs are still noted. Safe to call twice."""
        self._stop()

    def __enter__(self) -> ExplainWithBackend:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any], **given: Any) -> Any:
        noted = self._noted.add(gm, getattr(gm, "compile_subgraph_reason", None))
        self.graphs.append(gm)
        begun = time.perf_counter_ns()
        try:
            return self.compiler_fn(gm, example_inputs, **given)
        except Exception as error:
            noted.error = f"{type(error).__name__}: {error}"
            raise
        finally:
            noted.backend_ns = time.perf_counter_ns() - begun
            self._noted.guarded(noted, guard_reader())

    def output(self) -> Explanation:
        """What was seen so far. Times are the process's since this object was made."""
        return self._heard.explanation(self._noted.settled(), _difference(self._times_before, compile_times_s()))

    def __repr__(self) -> str:
        return f"ExplainWithBackend({self.__name__[8:-1]})"


class OwnBreaks(Heard):
    """What was observed of breaks of one backend."""

    def __init__(self, owner: ExplainWithBackend) -> None:
        super().__init__()
        self._owner = weakref.ref(owner)

    def means(self, backend: object) -> bool:
        """Not so if it is another one of these. One that is hidden in a function of the program's cannot be seen."""
        layers, owner = list(layers_of(backend)), self._owner()
        return any(inner is owner for inner in layers) or not any(isinstance(i, ExplainWithBackend) for i in layers)


def explain(
    fn: Callable[..., Any], *, inner: str | Callable[..., Any] = "eager", **settings: Any
) -> Callable[..., Explanation]:
    """`explain(fn)(*args)` compiles and runs `fn` on `args` and says what was compiled.

    `fn` runs for real: what it changes is changed. What it raises goes to the caller, but for the error that a break is
    under `fullgraph=True`: that is in the result. Its compiled code stays in torch's cache under a backend of its own.

    Behind each break child processes go on, from the state after the call, and try the remedies.

    Args:
        fn: a function or module.
        inner: the backend to run with.
        **settings: further arguments of `torch.compile`, e.g. `dynamic=True`.
    """

    def call(*args: Any, **kwargs: Any) -> Explanation:
        import torch

        with ExplainWithBackend(inner) as backend:
            try:
                torch.compile(fn, backend=backend, **settings)(*args, **kwargs)
            except Exception as error:
                if type(error).__name__ not in BREAKS:
                    raise
        found = backend.output()
        if found.break_facts:
            from graphprobe.backends.explain_behind import Behind

            behind = Behind(fn, args, kwargs, dynamic=settings.get("dynamic"), budget_s=BEHIND_S)
            behind.look()
            found.tried = behind.tried()
        return found

    return call


def _difference(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    spent = {name: round(seconds - before.get(name, 0.0), 6) for name, seconds in after.items()}
    return {name: seconds for name, seconds in spent.items() if seconds > 0}


class CompileProfiler(Recompiles):
    """Counts the recompilations of the functions that it compiles, and of no others.

        with graphprobe.CompileProfiler() as prof:
            compiled = torch.compile(fn, backend=prof)
            ...
            print(prof.report())

    Outside of a `with` block it begins with the first graph that it compiles, and ends with `close()`.

    Attributes:
        compiler_fn: the inner backend, which does the compiling.
        compiles: how many graphs it has compiled.
    """

    def __init__(self, inner: str | Callable[..., Any] = "eager", *, allowed: int = 0) -> None:
        """`inner` is a name of graphprobe's or torch's, or a callable; `allowed` as in `recompiles`.

        Raises:
            UsageError: there is no such backend, or `allowed` is no number from 0 on.
        """
        from graphprobe.backends.table import resolve

        super().__init__(allowed=allowed, wants=self._is_own)
        self.compiler_fn = resolve(inner)
        self.__name__ = f"recompiles({inner if isinstance(inner, str) else backend_name(inner)})"
        self.compiles = 0
        self._begun = False

    def open(self) -> None:
        """Begin to note; also what comes before the first graph, which is nothing."""
        self._begun = True
        super().open()

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any], **given: Any) -> Any:
        if not self._begun:
            self.open()
        self.compiles += 1
        return self.compiler_fn(gm, example_inputs, **given)

    def report(self) -> str:
        """As `Recompiles.report`; says so when the backend was never used."""
        text = super().report()
        return text if self.compiles else f"{text}: nothing was compiled with this backend"

    def __enter__(self) -> CompileProfiler:
        self.open()
        return self

    def __repr__(self) -> str:
        return f"CompileProfiler({self.__name__[11:-1]})"

    def _is_own(self, backend: object) -> bool:
        """Whether a backend as Dynamo holds it is this object, or has it inside."""
        return any(inner is self for inner in layers_of(backend))
