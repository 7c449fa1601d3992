"""A program that is right and differs in its last bits: in what, and with `exact` from which stage and operation on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from graphprobe.diagnose import notes, steps
from graphprobe.diagnose.dossier.whole_proof import prove_by_program
from graphprobe.diagnose.exceptions import Culprit
from graphprobe.diagnose.ladder import Ladder
from graphprobe.diagnose.rungs import RungReport
from graphprobe.findings import BitDifference, Finding, Latent, bits_in_words
from graphprobe.judge.bits import bit_differences
from graphprobe.judge.stage_table import GRAPHS, Evidence, Graphs, stage_of
from graphprobe.judge.verdict import RungName
from graphprobe.settings.limits import NoTimeLeft

SWITCHES: tuple[tuple[str, Any], ...] = ((notes.ROUNDING, True), ("cpp.enable_floating_point_contract_flag", "off"))
"""Settings of Inductor's with which kernels round narrow values, and products before they are added, as eager does."""


def look_at_bits(ladder: Ladder) -> None:
    """Say which observables differ in their last bits; with `exact` these are a fault, located and proven."""
    report = ladder.seen(ladder.top).report
    if report is None or ladder.result.raises:
        return
    if ladder.limits.exact:
        ladder.runner.begin("bits")
    found: list[BitDifference] | None = None
    try:
        found = _bits(ladder, report)
    except NoTimeLeft as spent:
        if ladder.limits.exact:  # else nobody has asked
            ladder.late("which bits differ", spent)
    ladder.result.differences = found or []
    if not ladder.limits.exact or found == []:
        return
    if found is None:
        ladder.result.verdict = "undecided"
        ladder.result.notes.insert(0, notes.BITS_UNSEEN)
        return
    steady = [d for d in found if d.repeats]
    if not steady:
        ladder.result.verdict = "undecided"
        ladder.result.notes.insert(0, notes.no_bits_to_hold_it_to(found))
        return
    ladder.result.verdict = "fault"
    ladder.result.findings = [Finding(kind="not_bitwise", stage="unknown", reason=bits_in_words(steady))]
    with ladder.in_time("where the bits begin to differ"):
        ladder.result.findings = [_located(ladder, steady)]
        ladder.compilation.complete(ladder.result.findings[0])
    with ladder.in_time("whether the program differs by itself"):
        ladder.by_program(prove_by_program, where=steady[0].observable)


def _bits(ladder: Ladder, report: RungReport) -> list[BitDifference] | None:
    """What differs in the last bits of a rung's calls; None where nobody could look."""
    return ladder.seen_by(bit_differences, list[BitDifference], report)


def _located(ladder: Ladder, differences: Sequence[BitDifference]) -> Finding:
    """The fault with the first stage whose output differs and, of decompositions and kernels, the first operation."""
    point, all_run = _first_point(ladder)
    inductor = ladder.compilation.is_inductor
    stage, _ = stage_of(Evidence("not_bitwise", point, graphs_run=all_run, inductor=inductor))
    first: Latent | None = None
    also: list[str] = []
    rung: RungName | None = "aot" if point == "decomposition" else "kernels" if point is None else None
    if rung is not None and inductor:
        ladder.runner.begin(rung)
        report = ladder.answer(ladder.looking(rung), RungReport) or RungReport()
        first = next(iter(report.rounded), None)
        also = list(dict.fromkeys(one.op for one in report.rounded if one.op and first and one.op != first.op))
    where = notes.where_bits_begin(point, first.op if first else None, all_run=all_run, inductor=inductor)
    texts = [bits_in_words(differences), where]
    texts += _switched(ladder) if point is None and inductor else []
    found = Finding(kind="not_bitwise", stage=stage, reason=" ".join(texts), worst=differences[0].worst, also=also)
    if first is None:
        return found
    found.direction = first.direction
    return Culprit(op=first.op, node=first.node, source=first.source).told_in(found)


def _first_point(ladder: Ladder) -> tuple[Graphs | None, bool]:
    """The first point of the pipeline whose graphs, run op by op, give other bits; whether all before it were run."""
    all_run = True
    for point in GRAPHS if ladder.compilation.is_inductor else GRAPHS[:1]:
        ladder.runner.begin("bits")
        report = ladder.answer(partial(steps.upto, ladder.program, ladder.compilation, point), RungReport)
        found = None if report is None else _bits(ladder, report)
        if found:
            return point, all_run
        all_run = all_run and found is not None
    return None, all_run


def _switched(ladder: Ladder) -> list[str]:
    """The first setting of `SWITCHES` with which the bits are the uncompiled program's, as a sentence."""
    for name, value in SWITCHES:
        ladder.runner.begin("bits")
        switched = partial(steps.plain, ladder.program, ladder.compilation.with_setting(name, value))
        report = ladder.answer(switched, RungReport)
        if report is not None and _bits(ladder, report) == []:
            return [f"With torch._inductor.config.{name} = {value!r} the bits are the same."]
    return []
