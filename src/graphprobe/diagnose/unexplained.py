"""The findings of a fault: of the rungs, if they explain it; else by the frames of an exception, or node by node."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import msgspec
import torch

from graphprobe.diagnose import notes, steps
from graphprobe.diagnose.dossier import whole_proof
from graphprobe.diagnose.dynamo.python_source import functions_of
from graphprobe.diagnose.evidence import DEATHS, RAISED
from graphprobe.diagnose.exceptions import Culprit, Origin
from graphprobe.diagnose.ladder import Ladder
from graphprobe.diagnose.notes import as_the_program_fails
from graphprobe.diagnose.rungs import RungReport
from graphprobe.diagnose.searches import relations
from graphprobe.diagnose.searches.dropped_guards import blame_dropped_guard
from graphprobe.diagnose.searches.whole import find_whole
from graphprobe.diagnose.settle import held_against
from graphprobe.findings import STAGES, Finding, Stage, told_more
from graphprobe.internals.dynamo.compile_calls import Compiled
from graphprobe.judge.effect_walk import names_of_code
from graphprobe.judge.judging import Difference, worst_of
from graphprobe.judge.refusals import user_line
from graphprobe.judge.stage_table import LAID_OUT, Evidence, Graphs, stage_of
from graphprobe.judge.verdict import (
    FIRST_STAGE,
    LAST_STAGE,
    RungEvidence,
    RungName,
    base_of,
    by_its_rung,
    first_wrong,
    to_blame,
)

log = logging.getLogger(__name__)

Explain = Callable[[Ladder, RungName, Sequence[Finding], Sequence[Difference]], list[Finding]]

BLAME = "which stage, pass and op is to blame"
ERROR_NAMES = "torch's error names stage and op; no smaller program was tried"
"""What is not found out where the budget is spent, and what is said of an error that tells."""

PYTHON = (torch, torch.Tensor, torch.functional, torch.nn.functional)
"""What has functions in Python that call operations."""

NAMED_OP = re.compile(r"\bError in op: torch\.ops\.([\w.]+)")
"""In what generated code says where the result of an operation has other sizes or strides than were promised."""

REPEATS = 3
"""Runs of the compiled program that tell how often it fails, where no piece of it does."""

SEARCHED = 20
"""Compilations that hang which a search for the op may wait for."""


def accuse(ladder: Ladder, explain: Explain | None = None) -> None:
    """Put the findings of a fault in the result: of stages that can be to blame, and one at least.

    `explain` makes them from what the rungs have found; `findings_for` does unless another is passed.
    """
    states = ladder.states()
    first = first_wrong(states) or ladder.top
    certain = ladder.seen(first).certain
    seen = _seen(ladder, certain)
    explain = explain or (_of_entries if ladder.compilation.entries else findings_for)
    guilty = explain(ladder, first, to_blame(ladder.result.findings, seen), certain)
    seen = _seen(ladder, certain)  # of a backend that calls Inductor, its rungs are
    guilty = to_blame(guilty, seen) or [by_its_rung(guilty[0], seen)]
    ladder.tell_latent([f for f in ladder.result.findings if f not in guilty])
    ladder.result.findings = guilty
    notes.as_the_program_fails(ladder.result.findings, "aliasing", certain)
    for finding in ladder.result.findings:
        finding.worst = finding.worst or (worst_of(certain) if finding.kind in whole_proof.NUMBERS else None)
        ladder.compilation.complete(finding)
    proven = any(f.proof for f in ladder.result.findings)
    with ladder.in_time("whether the program fails by itself"):
        if not proven or whole_proof.has_long_repro(ladder.result.findings[0]):
            prove = whole_proof.shorten_by_program if proven else whole_proof.prove_by_program
            ladder.by_program(prove, next((d.where for d in certain), ""))
        if not any(f.proof for f in ladder.result.findings):
            _repeat(ladder)
    ladder.result.findings.sort(key=lambda f: STAGES.index(f.stage) if f.stage in STAGES else len(STAGES))


def _seen(ladder: Ladder, certain: Sequence[Difference]) -> RungEvidence:
    """What findings are held against, with what is called: by graphs, by the program's code, and by torch's for it."""
    seen, reports = held_against(ladder.rungs, certain), [rung.report for rung in ladder.rungs.values() if rung.report]
    called = {name for report in reports for name in report.called}
    modules = [part for module in ladder.program.modules() for part in module.modules()]
    functions: list[Any] = [*functions_of(ladder.program.fn), *(type(module).forward for module in modules)]
    codes = [fn.__code__ for fn in functions if isinstance(fn, FunctionType)]
    edge = {base_of(name) for code in codes for name in names_of_code(code)} if called else set()
    while edge:
        called |= edge
        known = [getattr(owner, name, None) for name in edge for owner in PYTHON]
        codes = [value.__code__ for value in known if isinstance(value, FunctionType)]
        edge = {base_of(name) for code in codes for name in names_of_code(code)} - called
    return replace(seen, called=called)


def _repeat(ladder: Ladder) -> None:
    """How often the program itself fails, where nothing else does; what never fails again is no fault."""
    again = ladder.plain()
    failed = sum(not _is_right(ladder, again) for _ in range(REPEATS))
    for finding in ladder.result.findings:
        finding.flaky_rate = (1 + failed) / (1 + REPEATS)
    if not failed:
        ladder.tell_latent(ladder.result.findings)
        ladder.result.verdict, ladder.result.findings = "undecided", []
        ladder.result.notes.insert(0, f"it differed in one run, and in none of {REPEATS} more")


def findings_for(
    ladder: Ladder, rung: RungName, given: Sequence[Finding], differences: Sequence[Difference]
) -> list[Finding]:
    """The findings of a failure that shows first on `rung`: one at least.

    They are those that the rungs have given, with what searches find where none of these explains it.
    """
    if ladder.compilation.maker is not None and rung == ladder.top and differences[0].kind not in DEATHS:
        with ladder.in_time("which pass of the backend is to blame"):
            given = [*given, *_of_own_backend(ladder, differences)]
            rung = first_wrong(ladder.states()) or rung
    with ladder.in_time("whether a relation between values is to blame"):
        ladder.runner.begin("culprit")
        if found := relations.related(ladder, rung, differences):
            return found
    given = _without_bystanders(ladder, rung, given, differences)
    return given if is_explained(rung, given) else [*given, *_unexplained(ladder, rung, differences)]


def _of_entries(
    ladder: Ladder, rung: RungName, given: Sequence[Finding], differences: Sequence[Difference]
) -> list[Finding]:
    """The finding of what is right compiled afresh, and wrong with what torch has kept of earlier compilations."""
    first, entries = differences[0], ladder.compilation.entries
    reason = told_more(first.text, notes.KEPT.format(entries=", ".join(entries)))
    return [Finding(kind=first.kind, reason=reason, stage="runtime", worst=first.worst)]


def _of_own_backend(ladder: Ladder, differences: Sequence[Difference]) -> list[Finding]:
    """Its passes that are wrong; of a backend that calls Inductor what Inductor's rungs say, if that fails alone."""
    ladder.runner.begin("passes")
    report = _asked(ladder, partial(steps.own_passes, ladder.program, ladder.compilation, differences[0]))
    ladder.result.notes += report.notes
    ladder.raised_in = report.origin.pass_ if report.origin is not None else None
    if report.findings or ladder.raised_in is not None or not report.calls_inductor:
        return report.findings
    inductor = replace(ladder.compilation, backend="inductor")
    if _is_right(ladder, partial(steps.plain, ladder.program, inductor)):
        return []
    ladder.compilation = inductor
    ladder.climb_rungs()
    return to_blame(ladder.result.findings, held_against(ladder.rungs, differences))


