"""Which ops of a compiled graph are wrong by themselves, and in which kernel: found by replacing its launches.

A launch is guilty when the outputs are right with it replaced and wrong with every launch replaced but it. As what is
found stays replaced, the search goes on past the first fault. No graph is compiled for any of this.
"""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import torch
from torch.fx import Node
from torch.fx.node import map_arg

from graphprobe.diagnose.check_case import run_compiled
from graphprobe.diagnose.kernel_check import CompiledGraph, WholeGraph
from graphprobe.diagnose.local import LocalError, Suspect, comparable, local_error
from graphprobe.diagnose.prove import Prover
from graphprobe.engine.forked_child import doing
from graphprobe.engine.interpret import GraphRun, flat_outputs, run_graph
from graphprobe.engine.naming import op_of
from graphprobe.engine.replaced_launches import MixedGraph, MixedLaunch, MixedRun
from graphprobe.engine.subgraph import ancestors, is_item, isolated_calls
from graphprobe.engine.values import capture
from graphprobe.internals.launch_io import kernel_source
from graphprobe.judge.observation import ObservationRecord, read

Judge = Callable[[MixedRun], LocalError]
"""Says of a run whether what left the graph is right."""

MOST_FAULTS = 8
"""Faults of one graph that are looked for."""

FORMS = ("wrong_dtype", "wrong_shape")
"""What no launch decides, but the code that makes room for its results."""

log = logging.getLogger(__name__)

MORE = "the outputs are wrong with these replaced, too; there are more, or they only fail together"

SHOWN = 3
"""Launches that could not be replaced and are named in a note."""

REACH = 6
"""How many steps back from a suspect its ancestors are tried."""


class FaultyLaunch(msgspec.Struct, frozen=True):
    """A launch whose replacement makes the outputs right.

    Attributes:
        position: among the launches of its graph, by line.
        kernel: its name.
        line: in the generated module.
        how: what it was replaced by: `graph` or `ir`.
        nodes: FX nodes it stems from.
        runs: of the graph until it was found.
        confirmed: the outputs are wrong with every launch replaced but it.
        z: largest error of the outputs then, in units of noise.
    """

    position: int
    kernel: str
    line: int
    how: str
    nodes: tuple[str, ...]
    runs: int
    confirmed: bool
    z: float


class MixingReport(msgspec.Struct):
    """What mixing found in one call of one graph.

    Attributes:
        launches: of the graph.
        runs: of the graph, all of them.
        found: faulty launches, in the order in which they were found.
        kept: launches that could not be replaced, with the reason.
        problem: why there is no answer, or not the whole of it; empty otherwise.
    """

    launches: int = 0
    runs: int = 0
    found: list[FaultyLaunch] = []
    kept: list[str] = []
    problem: str = ""


def faulty_launches(mixed: MixedGraph, inputs: Sequence[Any], judge: Judge) -> MixingReport:
    """Find the launches that make the outputs of a compiled graph wrong.

    Takes two runs, and for each fault `log2(launches)` to find it, one to see if there is another, one to confirm it.

    Args:
        inputs: of the graph; copied for each run.
    """
    report = MixingReport(launches=len(mixed.launches))
    search = _KernelSearch(mixed, inputs, judge)
    before = mixed.runs
    report.problem = search.find()
    for at, runs in search.found:
        launch, error = mixed.launches[at], search.error([other for other in search.usable if other != at])
        io, wrong = launch.io, error.answer == "worse"
        report.found.append(FaultyLaunch(at, io.name, io.line, launch.how, launch.sources, runs, wrong, error.z))
    report.runs = mixed.runs - before
    report.kept = [f"{x.io.name} (line {x.io.line}): {x.reason}" for x in mixed.launches if x.how == "no"]
    return report


