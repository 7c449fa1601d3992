"""Backends around others: collected by `graphprobe.wrap`, made from a `CompilerConfig`, or dumped as a program runs."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
import torch

from graphprobe.compiler_config import CompilerConfig
from graphprobe.dump_plan import DumpPlan
from graphprobe.errors import SettingError, UsageError
from graphprobe.internals.aot_backends import inductor_with_mode, lookup
from graphprobe.internals.dynamo.compile_calls import CompileSettings, default_backend
from graphprobe.probe import active
from graphprobe.settings import BackendSettings, Settings, resolve

if TYPE_CHECKING:
    from graphprobe.probe.dump.running import DumpSession

Backend = Callable[..., Any]

WHOLE_RUN = frozenset({"out_dir", "max_bytes", "log_level", "config_path"})
"""Settings that cannot differ from backend to backend."""


class Wrapped:
    """A backend that does what the inner one does, and is collected wherever it compiles.

    `__name__` is the inner backend's, since torch's messages show it. Unknown attributes are the inner backend's.
    """

    _graphprobe_wrapped = True

    def __init__(self, inner: Backend, name: str, changes: Mapping[str, Any]) -> None:
        self._inner = inner
        self._changes = dict(changes)
        self.__name__ = name

    def change_settings(self, settings: Settings) -> Settings:
        """The session's settings with those of this backend."""
        return msgspec.structs.replace(settings, **self._changes) if self._changes else settings

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        return self._inner(gm, example_inputs, **kwargs)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") or attribute == "_inner":
            raise AttributeError(attribute)
        return getattr(self._inner, attribute)

    def __repr__(self) -> str:
        return f"graphprobe.wrap({self.__name__!r})"


def wrap(backend: str | Backend = "inductor", **settings: Unpack[BackendSettings]) -> Wrapped:
    """Any backend, a user's own function included, with every stage of its compiles on disk.

    Switches collecting on (for wrapped backends only) if it is off: the run folder is made here and now.

    Args:
        backend: a name that torch knows, e.g. `"inductor"`, or a callable `(gm, example_inputs) -> callable`.
        **settings: settings for compiles by this backend alone, e.g. `save_inputs=True`, `graph_dump="py"`.

    Raises:
        UsageError: torch knows no such backend, or the argument is no callable.
        SettingError: a setting that does not exist, that holds for a whole run, or a value that it cannot take.
    """
    inner, name = _lookup(backend)
    for setting in settings:
        if setting in WHOLE_RUN:
            raise SettingError(
                f"wrap({setting}=...): this holds for a whole run", hint="give it to graphprobe.enable()"
            )
    resolved = resolve(arguments=settings, environ={})
    active.ensure()
    before = backend._changes if isinstance(backend, Wrapped) else {}
    return Wrapped(inner, name, {**before, **{setting: getattr(resolved, setting) for setting in settings}})


def _lookup(backend: str | Backend) -> tuple[Backend, str]:
    if isinstance(backend, Wrapped):
        return backend._inner, backend.__name__
    if isinstance(backend, str):
        known = torch.compiler.list_backends(exclude_tags=())
        if backend not in known:
            raise UsageError(
                f"torch has no backend named {backend!r}",
                hint=f"it has {', '.join(sorted(known))}; or pass the backend function itself",
            )
        return functools.partial(_by_name, backend), backend
    if not callable(backend):
        raise UsageError(f"wrap() takes a backend's name or a callable, not {type(backend).__name__}: {backend!r}")
    return backend, getattr(backend, "__name__", type(backend).__name__)


def _by_name(name: str, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **given: Any) -> Any:
    """A backend of torch's, looked up when it is first called: that imports Dynamo."""
    return lookup(name)(gm, example_inputs, **given)


