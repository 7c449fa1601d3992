"""The steps of a diagnosis that run in child processes, each with what it looks into."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from graphprobe.diagnose.evidence import RAISED
from graphprobe.diagnose.exceptions import Culprit, Origin
from graphprobe.diagnose.kernel_check import CompiledGraph, check_graph
from graphprobe.diagnose.local import Checked, LocalError, Suspect
from graphprobe.diagnose.notes import NOT_LOOKED_INTO, UNWATCHED
from graphprobe.diagnose.passes import Step, analyse, changed_between, own_culprit, saved_wrongly
from graphprobe.diagnose.program import Program, tensors_of
from graphprobe.diagnose.prove import Prover
from graphprobe.diagnose.reduction.transforms import BEFORE_ATEN, without_transforms
from graphprobe.diagnose.rungs import (
    DynamoGraph,
    RungReport,
    StageGraph,
    Watch,
    aot_rung,
    dynamo_rung,
    graphs_rung,
    kernel_rung,
    own_rung,
    run_program,
    show,
    stage_rung,
)
from graphprobe.diagnose.searches.blame import graphs_of_calls, isolated_suspects
from graphprobe.diagnose.searches.decompositions import check_decompositions
from graphprobe.diagnose.searches.equal_graphs import EQUAL
from graphprobe.diagnose.searches.kernel_names import MORE, alone, far_off_launches, name_kernels
from graphprobe.diagnose.settings import Compilation
from graphprobe.engine.forked_child import doing
from graphprobe.engine.interpret import flat_outputs
from graphprobe.engine.memory import size_of, trim
from graphprobe.engine.subgraph import is_view
from graphprobe.engine.value_file import stored
from graphprobe.errors import raised_from
from graphprobe.findings import Finding
from graphprobe.internals.aot_backends import lookup
from graphprobe.internals.caches import bypassed, caches_renewed, entries_read
from graphprobe.internals.dynamo.compile_facts import breaks_made, given_up, graphs_made
from graphprobe.internals.inductor.executable_snapshots import OwnPasses
from graphprobe.internals.operators.operators import OpMode, Overload, value_of
from graphprobe.judge.judging import Difference
from graphprobe.judge.observation import ObservationRecord, plain_parts, read
from graphprobe.judge.stage_table import GRAPHS, Graphs
from graphprobe.judge.verdict import RungName
from graphprobe.probe.active import observe_pass
from graphprobe.program_text.sources import own_function

log = logging.getLogger(__name__)

MOST_PROOFS = 4
"""Faults proven in one step; the rest are named as unproven."""


class EagerReport(msgspec.Struct):
    """The program uncompiled.

    Attributes:
        calls: what each call gave.
        before: the inputs before the first call, see `engine.value_file.stored`.
        draws: its calls move a random generator.
        moves: so do they, or what runs between them.
        no_backward: a call has returned, and the backward from what it returned raises.
        roundoff: u of the coarsest floating-point dtype among inputs and outputs.
    """

    calls: list[ObservationRecord]
    before: tuple[bytes, bytes]
    draws: bool = False
    moves: bool = False
    no_backward: bool = False


def eager(program: Program, *, unlike: bool = False) -> EagerReport:
    """Run the program as it is; `unlike` another such run in what memory holds that was never written."""
    if unlike:
        scribble()
    inputs = [*tensors_of(program.calls[0]), *program.state()]
    before = stored([[part.detach() for t in inputs for part in plain_parts(t)]], program.file)
    draws, returned = False, 0

    def watched(fn: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal draws, returned
            state = torch.get_rng_state()
            try:
                result = program.as_traced(fn)(*args, **kwargs)
                returned += 1
                return result
            finally:
                draws = draws or not torch.equal(state, torch.get_rng_state())

        return call

    start = torch.get_rng_state()
    calls = program.run(watched)
    no_backward = returned > sum(call.raised is None for call in calls)
    return EagerReport(calls, before, draws, not torch.equal(start, torch.get_rng_state()), no_backward)


def scribble() -> None:
    """Leave other bytes than before in the memory that is free, so that what reads it gives another value."""
    for size in (1 << n for n in range(6, 23)):
        kept = [torch.full((size,), 0x5B + i, dtype=torch.uint8) for i in range(8)]
        del kept


def catches(program: Program) -> bool:
    """Whether operations raise uncompiled, and the program goes on."""
    raised: list[Overload] = []

    def around(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return op(*args, **kwargs)
        except Exception:
            raised.append(op)
            raise

    with OpMode(around):
        calls = program.run(lambda fn: fn)
    return bool(raised) and all(read(call).raised is None for call in calls)


def dynamo(program: Program, compilation: Compilation) -> RungReport:
    """Dynamo's graphs, run as they are."""
    watch = Watch(file=program.file)
    report = run_program(program, compilation, dynamo_rung(watch))
    report.called = watch.called()
    return report


