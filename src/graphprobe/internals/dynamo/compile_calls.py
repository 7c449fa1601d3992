"""Takes the place of `torch.compile`, or comes between it and Dynamo, so that a call is seen before it runs."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import mmap
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from graphprobe.internals.bus import Advice, Patch, Subscription, advised
from graphprobe.internals.dynamo.compile_facts import frame_name
from graphprobe.internals.unseen import unseen

NO_SETTINGS = frozenset({"guard_filter_fn", "use_aoti"})
"""Options that `torch.compile` takes for itself."""

POLL_S = 0.05
"""How often a call that waits for its turn looks whether its function is busy."""

Backend = str | Callable[..., Any]

Settings = dict[str, Any]
"""The keyword arguments of a call of `torch.compile`."""


@dataclass(eq=False)
class Compiled:
    """One function or module that the program gave to `torch.compile`.

    Attributes:
        fn: uncompiled; for `nn.Module.compile` the module's bound method.
        backend, dynamic, mode, options, fullgraph: as `torch.compile` got them; the backend is never None, and with
            Inductor the options have what a mode asks for.
        guard_filter: says which guards are kept; None: all are.
        called: what the program calls: what was compiled, without the watch.
        uncompiled: from now on the program gets `fn` itself instead of what was compiled.
        graphs: how many Dynamo has compiled in its calls.
        busy: the observer is about something that takes long: calls of other threads run uncompiled meanwhile.
        beside: how many calls that were since `before` was last called.
        kept: for the observer's own notes on this function.
    """

    fn: Callable[..., Any]
    backend: str | Callable[..., Any]
    dynamic: bool | None = None
    mode: str | None = None
    options: Mapping[str, Any] | None = None
    fullgraph: bool = False
    guard_filter: Callable[..., Any] | None = None
    called: Callable[..., Any] | None = None
    uncompiled: bool = False
    graphs: int = 0
    busy: bool = False
    beside: int = 0
    kept: dict[str, Any] = field(default_factory=dict)

    def lone_backend(self) -> str | Callable[..., Any]:
        """The backend with mode and options bound to it; Inductor takes them as settings instead, see `settings`."""
        import torch

        if self.backend == "inductor" or (self.mode in (None, "default") and not self.options):
            return self.backend
        bound: Callable[..., Any] = torch._TorchCompileWrapper(self.backend, self.mode, self.options, self.dynamic)
        return bound

    def inductor_settings(self) -> dict[str, Any]:
        """Inductor's settings as mode and options ask for them, by name; none for another backend."""
        if self.backend != "inductor":
            return {}
        import torch

        taken = {k: v for k, v in (self.options or {}).items() if k not in NO_SETTINGS}
        # Raises what torch raises for a name that it does not know, or a value of another type.
        return dict(torch._TorchCompileInductorWrapper(self.mode, taken, self.dynamic).config)


