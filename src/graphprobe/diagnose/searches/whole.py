"""Proves a failure that no piece shows by Dynamo's whole graphs, and finds constants of an earlier call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import torch
from torch.fx import GraphModule, Interpreter, Node

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.check_case import CaseResult
from graphprobe.diagnose.culprit import LARGEST, named
from graphprobe.diagnose.dynamo.experiment import accused
from graphprobe.diagnose.dynamo.frame_places import users_source
from graphprobe.diagnose.evidence import evidence_of
from graphprobe.diagnose.exceptions import Culprit, numpy_name
from graphprobe.diagnose.passes import different
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.prove import SMALL, Prover, shown_by
from graphprobe.diagnose.reduction.transforms import BEFORE_ATEN, without_transforms
from graphprobe.diagnose.rungs import DynamoGraph, RungReport, Watch, dynamo_rung, run_program
from graphprobe.diagnose.settings import Compilation
from graphprobe.engine.forked_child import isolated
from graphprobe.engine.interpret import flat_outputs, run_graph
from graphprobe.engine.naming import VIEWS_AND_SUCH, aten_ops, op_of
from graphprobe.engine.subgraph import CALLS
from graphprobe.engine.values import CapturedValues
from graphprobe.findings import STAGES, Finding, Stage
from graphprobe.internals.aot_backends import is_higher_order
from graphprobe.internals.inductor.stages import copy_graph
from graphprobe.internals.tensors import tree_map
from graphprobe.judge.judging import worst_of
from graphprobe.judge.observation import ObservationRecord, read
from graphprobe.judge.stage_table import stage_of

STATE = ("_buffers_", "_parameters_")
"""What Dynamo calls the placeholders that are a module's buffers and parameters."""


def stale_number(graphs: Sequence[DynamoGraph], observed: Sequence[Sequence[Any]]) -> Culprit | None:
    """The op that explains what was observed: with a number from an earlier graph's run, the graph returns just that.

    Args:
        graphs: Dynamo's, in the order in which they were made, with their calls.
        observed: leaves of what the compiled program returned and left in its arguments, for each call of it.

    Returns:
        the op with the two numbers; None where no single number of one op explains anything.
    """
    runs = [_Run(graph.graph, inputs) for graph in graphs for inputs in graph.calls]
    found = list(_explanations(runs, observed))
    # Arithmetic on the number itself explains as much as the op of tensors that the result is for.
    of_tensors = [
        one
        for run, node, one in found
        if isinstance(run.results[node.name], torch.Tensor) and node.target is not torch.scalar_tensor
    ]
    return next(iter([*of_tensors, *(one for _, _, one in found)]), None)


def _explanations(runs: Sequence[_Run], observed: Sequence[Sequence[Any]]) -> Iterator[tuple[_Run, Node, Culprit]]:
    for later, run in enumerate(runs):
        right = run.outputs
        for earlier in reversed(runs[:later]):
            for node, old, new in _numbers(run, earlier):
                given = _outputs(run, node, old, new)
                if given is None or not any(different(a, b) for a, b in zip(right, given, strict=True)):
                    continue
                if any(_explains(given, leaves) for leaves in observed):
                    text = f"it was given {old:g}, the number of an earlier call, in place of {new:g}"
                    name = numpy_name(node) or op_of(node)
                    yield run, node, Culprit.at(node, op=name, source=users_source(node), reason=text)


