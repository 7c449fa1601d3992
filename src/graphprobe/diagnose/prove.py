"""From a suspect to a finding: the smallest piece of the program that still fails on its own, with its dossier."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from torch.fx import GraphModule, Interpreter, Node

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.check_case import CaseResult, allowed, check, reference_of
from graphprobe.diagnose.culprit import LARGEST, named, ranked, shortened
from graphprobe.diagnose.dossier.long import CHANGES, long_repro
from graphprobe.diagnose.dossier.own_backend import own_backend
from graphprobe.diagnose.dossier.short import short_repros
from graphprobe.diagnose.dossier.writer import NOT_ALONE, first_shown, write_dossier
from graphprobe.diagnose.evidence import RAISED, evidence_of
from graphprobe.diagnose.exceptions import Culprit
from graphprobe.diagnose.local import Suspect
from graphprobe.diagnose.rungs import DynamoGraph
from graphprobe.diagnose.settings import Changed, Compilation, changed_settings
from graphprobe.engine.interpret import plain_value, run_graph
from graphprobe.engine.naming import (
    aten_behind,
    aten_ops,
    module_in_words,
    module_of,
    op_of,
    program_line_of,
    source_of,
)
from graphprobe.engine.subgraph import CALLS, ancestors, extract
from graphprobe.engine.values import CapturedValues, capture
from graphprobe.errors import GraphprobeError
from graphprobe.findings import Finding, Kind, Stage, kind_of_death, told_more
from graphprobe.internals.aot_backends import boxed_call
from graphprobe.internals.inductor.stages import stop_after
from graphprobe.judge.judging import log_of, worst_of
from graphprobe.judge.stage_table import stage_of
from graphprobe.judge.verdict import RungEvidence, base_of, consistent

log = logging.getLogger(__name__)

DEPTHS = (0, 1, 2, 4)
"""How many steps back from the accused node the pieces reach that are tried, one after the other."""

GRAPH_STAGES = ("decomposition", "pre_grad", "joint", "post_grad")
"""Stages whose faults show in Inductor's graphs, before there are kernels."""

NEIGHBOURS = {
    "aot": "Dynamo's graph, run as it is (backend `eager`), is right.",
    "decomposition": "The graph without decompositions (backend `aot_eager`) is right.",
    **dict.fromkeys(("pre_grad", "joint", "post_grad"), "The graph before it, run op by op, is right."),
    **dict.fromkeys(("lowering", "codegen"), "The graph that is lowered, run op by op, is right."),
}
"""What is closest to the failing program and passes, by the stage that is accused."""

WRITTEN_FOR = frozenset("copy index_put slice_scatter select_scatter diagonal_scatter as_strided_scatter".split())
"""What torch writes in the place of a change of memory, or of a call that it decomposes."""

SMALL = 3
"""Calls of a piece that is small enough as it is."""

SHORTEN_S, SHORTEN_WHOLE_S, SHORTEN_CHECKS = 20.0, 60.0, 12
"""For how long a piece of a few calls is made smaller; the second for a larger one, whose repro nobody would read, and
where only what is left can tell which op is to blame: so long, and as many checks of a piece, or a slow machine would
leave more and name another op."""


def graphs_of_inductor(*, lowers: bool = False) -> Any:
    """Inductor's last graphs, run op by op; with `lowers` they are lowered before, for what that raises."""
    from graphprobe.internals.ir.evaluation import lower  # imports Inductor, which takes seconds

    def inner(gm: GraphModule, inputs: Sequence[Any], settings: dict[str, Any]) -> Any:
        if lowers:
            flags = {name: bool(settings.get(name)) for name in ("is_inference", "is_backward")}
            lower(gm, inputs, **flags)
        return boxed_call(Interpreter(gm).run)

    return lambda gm, inputs: stop_after("post_grad", gm, inputs, inner)


