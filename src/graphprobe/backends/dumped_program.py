"""A program that knows nothing of graphprobe, dumped: what it gives to `torch.compile` goes to backends that dump."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from graphprobe.backends.wrap import Wrapped, dumping_backend
from graphprobe.dump_plan import DumpPlan
from graphprobe.internals.dynamo.compile_calls import Backend, CompileSettings, Settings, default_backend
from graphprobe.probe.dump.overflow import OverflowObserver
from graphprobe.probe.dump.running import DumpSession
from graphprobe.probe.dump.sessions import begin_single_ops, session_for

logger = logging.getLogger("graphprobe")


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
        observers = [observer for session in self._sessions for observer in session.observers]
        return [text for one in observers if isinstance(one, OverflowObserver) for text in one.first()]

    def _begin(self) -> None:
        begin_single_ops(self._session())

    def _session(self) -> DumpSession:
        with suppress(OSError):  # the session says it
            Path(self._plan.path).mkdir(exist_ok=True)  # where it lies in a run: made for what is compiled
        session = session_for(self._plan)
        if session not in self._sessions:
            self._sessions.append(session)
        return session

    def _changed(self, settings: Settings) -> Settings:
        return {**settings, "backend": self._chosen(settings.get("backend") or default_backend())}

    def _chosen(self, backend: Backend) -> Backend:
        session = self._session()
        if isinstance(backend, str) and not backend.startswith("graphprobe:"):
            if backend not in self._backends:
                self._backends[backend] = dumping_backend(self._plan, backend=backend)
            return self._backends[backend]
        if not _dumps(backend):
            name = backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)
            session.note(
                f"not dumped: what the program compiles with {name!r}, which is no backend that torch has a name for"
            )
        return backend


def _dumps(backend: Any) -> bool:
    """Whether the program has asked for a dump itself."""
    from graphprobe.probe.dump.backend import DumpBackend

    inner: Callable[..., Any] = backend._inner if isinstance(backend, Wrapped) else backend
    return isinstance(inner, DumpBackend)