class _Run:
    """A graph run on one call of it; `given` has the arguments of each op, `results` what it returned."""

    def __init__(self, graph: GraphModule, inputs: CapturedValues) -> None:
        self.graph, self.inputs = graph, inputs
        self.given: dict[str, list[Any]] = {}
        run = run_graph(graph, inputs.restore(), watch=self._watch)
        self.results, self.outputs = run.values, flat_outputs(run.outputs)

    def _watch(self, node: Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.given[node.name] = flat_outputs([*args, *kwargs.values()])


class _Replacing(Interpreter):
    """Gives one node `old` wherever it would get the number `new`."""

    def __init__(self, gm: GraphModule, node: Node, old: float, new: float) -> None:
        super().__init__(gm)
        self.extra_traceback = False
        self.node, self.old, self.new = node, old, new

    def run_node(self, n: Node) -> Any:
        if n is not self.node:
            return super().run_node(n)

        def replaced(value: Any) -> Any:
            return self.old if _is_number(value) and value == self.new else value

        args, kwargs = tree_map(replaced, self.fetch_args_kwargs_from_env(n))
        return getattr(self, n.op)(n.target, args, kwargs)


def _outputs(run: _Run, node: Node, old: float, new: float) -> list[Any] | None:
    try:
        with torch.no_grad():
            given = flat_outputs(_Replacing(run.graph, node, old, new).run(*run.inputs.restore()))
    except Exception:  # a number that the op does not take with these inputs
        return None
    return given if len(given) == len(run.outputs) else None


def _numbers(run: _Run, earlier: _Run) -> Iterator[tuple[Node, float, float]]:
    """Calls that both graphs make, with a number of each: the earlier, the later one."""
    ops = {n.name: op_of(n) for n in earlier.graph.graph.nodes if n.op in CALLS}
    for node in run.graph.graph.nodes:
        before, now = earlier.given.get(node.name), run.given.get(node.name)
        if before is None or now is None or len(before) != len(now) or ops[node.name] != op_of(node):
            continue
        seen: set[tuple[float, float]] = set()
        for old, new in zip(before, now, strict=True):
            if _is_number(old) and _is_number(new) and old != new and (old, new) not in seen:
                seen.add((old, new))
                yield node, old, new


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _explains(given: Sequence[Any], leaves: Sequence[Any]) -> bool:
    """Whether each tensor and number of a graph's outputs is among what was observed."""
    wanted = [v for v in given if isinstance(v, torch.Tensor) or _is_number(v)]
    return bool(wanted) and all(any(_same(w, leaf) for leaf in leaves) for w in wanted)


def _same(wanted: Any, leaf: Any) -> bool:
    """Whether a graph's output is what the program returned: a number, too, that left the graph as a tensor."""
    if isinstance(wanted, torch.Tensor) and isinstance(leaf, torch.Tensor):
        return not different(wanted, leaf)
    number = wanted.item() if isinstance(wanted, torch.Tensor) and not wanted.dim() else wanted
    return _is_number(number) and _is_number(leaf) and bool(number == leaf)


def find_whole(
    program: Program,
    compilation: Compilation,
    known: Finding,
    *,
    where: str = "",
    earliest: Stage = "dynamo",
    observed: Sequence[ObservationRecord] | None = None,
) -> RungReport:
    """A finding for a failure that no piece shows, with one of Dynamo's graphs as its proof if that fails by itself.

    Args:
        known: the finding as far as it is certain: kind, stage and reason at least.
        where: what is wrong, as the difference names it.
        earliest: the first stage that the rungs of the program have not cleared.
        observed: what the program returned compiled with torch's caches, if it is only wrong with these.
    """
    report, watch = RungReport(), Watch(file=program.file)
    suspect = _accused(program, compilation, known, where)
    run_program(program, compilation, dynamo_rung(watch))
    if observed is not None:
        suspect = stale_number(watch.dynamo, [[*call.outputs, *call.inputs] for call in map(read, observed)])
    if suspect is not None:
        reason = f"{known.reason}; {suspect.op}: {suspect.reason}"
        known = msgspec.structs.replace(suspect, reason=reason).told_in(known)
    with compilation.configured():
        prover = Prover(compilation, watch.dynamo, bool(program.grad))
        for graph in watch.dynamo if known.kind != "side_effect" else ():
            found = _failing(prover, graph, known, cached=observed is not None)
            if found is not None:
                report.findings.append(_proven(prover, *found, known, earliest))
        if not report.findings:
            report.findings.append(known if known.op is not None else _few_ops(watch.dynamo).told_in(known))
    report.compiles = prover.compiles
    return report


def _accused(program: Program, compilation: Compilation, known: Finding, where: str) -> Culprit | None:
    """What Dynamo got wrong in the program's own words."""
    if known.stage != "dynamo" or known.op is not None:
        return None
    outcome = isolated(lambda: accused(program, compilation), timeout_s=compilation.timeout_s)
    found = msgspec.convert(outcome.value, Culprit | None)
    if known.kind != "side_effect":
        return found
    if found is None:
        return Culprit(op="side_effect", reason=f"{where} is not what it is uncompiled")
    return msgspec.structs.replace(found, also=["side_effect", *found.also])


def _failing(prover: Prover, graph: DynamoGraph, known: Finding, *, cached: bool) -> tuple[Case, CaseResult] | None:
    """One of Dynamo's graphs as a case, if it fails: with its state among the arguments, or else in the module."""
    if known.stage not in BEFORE_ATEN:
        graph.graph = without_transforms(graph.graph, graph.calls)
    for form in (graph, *_with_state(graph)):
        case = replace(prover.whole(form, known.kind), caches=cached)
        result = prover.try_case(case)
        if result is not None and result.fails:
            return case, result
    return None


def _with_state(graph: DynamoGraph) -> Iterator[DynamoGraph]:
    """The graph with parameters and buffers as attributes, where it is called once: what changes in them is kept."""
    placeholders = [n for n in graph.graph.graph.nodes if n.op == "placeholder"]
    state = [i for i, n in enumerate(placeholders) if any(part in str(n.target) for part in STATE)]
    if not state or len(graph.calls) != 1:
        return
    values = graph.calls[0].restore()
    made: GraphModule = copy_graph(graph.graph)
    nodes = [n for n in made.graph.nodes if n.op == "placeholder"]
    for i in state:
        name = nodes[i].name
        if isinstance(values[i], torch.nn.Parameter):
            made.register_parameter(name, values[i])
        else:
            made.register_buffer(name, values[i])
        with made.graph.inserting_before(nodes[i]):
            attribute = made.graph.get_attr(name)
        nodes[i].replace_all_uses_with(attribute)
        made.graph.erase_node(nodes[i])
    made.recompile()
    call = graph.calls[0]
    records = [record for i, record in enumerate(call.doc["values"]) if i not in state]
    yield DynamoGraph(made, [CapturedValues({**call.doc, "values": records}, call.tensors)])


def _proven(prover: Prover, case: Case, result: CaseResult, known: Finding, earliest: Stage) -> Finding:
    """The finding of a case that fails, made as small as time allows, with its dossier."""
    unnamed = known.op is None
    case, result, short = prover.smaller(
        case, result, known.kind, known.stage, enough=1 if unnamed else SMALL, lines={known.source}, tells=unnamed
    )
    if unnamed and (short or len(named(case)) <= LARGEST):
        known = prover.place_in(case, result, known.kind).told_in(known)
    made = msgspec.structs.replace(known, flaky_rate=result.rate, worst=worst_of(result.differences))
    kind = shown_by(result, made.kind)
    op = next((name for name in (made.op or "", *made.also) if name.startswith("aten.")), made.op)
    stage, _ = stage_of(evidence_of(case, kind, result.reference, prover.compilation, op=op))
    if stage not in STAGES or STAGES.index(stage) >= STAGES.index(earliest):
        made.stage = stage  # what the rungs of the program have cleared cannot be to blame
    prover.write(made, case, result)
    return made


def _few_ops(graphs: Sequence[DynamoGraph]) -> Culprit:
    """An op as the culprit, where Dynamo's graphs have few that compute anything: the first of them.

    Of many it is the higher-order operator, whose body alone was not tried by itself, if there is one kind of these.
    """
    calls = [n for graph in graphs for n in graph.graph.graph.nodes if n.op in CALLS and op_of(n) not in VIEWS_AND_SUCH]
    operators = [n for n in calls if is_higher_order(n.target)]
    if len(calls) > SMALL and len({n.target for n in operators}) == 1:
        calls = operators[:1]
    owner = next((graph for graph in graphs if calls and calls[0].graph is graph.graph.graph), None)
    if len(calls) > SMALL or owner is None or not owner.calls:
        return Culprit()
    run = run_graph(owner.graph, owner.calls[-1].restore())
    first, *others = calls
    names = [*aten_ops(owner.graph, first, run.values), op_of(first), *map(op_of, others)]
    also = [name for name in dict.fromkeys(names) if name != names[0]]
    return Culprit.at(first, op=names[0], also=also)