class _KernelSearch:
    def __init__(self, mixed: MixedGraph, inputs: Sequence[Any], judge: Judge) -> None:
        self._mixed, self._inputs, self._judge = mixed, inputs, judge
        self.usable: list[int] = []
        self.found: list[tuple[int, int]] = []
        """Position, and runs it took."""

    def _run(self, replaced: Collection[int], *, forgiving: bool = False) -> MixedRun:
        return self._mixed.run(self._inputs, replaced, forgiving=forgiving)

    def error(self, replaced: Collection[int], *, forgiving: bool = False) -> LocalError:
        """What is wrong with these launches replaced."""
        return self._judge(self._run(replaced, forgiving=forgiving))

    def _wrong(self, prefix: int) -> bool:
        """Whether the outputs are wrong with the first `prefix` launches, and what was found, replaced."""
        return self.error({*self.usable[:prefix], *(at for at, _ in self.found)}).answer == "worse"

    def find(self) -> str:
        """Fill `found`, the last launch first; returns what stood in the way."""
        plain = self._run(())
        if not plain.ran:
            return "no launch was seen: the graph does not run its generated module, but a CUDA graph, say"
        baseline = self._judge(plain)
        if baseline.answer != "worse":
            return f"the outputs of the graph are not wrong: {baseline.answer} {baseline.reason}".rstrip()
        replaced = self.error(range(len(self._mixed.launches)), forgiving=True)
        self.usable = [at for at, launch in enumerate(self._mixed.launches) if launch.how != "no"]
        if replaced.answer == "worse":
            if len(self.usable) < len(self._mixed.launches):
                return f"the outputs are wrong with every launch that can be replaced, too: {replaced.reason}"
            if replaced.kind in FORMS:
                return f"the outputs are wrong whatever the launches compute: {replaced.reason}"
            ir = sum(launch.how == "ir" for launch in self._mixed.launches)
            loops = "what the loops of a launch are and in which order, or " if ir else ""
            return (
                f"the outputs are wrong with every launch replaced, too ({replaced.reason}): "
                f"not the text of the loops is to blame, but {loops}how the buffers share memory"
            )
        right = len(self.usable)
        while right > 0 and len(self.found) < MOST_FAULTS:
            before = self._mixed.runs
            right = bisect_left(range(1, right), True, key=lambda prefix: not self._wrong(prefix))
            self.found.append((self.usable[right], self._mixed.runs - before))
            if not self._wrong(0):
                return ""
        return MORE


def name_kernels(
    graphs: Sequence[CompiledGraph],
    wrong: Sequence[tuple[CompiledGraph, int]],
    suspects: Sequence[Suspect],
    notes: list[str],
    *,
    more: bool,
) -> list[Suspect]:
    """The suspects with their `kernel`, as far as it can be told.

    Args:
        wrong: graphs with wrong outputs, and the number of the recorded call.
        notes: what mixing could not tell is added to them.
        more: accuse launches that are faulty and that no suspect explains, too.
    """
    found: list[tuple[CompiledGraph, FaultyLaunch, GraphRun]] = []
    for compiled in graphs:
        calls = [call for graph, call in wrong if graph is compiled]
        if compiled.lowered is None or compiled.compiled is None or not calls:
            continue
        run = run_graph(compiled.final, compiled.inputs[calls[0]])
        report = mix(compiled, calls[0], run)
        found += [(compiled, launch, run) for launch in report.found if launch.confirmed]
        notes += _notes(compiled, report)
    launches: dict[int, list[MixedLaunch]] = {}
    explained: set[tuple[int, int]] = set()
    named: list[Suspect] = []
    for suspect in suspects:
        here = [(c, x) for c, x, _ in found if c.final is suspect.graph]
        mine = [(c, x) for c, x in here if _explains(suspect, x)]
        # An op may be computed again in several kernels; as a whole, it is one of them that it stands for.
        explained |= {(id(c), x.position) for c, x in (mine[:1] if suspect.whole else mine)}
        if suspect.certain.op is not None:  # it spoils what these read
            explained |= {(id(c), x.position) for c, x in here if {n.name for n in suspect.others} & set(x.nodes)}
        named.append(_accused(suspect, *mine[0]) if mine else _guess(suspect, graphs, launches))
    others = [(c, x, run) for c, x, run in found if more and (id(c), x.position) not in explained]
    return [*named, *(made for c, x, run in others for made in _suspects(c, x, run))]


def _with_kernel(suspect: Suspect, compiled: CompiledGraph, name: str) -> Suspect:
    assert compiled.lowered is not None
    return replace(suspect, kernel=name, kernel_source=kernel_source(compiled.lowered.code, name))


