"""One diagnosis of what was exported, traced or packaged: its graphs are the rungs, who made them are the culprits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import torch

from graphprobe.diagnose import notes
from graphprobe.diagnose.evidence import RAISED
from graphprobe.diagnose.ladder import Ladder
from graphprobe.diagnose.passes import own_culprit
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.prove import Prover
from graphprobe.diagnose.rungs import DynamoGraph, RungReport
from graphprobe.diagnose.script_calls import name_of
from graphprobe.diagnose.searches.exactness import look_at_bits
from graphprobe.diagnose.searches.registrations import registered_wrongly
from graphprobe.diagnose.settings import Compilation, Limits
from graphprobe.diagnose.settle import UNSEEN, RungSeen
from graphprobe.diagnose.unexplained import accuse
from graphprobe.diagnose.ways.way_backends import backend_of, own_rule, packaging
from graphprobe.diagnose.ways.way_program import WayCall, lifted, plain_results, runnable
from graphprobe.engine.values import capture
from graphprobe.findings import Diagnosis, Finding, NamedStep, Rung, Stage, told_more
from graphprobe.internals.inductor.executable_snapshots import ExecutableSnapshot, PassLog
from graphprobe.internals.operators.operators import value_of
from graphprobe.internals.way_taps import WayGraph
from graphprobe.judge.judging import Difference, identical, worst_of

log = logging.getLogger(__name__)

STAGE_OF: dict[str, Stage] = {"export": "trace", "trace": "trace", "decompose": "decomposition"}
"""By how a graph is made; of others a pass."""

DRAWS = "it draws random numbers, and what was made of it draws them in another way, so that the two cannot be compared"
KEEPS, ROUNDS = "it keeps every bit", "it is right, and rounds otherwise"
UNTOLD = "it could not be called on another graph, so that nothing smaller was tried"


class WayLadder(Ladder):
    """One diagnosis of a call of the last graph of a way, or of its package."""

    def __init__(
        self,
        held: WayCall,
        compilation: Compilation,
        limits: Limits,
        on_step: Callable[[NamedStep], None] | None = None,
    ) -> None:
        super().__init__(held.program(), compilation, limits, on_step)
        self.held_call = held
        self.graph_rungs: dict[WayGraph, RungSeen] = {}

    def plain(self) -> Callable[[], RungReport]:
        """What the program calls."""
        return partial(run_called, self.program, self.held_call, self.held_call.called)

    def told_rungs(self) -> list[Rung]:
        """How each graph did, and what the program calls."""
        made = [notes.rung(graph.made_by, seen.differences) for graph, seen in self.graph_rungs.items()]
        return [*made, notes.rung("plain", self.seen("plain").differences)]

    def climb_rungs(self) -> None:
        """Each graph, up to the first that is wrong."""
        before: RungReport | None = None
        for graph in self.held_call.graphs:
            self.runner.begin(graph.made_by)
            report = self.answer(partial(run_graph_of_way, self.program, self.held_call, graph), RungReport)
            self.graph_rungs[graph] = UNSEEN if report is None else self.held(report)
            if self.graph_rungs[graph].certain:
                return
            if before is not None and report is not None and self.graph_rungs[graph].differences == []:
                self.result.ruled_out.append(f"{graph.made_by}: {self._bits(before, report)}")
            before = report

    def _bits(self, before: RungReport, after: RungReport) -> str:
        """Whether a graph that is right returns the bits of the one before it."""
        assert self.reference is not None
        earlier = replace(self.reference, eager=[self._read(before.calls)])
        same = self._judge(partial(identical, earlier, self._read(after.calls)), bool)
        return KEEPS if same else ROUNDS

    def held(self, report: RungReport, *, as_user: bool = False) -> RungSeen:
        """As of any rung. Decompositions and Inductor draw random numbers in ways of their own, which is no fault."""
        seen = super().held(report, as_user=as_user)
        others = any(graph.kind == "decompose" for graph in self.held_call.graphs) or not self.held_call.is_graph
        if self.reference is None or not self.reference.draws or not others or not seen.certain:
            return seen
        self.result.notes.append(DRAWS)
        return replace(seen, differences=notes.unsure_of_numbers(seen.differences or []))

    def first_wrong(self) -> WayGraph | None:
        """The first graph that computes something else."""
        return next((graph for graph, seen in self.graph_rungs.items() if seen.certain), None)


def run_called(program: Program, held: WayCall, called: Callable[..., Any]) -> RungReport:
    """The calls made on `called`."""
    report = RungReport()

    def make(fn: Any) -> Callable[..., Any]:
        original = held.original.traced.fn
        return lambda *args, **kwargs: plain_results(held, original, called, args, kwargs)

    report.calls = program.run(make)
    return report


def run_graph_of_way(program: Program, held: WayCall, graph: WayGraph) -> RungReport:
    """The same on one of the graphs."""
    return run_called(program, held, runnable(graph))


def climbed_way(
    held: WayCall, compilation: Compilation, limits: Limits, *, on_step: Callable[[NamedStep], None] | None = None
) -> Diagnosis:
    """The diagnosis of a call of the last graph of a way."""
    ladder = WayLadder(held, compilation, limits, on_step)
    diagnosis = ladder.climb(partial(accuse_step, on_step=on_step), lambda ladder: None)
    diagnosis.graphs = len(held.graphs)
    return diagnosis


def accuse_step(ladder: Ladder, *, on_step: Callable[[NamedStep], None] | None = None) -> None:
    """Put the findings of a fault in the result: who made the first wrong graph, and the node."""
    assert isinstance(ladder, WayLadder)
    certain, graph = ladder.seen(ladder.top).certain, ladder.first_wrong()
    with ladder.in_time("which operation is to blame"):
        if graph is None or graph.before is None:
            ladder.result.findings = _of_compiler(ladder, graph, certain[0], on_step)
        else:
            ladder.runner.begin("culprit")
            find = partial(blamed_step, ladder.compilation, graph, ladder.held_call, certain[0])
            report = ladder.answer(find, RungReport)
            ladder.result.findings = report.findings if report is not None else []
            ladder.result.compiles += report.compiles if report is not None else 0
    if not ladder.result.findings:
        ladder.result.findings = [_unproven(graph, certain[0])]
    for finding in ladder.result.findings:
        finding.worst = finding.worst or worst_of(certain)


def _unproven(graph: WayGraph | None, difference: Difference) -> Finding:
    made = Finding(kind=difference.kind, stage="unknown", reason=difference.text, worst=difference.worst)
    return made if graph is None else msgspec.structs.replace(made, stage=_stage(graph), pass_=graph.made_by)


def _stage(graph: WayGraph) -> Stage:
    return STAGE_OF.get(graph.kind, "pass")


def _of_compiler(
    ladder: WayLadder, graph: WayGraph | None, certain: Difference, on_step: Callable[[NamedStep], None] | None
) -> list[Finding]:
    """Faults of what traced the program, or, where all graphs are right, of what compiled the last one."""
    held = ladder.held_call
    traced = held.original.traced
    if graph is not None:
        traces = backend_of(graph)
        found = _nested(ladder, Program(traced.fn, [held.call], grad=None), traces, on_step) if traces else []
        for finding in found:
            finding.stage, finding.pass_, finding.backend = "trace", graph.made_by, None
        return found
    if held.is_graph:
        return []
    last = held.graphs[-1]
    program = Program(runnable(last), [held.call], effects=False, grad=False)
    step = held.refused
    backend: Any = "inductor" if step is None else backend_of(step)
    for dynamic in (None, True) if _has_symbols(last) else (None,):
        ladder.compilation = replace(ladder.compilation, dynamic=dynamic)
        if found := _nested(ladder, program, backend, on_step):
            return found if step is None else [_refused(finding, step, certain) for finding in found]
    if step is not None:
        return []
    found = _nested(ladder, program, packaging(), on_step)
    for finding in found:
        finding.stage, finding.backend = "backend", "aoti_compile_and_package"
    return found


def _refused(finding: Finding, step: WayGraph, certain: Difference) -> Finding:
    """What is found of a step that torch raised an error in the place of."""
    reason = (
        finding.reason if finding.kind == certain.kind else told_more(finding.reason, f"So it ends: {certain.text}")
    )
    more: dict[str, Any] = {"stage": _stage(step), "pass_": step.made_by, "backend": None, "reason": reason}
    return msgspec.structs.replace(finding, **more)


def _has_symbols(graph: WayGraph) -> bool:
    """Whether an input of a graph has a size that is a symbol."""
    values = [value_of(node) for node in graph.graph.graph.nodes if node.op == "placeholder"]
    return any(isinstance(size, torch.SymInt) for value in values for size in getattr(value, "shape", ()))


def _nested(
    ladder: WayLadder, program: Program, backend: Any, on_step: Callable[[NamedStep], None] | None
) -> list[Finding]:
    """What is found of a program that `torch.compile` compiles with this backend."""
    compilation = replace(ladder.compilation, backend=backend)
    nested = Ladder(program, compilation, ladder.limits, on_step)
    made = nested.climb(accuse, look_at_bits, registered_wrongly)
    ladder.result.compiles += made.compiles
    ladder.result.ruled_out += made.ruled_out
    if made.verdict != "fault":
        log.info("as a backend, %s: %s", made.verdict, made.notes)
    return made.findings if made.verdict == "fault" else []


def blamed_step(compilation: Compilation, graph: WayGraph, held: WayCall, wanted: Difference) -> RungReport:
    """The node that a step has broken, with its proof: the graph before it, and the step as a backend."""
    report, backend = RungReport(), backend_of(graph)
    assert graph.before is not None
    right, wrong, inputs = lifted(runnable(graph.before), runnable(graph), held.call)
    phase = PassLog("pass", [ExecutableSnapshot("", right), ExecutableSnapshot(graph.made_by, wrong)])
    suspect = own_culprit(phase, inputs, "forward", raises=wanted.kind in RAISED)
    if suspect is None:
        return report
    unproven = suspect.place.told_in(_unproven(graph, wanted))
    if backend is None:
        unproven.reason = told_more(unproven.reason, f"{graph.made_by}: {UNTOLD}")
        report.findings = [unproven]
        return report
    suspect = replace(suspect, stage=_stage(graph))
    with compilation.configured():
        prover = Prover(replace(compilation, backend=backend), [DynamoGraph(right, [capture(inputs)])], False)
        finding = prover.prove(suspect) or unproven
    rule = own_rule(graph.applied, finding.op or "") if graph.kind == "decompose" else None
    if rule is not None:
        finding.pass_, finding.reason = name_of(rule), told_more(finding.reason, f"It is called by {graph.made_by}.")
    report.findings, report.compiles = [finding], prover.compiles
    return report