class Prover:
    """Finds repros for suspects of one compilation and writes their dossiers."""

    def __init__(self, compilation: Compilation, dynamo: Sequence[DynamoGraph], grad: bool) -> None:
        self.compilation, self.dynamo, self.grad = compilation, dynamo, grad
        self.changed: Changed = changed_settings().with_inductor(compilation.inductor_settings)
        self.own_backend, why = own_backend(compilation.backend)
        self.unsaved = (why,) if why else ()
        self.compiles = 0
        self.check_s = 0.0  # the longest check of a piece so far that ended

    def prove(self, suspect: Suspect) -> Finding | None:
        """The suspect as a finding with its dossier; None when no piece of the program fails on its own."""
        for case in self.candidates(suspect):
            started = time.monotonic()
            result = self.try_case(case, graphs_only=suspect.stage in GRAPH_STAGES)
            seconds, size = time.monotonic() - started, len(case.graph.graph.nodes)
            log.info("%s, a piece of %d nodes: %.1f s, %s", suspect.op, size, seconds, result and result.fails)
            if result is not None and result.fails and _alike(suspect, result):
                return self.finding(suspect, case, result)
        return None

    def try_case(self, case: Case, *, graphs_only: bool = False) -> CaseResult | None:
        """Check a case; None when it cannot even be run uncompiled.

        With `graphs_only` the fault is one of Inductor's graphs: these are run op by op first, which needs no kernels,
        and only a case that fails there is compiled to the end.
        """
        started = time.monotonic()
        try:
            reference = reference_of(case)
        except Exception:  # a piece that cannot stand alone
            return None
        limit = self.compilation.timeout_s
        if graphs_only and self.compilation.is_inductor:
            quick = check(case, timeout_s=limit, reference=reference, backend=graphs_of_inductor, repeats=1)
            if not quick.fails:
                return quick
        self.compiles += 1
        result = check(case, timeout_s=limit, reference=reference, backend=self.compilation.maker)
        if result.died != "timeout":
            self.check_s = max(self.check_s, time.monotonic() - started)
        return result

    def candidates(self, suspect: Suspect) -> Iterator[Case]:
        """Pieces to try, the smallest first: the op, the op with what feeds it, the user's line, the whole graph."""
        tried: set[tuple[str, ...]] = set()
        # A wrong pass needs what it matched; a dead store or a constant is only there in the surroundings.
        cores = [[suspect.node], *([[suspect.node, *suspect.others]] if suspect.others else [])]
        for depth in DEPTHS if not suspect.whole else (DEPTHS[-1] * 4,):
            for core in cores:
                nodes = ancestors([n for n in core if n.op in CALLS], depth)
                key = tuple(sorted(n.name for n in nodes))
                if not nodes or key in tried:
                    continue
                tried.add(key)
                try:
                    graph, inputs = extract(suspect.graph, nodes, suspect.values)
                except (KeyError, AttributeError, RuntimeError):  # a value that was not recorded
                    continue
                yield self.case(graph, [capture(inputs)], suspect.kind)
        line = suspect.source  # whose graphs come first
        order = sorted(self.dynamo, key=lambda d: not any(source_of(n) == line for n in d.graph.graph.nodes))
        yield from (self.whole(graph, suspect.kind) for graph in order if graph.calls)

    def whole(self, graph: DynamoGraph, kind: str) -> Case:
        """One of Dynamo's graphs with all its calls."""
        return self.case(graph.graph, graph.calls, kind, grad=self.grad, dynamic=self.compilation.dynamic)

    def case(
        self,
        graph: GraphModule,
        calls: list[CapturedValues],
        kind: str,
        *,
        grad: bool = False,
        dynamic: bool | None = None,
    ) -> Case:
        """A case with the settings of this compilation."""
        return Case(
            graph,
            calls,
            kind,
            backend=self.compilation.backend_name,
            own_backend=self.own_backend,
            dynamic=dynamic,
            grad=grad,
            unsaved=self.unsaved,
            **self.changed.of_case(),
        )

    def finding(self, suspect: Suspect, case: Case, result: CaseResult) -> Finding | None:
        """Write the dossier of a case that fails; None if what fails in it is a call of another line alone."""
        kind, z, reason = suspect.kind, suspect.error.z, suspect.error.reason
        if result.died is not None:
            kind = shown_by(result, kind)
        elif shown_by(result, kind) == "missing_exception" != kind:  # uncompiled it has no numbers
            kind, z = "missing_exception", float("inf")
            reason = next(d.text for d in result.differences if d.certain)
        if suspect.direction == "backward" and kind == "wrong_value":
            kind = "wrong_gradient"
        lines = {source_of(n) for n in (suspect.node, *suspect.others)}
        tells = suspect.whole and suspect.certain.op is None
        case, result, short = self.smaller(case, result, kind, suspect.stage, lines=lines, tells=tells)
        left = named(case)
        known = suspect.pass_ is not None or suspect.certain.op is not None
        if short and len(left) == 1 and not (suspect.whole or known or {source_of(left[0]), None} & lines):
            log.info("%s is not what fails in the whole graph: %s is", suspect.op, op_of(left[0]))
            return None
        several = 1 < len(left) <= LARGEST or (suspect.whole and short)
        place = self.place_in(case, result, kind) if several and not known else suspect.place
        made = Finding(
            kind=kind,
            stage=suspect.stage,
            direction="backward" if suspect.direction == "backward" else "forward",
            pass_=suspect.pass_,
            op=place.op,
            also=[name for name in dict.fromkeys(place.also) if name != place.op],
            node=place.node,
            kernel=suspect.kernel,
            source=place.source or suspect.source,
            module=place.module or suspect.module,
            local_z=z,
            accumulated_z=max((d.z for d in result.differences), default=0.0),
            flaky_rate=result.rate,
            reason=reason,
            worst=worst_of(result.differences),
        )
        made = suspect.certain.told_in(made)
        if suspect.pass_ is None:
            evidence = evidence_of(
                case, shown_by(result, kind), result.reference, self.compilation, op=made.op, alone=suspect.wrong_alone
            )
            made.stage, why = stage_of(evidence)
            made.reason = told_more(made.reason, evidence.lost) if evidence.lost else made.reason
            log.info("%s: %s, since %s: %s", made.op, made.stage, why, evidence)
        behind = aten_behind(suspect.node) if made.op == op_of(suspect.node) else []
        made.also = [name for name in (*behind, *made.also) if name != made.op]
        made = self.called(made)
        before = suspect.graph if suspect.pass_ else None
        self.write(made, case, result, before, suspect.kernel_source)
        return made

    def called(self, made: Finding) -> Finding:
        """With a call of the program's, where the operation is one that torch writes for it: `copy_` of a change."""
        if made.op is None or made.pass_ is not None or base_of(made.op) not in WRITTEN_FOR:
            return made
        nodes = [n for one in self.dynamo for n in one.graph.graph.nodes if n.op in CALLS]
        changing = [n for n in nodes if CHANGES.search(op_of(n))]
        here = [n for n in changing if source_of(n) == made.source] or (changing if len(changing) == 1 else [])
        given = [a for n in here for a in n.all_input_nodes[:1] if source_of(a) == made.source]
        behind = [name for n in (*here, *given) for name in aten_behind(n)]
        also = dict.fromkeys([*made.also, *map(op_of, here), *reversed(behind)])
        called = {base_of(name) for n in nodes for name in (op_of(n), *aten_behind(n))}
        found = consistent(msgspec.structs.replace(made, also=list(also)), RungEvidence(called=called))
        return made if found is None or found.op == made.op else found

    def smaller(
        self,
        case: Case,
        result: CaseResult,
        kind: Kind,
        stage: Stage,
        *,
        enough: int = SMALL,
        lines: Collection[str | None] = (),
        tells: bool = False,
    ) -> tuple[Case, CaseResult, bool]:
        """The case, with fewer calls if it has more than `enough` and they can be left out in time; were any?

        Args:
            kind, stage: of the fault, as far as they are known.
            lines: the user's lines that are suspected.
            tells: only what is left can tell which op is to blame.
        """
        calls = named(case)
        if len(calls) <= enough or case.caches:
            return case, result, False
        long = tells or len(calls) > LARGEST
        budget_s = max(SHORTEN_WHOLE_S, SHORTEN_CHECKS * self.check_s) if long else SHORTEN_S
        hints = [n.name for n in calls if (line := source_of(n)) and line in lines]
        for backend in self._quickest(kind, stage):
            short = shortened(
                case, budget_s=budget_s, timeout_s=self.compilation.timeout_s, backend=backend, hints=hints
            )
            if short is not None and len(named(short)) < len(calls):
                again = self.try_case(short)
                if again is not None and again.fails:
                    return short, again, True
        return case, result, False

    def _quickest(self, kind: Kind, stage: Stage) -> list[Callable[[], Any] | None]:
        """What may show a fault of this stage, the quickest first: nothing is compiled that is not to blame."""
        whole = self.compilation.maker
        if not self.compilation.is_inductor:
            return [whole]
        if stage == "aot":
            return [lambda: "aot_eager", whole]
        if stage in GRAPH_STAGES:
            return [graphs_of_inductor, whole]
        return [lambda: graphs_of_inductor(lowers=True), whole] if kind == "crash_compile" else [whole]

    def place_in(self, case: Case, result: CaseResult, kind: Kind) -> Culprit:
        """The likeliest culprit of a short case, with its other ops."""
        limit = self.compilation.timeout_s
        nodes = ranked(case, result, shown_by(result, kind), timeout_s=limit, backend=self.compilation.maker)
        if not nodes:  # nothing is left but what it is given and returns
            return Culprit()
        first = nodes[0]
        behind = self._aten_of(case, first)
        functional = (re.sub(r"_(?=\.\w+$|$)", "", name) for name in behind)  # as AOTAutograd makes it
        out_of_place = [name for name in functional if name not in behind]
        also = [*out_of_place, *behind, *(op_of(n) for n in nodes[1:])]
        return Culprit.at(first, also=also)

    def _aten_of(self, case: Case, node: Node) -> list[str]:
        """The aten ops that a call of torch stands for, by tracing it on the values it got; none of an aten op."""
        if op_of(node).startswith(("aten.", "prims.")):
            return []
        try:
            values = run_graph(case.graph, [plain_value(v) for v in case.calls[-1].restore()]).values
            return aten_ops(case.graph, node, values) or aten_behind(node)
        except Exception:  # a case that raises uncompiled
            return aten_behind(node)

    def write(
        self,
        made: Finding,
        case: Case,
        result: CaseResult,
        before: GraphModule | None = None,
        kernel_source: tuple[str, str] | None = None,
    ) -> None:
        """Write the dossier and note in the finding how its repro does in a process of its own."""
        limits = allowed(result.reference) if result.reference.wide is not None or result.reference.exact else []
        case = replace(case, kind=made.kind, allowed=limits)
        for node in (n for n in case.graph.graph.nodes if (source_of(n), module_of(n)) == (made.source, made.module)):
            made.called_from = made.called_from or program_line_of(node)
            made.within = made.within or module_in_words(node)
        self.compilation.complete(made)
        folder = free_folder(self.compilation.folder, made)
        made.dossier, made.proof = str(folder), "piece"
        try:
            beside = NEIGHBOURS.get(made.stage) if self.compilation.is_inductor else None
            parts = {d.where.split("[")[0] for d in result.differences}
            kind = shown_by(result, next((d.kind for d in result.differences if d.certain), made.kind))
            scripts = short_repros(case, result.reference, made, parts=parts, kind=kind, took_s=self.check_s)
            long = long_repro(case, made)
            problems = list(long.problems)
            shown = first_shown(scripts, made.stage, longs=lambda: [] if problems else [long])
            write_dossier(
                folder,
                case,
                made,
                before=before,
                neighbour=beside,
                kernel_source=kernel_source,
                shown=shown,
                log=log_of(result.differences),
            )
        except (GraphprobeError, OSError) as error:
            problems, shown = [str(error)], None
            made.dossier = str(folder) if folder.exists() else None
        if shown is None:
            made.proof = None
            more = f"The repro is incomplete: {'; '.join(problems)}." if problems else NOT_ALONE
            made.reason = told_more(made.reason, more)


def _alike(suspect: Suspect, result: CaseResult) -> bool:
    """Whether a piece fails as the suspect does: one that is only refused or raises shows no wrong value."""
    if suspect.kind in RAISED or result.died is not None:
        return True
    return any(d.certain and d.kind not in RAISED for d in result.differences)


def shown_by(result: CaseResult, kind: Kind) -> Kind:
    """How a case fails; the first certain difference counts."""
    if result.died is not None:
        return kind_of_death(None if result.died == "timeout" else result.died)
    return next((d.kind for d in result.differences if d.certain), kind)


def free_folder(parent: Path, finding: Finding) -> Path:
    """A folder name that is not taken, e.g. `lowering-aten.relu.default`."""
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{finding.stage}-{finding.op or finding.kind}")
    names = [stem, *(f"{stem}-{i}" for i in range(2, 1000))]
    return next(parent / name for name in names if not (parent / name).exists())
