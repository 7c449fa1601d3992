"""The rungs of the ladder as steps for a child process: run the program on a rung, and look into what the rung did."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.fx import GraphModule, Node

from graphprobe.diagnose.exceptions import Origin, origin_of
from graphprobe.diagnose.kernel_check import CompiledGraph, to_show
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.searches.equal_graphs import fingerprint
from graphprobe.diagnose.settings import Compilation
from graphprobe.engine.interpret import Recorder, copied, copied_together, flat_outputs
from graphprobe.engine.naming import aten_behind, aten_namesakes, name_of, op_of
from graphprobe.engine.subgraph import CALLS, exposed
from graphprobe.engine.value_file import ValueFile
from graphprobe.engine.values import CapturedValues, capture, equal_bits
from graphprobe.findings import Finding, LargestZ, Latent
from graphprobe.internals.aot_backends import aot_compile, boxed_call
from graphprobe.internals.aot_taps import compilers_watched
from graphprobe.internals.inductor import stages
from graphprobe.internals.inductor.executable_snapshots import OwnPasses, PassLog, Snapshots
from graphprobe.internals.inductor.lowered_graph import watched_lowering
from graphprobe.judge.observation import ObservationRecord
from graphprobe.judge.stage_table import Graphs
from graphprobe.judge.verdict import base_of

RECORDED = 3
"""Calls of one graph whose values are kept: the first ones."""


class RungReport(msgspec.Struct):
    """What a child process sends back.

    Attributes:
        calls: of the program on this rung.
        origin: where the first exception came from.
        raised_at: the node that raised while a graph ran op by op.
        calls_inductor: the backend, which is another, hands graphs to Inductor.
        findings: proven faults.
        suspected: what no piece of the program confirmed.
        called: base names of the operations of all graphs.
        wider: values inside that are more precise than the ops by themselves make them.
        rounded: values inside that are right, and not to the last bit what the ops by themselves make of their inputs.
        right: what was checked and is right.
        largest: local error within the noise.
        checked: values judged.
        ops: bytes of the values of all ops in the graphs.
        compiles: graphs compiled to kernels.
        breaks: of graphs, where they were counted.
        graphs: that Dynamo made, where they were counted; `given_up`: why it left functions as they are, in its words.
        entries: of torch's caches, folders: those that it looked into, or would have, if they were not empty for it.
        notes: what could not be checked.
    """

    calls: list[ObservationRecord] = []
    origin: Origin | None = None
    raised_at: Origin | None = None
    calls_inductor: bool = False
    findings: list[Finding] = []
    suspected: list[Latent] = []
    called: list[str] = []
    wider: list[Latent] = []
    rounded: list[Latent] = []
    right: list[str] = []
    largest: LargestZ = msgspec.field(default_factory=LargestZ)
    checked: int = 0
    ops: int = 0
    compiles: int = 0
    breaks: int = 0
    graphs: int | None = None
    given_up: list[str] = []
    entries: list[str] = []
    notes: list[str] = []


@dataclass(eq=False)
class DynamoGraph:
    """A graph of Dynamo's with the values it was called with.

    Attributes:
        graph: an own copy.
        calls: values of the placeholders before each recorded call.
        logs: what the passes did while it was compiled.
    """

    graph: GraphModule
    calls: list[CapturedValues] = field(default_factory=list)
    logs: list[PassLog] = field(default_factory=list)


class Watch:
    """Keeps what Dynamo handed to a backend, and what the stages made of it."""

    def __init__(
        self,
        skip: Collection[tuple[str, str]] = (),
        file: ValueFile | None = None,
        told: Path | None = None,
        recorded: int = RECORDED,
    ) -> None:
        """`skip`: phases and names of passes to leave out. `file`: has the memory of the values that are kept.

        `told`: a file that has the operation that is run, an `Origin`, for a process that may not live to tell.
        `recorded`: calls of each graph whose values are kept.
        """
        self.file, self.told, self.recorded = file, told, recorded
        self.dynamo: list[DynamoGraph] = []
        self.snapshots = Snapshots(skip)
        self.graphs: list[StageGraph] = []
        self.compiled: list[CompiledGraph] = []
        self.failed_nodes: list[Any] = []
        self.equal: Counter[str] = Counter()  # compiled graphs, by fingerprint

    def called(self) -> list[str]:
        """Base names of the operations of all graphs, and of what stands behind those of Dynamo's."""
        graphs = [g.graph for g in self.dynamo] + [g.graph for g in self.graphs] + [g.final for g in self.compiled]
        nodes = [node for graph in graphs for node in graph.graph.nodes if node.op in CALLS]
        return sorted({base_of(name) for node in nodes for name in (op_of(node), *aten_behind(node))})

    def captured(self, values: Sequence[Any]) -> CapturedValues:
        """A snapshot of values."""
        found = capture(list(values))
        return found if self.file is None else self.file.moved(found)

    def tell(self, node: Node, *_: Any) -> None:
        """Note the operation that is about to run, by what the program calls where that is known."""
        place = Origin.at(node, stage="runtime")
        assert self.told is not None
        calls = [function for _, function in node.meta.get("source_fn_stack", ()) if not isinstance(function, type)]
        if calls and name_of(calls[-1]) != place.op:
            op = name_of(calls[-1])
            also = [op_of(node), *aten_namesakes(op.rpartition(".")[2])]
            place = msgspec.structs.replace(place, op=op, also=also)
        self.told.write_bytes(msgspec.json.encode(place))

    def copied(self, values: Sequence[Any]) -> list[Any]:
        """Copies in which tensors that share memory share it again."""
        return copied_together(values, torch.clone if self.file is None else self.file.copy)

    def copied_apart(self, values: Sequence[Any]) -> list[Any]:
        """Copies, each in memory of its own."""
        return [copied(value) if self.file is None else self.copied([copied(value)])[0] for value in values]

    def moved(self, values: list[Any]) -> list[Any]:
        """As `copied_apart`, and each is let go of as soon as it is copied."""
        values.reverse()
        return [self.copied_apart([values.pop()])[0] for _ in range(len(values))]

    def backend(self, compile_graph: Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]) -> Callable[..., Any]:
        """A backend that compiles with `compile_graph` and records graphs and inputs."""

        def backend(gm: GraphModule, example_inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
            record = DynamoGraph(stages.copy_graph(gm))
            self.dynamo.append(record)
            logs = len(self.snapshots.logs)
            try:
                compiled = compile_graph(gm, example_inputs)
            except BaseException:
                record.calls.append(self.captured(example_inputs))
                raise
            finally:
                record.logs = self.snapshots.logs[logs:]

            def run(*args: Any) -> Any:
                if len(record.calls) < self.recorded:
                    record.calls.append(self.captured(args))
                return compiled(*args)

            return run

        return backend


@dataclass(eq=False)
class StageGraph:
    """A graph of AOTAutograd that runs op by op.

    Attributes:
        direction: `forward` or `backward`.
        graph: what runs.
        owner: number of Dynamo's graph.
        log: what the post-grad passes did, if they ran.
        inputs: before each recorded call.
    """

    direction: str
    graph: GraphModule
    owner: int
    log: PassLog | None = None
    inputs: list[list[Any]] = field(default_factory=list)


def interpreted(watch: Watch, graph: GraphModule, direction: str, log: PassLog | None = None) -> Callable[..., Any]:
    """A boxed callable that runs `graph` op by op and records its inputs."""
    record = StageGraph(direction, stages.copy_graph(graph), len(watch.dynamo) - 1, log)
    watch.graphs.append(record)

    def run(*values: Any) -> Any:
        if len(record.inputs) < watch.recorded:
            record.inputs.append(watch.copied(values))
        recorder = Recorder(record.graph, keep=False, watch=None if watch.told is None else watch.tell)
        try:
            return recorder.run(*values)
        except Exception:
            watch.failed_nodes.append(recorder.current)
            raise

    return boxed_call(run)


def dynamo_rung(watch: Watch) -> Callable[..., Any]:
    """Dynamo's graphs, run as they are."""
    return watch.backend(lambda gm, _: gm.forward)


def aot_rung(watch: Watch, *, decompose: bool = False, whole: Collection[str] = ()) -> Callable[..., Any]:
    """AOTAutograd, with Inductor's decompositions or without, and nothing else of Inductor; run op by op.

    Operations of `whole` are not decomposed.
    """

    def compiler(direction: str) -> Callable[..., Any]:
        return lambda gm, _: interpreted(watch, gm, direction)

    return watch.backend(
        functools.partial(
            aot_compile,
            forward=compiler("forward"),
            backward=compiler("backward"),
            min_cut=True,
            decompose=decompose,
            keep_mutations=True,
            whole=whole,
        )
    )


def stage_rung(watch: Watch, stage: str) -> Callable[..., Any]:
    """Inductor up to a stage, the graphs run op by op."""

    def inner(gm: GraphModule, _: Sequence[Any], settings: dict[str, Any]) -> Callable[..., Any]:
        direction = "backward" if settings.get("is_backward") else "forward"
        posts = [log for log in watch.snapshots.logs if log.phase == "post_grad"]
        return interpreted(watch, gm, direction, posts[-1] if stage == "post_grad" and posts else None)

    return watch.backend(lambda gm, inputs: stages.stop_after(stage, gm, inputs, inner))


def own_rung(watch: Watch, backend: Callable[..., Any], passes: OwnPasses) -> Callable[..., Any]:
    """A backend of the program, its passes watched; `watch.graphs` has what AOTAutograd hands to its compilers."""

    def around(direction: str, compiler: Callable[..., Any]) -> Callable[..., Any]:
        def compile_graph(gm: GraphModule, inputs: Sequence[Any], *args: Any, **settings: Any) -> Callable[..., Any]:
            record = StageGraph(direction, stages.copy_graph(gm), len(watch.dynamo) - 1)
            watch.graphs.append(record)
            with passes.watched(record):
                compiled = compiler(gm, inputs, *args, **settings)
            boxed = getattr(compiled, "_boxed_call", False)

            def run(*values: Any) -> Any:
                if len(record.inputs) < watch.recorded:
                    record.inputs.append(watch.copied(values[0] if boxed else values))
                return compiled(*values)

            run._boxed_call = boxed  # type: ignore[attr-defined]
            return run

        return compile_graph

    def compile_graph(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        with compilers_watched(around), passes.watched(watch.dynamo[-1]):
            compiled: Callable[..., Any] = backend(gm, inputs)
            return compiled

    return watch.backend(compile_graph)


def graphs_rung(watch: Watch, point: Graphs) -> Callable[..., Any]:
    """The graphs of one point of the pipeline, run op by op."""
    if point == "dynamo":
        return dynamo_rung(watch)
    if point in ("aot", "decomposition"):
        return aot_rung(watch, decompose=point == "decomposition")
    return stage_rung(watch, "decomposition" if point == "partition" else point)


def kernel_rung(watch: Watch, *, expose: bool) -> Callable[..., Any]:
    """Inductor, with its kernels; with `expose` graphs can be compiled again, their values shown: see `show`."""

    def inner(gm: GraphModule, inputs: Sequence[Any], settings: dict[str, Any]) -> Callable[..., Any]:
        direction = "backward" if settings.get("is_backward") else "forward"
        final = stages.post_grad_graph(gm, inputs, bool(settings.get("is_inference")))
        record = CompiledGraph(direction, final, file=watch.file)
        watch.compiled.append(record)
        with watched_lowering() as lowered:
            compiled = stages.compile_kernels(gm, inputs, settings)
        record.lowered, record.compiled = (lowered[-1] if lowered else None), compiled
        watch.equal[same := fingerprint(final)] += 1
        if expose and watch.equal[same] == 1:
            record.to_show = functools.partial(_showing, record, inputs, settings, stages.resumed())

        def run(args: list[Any]) -> Any:
            if len(record.inputs) >= watch.recorded:
                return compiled(args)
            values = list(args)
            record.inputs.append(watch.copied(values))
            result = compiled(args)
            record.outputs.append(watch.copied_apart(flat_outputs(result)))
            record.after.append(watch.copied_apart(values))
            return result

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    return watch.backend(lambda gm, inputs: stages.kernels(gm, inputs, inner))


def show(watch: Watch, record: CompiledGraph) -> None:
    """Compile a graph that has run once more, so that it returns its values, and run it on what it was called with."""
    compile_it, record.to_show = record.to_show, None
    showing = None if compile_it is None else compile_it()
    if showing is None:
        return
    for inputs in record.inputs:
        given = watch.copied(inputs)
        try:
            shown = flat_outputs(showing([*given]))
        except Exception as error:  # as the program's own kernels do, or those that return values alone
            record.problem = _not_shown(error)
            return
        record.overwritten.append({i: v for i, v in enumerate(given) if not equal_bits(v, inputs[i])})
        values = [shown.pop() for _ in record.shown][::-1]
        record.values.append([*watch.moved(values), *watch.moved(shown)])


def _not_shown(error: Exception) -> str:
    return f"its values could not be shown: {type(error).__name__}: {str(error)[:200]}"


def _showing(
    record: CompiledGraph,
    inputs: Sequence[Any],
    settings: dict[str, Any],
    resumed: Callable[[], contextlib.AbstractContextManager[None]],
) -> Callable[[list[Any]], Any] | None:
    graph = stages.copy_graph(record.final)
    nodes = to_show(graph)
    exposed(graph, nodes)
    try:
        with resumed():
            compiled = stages.compile_kernels(graph, inputs, settings, passes=False)
    except Exception as error:
        record.problem = _not_shown(error)
        return None
    record.shown = [n.name for n in nodes]
    return compiled


def run_program(
    program: Program, compilation: Compilation, backend: Callable[..., Any] | str, report: RungReport | None = None
) -> RungReport:
    """Run the calls compiled with `backend`; the report has what came of them, and the first exception's origin."""
    report = RungReport() if report is None else report
    torch.compiler.reset()
    if backend is not compilation.backend and not isinstance(backend, str):
        backend.__name__ = compilation.told_backend  # as errors name it

    with compilation.configured():
        for record, error in program.steps(functools.partial(compilation.compiled, backend=backend)):
            report.calls.append(record)
            if error is not None and report.origin is None:
                report.origin = origin_of(error)
    return report
