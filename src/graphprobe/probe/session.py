"""One observed process: the taps, the writer, a recorder for each compiled graph, and facts added line by line."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from graphprobe.analysis.breaks_facts import Fact
from graphprobe.analysis.recompile_facts import Recompile
from graphprobe.errors import GraphprobeWarning, last_line
from graphprobe.internals.compiler_logs import CompilerLogs, plan_from_text
from graphprobe.internals.compiler_settings import compiler_settings
from graphprobe.internals.context import Frame
from graphprobe.internals.dynamo.dynamo_taps import layers_of
from graphprobe.internals.dynamo.only_function import OnlyFunction
from graphprobe.internals.importhook import ImportHook
from graphprobe.internals.observer import FrameFacts
from graphprobe.internals.taps import Taps
from graphprobe.probe import environment
from graphprobe.probe.frames.on_failure import FrameWatch
from graphprobe.probe.step_log import StepLog, begin
from graphprobe.records import CompilerSettings, Where
from graphprobe.settings import Settings
from graphprobe.store import layout
from graphprobe.store.schema import json_line
from graphprobe.store.writer import RunWriter, WrittenFile

if TYPE_CHECKING:
    from graphprobe.probe.dump.backend import WayDump
    from graphprobe.probe.model import ModelRecorder
    from graphprobe.probe.pass_snapshots import Trail
    from graphprobe.probe.traced_graphs import WayRecorder


LEVELS = {"warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}
PREDICTED_BYTES_PER_MODEL = 40_000
"""What any model takes, small as it may be, bytes: compile.json, headers, the replay code in its scripts."""

PREDICTED_BYTES_PER_NODE = 9000
"""What a node of Dynamo's graph adds to a tree without saved inputs, bytes: GPT-2 training steps took 8000 to 9200."""


