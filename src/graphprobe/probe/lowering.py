"""Inductor's part of one graph: scheduler IR before and after fusion, generated code, launches, the first call.

`captured_ops.json` has what a compiled graph launched, in the order in which it ran, as a Chrome trace: launches are
followed back to scheduler nodes, FX nodes and source lines.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from graphprobe.export.chrome_trace import document, lasting, named
from graphprobe.internals.inductor import inductor_taps as inductor
from graphprobe.internals.ir.records import IRNode
from graphprobe.internals.ir.scheduler_nodes import Cache, donated_inputs, ir_graph
from graphprobe.internals.launches import Launch, Launching, LaunchTap
from graphprobe.probe.inputs import FirstCalls, InputSaver, Owner
from graphprobe.probe.pass_snapshots import Trail
from graphprobe.probe.views import ir_file, output_code_source
from graphprobe.records import Direction, Where
from graphprobe.settings import Settings
from graphprobe.store import layout

COMPONENT = "run"

MAX_CALLS = 4
"""CUDA graphs are captured on the second call or later; after this many calls without a capture, none is coming."""

FROM_WRAPPER = "launches of the compiled wrapper, in the order in which they ran"
FROM_CAPTURE = "launches of the compiled wrapper while the stream was captured into a CUDA graph"


class FirstRun(FirstCalls):
    """Makes a step of the first call of one compiled graph, with a step inside for each launch."""

    def __init__(self, module: tuple[ModuleType, str] | None, owner: Owner, where: Where) -> None:
        """`module`: the generated one and its code, whose launches are steps, too; None to leave them alone."""
        super().__init__()
        self._module, self._owner, self._where = module, owner, where

    def watch(self, run: Callable[[], Any], args: tuple[Any, ...]) -> Any:
        self.done = True
        tap = None if self._module is None else LaunchTap(*self._module, around=self._launch)
        with contextlib.nullcontext() if tap is None else tap.recording():
            return self._step("first call", "of the compiled graph", run)

    def _launch(self, launching: Launching) -> Any:
        return self._step("launch", f"{launching.name} (output_code.py:{launching.line})", launching.run)

    def _step(self, name: str, detail: str, run: Callable[[], Any]) -> Any:
        where, steps, step = self._where, self._owner.steps, None
        try:
            facts = {"model": where.model, "direction": where.direction, "compile_id": where.compile_id}
            step = steps.begin(COMPONENT, name, detail, **facts)
        except Exception as error:
            self._owner.failed_with("step of a launch", error)
        try:
            result = run()
        except BaseException as error:
            steps.end(step, error)
            raise
        steps.end(step)
        return result


def nodes_by_launch(buffers: Sequence[Iterable[str]], nodes: Sequence[IRNode]) -> list[tuple[IRNode, ...]]:
    """The scheduler nodes that each launch carries out.

    A scheduler node writes buffers under names of their own, and nothing can read one before it was written: so the
    first launch that names any buffer of a node is the one that runs it.

    Args:
        buffers: for each launch, in the order in which they ran, the names that it was called with or bound to.
        nodes: the scheduler's nodes after fusion, those of nested graphs included.
    """
    writers: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        for out in node.outputs:
            writers.setdefault(out.name, []).append(index)
    done: set[int] = set()
    found: list[tuple[IRNode, ...]] = []
    for names in buffers:
        here = sorted({index for name in names for index in writers.get(name, ())} - done)
        done.update(here)
        found.append(tuple(nodes[index] for index in here))
    return found


class LaunchRecorder(FirstCalls):
    """Records the first call of one compiled graph, and on CUDA the call during which its graph is captured."""

    def __init__(self, owner: Owner, where: Where, tap: LaunchTap, nodes: Sequence[IRNode], cuda: bool) -> None:
        """`nodes` are the scheduler's after fusion, for the way back from a launch to the source."""
        super().__init__()
        self._owner, self._writer = owner, owner.writer
        self._where = where
        self._tap = tap
        self._nodes = tuple(nodes)
        self._cuda = cuda
        self._calls = 0

    def watch(self, run: Callable[[], Any], args: tuple[Any, ...]) -> Any:
        if self._writer.closed:
            self.done = True
            return run()
        self._calls += 1
        self._tap.launches.clear()
        try:
            with self._tap.recording():
                return run()
        finally:
            self._after_call()

    def _after_call(self) -> None:
        try:
            launches = list(self._tap.launches)
            captured = any(launch.capturing for launch in launches)
            if self._calls == 1 or captured:
                self._write(launches, captured)
            if captured or not self._cuda or self._calls >= MAX_CALLS:
                self.done = True
                self._nodes = ()
        except Exception as error:
            self.done = True
            self._owner.failed_with("captured ops", error)

    def _write(self, launches: list[Launch], captured: bool) -> None:
        buffers = [self._tap.buffers(launch) for launch in launches]
        source = FROM_CAPTURE if captured else FROM_WRAPPER
        text = chrome_trace(launches, buffers, nodes_by_launch(buffers, self._nodes), source, self._cuda)
        file = self._writer.write_text(layout.ops_file(self._where), text)
        where = msgspec.structs.replace(self._where, phase="run", step=self._calls - 1)
        if file is not None:
            self._writer.event(where=where, kind="ops", name="captured_ops", file=file, nodes_after=len(launches))


