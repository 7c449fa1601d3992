"""One compiled graph of Dynamo, `model__N`: why it was compiled, under which guards, how long each phase took."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from graphprobe.internals.context import Frame
from graphprobe.internals.dynamo.compile_facts import begins_at, calls_of, on_cpu
from graphprobe.internals.observer import FrameFacts
from graphprobe.probe.formats.fx_text import graph_text
from graphprobe.probe.graph_facts import GraphFacts
from graphprobe.probe.inputs import InputSaver, Owner
from graphprobe.probe.pass_snapshots import Trail
from graphprobe.probe.views import fx_file
from graphprobe.records import CompileFacts, Direction, Where
from graphprobe.settings import Settings
from graphprobe.store import layout
from graphprobe.store.schema import json_from_value
from graphprobe.store.writer import WrittenFile

if TYPE_CHECKING:
    from graphprobe.probe.lowering import LoweringRecorder

TIMINGS_US = {
    "dynamo_cumulative_compile_time_us": "entire_frame",
    "aot_autograd_cumulative_compile_time_us": "backend",
    "inductor_cumulative_compile_time_us": "inductor",
    "inductor_code_gen_cumulative_compile_time_us": "code_generation",
    "pre_grad_pass_time_us": "pre_grad_passes",
    "joint_graph_pass_time_us": "joint_passes",
    "post_grad_pass_time_us": "post_grad_passes",
    "triton_compile_time_us": "triton",
    "backward_cumulative_compile_time_us": "entire_backward",
}
"""torch's metric (microseconds) and the name it has in `compile.json` (milliseconds).

