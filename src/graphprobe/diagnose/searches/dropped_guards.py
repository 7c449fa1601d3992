"""Names the guard that a program dropped: the one that keeps a call from another call's code where guards are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import torch

from graphprobe.analysis.recompile_facts import FailedGuard, Recompile
from graphprobe.diagnose.program import Call
from graphprobe.engine.forked_child import isolated
from graphprobe.findings import Finding, told_more
from graphprobe.internals.bus import Subscription
from graphprobe.internals.dynamo import recompile_taps
from graphprobe.internals.dynamo.compile_calls import Compiled
from graphprobe.internals.tensors import tree_leaves
from graphprobe.settings.limits import STEP_LIMIT_S, TimeBudget

DROPPED = "The guard `{text}` fails for this call{actual}, and the program drops it: the code is that of call 1."
UNBACKED, MARKS = "_dynamo_unbacked_indices", ("_dynamo_", "_has_dynamo_")
"""Attribute of a tensor of which `mark_unbacked` has marked dimensions; how the names of all marks begin."""


class _Failed:
    """What was recompiled, and for which guards."""

    def __init__(self) -> None:
        self.facts: list[Recompile] = []

    def recompiled(self, fact: Recompile, backend: object) -> None:
        """One more."""
        self.facts.append(fact)

    def failed(self, what: str, details: str) -> None:
        """There is no such fact then."""


def blame_dropped_guard(
    finding: Finding, compiled: Compiled, earlier: Sequence[Call], call: Call, budget: TimeBudget
) -> bool:
    """Make the guard that was dropped the culprit of a finding; whether there is one.

    Args:
        compiled: what the program compiles.
        earlier: calls of it, of which the first is that which it was compiled for.
        call: the one that goes wrong.
        budget: for four compilations without a backend.

    Raises:
        NoTimeLeft: the budget was ended meanwhile.
    """
    if not earlier:
        return False
    step = partial(_dropped, compiled, earlier[0], call)
    found = isolated(step, timeout_s=min(STEP_LIMIT_S, budget.left_s), wait=budget.check).value
    if found is not None:
        guard = msgspec.convert(found, FailedGuard)
        place = None if guard.where is None else f"{guard.where.file}:{guard.where.line}"
        text = guard.text.partition("  # ")[0].strip()
        actual = f", which has {guard.actual}" if guard.actual is not None else ""
        finding.stage, finding.source = "runtime", place or finding.source
        finding.reason = told_more(finding.reason, DROPPED.format(text=text, actual=actual))
    return found is not None


def _dropped(compiled: Compiled, first: Call, call: Call) -> FailedGuard | None:
    """In a child: the first guard that fails with all guards, if the program compiles nothing anew for the call."""
    asked = {} if compiled.guard_filter is None else {"guard_filter_fn": compiled.guard_filter}
    drops = compiled.guard_filter is not None
    try:
        if _failed_guards(compiled, first, call, asked):
            return None
    except RuntimeError:  # a stance that leaves all guards out compiles nothing anew
        drops = True
    torch.compiler.set_stance("default")
    tensors = [leaf for leaf in tree_leaves((first, call)) if isinstance(leaf, torch.Tensor)]
    marked = any(hasattr(tensor, UNBACKED) for tensor in tensors)
    if not (marked or drops):
        return None
    for tensor in tensors if marked else ():
        for name in [name for name in vars(tensor) if name.startswith(MARKS)]:
            delattr(tensor, name)
    guards = _failed_guards(replace(compiled, dynamic=True if marked else compiled.dynamic), first, call, {})
    return guards[0] if guards else None


def _failed_guards(compiled: Compiled, first: Call, call: Call, options: dict[str, Any]) -> tuple[FailedGuard, ...]:
    """Those for which the second of two calls compiles anew."""
    torch.compiler.reset()
    failed = _Failed()
    again = torch.compile(compiled.fn, backend=_as_it_is, options=options or None, dynamic=compiled.dynamic)
    with Subscription(recompile_taps.patches(failed)).installed(), torch.no_grad():
        for args, kwargs in (first, call):
            failed.facts.clear()
            again(*args, **kwargs)
    return failed.facts[0].guards if failed.facts else ()


def _as_it_is(gm: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    return gm