def _explains(suspect: Suspect, launch: FaultyLaunch) -> bool:
    return suspect.node.name in launch.nodes or _is_any(suspect)


def _is_any(suspect: Suspect) -> bool:
    """Whether the suspect explains whichever launch is wrong."""
    return suspect.whole and suspect.certain.op is None


def _notes(compiled: CompiledGraph, report: MixingReport) -> list[str]:
    """What mixing could not tell."""
    name = f"{compiled.direction} kernels, with launches replaced"
    found = [f"{name}: {report.problem}"] if report.problem else []
    if report.kept:
        many = f"{len(report.kept)} of {report.launches}"
        found.append(f"{name}: {many} could not be replaced, {'; '.join(report.kept[:SHOWN])}")
    return found


def mix(compiled: CompiledGraph, call: int, run: GraphRun, whole: WholeGraph | None = None) -> MixingReport:
    """The faulty launches of one recorded call of a compiled graph, `run` being the same call uncompiled.

    `whole`: judge by how far the graph is off, see `WholeGraph.far_off`.
    """
    assert compiled.lowered is not None and compiled.compiled is not None
    started = time.monotonic()
    try:
        copy = torch.clone if compiled.file is None else compiled.file.again
        mixed = MixedGraph(compiled.lowered, compiled.compiled, copy)
        expected = whole or compiled.expected.get(call) or WholeGraph(compiled, call, run)

        def judge(result: MixedRun) -> LocalError:
            if whole is not None:
                return whole.far_off(result.outputs, result.inputs)
            return expected.judge(result.outputs, result.inputs, first=True)

        report = faulty_launches(mixed, compiled.inputs[call], judge)
    except Exception as error:
        return MixingReport(problem=f"it could not be run with launches replaced: {type(error).__name__}: {error}")
    seconds, names = time.monotonic() - started, [launch.kernel for launch in report.found]
    log.info("mixing %d launches: %d runs, %.1f s, %s %s", report.launches, report.runs, seconds, names, report.problem)
    return report


def far_off_launches(graphs: Sequence[CompiledGraph], prover: Prover) -> list[Suspect]:
    """Ops that are wrong by themselves, in the faulty launches of the first graph that is far off.

    Neither a float64 run of a graph nor one that shows its values is needed for it. Empty where no graph is so far off,
    or where no op by itself explains it.
    """
    for compiled in graphs:
        if compiled.lowered is None or compiled.compiled is None:
            continue
        for call in range(len(compiled.outputs)):
            doing(f"{compiled.direction} kernels")
            run = run_graph(compiled.final, compiled.inputs[call], file=compiled.file)
            whole = WholeGraph(compiled, call, run) if run.failed is None else None
            if whole is None or whole.far_off(compiled.outputs[call], compiled.after[call]).answer != "worse":
                continue
            found = [x for x in mix(compiled, call, run, whole).found if x.confirmed]
            launched = [made for x in found for made in _suspects(compiled, x, run)]
            suspects = [s for s in alone(launched, prover) if s.wrong_alone]
            if suspects:
                return [_accused(s, compiled, next((x for x in found if _explains(s, x)), found[0])) for s in suspects]
    return []


def _accused(suspect: Suspect, compiled: CompiledGraph, launch: FaultyLaunch) -> Suspect:
    reason = f"{suspect.error.reason}. {_confirmation(launch)}"
    error = msgspec.structs.replace(suspect.error, reason=reason)
    made = replace(_with_kernel(suspect, compiled, launch.kernel), error=error)
    if not _is_any(suspect):
        return made
    ops = [op_of(n) for n in compiled.final.graph.nodes if n.name in launch.nodes and n.op == "call_function"]
    return replace(made, also=list(dict.fromkeys([*ops, *suspect.also])))


def _confirmation(launch: FaultyLaunch) -> str:
    what = "Run eagerly" if launch.how == "graph" else "Run in plain torch, from its IR,"
    return (
        f"{what} in the place of kernel {launch.kernel} (line {launch.line} of the generated code) alone, the result "
        "is right; with all kernels replaced but this one, it is wrong"
    )


