"""Watches the ways into the compiler beside `torch.compile`: what is exported or traced, and what becomes of it."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, Protocol
from weakref import WeakKeyDictionary

from graphprobe.internals.bus import Advice, Listener, Patch, Subscriber, Subscription, advised
from graphprobe.internals.context import Frame, entered
from graphprobe.internals.dynamo.compile_facts import calling_line, frames_from
from graphprobe.internals.importhook import ImportHook
from graphprobe.internals.unseen import unseen

if TYPE_CHECKING:
    from graphprobe.internals.inductor.executable_snapshots import Applied

TAP = "ways"
INDUCTOR, PROGRAM = "torch._inductor", "torch.export.exported_program"
GUARDS = "_guards_fn"
"""The part of an exported module that checks its inputs."""

MOST_IDLE = 2
"""Calls of a graph that nobody has changed since the last one, after which no pass is expected any more."""

Kind = Literal["export", "trace", "module", "decompose", "pass"]


@dataclass(frozen=True)
class TracedCall:
    """What was exported or traced.

    Attributes:
        fn: the module or function.
        args, kwargs: that it was traced with.
        grad: whether gradients were on.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    grad: bool


@dataclass(eq=False)
class WayGraph:
    """A graph on a way into the compiler, as it was once somebody had made it.

    Attributes:
        kind: how it was made.
        made_by: the function and its line, or the line that called torch's: `fold (passes.py:31)`.
        traced: where the way begins.
        before: the graph that it was made of; None of the first.
        applied: of a pass, the call that made it, or the pass; of a decomposition, the table that the program gave.
        signature: changes when a node does.
        graph: a copy, if the observer wants copies.
        program: the ExportedProgram whose parameters and inputs the graph lists as inputs; None of others.
        origins: of what `make_fx` has traced, what led to each node, by its name.
    """

    kind: Kind
    made_by: str
    traced: TracedCall
    before: WayGraph | None = None
    applied: Applied | Mapping[Any, Any] | Callable[..., Any] | None = None
    signature: str = ""
    graph: Any = None
    program: Any = None
    token: Any = None
    origins: Mapping[str, Any] = field(default_factory=dict)

    @property
    def way(self) -> list[WayGraph]:
        """All graphs from the first to this one."""
        return [*(self.before.way if self.before is not None else ()), self]


@dataclass(eq=False)
class _Live:
    """What is known of a live graph: what it is a state of, its text then, and how often it was called since."""

    graph: WayGraph
    signature: str
    calls: int = 0