def aot(program: Program, compilation: Compilation, *, strides: bool = False) -> RungReport:
    """AOTAutograd's graphs run op by op; each op against its decomposition, with `strides` their layouts too."""
    watch = Watch(file=program.file)
    report = run_program(program, compilation, aot_rung(watch))
    report.called = watch.called()
    report.raised_at = next((Origin.at(node, stage="runtime") for node in watch.failed_nodes), None)
    report.ops = _ops_of(watch)
    suspects: list[Suspect] = []
    with _told(report, "aot"), _proving(program, compilation, watch.dynamo, report) as prover:
        for graph in watch.graphs:
            for inputs in graph.inputs:
                suspects += _taken_in(report, check_decompositions(graph, inputs, strides=strides))
        _prove(suspects, report, prover)
    if report.checked and not suspects:
        report.right.append(f"decompositions: {report.checked} ops agree with theirs")
    return report


def passes(program: Program, compilation: Compilation, *, skip: Collection[tuple[str, str]] = ()) -> RungReport:
    """Inductor's graph passes, each snapshot run on the real inputs; those of `skip`, (stage, name), are left out."""
    watch = Watch(skip, program.file)
    with watch.snapshots.active():
        report = run_program(program, compilation, stage_rung(watch, "post_grad"))
    report.called = watch.called()
    report.notes += [UNWATCHED.format(names=", ".join(watch.snapshots.missing))] if watch.snapshots.missing else []
    report.ops = _ops_of(watch)
    suspects: list[Suspect] = []
    right: list[str] = []
    with _told(report, "passes"), _proving(program, compilation, watch.dynamo, report) as prover:
        for step in _steps(watch):
            suspects += step.suspects
            right += step.passes
        _prove(suspects, report, prover)
        if right:
            report.right.append(f"passes: {len(right)} that changed a graph compute the same")
    return report


def own_passes(program: Program, compilation: Compilation, wanted: Difference) -> RungReport:
    """Which pass of the program's own backend is to blame: its graphs, before and after, on the real inputs.

    Where a pass raises, `report.origin` has it.
    """
    watch, passes = Watch(file=program.file), OwnPasses(own_function(), observe_pass)
    backend = lookup(compilation.backend) if isinstance(compilation.backend, str) else compilation.backend
    with bypassed():
        report = run_program(program, compilation, own_rung(watch, backend, passes))
    report.calls_inductor = passes.calls_inductor
    if report.origin is not None:
        report.origin = msgspec.structs.replace(report.origin, pass_=passes.raised_in)
    suspects: dict[str | None, Suspect] = {}
    with _told(report, "passes"), _proving(program, compilation, watch.dynamo, report) as prover:
        for owner, log in passes.logs:
            direction = owner.direction if isinstance(owner, StageGraph) else "forward"
            for inputs in _own_inputs(owner, log.snapshots[0].graph, watch):
                suspect = own_culprit(log, inputs, direction, raises=wanted.kind in RAISED)
                if suspect is not None:
                    suspects.setdefault(suspect.pass_, suspect)
        for suspect in suspects.values():
            unproven = Finding(kind=wanted.kind, stage="backend", pass_=suspect.pass_, reason=wanted.text)
            report.findings.append(prover.prove(suspect) or suspect.place.told_in(unproven))
    return report