def get_backend(*, compiler_config: CompilerConfig | None = None, backend: str = "inductor") -> Wrapped:
    """A backend with the config's mode, collected as by `graphprobe.wrap`.

    With `compiler_config.dump_config.enable_dump`, what the compiled ops read and write is dumped, see docs/dump.md. A
    dump alone makes no run; `compiler_config.debug.graph_dump.type` beside it does.

    Args:
        compiler_config: None is a config without any option set.
        backend: a name that torch knows. `mode` means something to `inductor` alone; of the others, the dump has the
            engine `interpreter`.

    Raises:
        SettingError: `compiler_config` is no CompilerConfig, or has a mode that the backend does not have, or the dump
            cannot be as it is asked for; DumpConfigError, which is one, for the dump's JSON file and for conflicts.
        UsageError: torch knows no such backend.
    """
    config = CompilerConfig() if compiler_config is None else compiler_config
    if not isinstance(config, CompilerConfig):
        raise SettingError(f"compiler_config takes a CompilerConfig, not {type(config).__name__}: {config!r}")
    settings: dict[str, Any] = {}
    kind = config.debug.graph_dump.type.value
    if kind is not None:
        settings["graph_dump"] = kind
    plan = config.dump_config.plan(environ=os.environ)
    if not plan.enabled:
        return wrap(inductor_with_mode(config.mode.value) if backend == "inductor" else backend, **settings)
    return dumping_backend(plan, backend=backend, mode=config.mode.value, **settings)


def dumping_backend(plan: DumpPlan, *, backend: str = "inductor", mode: str | None = None, **settings: Any) -> Wrapped:
    """A backend that compiles as `backend` does and dumps; with `settings`, collected as by `graphprobe.wrap`.

    Without, it makes no run: where one is on, or begins later, its compiles are in it.

    Args:
        plan: enabled.
        mode: Inductor's, where `torch.compile` says nothing.

    Raises:
        SettingError: the dump cannot be as the plan asks for it with this backend.
    """
    # Only now: what no dump is asked for does not load.
    from graphprobe.probe.dump.backend import DumpBackend

    dumped = DumpBackend(plan, name=backend, mode=mode)
    return wrap(dumped, **settings) if settings else Wrapped(dumped, dumped.__name__, {})


class DumpedProgram:
    """The dump of one program, from `install` on.

    A backend that the program names is replaced by one that compiles as it does, and dumps. A backend that is a
    function stays as it is, and so does one of graphprobe's own; the dump's notes say so.

    Args:
        plan: enabled.
    """

    def __init__(self, plan: DumpPlan) -> None:
        self._plan = plan
        self._backends: dict[str, Wrapped] = {}
        self._sessions: list[DumpSession] = []
        self._settings = CompileSettings(self._changed, imported=self._begin if plan.single_ops else None)

    def install(self) -> None:
        """Begin, now or as soon as the program imports torch."""
        self._settings.install()
        run = active.session()
        if run is not None and self._plan.engine != "kernel":
            from graphprobe.probe.dump.backend import WayDump

            run.dump_ways(WayDump(self._session))

    def remove(self) -> None:
        """Give torch its function back. The dump ends with the process, or with `graphprobe`'s own `close_all`."""
        self._settings.remove()

    @property
    def folders(self) -> list[Path]:
        """The time folders that were made in this process."""
        return [session.time_dir for session in self._sessions if session.time_dir is not None]

    @property
    def lost(self) -> list[str]:
        """Why there is nothing, of dumps that have no folder."""
        return [text for session in self._sessions for text in session.lost]

    @property
    def overflow(self) -> list[str]:
        """Which op made the first infinity or NaN, and whether the uncompiled program does; nothing without one."""
        from graphprobe.probe.dump.overflow import OverflowObserver

        observers = [observer for session in self._sessions for observer in session.observers]
        return [text for one in observers if isinstance(one, OverflowObserver) for text in one.first()]

    def _begin(self) -> None:
        from graphprobe.probe.dump.sessions import begin_single_ops

        begin_single_ops(self._session())

    def _session(self) -> DumpSession:
        from graphprobe.probe.dump.sessions import session_for

        with suppress(OSError):  # the session says it
            Path(self._plan.path).mkdir(exist_ok=True)  # where it lies in a run: made for what is compiled
        session = session_for(self._plan)
        if session not in self._sessions:
            self._sessions.append(session)
        return session

    def _changed(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {**settings, "backend": self._chosen(settings.get("backend") or default_backend())}

    def _chosen(self, backend: str | Backend) -> str | Backend:
        from graphprobe.probe.dump.backend import DumpBackend

        session = self._session()
        if isinstance(backend, str) and not backend.startswith("graphprobe:"):
            if backend not in self._backends:
                self._backends[backend] = dumping_backend(self._plan, backend=backend)
            return self._backends[backend]
        if not isinstance(backend._inner if isinstance(backend, Wrapped) else backend, DumpBackend):
            name = backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)
            session.note(
                f"not dumped: what the program compiles with {name!r}, which is no backend that torch has a name for"
            )
        return backend