class CompileCalls(Subscription):
    """Watches every function that Dynamo is to compile while this is installed; for good, once it was handed to Dynamo.

    Whoever asks Dynamo is seen: `torch.compile` under any name, `nn.Module.compile`, `torch._dynamo.optimize`, and
    libraries that take the context of a compiled module and call it on methods.

    `before(compiled, args, kwargs)` is called ahead of each call of such a function, `after(compiled, args, kwargs,
    result)` behind it, `failed(compiled, args, kwargs, error)` where it raises; while they run, compiled functions run
    uncompiled and Dynamo is torch's own, in this thread and in every thread of children forked meanwhile. Threads take
    turns, but for calls of a function that is `busy`, which run uncompiled. In processes that the program forks nothing
    is looked at.

    Attributes:
        compiled: the functions.
        unseen: names of the functions of which Dynamo has compiled graphs outside of their calls, with the counts.
        elsewhere: memory that such processes share; not 0 once one of them has called a compiled function.

    Args:
        before: may set `compiled.uncompiled`. What it raises goes to the program.
        after: of calls that ran compiled. What it raises goes to the program.
        failed: `failed(compiled, args, kwargs, error)`, in place of `after`, of calls that raised.
        backward: called behind each backward, with the exception that ended it, or None.
        starts: called ahead of each `.backward()`, with the tensors that it begins at.
        overrides: arguments of `torch.compile` that are put in the place of the program's.
    """

    def __init__(
        self,
        before: Callable[[Compiled, tuple[Any, ...], dict[str, Any]], None],
        after: Callable[[Compiled, tuple[Any, ...], dict[str, Any], Any], None] | None = None,
        failed: Callable[[Compiled, tuple[Any, ...], dict[str, Any], Exception], None] | None = None,
        backward: Callable[[Exception | None], None] | None = None,
        *,
        starts: Callable[[Any], None] | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        self.compiled: list[Compiled] = []
        self.unseen = Counter[str]()
        self.elsewhere, self._pid = mmap.mmap(-1, 1), os.getpid()
        self._before, self._after, self._failed, self._backward, self._starts = before, after, failed, backward, starts
        self._overrides, self._around_backward = dict(overrides or {}), list[Callable[..., Any]]()
        self._inside = contextvars.ContextVar("graphprobe_inside_before", default=False)
        self._called = contextvars.ContextVar[Compiled | None]("graphprobe_called", default=None)
        self._ahead = dict[int, tuple[Compiled, Any]]()  # by id of what was compiled, which lives as long as this
        self._turn, self._beside = threading.RLock(), threading.Lock()
        self._busy = 0  # number of the process in which `before` runs; in a child nobody would give back the turn
        patches = [
            Patch("compile_calls", "torch._dynamo.eval_frame", "OptimizeContext.__call__", self._make),
            Patch("compile_calls", "torch._dynamo.aot_compile", "AOTCompiledFunction.__call__", self._ahead_of_time),
            advised("compile_calls", "torch._dynamo.output_graph", "OutputGraph.call_user_compiler", self._counting),
        ]
        if self._overrides:
            changed = CompileSettings(lambda given: given if self._is_inside() else {**given, **self._overrides})
            patches.append(Patch("compile_calls", "torch", "compile", changed.make))
        if backward is not None or starts is not None:
            patches.append(Patch("compile_calls", "torch.autograd", "_engine_run_backward", self._backwards))
        super().__init__(patches)

    def _make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __call__(context: Any, fn: Any) -> Any:
            with unseen:
                result = original(context, fn)
            # Of a module, `forward` came through here on its own; of a class, its methods, of which modules have two.
            apart = not inspect.isfunction(result) or fn is sys.modules["torch"].nn.Module.__call__ or _is_backward(fn)
            if apart or self._is_inside() or context.export:
                return result
            record = _settings_of(context, _innermost(fn))
            self.compiled.append(record)
            return self._wrapper(record, result)

        return __call__

    def _ahead_of_time(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __call__(compiled: Any, *args: Any, **kwargs: Any) -> Any:
            record, _ = self._ahead.get(id(compiled), (None, None))
            if record is None:
                return original(compiled, *args, **kwargs)
            return self._wrapper(record, functools.partial(original, compiled))(*args, **kwargs)

        return __call__

    def _compiles_ahead(self, record: Compiled, aot_compile: Callable[..., Any]) -> Callable[..., Any]:
        """`aot_compile` of a compiled function: what it returns is called in the place of the function."""

        @functools.wraps(aot_compile)
        def compile_ahead(example_inputs: Any) -> Any:
            ahead = replace(record, kept={}, graphs=0)
            token = self._called.set(ahead)
            try:
                with unseen:
                    compiled = aot_compile(example_inputs)
            finally:
                self._called.reset(token)
            self.compiled.append(ahead)
            self._ahead[id(compiled)] = ahead, compiled
            return compiled

        return compile_ahead

    def _counting(self, graph: Any, *args: Any, **kwargs: Any) -> Advice:
        _, error = yield
        if error is None and not self._is_inside():
            with contextlib.suppress(Exception):  # the program goes on as without the count
                self._count(graph)

    def _count(self, graph: Any) -> None:
        code, given = graph.root_tx.f_code, graph.root_tx.f_locals
        if graph.export or _is_backward(given.get("self")):
            return
        if (record := self._called.get()) is not None:
            record.graphs += 1
        else:
            named = frame_name(code, given)
            self.unseen[f"{named.plain} ({named.file}:{named.line})"] += 1

    def _backwards(self, original: Callable[..., Any]) -> Callable[..., Any]:
        running = contextvars.ContextVar("graphprobe_backward", default=False)

        @functools.wraps(original)
        def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside() or running.get():  # one inside of another ends with that
                return original(*args, **kwargs)
            token = running.set(True)
            if self._starts is not None and args and kwargs.get("accumulate_grad", False):
                with self.inside:
                    self._starts(args[0])
            try:
                with unseen:
                    result = original(*args, **kwargs)
            except Exception as error:
                self._tell_backward(error)
                raise
            finally:
                running.reset(token)
            self._tell_backward(None)
            return result

        self._around_backward.append(_engine_run_backward)
        return _engine_run_backward

    def _tell_backward(self, error: Exception | None) -> None:
        if self._backward is not None:
            with self.inside:
                self._backward(error)

    def _wrapper(self, record: Compiled, compiled: Callable[..., Any]) -> Callable[..., Any]:
        fn, record.called = record.fn, compiled

        @functools.wraps(compiled)
        def call(*args: Any, **kwargs: Any) -> Any:
            if os.getpid() != self._pid and not self._is_inside():
                self.elsewhere[0] = 1
                return compiled(*args, **kwargs)
            if _is_backward(fn):
                return compiled(*args, **kwargs)
            if not self._wants_compiled(record, args, kwargs):
                return fn(*args, **kwargs)
            token = self._called.set(record)
            try:
                with unseen:
                    result = compiled(*args, **kwargs)
            except Exception as error:
                if self._failed is not None and not self._is_inside():
                    with self.inside:
                        self._failed(record, args, kwargs, error)
                raise
            finally:
                self._called.reset(token)
            if self._after is not None:
                with self.inside:
                    self._after(record, args, kwargs, result)
            return result

        # So Dynamo, when it traces a caller, goes on with the function itself, as it would without this wrapper.
        vars(call).update(_torchdynamo_inline=fn, _torchdynamo_orig_callable=fn, _torchdynamo_wrapper_id=id(call))
        if hasattr(compiled, "aot_compile"):
            vars(call)["aot_compile"] = self._compiles_ahead(record, compiled.aot_compile)
        from graphprobe.internals.operators.autograd_edges import uncompiled

        around: list[Callable[..., Any]] = [call, *self._around_backward]
        for function in around:  # what is compiled there sets Dynamo on again
            uncompiled(function)
        return call

    def _is_inside(self) -> bool:
        return self._inside.get() or self._busy not in (0, os.getpid())

    def _wants_compiled(self, record: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if self._is_inside():
            return False
        if record.uncompiled:
            return False
        while not self._turn.acquire(timeout=POLL_S):
            if record.busy:
                with self._beside:
                    record.beside += 1
                return False
        try:
            with self.inside:
                self._before(record, args, kwargs)
        finally:
            self._turn.release()
        return not record.uncompiled

    @property
    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """A block in which compiled functions run uncompiled, and Dynamo is torch's own, as while `before` runs."""
        with self._turn:
            token, self._busy = self._inside.set(True), os.getpid()
            try:
                yield
            finally:
                self._inside.reset(token)
                self._busy = 0


def _innermost(fn: Any) -> Any:
    """What is compiled: of a module's call the module, and the function itself of one that is compiled already."""
    import torch

    fn = getattr(fn, "_orig_mod", fn)
    if getattr(fn, "_torchdynamo_wrapper_id", None) == id(fn):
        return fn._torchdynamo_orig_callable
    inner, owner = getattr(fn, "__wrapped__", None), getattr(fn, "__self__", None)
    if isinstance(inner, torch.nn.Module):  # Dynamo's frame around a module of torch's own
        return inner
    return owner if isinstance(owner, torch.nn.Module) and fn == owner.__call__ else fn


def _is_backward(fn: Any) -> bool:
    """Whether this is a graph that compiled autograd has recorded: it belongs to the calls whose backward it is."""
    return type(fn).__name__.startswith("CompiledAutograd")


def mode_names() -> list[str]:
    """What `torch.compile(mode=…)` takes."""
    import torch

    return ["default", *(name for name in torch._inductor.list_mode_options() if name != "default")]


def settings_of_compiled(fn: Any) -> Compiled:
    """What `torch.compile` was given, and with which settings; of a function that is not compiled torch's defaults."""
    context = _context_of(fn)
    return Compiled(_original(fn), default_backend()) if context is None else _settings_of(context, _original(fn))


def _settings_of(context: Any, fn: Any) -> Compiled:
    """The settings of a function that this context of Dynamo's compiles."""
    import torch

    record = Compiled(fn, default_backend())
    backend: Any = getattr(context, "callback", None)
    record.guard_filter = getattr(getattr(backend, "hooks", None), "guard_filter_fn", None)
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    record.dynamic = getattr(context, "_dynamic", None)
    record.fullgraph = getattr(context, "fullgraph", False) is True
    if getattr(backend, "compiler_name", None) == "inductor":
        record.backend, record.options = "inductor", dict(getattr(backend, "config", None) or {}) or None
    elif backend is not None:
        record.backend = _named(getattr(backend, "compiler_fn", backend), getattr(backend, "compiler_name", ""))
        if isinstance(backend, torch._TorchCompileWrapper):
            record.mode, record.options = backend.kwargs.get("mode"), backend.kwargs.get("options")
    return record


def _named(backend: Any, name: str) -> Any:
    """The name of a backend that torch has registered under `name`, or its function's name, else the backend."""
    from torch._dynamo.backends import registry

    name = name or getattr(backend, "__name__", "")
    return name if name in backend_names() and registry.lookup_backend(name) is backend else backend


def _original(fn: Any) -> Any:
    fn = getattr(fn, "_orig_mod", fn)
    return getattr(fn, "_torchdynamo_orig_callable", fn)


def _context_of(fn: Any) -> Any:
    """Dynamo's context that compiles the calls of a function; None where it is not compiled."""
    context = getattr(fn, "dynamo_ctx", None)
    if context is not None:
        return context
    config = getattr(fn, "get_compiler_config", None)
    if config is None or getattr(fn, "_torchdynamo_orig_callable", None) is None:
        return None
    cells = inspect.getclosurevars(config).nonlocals if inspect.isfunction(config) else {}
    return cells.get("self")


def backend_names() -> list[str]:
    """The names that `torch.compile(backend=…)` takes."""
    from torch._dynamo import list_backends

    return sorted(list_backends(exclude_tags=()))


class CompileSettings(Subscription):
    """Changes the arguments of each call of `torch.compile` while it is installed; one that disables stays as it is.

    Args:
        change: gets what the program gave, and returns what torch gets.
        imported: is called when torch is there, before the program goes on; not if it was there before.
    """

    def __init__(self, change: Callable[[Settings], Settings], *, imported: Callable[[], None] | None = None) -> None:
        self._change = change
        super().__init__(
            [Patch("compile_settings", "torch", "compile", self.make)],
            imported=None if imported is None else lambda _: imported(),
        )

    def make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """What takes the place of `torch.compile`."""

        @functools.wraps(original)
        def compile(model: Any = None, **settings: Any) -> Any:
            if model is None:
                return lambda model: compile(model, **settings)
            with unseen:
                return original(model, **(settings if settings.get("disable") else self._change(settings)))

        return compile


def default_backend() -> Backend:
    """What `torch.compile` takes when nobody names a backend."""
    from torch._dynamo.backends import registry

    found = getattr(registry, "get_default_backend", None)
    chosen: Backend = "inductor" if found is None else found()
    return chosen