def is_explained(rung: RungName, findings: Sequence[Finding]) -> bool:
    """Whether a finding is of a stage that the rung has: later faults do not make it fail."""
    last = STAGES.index(LAST_STAGE[rung])
    return any(f.stage not in STAGES or STAGES.index(f.stage) <= last for f in findings)


def _without_bystanders(
    ladder: Ladder, rung: RungName, given: Sequence[Finding], differences: Sequence[Difference]
) -> list[Finding]:
    """Without decompositions that give another dtype, shape or strides where numbers are wrong, and still are wrong if
    the operation is left whole: most programs do not mind."""
    doubtful = [f for f in given if f.kind in LAID_OUT and f.stage == "decomposition" and f.op is not None]
    if rung != "passes" or not doubtful or any(d.kind in LAID_OUT for d in differences):
        return list(given)
    guilty = list(doubtful)
    with ladder.in_time("whether other dtypes and strides of decompositions matter"):
        ladder.runner.begin("culprit")
        asked = partial(steps.upto, ladder.program, ladder.compilation, "decomposition")
        fails = not _is_right(ladder, asked)
        whole = partial(steps.left_whole, ladder.program, ladder.compilation)
        guilty = [f for f in doubtful if fails and _is_right(ladder, partial(whole, f.op))]
    return [f for f in given if f not in doubtful or f in guilty]