def chrome_trace(
    launches: Sequence[Launch],
    buffers: Sequence[tuple[str, ...]],
    nodes: Sequence[tuple[IRNode, ...]],
    source: str,
    cuda: bool,
) -> str:
    """The launches as Chrome-trace JSON (complete events, microseconds from the first launch).

    Each launch names the buffers of `output_code.py` it touches, the scheduler nodes it carries out, the FX nodes these
    were lowered from, and the source lines those stem from.
    """
    begin_ns = launches[0].start_ns if launches else 0
    pid = os.getpid()
    events = [named("process_name", pid, 0, "compiled graph")]
    for index, (launch, names, ran) in enumerate(zip(launches, buffers, nodes, strict=True)):
        origins = {origin.name: origin for node in ran for origin in node.origins}.values()
        args = {
            "index": index,
            "output_code_line": launch.line,
            "arguments": list(launch.arguments),
            "buffers": list(names),
            "scheduler_nodes": [node.name for node in ran],
            "fx_nodes": [{"name": origin.name, "target": origin.target} for origin in origins],
            "sources": sorted({origin.source for origin in origins if origin.source}),
            "capturing": launch.capturing,
        }
        begin_us, for_us = (launch.start_ns - begin_ns) / 1000, launch.elapsed_ns / 1000
        events.append(lasting(launch.name, launch.kind, begin_us, for_us, pid=pid, tid=launch.thread, args=args))
    other = {
        "source": source,
        "durations": "time to enqueue on the host" if cuda else "time the launch took on the host",
        "launches": len(launches),
    }
    return json.dumps(document(events, other, unit="ns"), indent=1)