class WayObserver(Listener, Protocol):
    """Told what becomes of graphs. May look at everything, may change nothing."""

    def way_graph(self, graph: WayGraph, gm: Any) -> None:
        """A graph was made: the first of a way, or one of the graph before it."""

    def way_compiles(self, graph: WayGraph) -> Frame | None:
        """Inductor is about to compile it ahead of time. Returns the frame of what it does."""

    def way_packaged(self, graph: WayGraph, path: str) -> None:
        """It is compiled, and in this file."""

    def way_refused(self, graph: WayGraph, error: BaseException, step: WayGraph | None) -> None:
        """What torch raised for it is about to reach the program; a second try may pass, as torch keeps what it learns.

        `step`: what was to become of it, without a graph; None: compiled code.
        """

    def way_called(self, graph: WayGraph, called: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """It is about to be called; `called` does that."""

    def way_runs(self, graph: WayGraph, gm: Any) -> Callable[..., Any] | None:
        """What runs the graph in the place of its `forward`, for this call; None: the graph does."""


class Ways(Subscription):
    """Watches while installed. Which function of the program has changed a graph is known by Python's profiler.

    It is on from the first graph on, in the thread that made it, until graphs are called again and again unchanged.
    Where the program profiles itself, changes are noticed at the next call and laid on the line that makes it.

    Args:
        observer: told in this process alone.
        name_of: makes what names a frame's function, `name (file:line)`, if it is of the program; called once torch
            is there.
        block: `observe_pass`, whose blocks count as functions; None: they do not.
        copies: graphs get a copy of each state.
        origin: makes what returns what led to the code that runs now; called once torch is there. None: nobody asks.
    """

    def __init__(
        self,
        observer: WayObserver,
        name_of: Callable[[], Callable[[FrameType], str | None]],
        block: Callable[..., Any] | None = None,
        *,
        copies: bool,
        origin: Callable[[], Callable[[], Any] | None] = lambda: None,
    ) -> None:
        self._origin = functools.cache(origin)
        self._to, self._pid, self._copies = Subscriber(observer), os.getpid(), copies
        self._make_passes = functools.partial(_passes, self, name_of, block)
        self._passes: Any = None
        self._states = WeakKeyDictionary[Any, _Live]()
        self._packages: dict[str, WayGraph] = {}
        self._loaded = WeakKeyDictionary[Any, WayGraph]()
        self._local = threading.local()
        self._called: list[Callable[..., Any]] = []
        self._dynamo = ImportHook({"torch._dynamo": lambda _: self._leave_to_torch()})
        super().__init__(self._all_patches())

    def _all_patches(self) -> list[Patch]:
        tracer, module = "torch.fx.experimental.proxy_tensor", "torch.fx.graph_module"
        return [
            advised(TAP, "torch.export", "export", self._export),
            advised(TAP, PROGRAM, "ExportedProgram.module", self._module),
            advised(TAP, PROGRAM, "ExportedProgram.run_decompositions", self._decompose),
            advised(TAP, tracer, "_MakefxTracer.trace", self._trace),
            advised(TAP, tracer, "PythonKeyTracer.create_node", self._node),
            advised(TAP, "torch.fx", "symbolic_trace", self._symbolic),
            advised(TAP, module, "GraphModule.__init__", self._init),
            advised(TAP, module, "GraphModule.__deepcopy__", self._copy),
            Patch(TAP, module, "_WrappedCall.__call__", self._call),
            advised(TAP, "torch._functorch.aot_autograd", "aot_export_joint_with_descriptors", self._joint),
            advised(TAP, "torch._functorch.aot_autograd", "aot_compile_joint_with_descriptors", self._compile_joint),
            advised(TAP, INDUCTOR, "compile", self._compile),
            advised(TAP, INDUCTOR, "aot_compile", self._aot_compile),
            advised(TAP, INDUCTOR, "aoti_compile_and_package", self._package),
            advised(TAP, f"{INDUCTOR}.package", "load_package", self._load),
            Patch(TAP, "torch.export.pt2_archive._package", "AOTICompiledModel.__call__", self._call),
        ]

    def install(self) -> None:
        """Patch what is imported, and wait for the rest."""
        super().install()
        self._dynamo.install()

    def remove(self) -> list[str]:
        """Take everything out; returns addresses that somebody else has patched over, which were left alone."""
        self._profile(False)
        self._dynamo.remove()
        self._to.close()
        self._states.clear()
        return super().remove()

    # -- what the program does ------------------------------------------------------------------------------------

    def _export(self, mod: Any, args: Any = (), kwargs: Any = None, *more: Any, **named: Any) -> Advice:
        with self.inside as wanted:
            result, error = yield
        if wanted and error is None:
            self._begins(
                "export", "torch.export.export", mod, tuple(args), kwargs or {}, result.graph_module, program=result
            )

    def _trace(self, tracer: Any, f: Any, *args: Any) -> Advice:
        wanted = self._is_programs(sys._getframe(2))
        with self.inside as outermost, self._followed(wanted) as origins:
            result, error = yield
        if not (wanted and outermost and error is None):
            return
        state = self._states.get(getattr(f, "__self__", f)) if _is_graph(getattr(f, "__self__", f)) else None
        if state is None:
            self._begins("trace", "make_fx", f, args, {}, result, origins=origins.get(id(result.graph), {}))
        else:
            self._goes_on(result, WayGraph("trace", _made_by("make_fx"), state.graph.traced, state.graph))

    def _node(self, tracer: Any, kind: str, *args: Any, **kwargs: Any) -> Advice:
        origins = getattr(self._local, "origins", None)
        node, error = yield
        if origins is None or error is not None or kind != "call_function":
            return
        here = self._origin()
        if here is not None and (found := self._to.tell("what led to a node", here, None)) is not None:
            origins.setdefault(id(node.graph), {})[node.name] = found

    @contextlib.contextmanager
    def _followed(self, wanted: bool) -> Iterator[dict[int, dict[str, Any]]]:
        """What leads to each node that is made in the block, unless it is part of another: by graph and name."""
        mine = wanted and getattr(self._local, "origins", None) is None
        found: dict[int, dict[str, Any]] = {}
        if mine:
            self._local.origins = found
        try:
            yield found
        finally:
            if mine:
                self._local.origins = None

    def _symbolic(self, root: Any, concrete_args: Any = None) -> Advice:
        wanted = self._is_programs(sys._getframe(2))
        with self.inside as outermost:
            result, error = yield
        if wanted and outermost and error is None and not concrete_args:
            self._begins("trace", "torch.fx.symbolic_trace", root, (), {}, result)

    def _module(self, program: Any, *args: Any, **kwargs: Any) -> Advice:
        with self.inside as wanted:
            result, error = yield
        if error is None and self._here() and (state := self._states.get(program.graph_module)) is not None:
            if not wanted:
                self._states[result] = _Live(state.graph, _text(result))
                return
            self.changed(program.graph_module)
            before = self._states[program.graph_module].graph
            self._goes_on(result, WayGraph("module", _made_by("ExportedProgram.module"), before.traced, before))

    def _decompose(self, program: Any, decomp_table: Any = None, *args: Any, **kwargs: Any) -> Advice:
        with self.inside as wanted:
            result, error = yield
        if not wanted or program.graph_module not in self._states:
            return
        self.changed(program.graph_module)
        before = self._states[program.graph_module].graph
        made = WayGraph("decompose", _made_by("run_decompositions"), before.traced, before, decomp_table)
        if error is not None:
            self._refused(before, error, made)
        else:
            made.program = result
            self._goes_on(result.graph_module, made)

    def _init(self, gm: Any, root: Any, *args: Any, **kwargs: Any) -> Advice:
        yield
        if _is_graph(root):
            self.derived(root, gm)

    def _copy(self, gm: Any, *args: Any) -> Advice:
        with self.inside:
            result, error = yield
        if error is None:
            self.derived(gm, result)

    def _joint(self, stack: Any, mod: Any, args: Any, kwargs: Any = None, **named: Any) -> Advice:
        wanted = self._is_programs(sys._getframe(2))
        with self.inside as outermost, self._followed(wanted) as origins:
            result, error = yield
        if wanted and outermost and error is None:
            from graphprobe.internals.quiet import quiet
            from graphprobe.internals.way_joint import joint_call

            with quiet():
                made = joint_call(mod, args, kwargs or {}, result.graph_module)
            fn, values = made or (mod, [])
            how, gm = "aot_export_joint_with_descriptors", result.graph_module
            self._begins("trace", how, fn, tuple(values), {}, gm, origins=origins.get(id(gm.graph), {}))

    def _compile_joint(self, *args: Any, **kwargs: Any) -> Advice:
        with self.inside:
            yield

    def _compile(self, gm: Any, *args: Any, **kwargs: Any) -> Advice:
        wanted = self._copies and _is_graph(gm) and self._here() and not self.is_inside
        state = self._states.get(gm) if wanted else None
        with self.inside if state is not None else contextlib.nullcontext():
            result, error = yield
        if state is not None and error is not None:
            self._refused(state.graph, error)
        return None if state is None or error is not None else self._told(state.graph, result)

    def _told(self, graph: WayGraph, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """What Inductor made of a graph, with its calls told."""

        @functools.wraps(compiled)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._here() and not self.is_inside:
                with self.inside:
                    tell = lambda: self._to.observer.way_called(graph, compiled, args, kwargs)  # noqa: E731
                    self._to.tell("call of a way", tell, None)
            return compiled(*args, **kwargs)

        return call

    def _aot_compile(self, gm: Any, *args: Any, **kwargs: Any) -> Advice:
        state = self._states.get(gm) if _is_graph(gm) and self._here() else None
        frame = None
        if state is not None:
            frame = self._to.tell("compile of a way", lambda: self._to.observer.way_compiles(state.graph), None)
        with self.inside, entered(frame):
            result, error = yield
        if state is not None and error is None and isinstance(result, str):
            self._is_in(state.graph, result)
        if state is not None and error is not None:
            self._refused(state.graph, error)

    def _package(self, program: Any, *args: Any, **kwargs: Any) -> Advice:
        state = self._states.get(program.graph_module) if self._here() else None
        if state is not None:
            self.changed(program.graph_module)
        with self.inside:
            result, error = yield
        if error is None and state is not None and isinstance(result, str | os.PathLike):
            self._is_in(state.graph, os.fspath(result))
        if error is not None and state is not None:
            self._refused(state.graph, error)

    def _refused(self, graph: WayGraph, error: BaseException, step: WayGraph | None = None) -> None:
        with self.inside as wanted:
            if wanted:
                self._to.tell("refusal", lambda: self._to.observer.way_refused(graph, error, step), None)

    def _is_in(self, graph: WayGraph, path: str) -> None:
        self._packages[os.path.realpath(path)] = graph
        self._to.tell("package", lambda: self._to.observer.way_packaged(graph, path), None)

    def _load(self, path: Any, *args: Any, **kwargs: Any) -> Advice:
        result, error = yield
        if error is None and isinstance(path, str | os.PathLike):
            graph = self._packages.get(os.path.realpath(path))
            if graph is not None:
                self._loaded[result] = graph

    def _call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __call__(called: Any, *args: Any, **kwargs: Any) -> Any:
            begun = self._call_begins(called, args, kwargs)
            if begun is None:
                return original(called, *args, **kwargs)
            try:
                with unseen:
                    return original(called, *args, **kwargs)
            finally:
                self._call_ends(*begun)

        # So Dynamo goes on with torch's own, as it would without this.
        vars(__call__).update(_torchdynamo_inline=original)
        self._called.append(__call__)
        if "torch._dynamo" in sys.modules:
            self._leave_to_torch()
        return __call__

    def _leave_to_torch(self) -> None:
        """Keep Dynamo from compiling what is around calls of graphs, and not the graphs."""
        from graphprobe.internals.operators.autograd_edges import uncompiled

        for function in (Ways._call_begins, Ways._call_ends, type(unseen).__enter__, type(unseen).__exit__):
            uncompiled(function)
        while self._called:
            uncompiled(self._called.pop(), alone=True)

    def _call_begins(self, called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """Tell of a call, if it is one of a graph of a way; who runs otherwise, and Python's profiler, for its end."""
        gm = args[0] if args and type(called).__name__ == "_WrappedCall" else called
        known = self._loaded if type(gm).__name__ == "AOTICompiledModel" else self._states
        if gm not in known or not self._here() or self.is_inside:
            return None
        runs = self._tell_call(gm, args[1:] if gm is not called else args, kwargs)
        if runs is not None:
            vars(gm)["forward"] = runs
        profile = sys.getprofile()
        own = self._passes is not None and profile == self._passes.on_event
        if own:
            sys.setprofile(None)
        self._local.inside = True
        return gm if runs is not None else None, profile if own else None

    def _call_ends(self, gm: Any, profile: Any) -> None:
        self._local.inside = False
        if gm is not None:
            vars(gm).pop("forward", None)
        if profile is not None:
            sys.setprofile(profile)

    # -- what becomes of graphs -------------------------------------------------------------------------------------

    def _tell_call(self, gm: Any, args: Any, kwargs: Any) -> Callable[..., Any] | None:
        graph = self._loaded.get(gm)
        is_graph = graph is None and "forward" not in vars(gm)
        if graph is None:
            self.changed(gm)
            state = self._states[gm]
            state.calls, graph = state.calls + 1, state.graph
            if state.calls > MOST_IDLE:
                self._profile(False)
        with self.inside:
            self._to.tell("call of a way", lambda: self._to.observer.way_called(graph, gm, args, kwargs), None)
            runs = lambda: self._to.observer.way_runs(graph, gm) if is_graph else None  # noqa: E731
            return self._to.tell("run of a way", runs, None)

    def _safely(self, event: str, call: Callable[..., None], *args: Any) -> None:
        """The observer learns what fails here, and the program goes on; its modes, which may fake values, are left."""
        from graphprobe.internals.quiet import quiet

        with self.inside, quiet():
            self._to.tell(event, lambda: call(*args), None)

    def _begins(self, kind: Kind, how: str, fn: Any, args: Any, kwargs: Any, gm: Any, **more: Any) -> None:
        traced = TracedCall(fn, args, kwargs, sys.modules["torch"].is_grad_enabled())
        self._goes_on(gm, WayGraph(kind, _made_by(how), traced, **more))
        if self._passes is None:
            self._passes = self._make_passes()
        self._profile(True)

    def _goes_on(self, gm: Any, made: WayGraph) -> None:
        """This is a graph of a way now; one that differs in nothing from the one before is that one."""
        self._safely("graph of a way", self._note, gm, made)

    def _note(self, gm: Any, made: WayGraph) -> None:
        signature = _text(gm)
        if made.before is not None and made.kind != "decompose" and made.before.signature == signature:
            made = made.before
        else:
            made.signature = signature
            if self._copies:
                made.graph = copied_graph(gm)
            self._to.observer.way_graph(made, gm)
        self._states[gm] = _Live(made, signature)

    def failed(self, error: Exception) -> None:
        """Tell the observer that changes of graphs are no longer known by the function that makes them."""
        text = "".join(traceback.format_exception(error)).rstrip()
        self._to.observer.failed("who changes a graph", f"{text} (nothing more of it is collected)")

    def changed(self, gm: Any, name: str = "", applied: Applied | None = None) -> None:
        """Note what `name`, or a line of the program, has made of a graph, if that is another one."""
        if gm in self._states:
            name = name or _made_by("a line of the program")
            self._safely("change of a graph", self._note_change, gm, name, applied)

    def _note_change(self, gm: Any, name: str, applied: Applied | None) -> None:
        state = self._states.get(gm)
        if state is None or (signature := _text(gm)) == state.signature:
            return
        before = state.graph
        lists = before.program is not None and before.program.graph_module is gm
        made = WayGraph("pass", name, before.traced, before, applied, signature)
        made.program = before.program if lists else None
        if self._copies:
            made.graph = copied_graph(gm)
        self._states[gm] = _Live(made, signature)
        self._to.observer.way_graph(made, gm)

    def derived(self, root: Any, gm: Any) -> None:
        """A graph was made of another one."""
        state = self._states.get(root) if self._here() and not self.is_inside else None
        if state is not None and gm is not root:
            self._states[gm] = replace(state, calls=0)
            if self._passes is not None and not self._passes.is_at_work:  # else that says who has made it
                self.changed(gm)

    def _here(self) -> bool:
        return os.getpid() == self._pid

    def _is_programs(self, frame: FrameType | None) -> bool:
        """Whether it is the program, or one of its libraries, that traces, outside of any compile of Dynamo's."""
        modules = (str(outer.f_globals.get("__name__", "")) for outer in frames_from(frame))
        module = next((name for name in modules if not name.startswith(("graphprobe.", "torch.fx."))), "")
        own = self._here() and module.partition(".")[0] not in ("torch", "functorch", "graphprobe", "")
        return own and sys.modules["torch._guards"].CompileContext.try_get() is None

    @property
    @contextlib.contextmanager
    def inside(self) -> Iterator[bool]:
        """Nobody learns what torch and the observer do in the block; whether the block is the outermost here."""
        outermost = not self.is_inside
        profile = sys.getprofile()
        if own := self._passes is not None and profile == self._passes.on_event:
            sys.setprofile(None)
        self._local.inside = True
        try:
            yield outermost and self._here()
        finally:
            self._local.inside = not outermost
            if own:
                sys.setprofile(profile)

    @property
    def is_inside(self) -> bool:
        """Whether this thread is in such a block, or inside of torch's own work on a way."""
        return bool(getattr(self._local, "inside", False))

    def _profile(self, on: bool) -> None:
        if self._passes is not None and sys.getprofile() == (None if on else self._passes.on_event):
            sys.setprofile(self._passes.on_event if on else None)


def _passes(ways: Ways, name_of: Callable[[], Callable[[FrameType], str | None]], block: Any) -> Any:
    """What sees the calls of the program's functions that are given a graph."""
    from graphprobe.internals.inductor.executable_snapshots import OwnPasses

    class Passes(OwnPasses):
        def on_event(self, frame: FrameType, event: str, value: Any) -> None:
            try:
                super().on_event(frame, event, value)
            except Exception as error:  # what a profiler raises ends in the program
                sys.setprofile(None)
                ways.failed(error)

        def _take(self, gm: Any, name: str, applied: Applied | None = None) -> None:
            ways.changed(gm, name, applied)

        def _goes_on(self, before: Any, after: Any) -> None:
            ways.derived(before, after)

    return Passes(name_of(), block)


def _is_graph(value: Any) -> bool:
    found = sys.modules.get("torch.fx.graph_module")
    return found is not None and isinstance(value, found.GraphModule)


def _made_by(what: str) -> str:
    """`make_fx (train.py:12)`: what was called, and from where in the program."""
    line = calling_line(sys._getframe(2))
    if line is None:
        return what
    file = os.path.relpath(line.file) if os.path.exists(line.file) else line.file
    return f"{what} ({line.file if file.startswith('..') else file}:{line.line})"


def _text(gm: Any) -> str:
    from graphprobe.internals.inductor.executable_snapshots import graph_signature

    return graph_signature(gm) if gm is not None else ""


def inputs_in_order(gm: Any, args: Any, kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments of a call in the order of the graph's inputs."""
    names = [n.target for n in gm.graph.nodes if n.op == "placeholder"]
    spec = getattr(gm.graph._codegen, "pytree_info", None)
    names = [name for name in (names if spec is None else spec.orig_args) if name != "self"]
    return [*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs)]


def copied_graph(gm: Any) -> Any:
    """A copy that can be run, without the check of its inputs."""
    from graphprobe.internals.inductor.stages import copy_graph

    made = copy_graph(gm)
    made.graph.set_codegen(copy.copy(gm.graph._codegen))
    for node in [n for n in made.graph.nodes if n.op == "call_module" and n.target == GUARDS]:
        made.graph.erase_node(node)
    made.recompile()
    return made
