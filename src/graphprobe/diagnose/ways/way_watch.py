"""A script's ways into the compiler beside `torch.compile`, diagnosed as it calls what it made. Imports no torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from graphprobe.diagnose.script_calls import FAILED, PROVEN, Past, name_of, signature_of, unknown
from graphprobe.internals.context import Frame
from graphprobe.internals.dynamo.compile_calls import CompileCalls
from graphprobe.internals.way_taps import WayGraph, Ways
from graphprobe.probe.active import observe_pass
from graphprobe.probe.traced_graphs import origin_here, own_names
from graphprobe.select.step_ranges import StepSelection
from graphprobe.settings.limits import NoTimeLeft

if TYPE_CHECKING:
    from graphprobe.diagnose.ways.way_program import WayCall
    from graphprobe.findings import Diagnosis, Finding, NamedStep

MOST_CALLS = 3
"""Calls of one graph, each with values of another form, that are diagnosed."""

LATE = "{spent}: whether what was made of it is right was not found out"


class WayOptions(Protocol):
    """What is asked for: `ScriptOptions`."""

    @property
    def calls(self) -> StepSelection | None:
        """The calls to diagnose."""

    def way_diagnosis(
        self, held: WayCall, *, out: Path | None, on_step: Callable[[NamedStep], None] | None = None
    ) -> Diagnosis:
        """The diagnosis of a call."""


class WatchedScript(Protocol):
    """Who watches the script."""

    stopped: str | None
    on_step: Callable[[NamedStep], None] | None

    @property
    def options(self) -> WayOptions:
        """What is asked for."""

    def past_named(self, name: str) -> Past:
        """The calls of something."""

    def at_work(self, name: str) -> contextlib.AbstractContextManager[None]:
        """A block in which something is diagnosed."""

    def place(self, name: str) -> Path | None:
        """The folder of the next diagnosis."""

    def tell(self, name: str, diagnosis: Diagnosis) -> None:
        """One more diagnosis."""

    def prove(
        self, finding: Finding, number: int, reason: str, options: Mapping[str, Any], *, packaged: bool = False
    ) -> bool:
        """Whether the script, run again, shows it."""

    def told(self, name: str, past: Past, diagnosis: Diagnosis) -> None:
        """One more diagnosis, which may end the script."""


class WayWatch:
    """Diagnoses graphs of ways, and packages of them, when they are called: an `internals.way_taps.WayObserver`."""

    def __init__(self, watcher: WatchedScript, calls: CompileCalls) -> None:
        self._watcher, self._calls = watcher, calls
        self._ways = Ways(self, own_names, observe_pass, copies=True, origin=origin_here)
        self._pasts: dict[WayGraph, Past] = {}
        self._paths: dict[WayGraph, str] = {}
        self._made: list[WayGraph] = []
        self._packages = self._package = 0  # calls of packages, and the number of the one under way; 0: of a graph
        self._exported = 0
        self.install, self.remove = self._ways.install, self._ways.remove

    @property
    def graphs(self) -> int:
        """How many were made."""
        return len(self._made)

    def is_tracing(self) -> bool:
        """Whether torch exports, traces or packages right now, on this thread."""
        return self._ways.is_inside

    def failed(self, what: str, details: str) -> None:
        """A fault of our own: the program goes on."""

        self._watcher.tell(what, unknown(FAILED.format(kind=what, error=details.splitlines()[-1])))

    def way_graph(self, graph: WayGraph, gm: Any) -> None:
        """Keep the original's state where a way begins; the copy of the graph says which lines led to its nodes."""
        from graphprobe.diagnose.ways.way_program import Original, tell_lines

        self._made.append(graph)
        tell_lines(graph)
        if graph.before is not None:
            graph.token = graph.before.token
            return
        graph.token = Original.of(graph.traced, self._exported)
        self._exported += graph.kind == "export"

    def way_compiles(self, graph: WayGraph) -> Frame | None:
        """Nothing of it is recorded."""
        return None

    def way_packaged(self, graph: WayGraph, path: str) -> None:
        """It may be called as a package, also by another process."""
        self._paths[graph] = path

    def way_refused(self, graph: WayGraph, error: BaseException, step: WayGraph | None) -> None:
        """Diagnose why, on the values that it was traced with: it is never called."""
        from graphprobe.diagnose.ways.way_program import Raising

        traced, past = graph.traced, self._past_of(graph)
        if self._watcher.stopped is None and not past.wrong and _is_plain((traced.args, traced.kwargs)):
            past.calls, self._package = past.calls + 1, 0
            self._diagnose(graph, past, Raising(error), (traced.args, traced.kwargs), step)

    def way_called(self, graph: WayGraph, called: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Diagnose the first call with values of this form."""
        if not _is_plain((args, kwargs)):
            return
        past, watcher = self._past_of(graph), self._watcher
        past.calls, self._package = past.calls + 1, 0
        if type(called).__name__ == "AOTICompiledModel":
            self._packages = self._package = self._packages + 1
        signature = signature_of(args, kwargs)
        wanted = watcher.options.calls
        new = signature not in past.seen and len(past.seen) < MOST_CALLS
        if watcher.stopped is not None or past.wrong or not (new if wanted is None else past.calls in wanted):
            return
        past.seen[signature] = None
        self._diagnose(graph, past, called, (tuple(args), dict(kwargs)))

    def way_runs(self, graph: WayGraph, gm: Any) -> None:
        """It runs as it is."""

    def at_end(self) -> None:
        """Diagnose what was made and never called, on the values that it was traced with."""
        behind = {graph.before for graph in self._made if graph.before is not None}
        for graph in [g for g in self._made if (g not in behind or g in self._paths) and g not in self._pasts]:
            if self._watcher.stopped is not None:
                return
            from graphprobe.diagnose.ways.way_program import Package, runnable

            traced, is_made_from = graph.traced, len(graph.way) > 1 or graph.kind == "export"
            if not is_made_from or not (traced.args or traced.kwargs) or not _is_plain((traced.args, traced.kwargs)):
                continue  # it was traced to be looked at, or there are no values to try it on
            past = self._past_of(graph)
            past.calls, self._package = past.calls + 1, 0
            with self._ways.inside:
                called = Package(self._paths[graph]) if graph in self._paths else runnable(graph)
                self._diagnose(graph, past, called, (traced.args, traced.kwargs))

    def _past_of(self, graph: WayGraph) -> Past:
        if graph not in self._pasts:
            self._pasts[graph] = self._watcher.past_named(name_of(graph.traced.fn))
        return self._pasts[graph]

    def _diagnose(
        self, graph: WayGraph, past: Past, called: Callable[..., Any], call: Any, step: WayGraph | None = None
    ) -> None:
        from graphprobe.diagnose.ways.way_program import WayCall

        watcher, name = self._watcher, past.name if past.calls == 1 else f"{past.name}, call {past.calls}"
        try:
            with self._calls.inside, watcher.at_work(name):
                held = replace(WayCall.of(graph.token, call, graph, called, moved=past.calls > 1), refused=step)
                diagnosis = watcher.options.way_diagnosis(held, out=watcher.place(name), on_step=watcher.on_step)
            if diagnosis.findings and not any(f.proof for f in diagnosis.findings) and self._package:
                exported = {"exported": graph.token.number}
                watcher.prove(diagnosis.findings[0], self._package, PROVEN, exported, packaged=True)
            if diagnosis.verdict != "undecided":
                past.looked_at.add(past.calls)
        except NoTimeLeft as spent:
            diagnosis = unknown(LATE.format(spent=spent), unfinished=True)
        except Exception as error:  # the program must go on as it would without being watched
            diagnosis = unknown(FAILED.format(kind=type(error).__name__, error=error))
        watcher.told(name, past, diagnosis)
        if watcher.stopped is not None:
            raise SystemExit(0)


def _is_plain(call: Any) -> bool:
    """Whether all tensors of a call have values: not where something traces."""
    from graphprobe.internals.quiet import is_fake
    from graphprobe.internals.tensors import tree_leaves

    return not any(map(is_fake, tree_leaves(call)))
