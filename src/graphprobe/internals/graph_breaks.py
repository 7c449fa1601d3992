"""Tells of every graph break, of functions that Dynamo gives up on, and of the graphs between, whatever the backend.

Three places of torch are tapped, none of which has a frame of ours below it while Dynamo traces: Dynamo looks at its
own stack, and its log shows it.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol

from graphprobe.analysis.breaks_facts import BreakFact, UncompiledFact, UserFrame
from graphprobe.internals.compile_facts import guard_reader
from graphprobe.internals.dynamo import current_compile_id
from graphprobe.internals.frame_names import FrameName, frame_name
from graphprobe.internals.importhook import ImportHook
from graphprobe.internals.patches import Patch, PatchSet
from graphprobe.internals.statements import code_at
from graphprobe.internals.unseen import unseen

MOST_LINES = 12
"""Of a statement that is kept with a break."""

BREAKS = ("Unsupported", "UserError", "UncapturedHigherOrderOpError")
"""Exceptions of Dynamo that mean: this cannot be put into a graph."""

ALWAYS_RAISED = ("UncapturedHigherOrderOpError", "TorchRuntimeError")
"""Those that reach the program without `fullgraph=True` too."""


class BreakObserver(Protocol):
    """Told of graph breaks. May look at everything, may change nothing."""

    def graph_break(self, fact: BreakFact, backend: object) -> None:
        """Tracing stopped. `backend` is what the function is compiled with, None where that is not known."""

    def uncompiled(self, fact: UncompiledFact, backend: object) -> None:
        """Dynamo leaves a function uncompiled."""

    def failed(self, what: str, details: str) -> None:
        """One of the calls above raised."""


class GraphObserver(Protocol):
    """Told of the graphs that Dynamo gives to backends."""

    def graph(self, gm: Any, output_graph: Any, guards: Callable[[], list[dict[str, Any]]]) -> None:
        """A backend is about to get a graph. `guards` reads its guards, once the compile has ended."""

    def failed(self, what: str, details: str) -> None:
        """The call above raised."""


def patches(observer: BreakObserver) -> list[Patch]:
    """The taps for breaks and for functions left uncompiled."""
    return [
        Patch(
            "graph_breaks",
            "torch._dynamo.symbolic_convert",
            "InstructionTranslatorBase.log_graph_break",
            lambda original: _log_graph_break(observer, original),
        ),
        Patch(
            "graph_breaks",
            "torch._dynamo.convert_frame",
            "exception_handler",
            lambda original: _exception_handler(observer, original),
        ),
        Patch(
            "uncompiled",
            "torch._dynamo.convert_frame",
            "format_error_msg",
            lambda original: _format_error_msg(observer, original),
        ),
    ]


def graph_patches(observer: GraphObserver) -> list[Patch]:
    """The tap for graphs."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_user_compiler(self: Any, gm: Any, example_inputs: Any) -> Any:
            _quietly(observer, "graph", lambda: observer.graph(gm, self, guard_reader()))
            with unseen:
                return original(self, gm, example_inputs)

        return call_user_compiler

    return [Patch("dynamo_graph", "torch._dynamo.output_graph", "OutputGraph.call_user_compiler", make)]


def _log_graph_break(observer: BreakObserver, original: Callable[..., Any]) -> Callable[..., Any]:
    def log_graph_break(self: Any, *args: Any, **kwargs: Any) -> Any:
        def tell() -> None:
            given = [*args, *kwargs.values()]
            exc = next((value for value in given if isinstance(value, BaseException)), None)
            if exc is None or getattr(exc, "logged", False):
                return
            reason = kwargs.get("reason") or next((value for value in args if isinstance(value, str)), "")
            output = self.output
            root = output.root_tx if output.root_tx is not None else self
            handling = str(reason).partition("\n")[0]
            named = frame_name(root.f_code, root.f_locals)
            fact = _break(exc, named, handling="" if handling == _text(exc).partition("\n")[0] else handling)
            observer.graph_break(fact, output.compiler_fn)

        _quietly(observer, "graph break", tell)
        with unseen:
            return original(self, *args, **kwargs)

    return log_graph_break


