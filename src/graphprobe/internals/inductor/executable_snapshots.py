"""Executable copies of a graph after each of Inductor's passes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from torch.fx import GraphModule

from graphprobe.internals.bus import Patch, PatchSet
from graphprobe.internals.inductor.stages import copy_graph
from graphprobe.internals.names import require

TAP, OBSERVER = "snapshots", "torch.fx.passes.graph_transform_observer"
PHASES = {"pre_grad_passes": "pre_grad", "joint_graph_passes": "joint", "post_grad_passes": "post_grad"}


PATTERN_ENTRIES = ("GraphPatternEntry", "LoweringPatternEntry", "ReplacementPatternEntry")
"""Classes of the pattern matcher, each of which replaces what a pattern has matched."""


class ExecutableSnapshot(msgspec.Struct):
    """A graph at one moment.

    Attributes:
        name: of the pass that made it what it is; empty for the graph before the first pass.
        graph: an independent copy that can be run.
    """

    name: str
    graph: GraphModule


class PassLog(msgspec.Struct):
    """What one group of passes did to one graph.

    Attributes:
        phase: `pre_grad`, `joint` or `post_grad`.
        snapshots: the graph before the first pass, and after each pass that changed it.
        failed: name of the pass that raised, if any.
        unseen: why a pass's graph could not be copied.
    """

    phase: str
    snapshots: list[ExecutableSnapshot] = []
    failed: str | None = None
    unseen: list[str] = []


class Snapshots:
    """Collects a PassLog for each group of passes that runs while it is active, and leaves out the passes `skip`."""

    def __init__(self, skip: Collection[tuple[str, str]] = ()) -> None:
        """`skip` has phases and names of passes, as PassLog and ExecutableSnapshot name them."""
        self.skip = frozenset(skip)
        self.logs: list[PassLog] = []
        self.missing: list[str] = []
        self._open: list[tuple[PassLog, int]] = []
        self._signature = ""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Replace what announces passes, and put it back on exit."""
        patches = PatchSet()
        compile_fx = require("torch._inductor", "compile_fx", purpose="snapshots of passes")
        observers = require("torch.fx.passes", "graph_transform_observer", purpose="snapshots of passes")
        matcher = require("torch._inductor", "pattern_matcher", purpose="snapshots of patterns")
        try:
            wanted = [
                (compile_fx, Patch(TAP, "torch._inductor.compile_fx", name, self._phase(name))) for name in PHASES
            ]
            for name, make in (("__enter__", self._enter), ("__exit__", self._exit)):
                wanted.append((observers, Patch(TAP, OBSERVER, f"GraphTransformObserver.{name}", make)))
            for name in PATTERN_ENTRIES:
                wanted.append((matcher, Patch(TAP, "torch._inductor.pattern_matcher", f"{name}.apply", self._pattern)))
            if self.skip:
                for name in ("apply_gm_pass", "apply_graph_pass"):
                    wanted.append((observers, Patch(TAP, OBSERVER, f"GraphTransformObserver.{name}", self._apply)))
            self.missing = [patch.address for module, patch in wanted if not patches.apply(module, patch)]
            yield
        finally:
            patches.undo()

    def _phase(self, name: str) -> Callable[[Any], Any]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def run(gm: Any, *args: Any, **kwargs: Any) -> Any:
                log = PassLog(PHASES[name])
                self.logs.append(log)
                self._take(log, gm, "")
                self._open.append((log, id(gm)))
                try:
                    result = original(gm, *args, **kwargs)
                finally:
                    self._open.pop()
                after = result if isinstance(result, GraphModule) else gm
                self._take(log, after, f"{PHASES[name]} (no single pass announced it)")
                return result

            return run

        return make

    def _apply(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(observer: Any, *args: Any, **kwargs: Any) -> Any:
            phase = self._open[-1][0].phase if self._open else ""
            return None if (phase, observer.passname) in self.skip else original(observer, *args, **kwargs)

        return apply

    def _pattern(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(entry: Any, match: Any, graph: Any, node: Any) -> Any:
            name = f"pattern {_pattern_name(entry)}"
            if self._open and (self._open[-1][0].phase, name) in self.skip:
                return None
            result = original(entry, match, graph, node)
            gm = getattr(graph, "owning_module", None)
            if self._open and gm is not None and id(gm) == self._open[-1][1]:
                self._take(self._open[-1][0], gm, name)
            return result

        return apply

    def _enter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __enter__(observer: Any) -> Any:
            result = original(observer)
            if self._open and id(observer.gm) == self._open[-1][1]:
                self._take(self._open[-1][0], observer.gm, f"before {observer.passname}")
            return result

        return __enter__

    def _exit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __exit__(observer: Any, kind: Any, error: Any, trace: Any) -> Any:
            result = original(observer, kind, error, trace)
            if self._open and id(observer.gm) == self._open[-1][1]:
                log = self._open[-1][0]
                if error is not None:
                    log.failed = log.failed or observer.passname
                else:
                    self._take(log, observer.gm, observer.passname)
            return result

        return __exit__

    def _take(self, log: PassLog, gm: GraphModule, name: str) -> None:
        signature = _signature(gm)
        if log.snapshots and signature == self._signature:
            return
        try:
            log.snapshots.append(ExecutableSnapshot(name, copy_graph(gm)))
        except Exception as error:  # a graph that a pass has left half edited
            log.unseen.append(f"{name}: {type(error).__name__}: {error}")
            return
        self._signature = signature


def _pattern_name(entry: Any) -> str:
    """The function that replaces a match, is searched for, or checks a match."""
    check = getattr(entry, "extra_check", None)
    names = check.__code__.co_freevars if inspect.isfunction(check) else ()
    searched = check.__closure__[names.index("search_fn")].cell_contents if check and "search_fn" in names else None
    for function in (searched, getattr(entry, "handler", None), check):
        found = getattr(function, "__name__", None)
        if found and "lambda" not in found and found != "_return_true":
            return str(found)
    return type(entry).__name__


def _signature(gm: GraphModule) -> str:
    """Changes when a node, its order, target or arguments do."""
    lines = [f"{n.name} {n.op} {n.target} {n.args} {n.kwargs}" for n in gm.graph.nodes]
    lines += [_signature(child) for _, child in gm.named_children() if isinstance(child, GraphModule)]
    return "\n".join(lines)
