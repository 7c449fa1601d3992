"""What torch.compile makes of a function: graphs, ops, breaks and why, guards, times. Any backend can be inside."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch.fx import GraphModule

from graphprobe.backends.explanation import Break, ExplainedGraph, Explanation, Guard
from graphprobe.backends.graphs import target_name, walk, where_in_source
from graphprobe.backends.registry import resolve
from graphprobe.internals.compile_facts import compile_times_s, graph_breaks, guard_reader
from graphprobe.internals.dynamo import backend_name, current_compile_id


class ExplainWithBackend:
    """A backend that does what the inner one does and notes every graph that comes along.

    Attributes:
        graphs: Dynamo's graphs, in order of compiling.
        compiler_fn: the inner backend.
    """

    def __init__(self, inner: str | Callable[..., Any] = "eager") -> None:
        """`inner` is a name of graphprobe's or torch's, or a callable; a wrapped backend stays collected."""
        self.compiler_fn = resolve(inner)
        self.__name__ = f"explain({inner if isinstance(inner, str) else backend_name(inner)})"
        self.graphs: list[GraphModule] = []
        self._noted: list[ExplainedGraph] = []
        self._pending: list[tuple[ExplainedGraph, Callable[[], list[dict[str, Any]]]]] = []
        self._times_before = compile_times_s()
        self._breaks_before = graph_breaks()

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any], **given: Any) -> Any:
        self._settle()
        noted = _explain_graph(gm)
        self.graphs.append(gm)
        self._noted.append(noted)
        begun = time.perf_counter_ns()
        try:
            return self.compiler_fn(gm, example_inputs, **given)
        except Exception as error:
            noted.error = f"{type(error).__name__}: {error}"
            raise
        finally:
            noted.backend_ns = time.perf_counter_ns() - begun
            self._pending.append((noted, guard_reader()))

    def output(self) -> Explanation:
        """What was seen so far. Times and unattributed breaks are the process's since this object was made."""
        self._settle()
        return Explanation(
            graphs=list(self._noted),
            breaks_without_graph=_breaks_without_graph(self._breaks_before, self._noted),
            compile_times_s=_difference(self._times_before, compile_times_s()),
        )

    def __repr__(self) -> str:
        return f"ExplainWithBackend({self.__name__[8:-1]})"

    def _settle(self) -> None:
        """Read the guards of compiles that have ended."""
        while self._pending:
            noted, read = self._pending.pop()
            noted.guards = [msgspec.convert(guard, Guard) for guard in read()]


def explain(
    fn: Callable[..., Any], *, inner: str | Callable[..., Any] = "eager", **settings: Any
) -> Callable[..., Explanation]:
    """`explain(fn)(*args)` compiles and runs `fn` on `args` and says what was compiled.

    `fn` runs for real: what it changes is changed. Its compiled code stays in torch's cache under a backend of its own.

    Args:
        fn: a function or module.
        inner: the backend to run with.
        **settings: further arguments of `torch.compile`, e.g. `dynamic=True`.
    """

    def call(*args: Any, **kwargs: Any) -> Explanation:
        backend = ExplainWithBackend(inner)
        torch.compile(fn, backend=backend, **settings)(*args, **kwargs)
        return backend.output()

    return call


def _explain_graph(gm: GraphModule) -> ExplainedGraph:
    nodes = list(walk(gm))
    return ExplainedGraph(
        compile_id=current_compile_id(),
        ops=[target_name(node) for node in nodes],
        where=next(filter(None, map(where_in_source, nodes)), None),
        graph_break=_break_of(gm),
    )


def _break_of(gm: GraphModule) -> Break | None:
    reason: Any = getattr(gm, "compile_subgraph_reason", None)
    if not getattr(reason, "graph_break", False):
        return None
    return Break(
        str(reason.reason), [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in reason.user_stack]
    )


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