def _own_inputs(owner: StageGraph | DynamoGraph, graph: torch.fx.GraphModule, watch: Watch) -> list[list[Any]]:
    """Values for the placeholders of a graph that a compiler was given, or made of that one, of the joint one, too."""
    if isinstance(owner, StageGraph):
        given = owner.inputs
    else:
        parts = [part for part in watch.graphs if watch.dynamo[part.owner] is owner]
        given = _joint_inputs(graph, parts) or [call.restore() for call in owner.calls]
    count = sum(node.op == "placeholder" for node in graph.graph.nodes)
    return [inputs for inputs in given if len(inputs) == count]


@contextlib.contextmanager
def _told(report: RungReport, rung: RungName) -> Iterator[None]:
    """What raises while a rung is looked into is told, and what the program did on it stays."""
    try:
        yield
    except Exception as error:
        raised = raised_from(error)
        log.info("%s: %s", rung, raised.trace)
        report.notes.append(NOT_LOOKED_INTO.format(rung=rung, why=raised.line))


@contextlib.contextmanager
def _proving(
    program: Program, compilation: Compilation, graphs: Sequence[DynamoGraph], report: RungReport
) -> Iterator[Prover]:
    """What proves suspects, with torch as it is for the compilation."""
    with compilation.configured():
        prover = Prover(compilation, graphs, bool(program.grad))
        yield prover
        report.compiles += prover.compiles


def _ops_of(watch: Watch) -> int:
    nodes = (node for graph in watch.graphs for node in graph.graph.graph.nodes if node.op == "call_function")
    values = (v for node in nodes if not is_view(node) for v in flat_outputs(value_of(node)))
    return sum(size_of(v) for v in values if isinstance(v, torch.Tensor))


def _steps(watch: Watch) -> list[Step]:
    found: list[Step] = []
    for number, graph in enumerate(watch.dynamo):
        mine = [g for g in watch.graphs if g.owner == number]
        for log in graph.logs:
            if log.phase == "pre_grad":
                found += [analyse(log, call.restore(), "forward") for call in graph.calls]
            if log.phase == "joint":
                found += [analyse(log, inputs, "forward") for inputs in _joint_inputs(log.snapshots[0].graph, mine)]
    for stage_graph in watch.graphs:
        if stage_graph.log is not None:
            found += [analyse(stage_graph.log, inputs, stage_graph.direction) for inputs in stage_graph.inputs]
    return found


def _joint_inputs(joint: torch.fx.GraphModule, graphs: Sequence[StageGraph]) -> list[list[Any]]:
    """Values for the joint graph's placeholders, from those of the forward and backward graphs, by name."""
    names = [n.name for n in joint.graph.nodes if n.op == "placeholder"]
    found = []
    for call in range(max((len(g.inputs) for g in graphs), default=0)):
        known: dict[str, Any] = {}
        for graph in graphs:
            if call < len(graph.inputs):
                own = [n.name for n in graph.graph.graph.nodes if n.op == "placeholder"]
                known |= {k: v for k, v in zip(own, graph.inputs[call], strict=False) if k not in known}
        if all(name in known for name in names):
            found.append([known[name] for name in names])
    return found


def kernels(
    program: Program,
    compilation: Compilation,
    *,
    expose: bool = True,
    everywhere: bool = True,
    only_alone: bool = False,
    launches: bool = True,
    values: bool = True,
) -> RungReport:
    """Inductor's kernels; with `expose`, every value of its graphs against the op run by itself.

    Without `everywhere` launches are replaced first where a graph is far off; where that names no op, the values are
    those of graphs that are wrong, or cannot be judged as a whole; of all if none is. Without `launches` the first of
    this is left out, without `values` the second. With `only_alone` an op is accused only if it is wrong when compiled
    by itself: in a graph that is wrong already, others may look wrong.
    """
    watch = Watch(file=program.file)
    report = run_program(program, compilation, kernel_rung(watch, expose=expose))
    report.called = watch.called()
    program.drop_gradients()
    trim()
    report.notes += [EQUAL.format(count=count) for count in watch.equal.values() if expose and count > 1]
    with _told(report, "kernels"), _proving(program, compilation, watch.dynamo, report) as prover:
        suspects = far_off_launches(watch.compiled, prover) if launches and not everywhere else []
        told: list[str] = []
        if values and not suspects:
            suspects = _looked_into(watch, report, prover, told, everywhere, only_alone)
        report.compiles += len(watch.compiled) + sum(bool(compiled.shown) for compiled in watch.compiled)
        report.notes += [compiled.problem for compiled in watch.compiled if compiled.problem]
        _prove(suspects, report, prover)
        # What replacing launches could not tell would contradict what is proven by itself.
        report.notes += [note for note in told if not report.findings or MORE in note]
    return report


