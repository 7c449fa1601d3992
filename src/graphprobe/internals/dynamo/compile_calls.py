"""Stands in for `torch.compile`, so that somebody can look at a call before the compiled function gets it.

Stands in for `torch.compile`, so that a program's functions are compiled otherwise than it says.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from graphprobe.internals.bus import Patch, Subscription
from graphprobe.internals.unseen import unseen


@dataclass(eq=False)
class Compiled:
    """One function or module that the program gave to `torch.compile`.

    Attributes:
        fn: uncompiled; for `nn.Module.compile` the module's bound method.
        backend, dynamic, mode, options, fullgraph: as `torch.compile` got them; the backend is never None.
        called: what the program calls: what was compiled, without the watch.
        uncompiled: from now on the program gets `fn` itself instead of what was compiled.
        kept: for the observer's own notes on this function.
    """

    fn: Callable[..., Any]
    backend: str | Callable[..., Any]
    dynamic: bool | None = None
    mode: str | None = None
    options: Mapping[str, Any] | None = None
    fullgraph: bool = False
    called: Callable[..., Any] | None = None
    uncompiled: bool = False
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


NO_SETTINGS = frozenset({"guard_filter_fn", "use_aoti"})
"""Options that `torch.compile` takes for itself."""


class CompileCalls(Subscription):
    """Watches every function that goes through `torch.compile` while it is installed; for good, once it was compiled.

    `before(compiled, args, kwargs)` is called ahead of each call of such a function, `after(compiled, args, kwargs,
    result)` behind it; while they run, compiled functions run uncompiled and `torch.compile` is torch's own, in this
    thread and in every thread of children forked meanwhile. Threads take turns.

    Args:
        before: may set `compiled.uncompiled`. What it raises goes to the program.
        after: of calls that ran compiled. What it raises goes to the program.
        overrides: arguments of `torch.compile` that are put in the place of the program's.
    """

    def __init__(
        self,
        before: Callable[[Compiled, tuple[Any, ...], dict[str, Any]], None],
        after: Callable[[Compiled, tuple[Any, ...], dict[str, Any], Any], None] | None = None,
        *,
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        self.compiled: list[Compiled] = []
        self._before, self._after, self._overrides = before, after, dict(overrides or {})
        self._inside = contextvars.ContextVar("graphprobe_inside_before", default=False)
        self._turn = threading.RLock()
        self._busy = 0  # number of the process in which `before` runs; in a child nobody would give back the turn
        super().__init__([Patch("compile_calls", "torch", "compile", self._make)])

    def _make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def compile(model: Any = None, **settings: Any) -> Any:
            if self._is_inside():
                return original(model, **settings)
            if model is None:
                return lambda model: compile(model, **settings)
            given = {**settings, **self._overrides}
            options = dict(given["options"]) if given.get("options") else None  # torch takes entries out of it
            result = original(model, **given)
            if given.get("disable") or result is model or inspect.isclass(model):
                return result
            record = Compiled(
                _innermost(model),
                given.get("backend") or _default_backend(),
                given.get("dynamic"),
                given.get("mode"),
                options,
                bool(given.get("fullgraph")),
            )
            self.compiled.append(record)
            return self._watched(record, result)

        return compile

    def _watched(self, record: Compiled, result: Any) -> Any:
        import torch

        if isinstance(result, torch.nn.Module):
            result.forward = self._wrapper(record, result.forward)
            return result
        return self._wrapper(record, result)

    def _wrapper(self, record: Compiled, compiled: Callable[..., Any]) -> Callable[..., Any]:
        fn, record.called = record.fn, compiled

        @functools.wraps(compiled)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._wants_compiled(record, args, kwargs):
                return fn(*args, **kwargs)
            result = compiled(*args, **kwargs)
            if self._after is not None:
                with self._inside_turn():
                    self._after(record, args, kwargs, result)
            return result

        # So Dynamo, when it traces a caller, goes on with the function itself, as it would without this wrapper.
        vars(call).update(_torchdynamo_inline=fn, _torchdynamo_orig_callable=fn, _torchdynamo_wrapper_id=id(call))
        return call

    def _is_inside(self) -> bool:
        return self._inside.get() or self._busy not in (0, os.getpid())

    def _wants_compiled(self, record: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if self._is_inside():
            return False
        if not record.uncompiled:
            with self._inside_turn():
                self._before(record, args, kwargs)
        return not record.uncompiled

    @contextlib.contextmanager
    def _inside_turn(self) -> Iterator[None]:
        with self._turn:
            token, self._busy = self._inside.set(True), os.getpid()
            try:
                yield
            finally:
                self._inside.reset(token)
                self._busy = 0


def _innermost(model: Any) -> Any:
    """What was compiled, where it is given to `torch.compile` a second time."""
    model = getattr(model, "_orig_mod", model)
    if getattr(model, "_torchdynamo_wrapper_id", None) == id(model):
        return model._torchdynamo_orig_callable
    return model


def mode_names() -> list[str]:
    """What `torch.compile(mode=…)` takes."""
    import torch

    return ["default", *(name for name in torch._inductor.list_mode_options() if name != "default")]


def settings_of_compiled(fn: Any) -> Compiled:
    """What `torch.compile` was given, and with which settings; of a function that is not compiled torch's defaults."""
    record = Compiled(_original(fn), _default_backend())
    context = _context_of(fn)
    if context is None:
        return record
    backend: Any = getattr(context, "callback", None)
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    record.dynamic = getattr(context, "_dynamic", None)
    record.fullgraph = getattr(context, "fullgraph", False) is True
    if getattr(backend, "compiler_name", None) == "inductor":
        record.backend, record.options = "inductor", dict(getattr(backend, "config", None) or {}) or None
    elif backend is not None:
        inner = getattr(backend, "compiler_fn", backend)  # of a wrapper with mode and options, the backend itself
        record.backend = backend if getattr(backend, "kwargs", None) else _named(inner)
    return record


def _named(backend: Any) -> Any:
    """The name of a backend that torch has registered under its function's name, else the backend."""
    from torch._dynamo.backends import registry

    name = getattr(backend, "__name__", "")
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


def _default_backend() -> Any:
    """What `torch.compile` takes when nobody names a backend."""
    from torch._dynamo.backends import registry

    chosen = getattr(registry, "get_default_backend", None)
    return "inductor" if chosen is None else chosen()


def flattened(tree: Any) -> tuple[list[Any], str]:
    """The leaves of nested containers, and their structure as text."""
    from torch.utils._pytree import tree_flatten

    leaves, structure = tree_flatten(tree)
    return leaves, str(structure)


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same containers with `function(leaf)` in the place of each leaf."""
    from torch.utils._pytree import tree_map

    return tree_map(function, tree)


def backend_names() -> list[str]:
    """The names that `torch.compile(backend=…)` takes."""
    from torch._dynamo import list_backends

    return sorted(list_backends(exclude_tags=()))


Backend = str | Callable[..., Any]


Settings = dict[str, Any]
"""The keyword arguments of a call of `torch.compile`."""


class CompileSettings(Subscription):
    """Changes the arguments of each call of `torch.compile` while it is installed; one that disables stays as it is.

    Args:
        change: gets what the program gave, and returns what torch gets.
        imported: is called when torch is there, before the program goes on; not if it was there before.
    """

    def __init__(self, change: Callable[[Settings], Settings], *, imported: Callable[[], None] | None = None) -> None:
        self._change = change
        super().__init__(
            [Patch("compile_settings", "torch", "compile", self._make)],
            imported=None if imported is None else lambda _: imported(),
        )

    def _make(self, original: Callable[..., Any]) -> Callable[..., Any]:
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
