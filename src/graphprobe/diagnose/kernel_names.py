"""Names the kernel of each suspect, by mixing where the outputs of its graph are wrong, and confirms it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from torch.fx import Node

from graphprobe.diagnose.kernel_check import CompiledGraph, WholeGraph
from graphprobe.diagnose.local import LocalError
from graphprobe.diagnose.mixing import FaultyLaunch, MixingReport, faulty_launches
from graphprobe.diagnose.suspects import Suspect
from graphprobe.engine.interpret import GraphRun, run_graph
from graphprobe.engine.mixed import MixedGraph, MixedLaunch, MixedRun
from graphprobe.engine.naming import op_of
from graphprobe.internals.launches.kernel_signatures import kernel_source

log = logging.getLogger(__name__)

SHOWN = 3
"""Launches that could not be replaced and are named in a note."""


def name_kernels(
    graphs: Sequence[CompiledGraph],
    wrong: Sequence[tuple[CompiledGraph, int]],
    suspects: Sequence[Suspect],
    notes: list[str],
    *,
    more: bool,
) -> list[Suspect]:
    """Fill in `kernel` of the suspects, as far as it can be told.

    Args:
        wrong: graphs with wrong outputs, and the number of the recorded call.
        notes: gets what mixing could not tell.
        more: accuse launches that are faulty and that no suspect explains.

    Returns:
        suspects for such launches.
    """
    found: list[tuple[CompiledGraph, FaultyLaunch, GraphRun]] = []
    for compiled in graphs:
        calls = [call for graph, call in wrong if graph is compiled]
        if compiled.lowered is None or compiled.compiled is None or not calls:
            continue
        run = run_graph(compiled.final, compiled.inputs[calls[0]])
        started = time.monotonic()
        report = mix(compiled, calls[0], run)
        seconds, names = time.monotonic() - started, [launch.kernel for launch in report.found]
        log.info(
            "mixing %d launches: %d runs, %.1f s, %s %s", report.launches, report.runs, seconds, names, report.problem
        )
        found += [(compiled, launch, run) for launch in report.found if launch.confirmed]
        notes += _notes(compiled, report)
    launches: dict[int, list[MixedLaunch]] = {}
    explained: set[tuple[int, int]] = set()
    for suspect in suspects:
        mine = [(c, x) for c, x, _ in found if c.final is suspect.graph and _explains(suspect, x)]
        if mine:
            _accuse(suspect, *mine[0])
            # An op may be computed again in several kernels; as a whole, it is one of them that it stands for.
            explained |= {(id(c), x.position) for c, x in (mine[:1] if suspect.whole else mine)}
        else:
            _guess(suspect, graphs, launches)
    if not more:
        return []
    return [made for c, x, run in found if (id(c), x.position) not in explained for made in _suspects(c, x, run)]


def _explains(suspect: Suspect, launch: FaultyLaunch) -> bool:
    return suspect.node.name in launch.nodes or suspect.whole


def _notes(compiled: CompiledGraph, report: MixingReport) -> list[str]:
    """What mixing could not tell."""
    name = f"{compiled.direction} kernels, with launches replaced"
    found = [f"{name}: {report.problem}"] if report.problem else []
    if report.kept:
        many = f"{len(report.kept)} of {report.launches}"
        found.append(f"{name}: {many} could not be replaced, {'; '.join(report.kept[:SHOWN])}")
    return found


def mix(compiled: CompiledGraph, call: int, run: GraphRun) -> MixingReport:
    """The faulty launches of one recorded call of a compiled graph, `run` being the same call uncompiled."""
    assert compiled.lowered is not None and compiled.compiled is not None
    try:
        mixed = MixedGraph(compiled.lowered, compiled.compiled)
        expected = WholeGraph(compiled, call, run)

        def judge(result: MixedRun) -> LocalError:
            return expected.judge(result.outputs, result.inputs)

        return faulty_launches(mixed, compiled.inputs[call], judge)
    except Exception as error:
        return MixingReport(problem=f"it could not be run with launches replaced: {type(error).__name__}: {error}")


def _accuse(suspect: Suspect, compiled: CompiledGraph, launch: FaultyLaunch) -> None:
    assert compiled.lowered is not None
    suspect.kernel = launch.kernel
    suspect.kernel_source = kernel_source(compiled.lowered.code, launch.kernel)
    reason = f"{suspect.error.reason}; {_confirmation(launch)}"
    suspect.error = msgspec.structs.replace(suspect.error, reason=reason)
    if suspect.whole:
        ops = [op_of(n) for n in compiled.final.graph.nodes if n.name in launch.nodes and n.op == "call_function"]
        suspect.also = list(dict.fromkeys([*ops, *suspect.also]))


def _confirmation(launch: FaultyLaunch) -> str:
    what = "by its part of the graph" if launch.how == "graph" else "by its IR, run in plain torch"
    return (
        f"with only {launch.kernel} (line {launch.line} of the generated code) replaced {what} the fault is gone, and "
        "with all launches replaced but this one it is there"
    )


def _guess(suspect: Suspect, graphs: Sequence[CompiledGraph], known: dict[int, list[MixedLaunch]]) -> None:
    """The launch that carries out the suspect's node, generated kernels first; what fails as a whole has none.

    `known` keeps the launches of a graph.
    """
    compiled = next((c for c in graphs if c.final is suspect.graph and c.lowered is not None), None)
    if compiled is None or compiled.lowered is None or compiled.compiled is None or suspect.whole:
        return
    if id(compiled) not in known:
        try:
            known[id(compiled)] = MixedGraph(compiled.lowered, compiled.compiled).launches
        except Exception:  # the name is all that is missing then
            known[id(compiled)] = []
    carrying = [x.io for x in known[id(compiled)] if suspect.node.name in x.sources]
    carrying.sort(key=lambda io: io.kind != "kernel")
    if carrying:
        suspect.kernel = carrying[0].name
        suspect.kernel_source = kernel_source(compiled.lowered.code, carrying[0].name)


def _suspects(compiled: CompiledGraph, launch: FaultyLaunch, run: GraphRun) -> list[Suspect]:
    """A launch that no suspect explains, as one: its last node stands for it, the others come after."""
    assert compiled.lowered is not None
    nodes: list[Node] = [n for n in compiled.final.graph.nodes if n.name in launch.nodes and n.op == "call_function"]
    if not nodes or run.failed is not None:
        return []
    z: Any = launch.z or math.inf
    made = Suspect(
        "wrong_value",
        "codegen",
        compiled.direction,
        compiled.final,
        nodes[-1],
        run.values,
        LocalError("worse", "wrong_value", z, math.inf, _confirmation(launch)),
        list(run.inputs),
        also=list(dict.fromkeys(op_of(n) for n in reversed(nodes[:-1]))),
        others=nodes[:-1],
        whole=True,
        measured=compiled.measured,
    )
    made.kernel = launch.kernel
    made.kernel_source = kernel_source(compiled.lowered.code, launch.kernel)
    return [made]