def _exception_handler(observer: BreakObserver, original: Callable[..., Any]) -> Callable[..., Any]:
    """torch calls it with whatever ends the compile of a function; what the program will get is a break of its own."""

    def exception_handler(e: Any, code: Any, *args: Any, **kwargs: Any) -> Any:
        def tell() -> None:
            if getattr(e, "logged", False):
                return
            compile_locals = _locals_of(e, "_compile")
            named = frame_name(code, compile_locals.get("locals") or {})
            if type(e).__name__ not in (*BREAKS, *ALWAYS_RAISED):
                if not sys.modules["torch._dynamo.config"].suppress_errors:
                    observer.graph_break(_break(e, named, died=True), compile_locals.get("compiler_fn"))
            elif _is_raised(e, compile_locals):
                observer.graph_break(_break(e, named, raised=True), compile_locals.get("compiler_fn"))

        _quietly(observer, "graph break", tell)
        with unseen:
            return original(e, code, *args, **kwargs)

    return exception_handler


def _format_error_msg(observer: BreakObserver, original: Callable[..., Any]) -> Callable[..., Any]:
    """torch calls it where it swallows an error, and runs the function uncompiled."""

    def format_error_msg(exc: Any, code: Any, *args: Any, **kwargs: Any) -> Any:
        def tell() -> None:
            is_break = type(exc).__name__ in BREAKS
            named = frame_name(code, _locals_of(exc, "_compile").get("locals") or {})
            fact = UncompiledFact(
                reason=_text(exc) if is_break else f"{type(exc).__name__}: {exc}",
                gb_type=_gb_type(exc),
                broke=is_break and bool(getattr(exc, "logged", False)),
                stack=frames_of(getattr(exc, "real_stack", None)),
                function=named.name,
                file=named.file,
                first_line=named.line,
                inside=whose(code.co_filename),
            )
            observer.uncompiled(fact, _locals_of(exc, "_compile").get("compiler_fn"))

        _quietly(observer, "uncompiled function", tell)
        with unseen:
            return original(exc, code, *args, **kwargs)

    return format_error_msg


def _break(exc: Any, named: FrameName, *, handling: str = "", raised: bool = False, died: bool = False) -> BreakFact:
    return BreakFact(
        reason=f"{type(exc).__name__}: {exc}" if died else _text(exc),
        died=died,
        gb_type=_gb_type(exc),
        handling=handling,
        raised=raised,
        stack=frames_of(getattr(exc, "real_stack", None)),
        compile_id=current_compile_id(),
        function=named.name,
        file=named.file,
        first_line=named.line,
    )


def _text(exc: Any) -> str:
    """Without the lines on the user's code, which torch adds to the exception later."""
    return str(getattr(exc, "msg", None) or exc)


def _gb_type(exc: Any) -> str | None:
    found = getattr(exc, "gb_type", None)
    return found if isinstance(found, str) and found else None


def _is_raised(error: Any, compile_locals: dict[str, Any]) -> bool:
    """Whether torch hands the error on to the program instead of running the function uncompiled."""
    if type(error).__name__ in ALWAYS_RAISED or compile_locals.get("one_graph", True):
        return True
    tracer = getattr(error, "_torch_dynamo_tracer_output", None)
    return bool(getattr(tracer, "error_on_graph_break", False))


def _locals_of(error: BaseException, function: str) -> dict[str, Any]:
    """The arguments of a function of Dynamo's that the error has come through; empty where it has not."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name == function:
            return trace.tb_frame.f_locals
        trace = trace.tb_next
    return {}


def frames_of(stack: Sequence[Any] | None) -> list[UserFrame]:
    """A traceback's summary as frames of the program, outermost first."""
    return [
        UserFrame(
            file=str(frame.filename),
            line=frame.lineno,
            function=str(frame.name),
            source=_statement(frame),
            **_code_of(frame),
            inside=whose(str(frame.filename)),
        )
        for frame in stack or ()
    ]


def _code_of(frame: Any) -> dict[str, str]:
    ends = (getattr(frame, name, None) for name in ("colno", "end_colno"))
    statement, code = code_at(str(frame.filename), frame.lineno, *ends)
    return {"statement": statement, "code": code}