class LoweringRecorder:
    """Follows one `compile_fx_inner` call from its graph to its callable."""

    def __init__(
        self, owner: Owner, where: Where, trail: Trail, settings: Settings, note: Callable[[str], None]
    ) -> None:
        assert where.direction is not None
        self._owner, self._writer = owner, owner.writer
        self._where = where
        self._direction: Direction = where.direction
        self._trail = trail
        self._settings = settings
        self._note = note
        self._options: dict[str, Any] = {}
        self._examples: tuple[Any, ...] = ()
        self._donated: tuple[int, ...] = ()
        self._graph: Any = None
        self._texts: Cache = {}
        self._nodes: list[IRNode] = []
        self._code_path: str | None = None
        self._code: str | None = None

    def begins(self, gm: Any, example_inputs: Sequence[Any], options: dict[str, Any]) -> None:
        """Inductor starts on the graph, with `compile_fx_inner`'s keyword options."""
        self._graph = gm
        self._examples = tuple(example_inputs)
        self._options = options

    def event(self, name: str, args: tuple[Any, ...]) -> None:
        """One of `internals.inductor.LOWERING_EVENTS`."""
        if name in ("fx_graph", "fx_graph_transformed"):
            if inductor.lowered_subgraph() is None:
                self._graph = args[0]
            if name == "fx_graph_transformed":
                self._trail.graph(args[0], phase="lowering")
        elif name == "ir_pre_fusion":
            self._ir("original", args[0])
        elif name == "ir_post_fusion":
            self._ir("optimized", args[0])
        elif name == "output_code":
            self._generated(args[0])

    def _ir(self, stage: layout.Stage, nodes: Any) -> None:
        nested = inductor.lowered_subgraph()
        if nested is None:
            self._donated = tuple(donated_inputs())
        ir = ir_graph(nodes, self._texts)
        if stage == "optimized":
            self._nodes.extend(ir.nodes)
        extension: layout.Extension = self._settings.graph_dump
        if nested is not None and extension == "py":
            extension = "txt"  # the nested graph is part of the outer one's script
        view = ir_file(
            extension,
            ir,
            graph=self._graph,
            stage=stage,
            examples=self._examples,
            donated=self._donated,
            options=self._options,
        )
        path = partial(layout.ir_file, self._where, stage, extension=extension, nested=nested)
        file = self._trail.write_numbered(lambda number: path(number=number), view.source)
        where = msgspec.structs.replace(self._where, phase="lowering", subgraph=nested)
        name = layout.graph_name(self._direction, stage)
        self._writer.event(where=where, kind="ir", name=name, file=file, nodes_after=len(ir.nodes))
        self._trail.write_beside(file, view, phase="lowering")

    def _generated(self, path: str) -> None:
        if inductor.lowered_subgraph() is not None:
            return
        text, where = Path(path).read_text("utf-8"), msgspec.structs.replace(self._where, phase="codegen")
        if not path.endswith(".py"):
            file = self._writer.write_text(layout.code_file(self._where, extension=".cpp"), text)
            self._writer.event(where=where, kind="code", name="output_code", file=file)
            return
        self._code_path, self._code = path, text
        script = output_code_source(self._code, constants=inductor.module_constants(), inputs=self._examples)
        file = self._writer.write_text(layout.code_file(self._where), script.source)
        self._writer.event(where=where, kind="code", name="output_code", file=file)
        self._trail.write_beside(file, script, phase="codegen")

    def compiled(self, output: Any) -> None:
        """Inductor's callable is there: watch its first call."""
        nodes, self._nodes = self._nodes, []
        self._texts.clear()
        self._examples = ()
        self._graph = None
        if not callable(getattr(output, "current_callable", None)):
            return  # a graph without a call to compile
        plain = output.current_callable
        watched: Any = plain
        at_work: set[FirstCalls] = set()

        def watch(part: FirstCalls) -> None:
            nonlocal watched
            at_work.add(part)
            watched = part.wrap(watched, lambda: finished(part))

        def finished(part: FirstCalls) -> None:
            at_work.discard(part)
            if not at_work and output.current_callable is watched:
                output.current_callable = plain

        module = inductor.generated_module(self._code_path) if self._code_path else None
        code = (module, self._code) if module is not None and self._code is not None else None
        if self._settings.capture_ops and code is None:
            self._note("captured_ops: no Python wrapper module to watch (cpp_wrapper, or a graph without kernels)")
        taps = code if self._settings.capture_ops else None
        watch(FirstRun(taps, self._owner, self._where))
        if taps is not None:
            cuda = bool(getattr(output, "device_types", set()) & {"cuda", "xpu"})
            watch(LaunchRecorder(self._owner, self._where, LaunchTap(*taps), nodes, cuda))
        if self._settings.save_inputs:
            watch(InputSaver(self._owner, self._where, boxed=True, donated=self._donated))
        output.current_callable = watched
