"""Shrinks a failing case within a budget, and names the op that has to be compiled for the fault to show."""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.check_case import CaseResult, check, reference_of
from graphprobe.diagnose.evidence import alike
from graphprobe.diagnose.reduction.edits import NotApplicable
from graphprobe.diagnose.reduction.oracle import CompilerOracle
from graphprobe.diagnose.reduction.problem import FxCandidate, Problem, shrinks_for
from graphprobe.diagnose.reduction.service import Service
from graphprobe.engine.interpret import plain_value, run_graph
from graphprobe.engine.memory import free_memory
from graphprobe.engine.naming import VIEWS_AND_SUCH, op_of
from graphprobe.engine.subgraph import CALLS, is_item
from graphprobe.errors import GraphprobeError
from graphprobe.findings import Kind
from graphprobe.internals.aot_backends import lookup
from graphprobe.internals.inductor.stages import broken_after, copy_graph
from graphprobe.judge.judging import compare
from graphprobe.judge.uncompiled import Reference
from graphprobe.reduce.gate import Budget
from graphprobe.reduce.reducer import Reduction, Repeats, reduce
from graphprobe.reduce.space import Space

log = logging.getLogger(__name__)

LARGEST = 12
"""Calls of a piece that is searched for its culprit."""

SMALL_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32)
"""What C++ computes in a larger type."""


def shortened(
    case: Case,
    *,
    budget_s: float,
    timeout_s: float,
    backend: Callable[[], Any] | None = None,
    hints: Sequence[str] = (),
) -> Case | None:
    """A smaller case that fails as `case` does; None where none was found in time.

    Args:
        budget_s: no new question is asked after so many seconds.
        timeout_s: for one question.
        backend: makes what to compile with, if not the case's own backend.
        hints: names of suspected nodes.
    """
    try:
        problem = Problem.of(case, timeout_s=timeout_s)
        service = Service(problem, memory_bytes=free_memory(), backend=backend)

        def rebase(candidate: FxCandidate) -> Space[FxCandidate]:
            return service.problem_based_on(candidate.recipe, timeout_s=timeout_s)

        with contextlib.closing(CompilerOracle(service, timeout_s=timeout_s)) as oracle:
            done: Reduction[FxCandidate] = reduce(
                problem,
                oracle,
                shrinks=shrinks_for(problem),
                rebase=rebase,
                hints=[i for i in map(problem.unit_of, hints) if i is not None],
                repeats=Repeats(first=1),
                budget=Budget(None, budget_s),
            )
        log.info("shortened to %d calls in %d questions, %.1f s", done.case.calls, done.calls, done.seconds)
        return done.case.problem.case_of(done.case.recipe) if done.failed and done.case is not done.original else None
    except (GraphprobeError, NotApplicable, ValueError) as error:
        log.info("not shortened: %s", error)
        return None


def named(case: Case) -> list[Node]:
    """The calls of a short case, those that are most likely to be at fault first: what computes, the last first."""

    def is_part(node: Node) -> bool:  # to index a tensor is a call like others
        return is_item(node) and isinstance(node.args[0], Node) and node.args[0].op in CALLS

    calls = [n for n in reversed(case.graph.graph.nodes) if n.op in CALLS and not is_part(n)]
    return sorted(calls, key=lambda n: op_of(n) in VIEWS_AND_SUCH)


def ranked(case: Case, result: CaseResult, kind: Kind, *, timeout_s: float, backend: Any = None) -> list[Node]:
    """The calls of a failing piece, the likeliest culprit first.

    The piece is compiled up to a call, and what comes after it is run uncompiled: the first call up to which it has to
    be compiled is the one whose result is wrong, whatever shows it. Behind it comes the last call from which on it has
    to be compiled: where the two differ, the fault is in how they are compiled together. Before both comes a call in
    between whose small integers are handed on without being wrapped. Calls that only look at memory in another way are
    blamed after those that compute.

    Args:
        kind: how the piece fails.
        timeout_s: for one question.
        backend: makes what to compile with; None: the case's own backend.
    """
    calls = [n for n in case.graph.graph.nodes if n.op in CALLS]
    likeliest = named(case)
    if not 1 < len(calls) <= LARGEST or result.died is not None:
        return likeliest
    asked = _Asked(case, kind, timeout_s, backend or (lambda: lookup(case.backend)))
    try:
        last = bisect_left(calls[:-1], True, key=lambda call: asked.fails(call, upto=True))
        first = bisect_left(calls[1:], True, key=lambda call: not asked.fails(call.prev, upto=False))
        unwrapped = asked.unwrapped(calls[first:last], result.reference)
    except Exception as error:  # a graph that Dynamo does not trace again in parts
        log.info("the culprit of %s: %s", [op_of(n) for n in calls], error)
        return likeliest
    order = [*unwrapped, calls[last], calls[first], *reversed(calls[first:last]), *reversed(calls)]
    found = [n for n in dict.fromkeys(order) if n in likeliest]
    return sorted(found, key=lambda n: op_of(n) in VIEWS_AND_SUCH)


@dataclass(frozen=True)
class _Asked:
    """Questions about parts of one piece that are compiled, with the rest run uncompiled."""

    case: Case
    kind: Kind
    timeout_s: float
    backend: Callable[[], Any]

    def unwrapped(self, calls: Sequence[Node], reference: Reference) -> list[Node]:
        """The last of the calls whose integers the compiled piece uses as they are before they are wrapped.

        128 for the `abs` of -128 in int8: the compiled piece is right about the same piece with this call in int64.
        """
        values = run_graph(self.case.graph, [plain_value(v) for v in self.case.calls[-1].restore()]).values
        small = {name for name, value in values.items() if getattr(value, "dtype", None) in SMALL_INTEGERS}
        for call in reversed(calls):
            if call.name not in small:
                continue
            graph = copy_graph(self.case.graph)
            wide = next(n for n in graph.graph.nodes if n.name == call.name)
            for given in wide.all_input_nodes:
                if given.name in small:
                    with graph.graph.inserting_before(wide):
                        wide.replace_input_with(given, graph.graph.call_method("to", (given, torch.int64)))
            graph.recompile()
            try:
                expected = reference_of(replace(self.case, graph=graph))
            except Exception:  # a call that takes no int64
                continue
            if not compare(reference, expected.eager[0]):
                continue  # nothing had to be wrapped
            made = check(self.case, timeout_s=self.timeout_s, reference=expected, backend=self.backend, repeats=1)
            if made.died is None and not made.differences:
                return [call]
        return []

    def fails(self, last: Node, *, upto: bool) -> bool:
        """Whether it fails compiled up to and including this call, or from the next one on."""
        part = replace(self.case, graph=broken_after(self.case.graph, last))
        made = check(part, timeout_s=self.timeout_s, backend=lambda: _Some(self.backend(), upto), repeats=1)
        log.info("broken after %s: %s", last.name, [d.kind for d in made.differences])
        return made.died is not None or alike(self.kind, made.differences)


class _Some:
    """A backend that compiles the first of its graphs, or all but this one, and runs the others as they are."""

    def __init__(self, backend: Any, first: bool) -> None:
        self.backend, self.first, self.count = backend, first, 0

    def __call__(self, gm: GraphModule, inputs: Sequence[Any], **settings: Any) -> Any:
        number, self.count = self.count, self.count + 1
        return self.backend(gm, inputs, **settings) if self.first == (number == 0) else gm.forward