torch's time of `triton` is that of every kernel's compiler: on the CPU it is called `cpp`.
"""


class ModelRecorder:
    """Recorder of one `model__N`; the token that the taps carry."""

    def __init__(
        self, owner: Owner, settings: Settings, number: int, rank: int, facts: FrameFacts, restart_of: int | None
    ) -> None:
        self.owner = owner
        self.settings = settings
        self.writer = owner.writer
        self.number = number
        self.where = Where(rank=rank, model=number, compile_id=facts.compile_id)
        self._lock = threading.RLock()
        self._graph_facts = GraphFacts(owner.writer, number, self.note)
        self._has_graph()
        self.pieces: list[ModelRecorder] = [self]
        """Of the whole model: itself, and a recorder for each further piece that the backend compiles by itself."""
        self._dynamo: Any = None
        self._told = False
        self._kernels_by = "triton"
        self.facts = CompileFacts(
            compile_id=facts.compile_id,
            function=facts.function,
            file=facts.file,
            line=facts.line,
            backend=facts.backend,
            mode=facts.mode,
            recompile_reason=facts.recompile_reason,
            restart_of=restart_of,
            reason=_reason(facts, restart_of),
        )
        if facts.graph_break is not None:
            self.facts.graph_break = {"reason": facts.graph_break, "user_stack": facts.break_stack}

    def _has_graph(self) -> None:
        """Begin without any graph."""
        self._trails: dict[Direction, Trail] = {}
        self._lowerings: dict[Direction, LoweringRecorder] = {}
        self._given: dict[Direction, str] = {}
        self.saw_aot = False
        self.compiling: dict[Direction, int | None] = {}
        """The step of the graph that AOTAutograd has handed to the backend."""

    def next_piece(self) -> ModelRecorder:
        """The recorder of the graph that AOTAutograd begins on next: this, or that of a further piece of the model."""
        with self._lock:
            if self.pieces[-1].saw_aot:
                piece = copy.copy(self)
                piece._has_graph()
                piece.where = msgspec.structs.replace(self.where, piece=len(self.pieces))
                self.pieces.append(piece)
            return self.pieces[-1]

    def begin_piece(self) -> ModelRecorder:
        """AOTAutograd begins."""
        piece = self.next_piece()
        piece.saw_aot = True
        return piece

    def trail(self, direction: Direction) -> Trail:
        """The recorder of one of the model's graphs."""
        with self._lock:
            if direction not in self._trails:
                where = msgspec.structs.replace(self.where, direction=direction)
                self._trails[direction] = Trail(self.writer, where, self._graph_facts)
            return self._trails[direction]

    def settle(self, direction: Direction) -> None:
        """Let go of the graph of a direction that is compiled: a run may last for days, a graph need not."""
        with self._lock:
            trail = self._trails.get(direction)
        if trail is not None:
            trail.settle()

    def lowering(self, direction: Direction) -> LoweringRecorder:
        """Inductor's part of one of the model's graphs."""
        from graphprobe.probe.lowering import LoweringRecorder  # imports Inductor, which other backends do without

        with self._lock:
            if direction not in self._lowerings:
                where = msgspec.structs.replace(self.where, direction=direction)
                trail = self.trail(direction)
                self._lowerings[direction] = LoweringRecorder(self.owner, where, trail, self.settings, self.note)
            return self._lowerings[direction]

    def dynamo_graph(self, gm: Any) -> None:
        """The graph as Dynamo hands it to the backend."""
        self._dynamo = gm
        self.facts.nodes = len(gm.graph.nodes)
        calls = list(calls_of(gm))
        self.facts.ops = len(calls)
        self.facts.begins = begins_at(calls)
        if on_cpu(gm):
            self._kernels_by = "cpp"
        file = self.writer.write_text(layout.dynamo_file(self.number), graph_text(gm))
        self._graph_facts.write(file, self._graph_facts.take(gm))
        where = msgspec.structs.replace(self.where, phase="dynamo")
        name = "dynamo_out_graph"
        self.writer.event(where=where, kind="graph", name=name, file=file, nodes_after=self.facts.nodes)

    def ends(self, compiled: Any) -> Any:
        """The backend is done. One that never came to AOTAutograd compiled Dynamo's own graph."""
        gm, self._dynamo = self._dynamo, None
        if gm is None or self.saw_aot or not callable(compiled):
            return compiled
        self._backend_graph("forward", gm, "original")
        return self._saved("forward", compiled)

    def compiles(self, direction: Direction, gm: Any) -> None:
        """AOTAutograd hands a graph to a compiler."""
        trail = self.trail(direction)
        trail.graph(gm, phase="aot")
        self._given[direction] = trail.text
        if not self._by_inductor and self.settings.graph_dump != "txt":
            self._backend_graph(direction, gm, "original")

    def compiled(self, direction: Direction, gm: Any, compiled: Any) -> Any:
        """A compiler that AOTAutograd called is done with a graph. Inductor's own parts are told elsewhere."""
        if direction in self._lowerings or not callable(compiled):
            return compiled
        trail = self.trail(direction)
        trail.graph(gm, phase="backend")
        if trail.text != self._given.pop(direction, None) and self.settings.graph_dump != "txt":
            self._backend_graph(direction, gm, "optimized")
        return self._saved(direction, compiled)

    @property
    def _by_inductor(self) -> bool:
        """Inductor's scheduler has graphs of its own; those of other backends are the FX graphs they are given."""
        return self.facts.backend == "inductor" or bool(self._lowerings)

    def _saved(self, direction: Direction, compiled: Callable[..., Any]) -> Callable[..., Any]:
        if not self.settings.save_inputs:
            return compiled
        where = msgspec.structs.replace(self.where, direction=direction)
        return InputSaver(self.owner, where, boxed=getattr(compiled, "_boxed_call", False)).wrap(compiled)

    def _backend_graph(self, direction: Direction, gm: Any, stage: layout.Stage) -> None:
        """The graph of a backend without an IR of its own, in the form that was asked for."""
        extension = self.settings.graph_dump
        # What AOTAutograd never saw is not called after it.
        name = layout.graph_name(direction, stage) if self.saw_aot else f"{direction}_{stage}_graph"
        view = fx_file(extension, gm, title=f"model__{self.number} {direction}", eager=not self.saw_aot)
        trail = self.trail(direction)
        where = msgspec.structs.replace(self.where, direction=direction, phase="backend")
        file = trail.write_numbered(
            lambda number: layout.backend_graph_file(where, name, number=number, extension=extension),
            view.source,
        )
        self.writer.event(where=where, kind="ir", name=name, file=file, nodes_after=len(gm.graph.nodes))
        self._graph_facts.write(file, self._graph_facts.take(gm))
        trail.write_beside(file, view, phase="backend")

    def write_facts(self) -> None:
        """(Re)write `compile.json`. Its one event has no digest: the file changes for as long as the model lives."""
        with self._lock:
            data = msgspec.json.format(json_from_value(msgspec.to_builtins(self.facts, enc_hook=str)), indent=1)
            file = self.writer.write_bytes(layout.compile_file(self.number), data)
            if file is not None and not self._told:
                self._told = True
                lasting = WrittenFile(file.path, None, None)
                self.writer.event(where=self.where, kind="compile", name="compile", file=lasting)

    def metrics(self, values: dict[str, Any]) -> None:
        """torch's metrics of the forward or, later, of the backward compile."""
        backward = values.get("is_forward") is False
        with self._lock:
            for key, name in TIMINGS_US.items():
                value = values.get(key)
                name = self._kernels_by if name == "triton" else name
                if value is not None:
                    self.facts.timings_ms[f"backward.{name}" if backward else name] = round(value / 1000, 3)
            if not backward and self.facts.recompile_reason is None:
                self.facts.recompile_reason = values.get("recompile_reason")
        self.write_facts()

    def guards(self, guards: list[dict[str, Any]]) -> None:
        with self._lock:
            self.facts.guards = guards
        self.write_facts()

    def fail(self, error: BaseException) -> None:
        """The backend raised: into `compile.json`, and as an event if no pass has claimed the error."""
        with self._lock:
            self.facts.failure = f"{type(error).__name__}: {error}"
            claimed = any(trail.has_told(error) for piece in self.pieces for trail in piece._trails.values())
            gm, self._dynamo = self._dynamo, None
        if not claimed:
            frame = Frame(self, "forward", "backend")
            seen = gm is not None and not self.saw_aot
            self.trail("forward").failed(
                frame,
                self.facts.backend or "backend",
                error,
                graph=graph_text(gm) if seen else None,
                graphs=self._graph_facts.take(gm) if seen else (),
            )
        self.write_facts()

    def note(self, text: str) -> None:
        with self._lock:
            if text not in self.facts.notes:
                self.facts.notes.append(text)


def _reason(facts: FrameFacts, restart_of: int | None) -> str:
    if restart_of is not None:
        return f"torch restarted its analysis of the same compile (see model__{restart_of})"
    if facts.recompile_reason is not None:
        return f"recompile: {facts.recompile_reason}"
    if facts.made_by is not None:
        return f"by {facts.made_by}"
    if facts.compile_id is None:
        return "compiled without Dynamo"
    if facts.resumed:
        return "continuation behind a graph break"
    return "first compile of this function"