def _looked_into(
    watch: Watch, report: RungReport, prover: Prover, told: list[str], everywhere: bool, only_alone: bool
) -> list[Suspect]:
    """What is wrong among the values of compiled graphs, with its kernels; `told` gets what these could not tell."""
    wrong: list[tuple[CompiledGraph, int]] = []
    suspects = _checked(watch, watch.compiled, report, wrong, everywhere)
    if not wrong and not suspects:
        unseen = [compiled for compiled in watch.compiled if compiled.to_show is not None]
        suspects = _checked(watch, unseen, report, wrong, True)
    suspects = [*alone([s for s in suspects if not s.whole], prover), *(s for s in suspects if s.whole)]
    if only_alone:
        suspects = [s for s in suspects if s.wrong_alone]
    return name_kernels(watch.compiled, wrong, suspects, told, more=not only_alone)


def _checked(
    watch: Watch,
    graphs: Sequence[CompiledGraph],
    report: RungReport,
    wrong: list[tuple[CompiledGraph, int]],
    everywhere: bool,
) -> list[Suspect]:
    """What is wrong in compiled graphs; calls that are wrong as a whole go into `wrong`."""
    suspects: list[Suspect] = []
    for compiled in graphs:
        before, checked = len(suspects), report.checked

        def show_if_wrong(whole: LocalError, compiled: CompiledGraph = compiled) -> None:
            if everywhere or whole.answer != "ok":
                show(watch, compiled)

        for call in range(len(compiled.inputs)):
            result = check_graph(compiled, call, show_if_wrong)
            suspects += _taken_in(report, result)
            if result.whole.answer == "worse":
                wrong.append((compiled, call))
        if len(suspects) == before and report.checked > checked:
            agree = f"{report.checked - checked} values agree with their ops"
            report.right.append(f"{compiled.direction} kernels: {agree}")
    return suspects


def blame(
    program: Program, compilation: Compilation, stage: str, certain: Culprit, wanted: Difference | None = None
) -> RungReport:
    """Which of Dynamo's nodes fails on the rung of `stage`, each compiled by itself on the values it got.

    `certain`: what is known of the culprit already; `wanted`: the failure that is looked for.
    """
    watch = Watch(file=program.file)
    report = run_program(program, compilation, dynamo_rung(watch))
    graphs = [graph for graph in watch.dynamo if graph.calls]
    if not graphs and wanted is not None and wanted.kind == "crash_compile" and certain.op is not None:
        graphs = graphs_of_calls(program, certain.op)
    with _proving(program, compilation, graphs, report) as prover:
        for graph in graphs:
            if not report.findings or graph in watch.dynamo:
                if stage not in BEFORE_ATEN:
                    graph.graph = without_transforms(graph.graph, graph.calls)
                suspects = isolated_suspects(graph, stage, compilation, bool(program.grad), wanted)
                if certain.op is not None:
                    suspects = [replace(s, also=[s.op, *s.also]) for s in suspects]
                _prove([replace(s, certain=certain) for s in suspects], report, prover)
    return report


def between(program: Program, compilation: Compilation, point: Graphs) -> RungReport:
    """Which node this point of the pipeline has changed, against the graphs of the point before it."""
    report, right, wrong = RungReport(), Watch(file=program.file), Watch(file=program.file)
    earlier = GRAPHS[GRAPHS.index(point) - 1]
    run_program(program, compilation, graphs_rung(right, earlier))
    run_program(program, compilation, graphs_rung(wrong, point))
    stage: Any = "joint" if point == "partition" else point
    suspects: list[Suspect] = []
    for a, b in zip(right.graphs, wrong.graphs, strict=False):
        if a.direction == b.direction and a.inputs and b.inputs:
            forward = next((g for g in right.graphs if g.direction == "forward" and g.owner == a.owner), None)
            found = None
            if point == "partition" and a.direction == "backward" and forward is not None and forward.inputs:
                found = saved_wrongly(forward.graph, forward.inputs[0], a.graph, b.graph, a.inputs[0], b.inputs[0])
            if found is None:
                found = changed_between(stage, a.direction, a.graph, b.graph, a.inputs[0], b.inputs[0])
            suspects += [found] if found is not None else []
    # By the values, which tell more than what is left of the whole graph. What is wrong in the forward shows again in
    # the backward.
    whole = [replace(s, whole=True, certain=s.place) for s in suspects[:1]]
    with _proving(program, compilation, wrong.dynamo, report) as prover:
        _prove(whole, report, prover)
    return report


