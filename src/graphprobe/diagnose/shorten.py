"""The smallest piece of a failing case that fails in the same way, within a budget."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import Node

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.kernel_check import VIEWS_AND_SUCH
from graphprobe.diagnose.reduction.cut import CannotCut
from graphprobe.diagnose.reduction.edits import NotApplicable
from graphprobe.diagnose.reduction.oracle import CompilerOracle
from graphprobe.diagnose.reduction.problem import FxCandidate, Problem
from graphprobe.diagnose.reduction.service import Service, free_memory
from graphprobe.diagnose.reduction.shrinks import shrinks_for
from graphprobe.engine.naming import op_of
from graphprobe.engine.subgraph import CALLS, is_item
from graphprobe.errors import GraphprobeError
from graphprobe.reduce.flaky import Repeats
from graphprobe.reduce.gate import Budget
from graphprobe.reduce.reducer import Reduction, reduce
from graphprobe.reduce.space import Space

log = logging.getLogger(__name__)


def shortened(
    case: Case,
    *,
    budget_s: float,
    timeout_s: float,
    signature: str = "",
    backend: Callable[[], Any] | None = None,
    hints: Sequence[str] = (),
    values: bool = True,
) -> Case | None:
    """A smaller case that fails as `case` does; None where none was found in time.

    Args:
        budget_s: no new question is asked after so many seconds.
        timeout_s: for one question.
        signature: of the failure; empty: that of the case.
        backend: makes what to compile with, if not the case's own backend.
        hints: names of suspected nodes.
        values: make sizes and values simpler as well, not just the graph smaller.
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
                shrinks=shrinks_for(problem) if values else [],
                rebase=rebase if values else None,
                signature=signature,
                hints=[i for i in map(problem.unit_of, hints) if i is not None],
                repeats=Repeats(first=1),
                budget=Budget(None, budget_s),
            )
        log.info("shortened to %d calls in %d questions, %.1f s", done.case.calls, done.calls, done.seconds)
        return done.case.problem.case_of(done.case.recipe) if done.failed and done.case is not done.original else None
    except (GraphprobeError, CannotCut, NotApplicable, ValueError) as error:
        log.info("not shortened: %s", error)
        return None


def named(case: Case) -> list[Node]:
    """The calls of a short case, those that are most likely to be at fault first: what computes, the last first."""
    calls = [n for n in case.graph.graph.nodes if n.op in CALLS and not _is_part(n)]
    calls.reverse()
    return sorted(calls, key=lambda n: op_of(n) in VIEWS_AND_SUCH)


def _is_part(node: Node) -> bool:
    """Whether it picks one of several results; to index a tensor is a call like others."""
    return is_item(node) and isinstance(node.args[0], Node) and node.args[0].op in CALLS