def _is_right(ladder: Ladder, step: Callable[[], RungReport]) -> bool:
    report = ladder.answer(step, RungReport)
    return report is not None and not ladder.differences(report)


def _unexplained(ladder: Ladder, rung: RungName, differences: Sequence[Difference]) -> list[Finding]:
    first = differences[0]
    known = Finding(kind=first.kind, reason=first.text, stage="unknown", worst=first.worst)
    with ladder.in_time(BLAME):
        ladder.runner.begin("culprit")
        # Frames tell nothing of a compiler whose parts are unknown: its errors pass through Dynamo's.
        origin = ladder.seen(rung).origin if ladder.compilation.is_inductor else None
        evidence = _evidence(ladder, rung, origin, first)
        stage, why = stage_of(evidence)
        log.info("unexplained on %s: %s, since %s", rung, stage, why)
        culprit = _culprit(ladder, origin, first, evidence.graphs_wrong)
        known = culprit.told_in(msgspec.structs.replace(known, stage=stage))
        found = _found(ladder, rung, evidence, known, culprit, differences)
        with ladder.in_time("whether each call is right if it is compiled afresh"):
            if rung == "dynamo" and relations.is_unguarded(ladder, first):
                for finding in found:
                    _unguarded(ladder, finding, first)
        return found
    if first.kind in RAISED and known.op is not None and known.stage != "unknown":
        ladder.result.notes[-1] = ladder.result.notes[-1].replace(f"{BLAME} was not found out", ERROR_NAMES)
    return [known]


def _unguarded(ladder: Ladder, finding: Finding, first: Difference) -> None:
    """Say which guard the program drops, or that no guard looks at what has changed."""
    program, how = ladder.program, ladder.compilation
    compiled = Compiled(program.fn, "eager", how.dynamic, guard_filter=how.guard_filter)
    if not blame_dropped_guard(finding, compiled, program.calls, program.calls[first.call], ladder.limits.budget):
        finding.reason = told_more(finding.reason, relations.UNGUARDED)
        finding.relation = relations.STALE.format(finding.op) if finding.op else None


def _evidence(ladder: Ladder, rung: RungName, origin: Origin | None, first: Difference) -> Evidence:
    below = ladder.states().get("kernels", "not_run") if rung == "plain" else "right"
    doubtful = rung == "dynamo" and origin is not None and origin.stage == "decomposition"  # it may be caught
    return Evidence(
        first.kind,
        _graphs_wrong(ladder, rung),
        raised_in=origin.stage if origin is not None else None,
        cached=rung == "plain" and below == "right",
        graphs_run=below != "not_run",
        saved_check="modified by an inplace operation" in first.text,
        caught=bool(doubtful and ladder.answer(partial(steps.catches, ladder.program), bool)),
        inductor=ladder.compilation.is_inductor,
    )


def _found(
    ladder: Ladder,
    rung: RungName,
    evidence: Evidence,
    known: Finding,
    culprit: Culprit,
    differences: Sequence[Difference],
) -> list[Finding]:
    """What the searches make of a failure of which `known` is certain; this itself if they find nothing."""
    whole = partial(find_whole, ladder.program, ladder.compilation, known)
    if evidence.cached:
        ladder.result.notes.append("it goes wrong only as torch compiles it by itself: unobserved, with its caches")
        report = ladder.seen(rung).report
        observed = report.calls if report is not None else []
        return _ask(ladder, partial(whole, observed=observed)) or [known]
    if found := _searched(ladder, rung, evidence, known.stage, culprit, differences):
        return found[:1] if culprit.op is not None else found
    earliest = FIRST_STAGE[rung] if ladder.compilation.is_inductor and rung != "plain" else "dynamo"
    return _ask(ladder, partial(whole, where=differences[0].where, earliest=earliest)) or [known]


