"""Which tests call something compiled, and the diagnosis of those calls while a test runs once more."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphprobe.findings import Diagnosis
    from graphprobe.internals.dynamo.compile_calls import CompileCalls, Compiled

Diagnoses = list[tuple[str, "Diagnosis"]]
"""Name of the function, and its diagnosis."""


class CompileWatch:
    """Stands in for `torch.compile` from `install` on, also where torch is imported later.

    A call of a compiled function only sets `called`, until `diagnosing`.
    """

    def __init__(self, budget_s: float | None) -> None:
        self.called = False
        self._budget_s = budget_s
        self._pid = os.getpid()
        self._calls: CompileCalls | None = None
        self._before: Callable[[Compiled, tuple[Any, ...], dict[str, Any]], None] | None = None
        self._touched: dict[int, Compiled] = {}

    def install(self) -> None:
        """Put it in place; the second time does nothing. Imports no torch."""
        if self._calls is None:
            from graphprobe.internals.dynamo.compile_calls import CompileCalls

            self._calls = CompileCalls(self._on_call)
            self._calls.install()

    def remove(self) -> None:
        """Give torch its function back."""
        if self._calls is not None:
            self._calls.remove()
            self._calls = None

    def begin(self) -> None:
        """A test begins."""
        self.called = False
        if self._calls is not None:
            self._calls.compiled.clear()  # it would keep every model of the suite alive

    @contextlib.contextmanager
    def diagnosing(self, folder: Path) -> Iterator[Diagnoses]:
        """Diagnose each call of a compiled function with new shapes before it is made; `folder` gets the dossiers."""
        from graphprobe.diagnose.script import ScriptOptions, watcher_of
        from graphprobe.settings.limits import TimeBudget

        watcher = watcher_of(ScriptOptions(budget=TimeBudget(self._budget_s), out=folder))
        self._before = watcher.before
        try:
            yield watcher.diagnoses
        finally:
            self._before = None
            for compiled in self._touched.values():
                # A function of the whole module may be called by the next test, too.
                compiled.kept.clear()
                compiled.uncompiled = False
            self._touched.clear()

    def _on_call(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if os.getpid() != self._pid:
            return  # a child that the test has forked: what it found would be lost with it
        self.called = True
        if self._before is not None:
            self._touched[id(compiled)] = compiled
            self._before(compiled, args, kwargs)


class RandomStates:
    """The states of the random generators of Python, and of numpy and torch where they are imported."""

    def __init__(self) -> None:
        self._python = random.getstate()
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        self._numpy = numpy.random.get_state() if numpy is not None else None
        self._torch = torch.get_rng_state() if torch is not None and hasattr(torch, "get_rng_state") else None

    def restore(self) -> None:
        """Set them as they were."""
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        if self._torch is not None:
            sys.modules["torch"].set_rng_state(self._torch)