def _statement(frame: Any) -> str:
    """The line, and those that follow it as long as a bracket is open; in one line."""
    text = (frame.line or "").strip()
    number = frame.lineno or 0
    for following in range(number + 1, number + MOST_LINES):
        if sum(map(text.count, "([{")) <= sum(map(text.count, ")]}")):
            break
        text = f"{text} {linecache.getline(str(frame.filename), following).strip()}"
    return text


def whose(file: str) -> str | None:
    """`torch` or `python` for a file of torch or of Python's library; None for the program and other packages."""
    for name in ("torch", "torchgen", "functorch"):
        origin = getattr(sys.modules.get(name), "__file__", None)
        if origin and file.startswith(os.path.dirname(origin) + os.sep):
            return "torch"
    packages = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
    library = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
    if file.startswith(library) and not any(part in file for part in packages):
        return "python"
    return "python" if file.startswith("<frozen ") else None


def _quietly(observer: Any, what: str, call: Callable[[], None]) -> None:
    try:
        call()
    except Exception as error:  # the observed program must not see our faults
        import traceback

        observer.failed(what, "".join(traceback.format_exception(error)))


class _Layer:
    """The taps for breaks, in place once for all who listen; hands on to those who listen at the moment."""

    def __init__(self) -> None:
        self.listeners: tuple[BreakObserver, ...] = ()
        self._patches = PatchSet()
        self._wanted: dict[str, list[Patch]] = {}
        for patch in patches(self):
            self._wanted.setdefault(patch.module, []).append(patch)
        self._hook = ImportHook(dict.fromkeys(self._wanted, self._on_import))

    def install(self) -> None:
        self._hook.install()

    def remove(self) -> None:
        """Give torch its functions back. Where somebody has patched over ours since, they stay, and tell nobody."""
        self.listeners = ()
        self._hook.remove()
        self._patches.undo()

    def graph_break(self, fact: BreakFact, backend: object) -> None:
        self._tell("graph break", lambda listener: listener.graph_break(fact, backend))

    def uncompiled(self, fact: UncompiledFact, backend: object) -> None:
        self._tell("uncompiled function", lambda listener: listener.uncompiled(fact, backend))

    def failed(self, what: str, details: str) -> None:
        for listener in self.listeners:
            listener.failed(what, details)

    def _tell(self, what: str, call: Callable[[BreakObserver], None]) -> None:
        for listener in self.listeners:
            _quietly(listener, what, functools.partial(call, listener))

    def _on_import(self, module: ModuleType) -> None:
        for patch in self._wanted[module.__name__]:
            if not self._patches.apply(module, patch):
                self.failed("graph breaks", f"this torch lacks {patch.address}")


class _Switchboard:
    """Who listens in this process. The taps are in while anybody does."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.layer: _Layer | None = None


_switchboard = _Switchboard()


def listen(observer: BreakObserver) -> Callable[[], None]:
    """Tell `observer` of every break in this process from now on, until what is returned is called.

    torch is not imported for it. Observers may come and go in any order.
    """
    board = _switchboard
    with board.lock:
        fresh = board.layer is None
        layer = board.layer = board.layer or _Layer()
        layer.listeners = (*layer.listeners, observer)
        if fresh:
            layer.install()

    def stop() -> None:
        with board.lock:
            layer.listeners = tuple(listener for listener in layer.listeners if listener is not observer)
            if not layer.listeners and board.layer is layer:
                board.layer = None
                layer.remove()

    return stop


def tap_graphs(observer: GraphObserver) -> Callable[[], None]:
    """Tell `observer` of every graph from now on, until what is returned is called; torch is not imported for it."""
    applied = PatchSet()
    wanted = graph_patches(observer)

    def on_import(module: ModuleType) -> None:
        for patch in wanted:
            if patch.module == module.__name__ and not applied.apply(module, patch):
                observer.failed("graphs", f"this torch lacks {patch.address}")

    hook = ImportHook({patch.module: on_import for patch in wanted})
    hook.install()

    def stop() -> None:
        hook.remove()
        applied.undo()

    return stop