def _searched(
    ladder: Ladder, rung: RungName, evidence: Evidence, stage: Stage, known: Culprit, differences: Sequence[Difference]
) -> list[Finding]:
    """What the searches find that look into one kind of failure each, the special ones first."""
    program, compilation, first = ladder.program, ladder.compilation, differences[0]
    crashed = first.kind in ("crash_compile", "crash_runtime", "segfault", "hang")
    found: list[Finding] = []
    if stage == "decomposition" and not crashed:
        found = _laid_out_otherwise(ladder, rung, differences)
    point = evidence.graphs_wrong
    if not found and point in ("partition", "pre_grad", "joint", "post_grad") and not crashed:
        found = _ask(ladder, partial(steps.between, program, compilation, point))
    if not found and first.kind != "side_effect":
        wanted = rung if rung in ("dynamo", "aot", "kernels") else stage if compilation.is_inductor else "backend"
        found = _ask(ladder, partial(steps.blame, program, compilation, wanted, known, first))
    return found


def _laid_out_otherwise(ladder: Ladder, rung: RungName, differences: Sequence[Difference]) -> list[Finding]:
    """Decompositions whose results have other strides, which the program makes another failure of."""
    found = _ask(ladder, partial(steps.aot, ladder.program, ladder.compilation, strides=True))
    found = _without_bystanders(ladder, rung, found, differences)
    as_the_program_fails(found, "wrong_stride", differences)
    return found


def _culprit(ladder: Ladder, origin: Origin | None, first: Difference, point: Graphs | None) -> Culprit:
    """What is certain before any search: the place that an exception's frames name, or the op that should raise."""
    known = Culprit(pass_=ladder.raised_in)
    if origin is not None and (origin.op or origin.pass_):
        known = msgspec.structs.replace(origin, pass_=origin.pass_ or known.pass_)
    more = f"It was raised while {origin.pattern} was matched." if origin and origin.pattern else known.reason
    known = msgspec.structs.replace(known, reason=told_more(first.text, more) if more else "")
    expected = ladder.reference.eager[0][first.call] if ladder.reference is not None else None
    below = ladder.seen("aot").report
    if known.op is None and (named := NAMED_OP.search(first.text)):
        known = msgspec.structs.replace(known, op=named[1])
    if known.source is None and (line := user_line(first.log)):
        known = msgspec.structs.replace(known, source=line)
    where = below.raised_at if below is not None else None
    if known.op is None and expected is not None and expected.raised is not None and where is not None:
        # Uncompiled it raises: the op that does is the one that must not do something else instead.
        known = msgspec.structs.replace(where, pass_=known.pass_, source=where.source or known.source)
    if first.kind in DEATHS and point is not None and known.op is None:
        return _last_run(ladder, point) or known
    return known


def _last_run(ladder: Ladder, point: Graphs) -> Origin | None:
    """The operation of a graph that was run when the process ended; nothing where no graph ran op by op."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "last.json")
        ladder.step(partial(steps.upto, ladder.program, ladder.compilation, point, told=told))
        try:
            return msgspec.json.decode(told.read_bytes(), type=Origin)
        except (OSError, msgspec.DecodeError):  # it ended while the file was written
            return None


def _graphs_wrong(ladder: Ladder, rung: RungName) -> Graphs | None:
    """The first point of the pipeline whose graphs fail, as far as the rungs tell; of the passes each is tried."""
    if rung == "dynamo":
        return "dynamo"
    if rung == "aot" or ladder.compilation.is_aot_eager:
        return "aot"
    if rung != "passes":
        return None
    points: tuple[Graphs, ...] = ("decomposition", "partition", "pre_grad", "joint")
    upto = partial(steps.upto, ladder.program, ladder.compilation)
    return next((point for point in points if not _is_right(ladder, partial(upto, point))), "post_grad")


def _ask(ladder: Ladder, step: Any) -> list[Finding]:
    return _asked(ladder, step).findings


def _asked(ladder: Ladder, step: Any) -> RungReport:
    outcome = ladder.step(step, compilations=SEARCHED)
    if outcome.died or outcome.raised is not None:
        if outcome.raised is not None:
            log.info("a search for the op: %s", outcome.raised.trace)
        why = outcome.raised.line if outcome.raised is not None else outcome.end
        ladder.result.notes.append(f"a search for the op ended early: {why}")
        return RungReport()
    report = msgspec.convert(outcome.value, RungReport)
    ladder.result.compiles += report.compiles
    ladder.suspected += report.suspected
    ladder.runner.tell(*notes.proven(report.findings))
    return report