def upto(program: Program, compilation: Compilation, point: Graphs, told: Path | None = None) -> RungReport:
    """The program on the graphs of one point of the pipeline, op by op; `told`: the file of `Watch.told`."""
    watch = Watch(told=told, recorded=0)
    report = run_program(program, compilation, graphs_rung(watch, point))
    report.ops = _ops_of(watch)
    return report


def left_whole(program: Program, compilation: Compilation, op: str) -> RungReport:
    """The decomposed graphs, run op by op, in which this operation is not decomposed."""
    return run_program(program, compilation, aot_rung(Watch(recorded=0), decompose=True, whole=(op,)))


def plain(program: Program, compilation: Compilation, *, renewed: bool = True) -> RungReport:
    """The backend as it is, nothing looked into; graph caches are on, and if `renewed` hold nothing from before."""
    before, known, breaks = graphs_made(), given_up(), breaks_made()
    with caches_renewed() if renewed else entries_read() as entries:
        report = run_program(program, compilation, compilation.backend)
    report.entries = list(dict.fromkeys(entries))
    report.breaks = breaks_made() - breaks
    report.graphs = graphs_made() - before
    report.given_up = [reason for reason, count in given_up().items() if count > known.get(reason, 0)]
    return report


def _taken_in(report: RungReport, result: Checked) -> list[Suspect]:
    """The suspects of a check; all else that it found goes into the report."""
    report.checked += result.checked
    report.wider += result.wider
    report.rounded += result.rounded
    report.largest = max(report.largest, result.largest, key=lambda one: one.z)
    return result.suspects


def _prove(suspects: Sequence[Suspect], report: RungReport, prover: Prover) -> None:
    groups: dict[tuple[str, str, str], list[Suspect]] = {}
    for suspect in suspects:
        groups.setdefault((suspect.stage, suspect.pass_ or suspect.op, suspect.direction), []).append(suspect)
    for number, group in enumerate(list(groups.values())[:MOST_PROOFS], 1):
        if prover.compilation.first and report.findings:
            return
        doing(f"proving suspect {number} of {len(groups)}, {group[0].op}")
        group.sort(key=lambda s: -s.error.excess)
        finding = next(filter(None, (prover.prove(s) for s in group[:2])), None)
        best = group[0]
        if finding is not None:
            others = [s.op for s in group[1:] if s.op != finding.op]
            finding.also = list(dict.fromkeys([*finding.also, *others]))
            places = dict.fromkeys((s.source, s.module) for s in group if s.source is not None)
            finding.places = [f"{source} in {module}" if module else str(source) for source, module in places]
            known = next((f for f in report.findings if _is_one_cause(f, finding)), None)
            if known is None:
                report.findings.append(finding)
            else:
                _join(known, finding)
        else:
            latent = best.error.latent(best.node, best.stage, best.direction)
            report.suspected.append(msgspec.structs.replace(latent, op=best.op, source=best.source))


def _is_one_cause(a: Finding, b: Finding) -> bool:
    """Whether two suspects turned out to be the same operation: it is computed in several kernels, say."""
    alike = (a.stage, a.pass_, a.op) == (b.stage, b.pass_, b.op)
    return alike and (a.direction == b.direction or (a.source is not None and a.source == b.source))


def _join(known: Finding, more: Finding) -> None:
    """One finding and one dossier for both."""
    known.also = list(dict.fromkeys([*known.also, *(op for op in more.also if op != known.op)]))
    known.places = list(dict.fromkeys([*known.places, *more.places]))
    if more.dossier is not None:
        shutil.rmtree(more.dossier, ignore_errors=True)
