"""What torch.compile makes of a function: graphs, ops, breaks and why, guards, times. Any backend can be inside."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from graphprobe.backends.explanation import ExplainedGraph, Explanation, Heard, NotedGraphs
from graphprobe.backends.table import resolve
from graphprobe.internals.dynamo.compile_facts import compile_times_s, graph_breaks, guard_reader
from graphprobe.internals.dynamo.dynamo_taps import backend_name
from graphprobe.internals.dynamo.graph_breaks import BREAKS, listen


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
        self.compiler_fn = resolve(inner)
        self.__name__ = f"explain({inner if isinstance(inner, str) else backend_name(inner)})"
        self.graphs: list[GraphModule] = []
        self._noted = NotedGraphs()
        self._times_before = compile_times_s()
        self._breaks_before = graph_breaks()
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
        """What was seen so far. Times and unattributed breaks are the process's since this object was made."""
        graphs = self._noted.settled()
        return Explanation(
            graphs=graphs,
            breaks_without_graph=_breaks_without_graph(self._breaks_before, graphs),
            compile_times_s=_difference(self._times_before, compile_times_s()),
            break_facts=list(self._heard.breaks),
            uncompiled_facts=list(self._heard.uncompiled_functions),
            notes=list(self._heard.notes),
        )

    def __repr__(self) -> str:
        return f"ExplainWithBackend({self.__name__[8:-1]})"


class OwnBreaks(Heard):
    """What was observed of breaks of one backend."""

    def __init__(self, owner: ExplainWithBackend) -> None:
        super().__init__()
        self._owner = weakref.ref(owner)

    def means(self, backend: object) -> bool:
        """Not so if it is another one of these. One that is hidden in a function of the program's cannot be seen."""
        owner, others = self._owner(), False
        inner: object | None = backend
        for _ in range(8):
            if inner is None or inner is owner:
                break
            others = others or isinstance(inner, ExplainWithBackend)
            inner = getattr(inner, "_torchdynamo_orig_backend", None) or getattr(inner, "compiler_fn", None)
        return inner is owner or not others


def explain(
    fn: Callable[..., Any], *, inner: str | Callable[..., Any] = "eager", **settings: Any
) -> Callable[..., Explanation]:
    """`explain(fn)(*args)` compiles and runs `fn` on `args` and says what was compiled.

    `fn` runs for real: what it changes is changed. What it raises goes to the caller, but for the error that a break is
    under `fullgraph=True`: that is in the result. Its compiled code stays in torch's cache under a backend of its own.

    Args:
        fn: a function or module.
        inner: the backend to run with.
        **settings: further arguments of `torch.compile`, e.g. `dynamic=True`.
    """

    def call(*args: Any, **kwargs: Any) -> Explanation:
        with ExplainWithBackend(inner) as backend:
            try:
                torch.compile(fn, backend=backend, **settings)(*args, **kwargs)
            except Exception as error:
                if type(error).__name__ not in BREAKS:
                    raise
        return backend.output()

    return call


def _difference(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    spent = {name: round(seconds - before.get(name, 0.0), 6) for name, seconds in after.items()}
    return {name: seconds for name, seconds in spent.items() if seconds > 0}


def _breaks_without_graph(before: dict[str, int], graphs: list[ExplainedGraph]) -> dict[str, int]:
    """Breaks by reason, less those that ended a graph: they came where nothing had been captured yet."""
    known = [graph.graph_break.reason for graph in graphs if graph.graph_break is not None]
    left = {reason: count - before.get(reason, 0) for reason, count in graph_breaks().items()}
    for reason in known:
        match = next((r for r in left if left[r] > 0 and (r in reason or reason in r)), None)
        if match is not None:
            left[match] -= 1
    return {reason: count for reason, count in left.items() if count > 0}