def _guess(suspect: Suspect, graphs: Sequence[CompiledGraph], launches: dict[int, list[MixedLaunch]]) -> Suspect:
    """With the launch that carries out the suspect's node, generated kernels first; what may be any launch has none.

    `launches`: of the graphs that were asked before, by id.
    """
    compiled = next((c for c in graphs if c.final is suspect.graph and c.lowered is not None), None)
    if compiled is None or compiled.lowered is None or compiled.compiled is None or _is_any(suspect):
        return suspect
    if id(compiled) not in launches:
        try:
            launches[id(compiled)] = MixedGraph(compiled.lowered, compiled.compiled).launches
        except Exception:  # the name is all that is missing then
            launches[id(compiled)] = []
    carrying = [x.io for x in launches[id(compiled)] if suspect.node.name in x.sources]
    carrying.sort(key=lambda io: io.kind != "kernel")
    return _with_kernel(suspect, compiled, carrying[0].name) if carrying else suspect


def _suspects(compiled: CompiledGraph, launch: FaultyLaunch, run: GraphRun) -> list[Suspect]:
    """A launch that no suspect explains, as one: its last node stands for it, the others come after."""
    nodes: list[Node] = [n for n in compiled.final.graph.nodes if n.name in launch.nodes and n.op == "call_function"]
    if not nodes or run.failed is not None:
        return []
    error = LocalError("worse", "wrong_value", launch.z or math.inf, math.inf, _confirmation(launch))
    made = Suspect("codegen", compiled.direction, compiled.final, nodes[-1], run.values, error, whole=True)
    also = list(dict.fromkeys(op_of(n) for n in reversed(nodes[:-1])))
    return [_with_kernel(replace(made, also=also, others=nodes[:-1]), compiled, launch.kernel)]


def alone(suspects: Sequence[Suspect], prover: Prover) -> list[Suspect]:
    """The suspects, and those of their ancestors, that are wrong by themselves; then the suspects they do not explain.

    Inductor computes an op again in every kernel that needs it. A wrong op therefore shows in values that others make
    of it, even where its own value, as it was shown, is right. Suspects of one graph are tried together, in one
    compilation.
    """
    graphs: dict[int, list[Suspect]] = {}
    for suspect in suspects:
        graphs.setdefault(id(suspect.values), []).append(suspect)
    found: list[Suspect] = []
    for group in graphs.values():
        guilty = _wrong_alone(group, prover)
        found += guilty
        explained = _descendants([s.node for s in guilty])
        found += [s for s in group if s.node not in explained]
    return found


def _wrong_alone(group: Sequence[Suspect], prover: Prover) -> list[Suspect]:
    first = group[0]
    reach = ancestors([s.node for s in group], REACH)
    nodes = [n for n in first.graph.graph.nodes if n in reach and n.op == "call_function" and _can_run(n, first.values)]
    if not nodes:
        return []
    graph, inputs, owners = isolated_calls(first.graph, nodes, first.values)
    prover.compiles += 1
    outcome = run_compiled(
        prover.case(graph, [capture(inputs)], "wrong_value"), prover.compilation.timeout_s, repeats=1
    )
    if outcome.value is None:
        return []
    result = read(msgspec.convert(outcome.value, list[list[ObservationRecord]])[0][0])
    if result.raised is not None:
        return []
    found: list[Suspect] = []
    position = 0
    for node, _ in owners:
        width = len(flat_outputs(first.values[node.name]))
        got = result.outputs[position : position + width]
        position += width
        args, kwargs = (map_arg(part, lambda n: first.values[n.name]) for part in (node.args, node.kwargs))
        error = local_error(op_of(node), node.target, list(args), dict(kwargs), got, rounded=())  # type: ignore[arg-type]
        if error.answer == "worse":
            found.append(Suspect("codegen", first.direction, first.graph, node, first.values, error, wrong_alone=True))
    return found


def _can_run(node: Node, values: Mapping[str, Any]) -> bool:
    known = all(n.op == "get_attr" or n.name in values for n in node.all_input_nodes)
    return known and node.name in values and not is_item(node) and comparable(op_of(node))


def _descendants(nodes: Sequence[Node]) -> set[Node]:
    found = set(nodes)
    waiting = list(nodes)
    while waiting:
        for user in waiting.pop().users:
            if user not in found:
                found.add(user)
                waiting.append(user)
    return found
