"""Inductor's part of one graph: scheduler IR before and after fusion, generated code, launches, saved inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from graphprobe.internals.inductor import inductor_taps as inductor
from graphprobe.internals.ir.node_text import Cache
from graphprobe.internals.ir.records import IRNode
from graphprobe.internals.ir.scheduler_nodes import donated_inputs, ir_graph
from graphprobe.internals.launches.launches import LaunchTap
from graphprobe.probe.first_run import first_run
from graphprobe.probe.formats.code_py import output_code_source
from graphprobe.probe.inputs import InputSaver
from graphprobe.probe.launches import LaunchRecorder
from graphprobe.probe.steps import StepLog
from graphprobe.probe.trail import Trail
from graphprobe.probe.views import ir_file
from graphprobe.records import Direction, Where
from graphprobe.settings import Settings
from graphprobe.store import layout
from graphprobe.store.writer import RunWriter

Failed = Callable[[str, BaseException], None]


class LoweringRecorder:
    """Follows one `compile_fx_inner` call from its graph to its callable."""

    def __init__(
        self,
        writer: RunWriter,
        where: Where,
        direction: Direction,
        trail: Trail,
        settings: Settings,
        predict: Callable[[int], bool],
        failed: Failed,
        note: Callable[[str], None],
        steps: StepLog,
    ) -> None:
        assert where.model is not None
        self._writer = writer
        self._where = msgspec.structs.replace(where, direction=direction)
        self._model: int = where.model
        self._direction: Direction = direction
        self._trail = trail
        self._settings = settings
        self._note = note
        self._steps = steps
        self._predict = predict
        self._failed = failed
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

        def path(number: int) -> str:
            return layout.ir_file(
                self._model, self._direction, stage, number=number, extension=extension, nested=nested
            )

        file = self._trail.write_numbered(path, view.source)
        where = msgspec.structs.replace(self._where, phase="lowering", subgraph=nested)
        name = layout.ir_name(self._direction, stage)
        self._writer.event(where=where, kind="ir", name=name, file=file, nodes_after=len(ir.nodes))
        if file is not None:
            self._trail.write_beside(file, view, phase="lowering")

    def _generated(self, path: str) -> None:
        if inductor.lowered_subgraph() is not None:
            return
        self._code_path = path
        self._code = Path(path).read_text("utf-8")
        script = output_code_source(self._code, constants=inductor.module_constants(), inputs=self._examples)
        file = self._writer.write_text(layout.code_file(self._model, self._direction), script.source)
        where = msgspec.structs.replace(self._where, phase="codegen")
        self._writer.event(where=where, kind="code", name="output_code", file=file)
        if file is not None:
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
        saver = None
        if self._settings.save_inputs:
            saver = InputSaver(self._writer, self._where, self._predict, self._failed, donated=self._donated)
        tap = self._launch_tap() if self._settings.capture_ops else None
        watched: Any = plain
        at_work: set[object] = {"steps"}

        def finished(part: object) -> None:
            at_work.discard(part)
            if not at_work and output.current_callable is watched:
                output.current_callable = plain

        watched = self._first_run(plain, lambda: finished("steps"))
        if tap is not None:
            cuda = bool(getattr(output, "device_types", set()) & {"cuda", "xpu"})
            recorder = LaunchRecorder(self._writer, self._where, tap, nodes, cuda, self._failed)
            at_work.add(recorder)
            watched = recorder.wrap(watched, lambda: finished(recorder))
        if saver is not None:
            at_work.add(saver)
            watched = saver.wrap(watched, boxed=True, finished=lambda: finished(saver))
        output.current_callable = watched

    def _first_run(self, compiled: Callable[..., Any], finished: Callable[[], None]) -> Callable[..., Any]:
        """`compiled`, its first call a step, with a step inside for each launch."""
        module = inductor.generated_module(self._code_path) if self._code_path else None
        pair = None
        if self._settings.capture_ops and module is not None and self._code is not None:
            pair = (module, self._code)
        return first_run(compiled, finished, pair, self._steps, self._where, self._failed)

    def _launch_tap(self) -> LaunchTap | None:
        module = inductor.generated_module(self._code_path) if self._code_path else None
        if module is None or self._code is None:
            self._note("captured_ops: no Python wrapper module to watch (cpp_wrapper, or a graph without kernels)")
            return None
        return LaunchTap(module, self._code)