class Session:
    """Observes compiles and writes them down: a `CompileObserver` and a `StepObserver` of `internals`.

    A failing tap of ours is told in the manifest and in `debug.log`, once a kind; the program never sees it.
    """

    def __init__(self, settings: Settings, writer: RunWriter, *, everything: bool, torch_debugs: bool) -> None:
        """`everything` False observes only wrapped backends; `torch_debugs`: torch writes debug files itself."""
        self.settings = settings
        self.writer = writer
        self.everything = everything
        self._rank = environment.rank() or 0
        self._lock = threading.RLock()
        self._models: list[ModelRecorder] = []
        self._by_compile_id: dict[str, ModelRecorder] = {}
        self._predicted = 0
        self._settings_written = 0
        self._torch_debugs = torch_debugs
        plan = plan_from_text(settings.logs)
        self.steps = StepLog(writer)
        self._whole = next((route.name for route in plan.routes if route.verbose), None)
        """The log of a component that gets whole tracebacks; None where nobody asks for them."""
        self._traced: tuple[int, str] | None = None
        self._taps = Taps(self, follow_run_dir=str(writer.run_dir) if torch_debugs else None)
        self._logs = CompilerLogs(LEVELS[settings.log_level], self._log_line, plan=plan, file_sink=self._component_line)
        # Only where logs were asked for: else nothing is said before the first compile that would be kept.
        self._logs_hook = ImportHook({"torch._dynamo": lambda _: self._logs.start()} if settings.logs else {})
        self._only = OnlyFunction(settings.only_function)
        self._ways: WayRecorder | None = None
        self._frames = FrameWatch(settings, writer, self._here, self.failed_with)
        self._failures: dict[str, int] = {}
        self.fork_child: Callable[[], Session | None] | None = None
        """Opens the run of a forked child, at its first compile."""
        self._child: Session | None = None
        self._child_lock = threading.Lock()
        self._closed = False

    def start(self) -> None:
        """Put the taps in place; torch is not imported for it."""
        self._taps.install()
        self._logs_hook.install()
        self._only.install()
        if self.everything:
            from graphprobe.probe.traced_graphs import WayRecorder

            self._ways = WayRecorder(lambda facts: self.model_begins(facts, None, ()), self.failed)
            self._ways.install()
            self._frames.install()
        self.writer.update(taps=dict(self._taps.status))

    def stop(self, state: Literal["finished", "failed"] = "finished", exception: str | None = None) -> None:
        """Take everything out and close the run; safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        foreign = self._take_out()
        foreign += self._ways.remove() if self._ways is not None else []
        if self.writer.forked:
            if self._child is not None:
                self._child.stop(state, exception)
            return
        for address in foreign:
            self.writer.note(f"{address} was replaced by somebody else after graphprobe; left as it is")
        for tap, loss in self._taps.missing().items():
            self.writer.missing(f"this torch lacks what the tap {tap} stands on: {loss}")
        for text in self._only.report():
            self.writer.note(text)
        self.writer.update(taps=dict(self._taps.status), **environment.torch_facts())
        self.writer.close(state, exception)

    def dump_ways(self, dump: WayDump) -> None:
        """What is exported or traced is dumped, too."""
        if self._ways is not None:
            self._ways.dump = dump

    @contextlib.contextmanager
    def childless(self) -> Iterator[None]:
        """What children compile that are forked in the block is not observed."""
        kept, self.fork_child = self.fork_child, lambda: None
        try:
            yield
        finally:
            self.fork_child = kept

    def watching(self) -> bool:
        return not self._closed

    def frame_begins(self) -> bool:
        if self._closed or not self.everything or self.writer.forked:
            return False
        self._logs.start()
        return True

    def step_begins(self, component: str, name: str, detail: str, frame: Frame | None) -> int | None:
        if self._closed or (frame is None and not self.everything):
            return None
        return begin(self.steps, component, name, detail, frame)

    def step_ends(self, step: int | None, error: BaseException | None) -> None:
        if error is not None and step is not None and self._whole is not None:
            # Before torch cuts its own frames off for the user; once for each error.
            before, self._traced = self._traced, (id(error), type(error).__name__)
            if self._traced != before:
                text = "".join(traceback.format_exception(error)).rstrip()
                self._component_line(self._whole, f"graphprobe: the whole traceback, as torch had it:\n{text}")
        self.steps.end(step, error)

    def wants(self, backend: object) -> bool:
        if self._closed:
            return False
        return self.everything or wrapper_of(backend) is not None

    def model_begins(self, facts: FrameFacts, gm: Any, example_inputs: Sequence[Any]) -> object:
        here = self._here()
        if here is not self:
            return here.model_begins(facts, gm, example_inputs) if here is not None else None
        # Only now: it imports torch, which the program may never do, or not before it has set its environment.
        from graphprobe.probe.model import ModelRecorder

        self._logs.start()
        with self._lock:
            previous = self._by_compile_id.get(facts.compile_id or "")
            change = getattr(wrapper_of(facts.backend_object), "change_settings", None)
            settings = self.settings if change is None else change(self.settings)
            restart_of = previous.number if previous is not None else None
            model = ModelRecorder(self, settings, len(self._models), self._rank, facts, restart_of)
            self._models.append(model)
            if facts.compile_id is not None:
                self._by_compile_id[facts.compile_id] = model
            if len(self._models) == 1:
                self.writer.update(**environment.torch_facts())
                self._write_settings()
            self.writer.update(models=len(self._models))
        if gm is not None:
            self.predict(PREDICTED_BYTES_PER_MODEL + len(gm.graph.nodes) * PREDICTED_BYTES_PER_NODE)
            model.dynamo_graph(gm)
        model.write_facts()
        return model

    def model_ends(self, token: Any, compiled: Any, error: BaseException | None) -> Any:
        model: ModelRecorder = token
        if model.number == 0:
            self._write_settings()
        if error is not None:
            model.fail(error)
            return None
        result = model.ends(compiled)
        model.write_facts()
        for piece in model.pieces:
            for direction in ("pre_grad", "joint", "forward"):
                piece.settle(direction)
        return result

    def caches_bypassed(self, token: Any, names: list[str]) -> None:
        if not names:
            return
        model: ModelRecorder = token
        model.facts.caches_bypassed = sorted({*model.facts.caches_bypassed, *names})
        if self.writer.forked:
            if self._child is not None:
                self._child.caches_bypassed(token, names)
            return
        with self._lock:
            known = self.writer.manifest.caches_bypassed
            if not set(names) <= set(known):
                self.writer.update(caches_bypassed=sorted({*known, *names}))

    def aot_begins(self, token: Any) -> object:
        model: ModelRecorder = token
        return model.begin_piece()

    def aot_graph(self, frame: Frame, gm: Any) -> None:
        model: ModelRecorder = frame.token
        model.trail(_direction(frame)).graph(gm, phase="aot")

    def aot_compiles(self, frame: Frame, gm: Any) -> None:
        model: ModelRecorder = frame.token
        direction = _direction(frame)
        # Also where no Dynamo is at work any more: a backward may be compiled long after.
        name = f"compile the {direction} graph"
        model.compiling[direction] = begin(self.steps, "backend", name, f"by {model.facts.backend}", frame)
        model.compiles(direction, gm)

    def aot_compiled(self, frame: Frame, gm: Any, compiled: Any, error: BaseException | None) -> Any:
        model: ModelRecorder = frame.token
        self.step_ends(model.compiling.pop(_direction(frame), None), error)
        if error is not None:
            model.trail(_direction(frame)).failed(frame, "compile", error)
            model.fail(error)
            return None
        result = model.compiled(_direction(frame), gm, compiled)
        model.settle(_direction(frame))
        return result

    def phase_begins(self, frame: Frame, gm: Any) -> str | None:
        return self._trail(frame).phase_begins(frame, gm)

    def phase_ends(self, frame: Frame, gm: Any, error: BaseException | None) -> None:
        self._trail(frame).phase_ends(frame, gm, error)

    def pass_begins(self, frame: Frame, gm: Any, name: str, subsystem: str | None) -> object:
        begun = self._trail(frame).pass_begins(frame, gm, name)
        detail = f"pass of {frame.phase}" if frame.phase else "pass"
        detail += f", on {frame.subgraph}" if frame.subgraph else ""
        return begun, subsystem, begin(self.steps, "inductor", name, detail, frame)

    def pass_ends(self, frame: Frame, gm: Any, name: str, started: Any, error: BaseException | None) -> None:
        begun, subsystem, step = started
        self.steps.end(step, error)
        self._trail(frame).pass_ends(frame, gm, name, begun, error, subsystem)

    def lowering(self, frame: Frame, event: str, *args: Any) -> None:
        model: ModelRecorder = frame.token
        model.lowering(_direction(frame)).event(event, args)

    def inductor_begins(self, frame: Frame, gm: Any, example_inputs: Sequence[Any], options: dict[str, Any]) -> None:
        model: ModelRecorder = frame.token
        if not model.facts.settings:
            model.facts.settings = compiler_settings(changed_only=True)
        model.lowering(_direction(frame)).begins(gm, example_inputs, options)

    def inductor_compiled(self, frame: Frame, output: Any) -> None:
        model: ModelRecorder = frame.token
        model.lowering(_direction(frame)).compiled(output)

    def metrics(self, compile_id: str | None, values: dict[str, Any]) -> None:
        model = self._by_compile_id.get(compile_id or "")
        if model is not None and not self.writer.forked:
            model.metrics(values)

    def guards(self, compile_id: str | None, guards: list[dict[str, Any]]) -> None:
        model = self._by_compile_id.get(compile_id or "")
        if model is not None and not self.writer.forked:
            model.guards(guards)

    def graph_break(self, fact: Fact, backend: object) -> None:
        here = self._here() if self.wants(backend) else None
        if here is not None:
            append_fact(here.writer, layout.BREAKS, json_line(fact))

    uncompiled = graph_break

    def recompiled(self, fact: Recompile, backend: object) -> None:
        here = self._here() if self.wants(backend) else None
        if here is not None:
            append_fact(here.writer, layout.RECOMPILES, json_line(fact))

    def failed(self, what: str, details: str) -> None:
        if self.writer.forked:
            if self._child is not None:
                self._child.failed(what, details)
            return
        with self._lock:
            self._failures[what] = self._failures.get(what, 0) + 1
            if self._failures[what] > 1:
                return
        last = last_line(details)
        self.writer.missing(f"graphprobe failed at {what}: {last}")
        text = f"graphprobe: graphprobe failed at {what}; the program is not affected\n{details}\n"
        self.writer.append_text(layout.LOG, text)

    def failed_with(self, what: str, error: BaseException) -> None:
        """`failed`, from an exception in hand."""
        self.failed(what, "".join(traceback.format_exception(error)))

    def predict(self, size_bytes: int) -> bool:
        """Add to the predicted size of the run; False, and said in the manifest, when the budget will not hold it."""
        with self._lock:
            self._predicted += size_bytes
            self.writer.update(predicted_bytes=self._predicted)
            left = self.settings.max_bytes - self.writer.manifest.collected_bytes
        if size_bytes > left:
            self.writer.missing(f"inputs of {size_bytes} bytes are more than the {left} that the budget has left")
            return False
        return True

    def _here(self) -> Session | None:
        """This session, or in a forked child the child's own one; None when it could not be opened."""
        if not self.writer.forked:
            return self
        # Not `_lock`: another thread of the parent may have held it at the fork. This one is taken in children only.
        with self._child_lock:
            if self._child is None and self.fork_child is not None:
                opener, self.fork_child = self.fork_child, None
                self._take_out()  # the parent's taps would tell the child's session everything a second time
                self._child = opener()
        return self._child

    def _take_out(self) -> list[str]:
        """Stop to observe, but for ways; returns what somebody else has replaced since."""
        foreign = self._frames.remove()  # first: it came last, and stands on the same names
        foreign += self._taps.remove()
        self._logs_hook.remove()
        self._logs.stop()
        return foreign + self._only.remove()

    def _write_settings(self) -> None:
        """The settings of the compilers; once more when the first compile has loaded the modules of all of them."""
        settings = compiler_settings()
        if not self.writer.forked and len(settings) > self._settings_written:
            self._settings_written = len(settings)
            document = CompilerSettings(torch=str(environment.torch_facts().get("torch", "")), settings=settings)
            self.writer.write_bytes(
                layout.COMPILER_SETTINGS, msgspec.json.format(msgspec.json.encode(document), indent=1)
            )

    def _trail(self, frame: Frame) -> Trail:
        model: ModelRecorder = frame.token
        if frame.direction == "pre_grad":  # AOTAutograd has not begun on the graph: of which piece it is, nobody said
            model = model.next_piece()
        return model.trail(_direction(frame))

    def _log_line(self, logger: str, line: str) -> None:
        kept = self.writer.append_text(layout.LOG, line + "\n")
        if kept and not self._torch_debugs and logger.startswith("torch._dynamo"):
            path = self.writer.run_dir / "torchdynamo"
            with contextlib.suppress(OSError):
                path.mkdir(exist_ok=True)
                with open(path / "debug.log", "a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(line + "\n")

    def _component_line(self, name: str, line: str) -> None:
        self.writer.append_text(layout.log_file(name), line + "\n")


def _direction(frame: Frame) -> Any:
    return frame.direction or "forward"


def wrapper_of(backend: object) -> Any:
    """The `graphprobe.wrap` object inside a backend as Dynamo holds it, or None."""
    return next((inner for inner in layers_of(backend) if getattr(inner, "_graphprobe_wrapped", False)), None)


def check_watching(settings: Settings) -> None:
    """Raises UsageError for `logs` or `only_function` that cannot be meant, before anything is made."""
    plan_from_text(settings.logs)
    OnlyFunction(settings.only_function)


def open_session(
    settings: Settings,
    *,
    everything: bool,
    adopt_run_dir: Path | None = None,
    torch_debugs: bool = False,
    root: Path | None = None,
) -> Session:
    """A started session with a run folder of its own; arguments as `Session`.

    `root` is the folder that gets the run folder, None for that of the settings.

    Raises:
        UsageError: the folder cannot be made or written to; `logs` or `only_function` cannot be meant.
    """
    check_watching(settings)
    if root is None:
        root = Path(settings.out_dir) if settings.out_dir is not None else environment.default_root(os.environ)
    writer = RunWriter.create(
        root,
        manifest=environment.manifest(settings),
        rank=environment.rank(),
        max_bytes=settings.max_bytes,
        adopt_run_dir=adopt_run_dir,
    )
    session = Session(settings, writer, everything=everything, torch_debugs=torch_debugs)

    def open_child() -> Session | None:
        try:
            child = open_session(settings, everything=everything, torch_debugs=torch_debugs, root=writer.run_dir.parent)
        except Exception as error:
            warnings.warn(f"graphprobe: no run for forked process {os.getpid()}: {error}", GraphprobeWarning, 2)
            return None
        # A child of `multiprocessing` leaves without running `atexit`; it has a list of its own.
        if (util := sys.modules.get("multiprocessing.util")) is not None:
            util.Finalize(None, child.stop, exitpriority=-100)  # after the program's own
        child.writer.note(f"forked from process {os.getppid()}, whose run is {writer.run_dir.name}")
        return child

    session.fork_child = open_child
    session.start()
    return session


def append_fact(writer: RunWriter, path: str, line: str) -> None:
    """Add a line to a file of the run; the first has an event, by which `ls` knows the file."""
    first = not (writer.tool_dir / path).exists()
    if writer.append_text(path, line) and first:
        # Without a digest: the file goes on growing.
        name = path.partition(".")[0]
        writer.event(where=Where(rank=writer.manifest.rank), kind="log", name=name, file=WrittenFile(path, None, None))
