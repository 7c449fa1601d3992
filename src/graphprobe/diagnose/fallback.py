"""When no check of a rung has named a node: the exception's own frames, then each of Dynamo's nodes by itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from graphprobe.diagnose import steps
from graphprobe.diagnose.compare_calls import Difference
from graphprobe.diagnose.rungs import RungReport
from graphprobe.findings import Finding

if TYPE_CHECKING:
    from graphprobe.diagnose.api import Ladder

log = logging.getLogger(__name__)

STAGE_OF_RUNG: dict[str, Any] = {
    "dynamo": "dynamo",
    "aot": "aot",
    "passes": "post_grad",
    "kernels": "codegen",
    "plain": "runtime",
}
"""The rungs in order, and what each accuses when nothing in it could be named."""


def unlocated(ladder: Ladder, rung: str, differences: Sequence[Difference]) -> list[Finding]:
    """Findings for a failure that shows first on `rung` and that nothing has explained."""
    program, compilation = ladder.program, ladder.compilation
    first = differences[0]
    crashed = first.kind in ("crash_compile", "crash_runtime", "segfault", "hang")
    report = ladder.reports.get(rung)
    stage = STAGE_OF_RUNG[rung]
    if rung == "passes":
        stage = _narrowed(ladder)
    origin = report.origin if report is not None else None
    if not compilation.is_inductor:
        # Frames tell nothing about a compiler whose parts are unknown; and its errors pass through Dynamo's.
        origin = None
        stage = "runtime" if first.kind in ("crash_runtime", "segfault", "hang") and rung == "kernels" else stage
    if origin is not None and origin.stage != "runtime":
        stage = origin.stage
    known: dict[str, Any] = {}
    if stage != "codegen" or not compilation.is_inductor:
        known["stage"] = stage
    if origin is not None and origin.op:
        fields = {name: getattr(origin, name) for name in ("op", "node", "source", "module", "pass_", "stage", "also")}
        known |= {name: value for name, value in fields.items() if value}
    expected = ladder.reference.eager[0][first.call] if ladder.reference is not None else None
    below = ladder.reports.get("aot")
    if "op" not in known and expected is not None and expected.raised is not None and below is not None:
        # Uncompiled it raises: the op that does is the one that must not do something else instead.
        where = below.raised_at
        if where is not None:
            known |= {name: v for name in ("op", "node", "source", "module") if (v := getattr(where, name)) is not None}
    reason = first.text
    if origin is not None and origin.pattern:
        reason += f" It was raised while {origin.pattern} was matched."
        known["reason"] = reason
    whole = {"kind": first.kind, "reason": reason, "stage": stage, **known}
    if rung == "plain":
        ladder.result.notes.append("it goes wrong only as torch compiles it by itself: unobserved, with its caches")
        observed = report.calls if report is not None else []
        return _ask(ladder, lambda: steps.whole(program, compilation, whole, observed=observed))
    found: list[Finding] = []
    if crashed and rung == "kernels" and compilation.is_inductor and not (origin is not None and origin.op):
        broken = report.broken if report is not None else None
        found = _ask(ladder, lambda: steps.passes(program, compilation, seek=True, broken=broken))
    if stage == "decomposition" and not crashed:
        found = _ask(ladder, lambda: steps.aot(program, compilation, strides=True))
        worse = next((d for d in differences if d.kind != "wrong_stride"), None)
        for finding in found:
            if finding.kind == "wrong_stride" and worse is not None:
                finding.kind = worse.kind  # what the program makes of the layout
                finding.reason += f" The program then has: {worse.text}."
    if stage == "joint" and not crashed:
        found = _ask(ladder, lambda: steps.partition(program, compilation))
    if not found:
        wanted = rung if rung in ("dynamo", "aot", "kernels") else stage
        found = _ask(ladder, lambda: steps.blame(program, compilation, wanted, known, first))
    if found:
        return found[:1] if "op" in known else found
    return _ask(ladder, lambda: steps.whole(program, compilation, whole))


def _narrowed(ladder: Ladder) -> Any:
    """Which of the stages below the pass rung fails first."""
    for stage in ("decomposition", "partition", "pre_grad", "joint"):
        outcome = ladder.step(partial(steps.upto, ladder.program, ladder.compilation, stage))
        named = "joint" if stage == "partition" else stage
        if outcome.died or outcome.raised is not None:
            return named
        report = msgspec.convert(outcome.value, RungReport)
        if ladder.differences(report):
            return named
    return "post_grad"


def _ask(ladder: Ladder, step: Any) -> list[Finding]:
    outcome = ladder.step(step)
    if outcome.died or outcome.raised is not None:
        if outcome.raised is not None:
            log.info("a search for the op: %s", outcome.raised.trace)
        why = outcome.raised.line if outcome.raised is not None else outcome.signal or "its time limit"
        ladder.result.notes.append(f"a search for the op ended early: {why}")
        return []
    report = msgspec.convert(outcome.value, RungReport)
    ladder.result.compiles += report.compiles
    ladder.result.notes += [f"suspected, not proven: {text}" for text in report.unproven]
    return report.findings
