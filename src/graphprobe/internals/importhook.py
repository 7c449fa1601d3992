"""Run a callback right after a module is first imported, so that nothing is imported before the program asks."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any

from graphprobe.internals.unseen import unseen

Callback = Callable[[ModuleType], None]


class StandInLoader(Loader):
    """In the place of a module's own loader, to which it delegates; it loads the module inside of `around(module)`."""

    def __init__(self, inner: Loader, around: Callable[[ModuleType], AbstractContextManager[None]]) -> None:
        self._inner, self._around = inner, around

    def __getattr__(self, name: str) -> Any:
        # Whoever gets the spec without importing may ask for the source, resources and so on.
        return getattr(self._inner, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module must look as if nobody had stood in between, also to code that it runs while loading.
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        with unseen, self._around(module):
            self._inner.exec_module(module)


class ImportHook(MetaPathFinder):
    """Calls `callback(module)` for each of `callbacks` when it is imported, or at once if it already is.

    A callback runs at most once. `remove()` takes the finder out of `sys.meta_path` again; it also leaves by itself
    when nothing is left to wait for.
    """

    def __init__(self, callbacks: dict[str, Callback]) -> None:
        self._pending = dict(callbacks)
        self._searching = threading.local()

    def install(self) -> None:
        """Call back for modules that are imported, and wait for the others."""
        for name in list(self._pending):
            module = sys.modules.get(name)
            # A module that is still being executed has `_initializing` set; its names are not there yet.
            spec = getattr(module, "__spec__", None)
            if module is not None and not getattr(spec, "_initializing", False):
                self.notify(module)
        if self._pending:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop waiting; harmless when called twice."""
        self._pending.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    @contextmanager
    def _notifying(self, module: ModuleType) -> Iterator[None]:
        yield
        self.notify(module)

    def notify(self, module: ModuleType) -> None:
        callback = self._pending.pop(module.__name__, None)
        if callback is not None:
            callback(module)
        if not self._pending and self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._pending or getattr(self._searching, "name", None) == fullname:
            return None
        self._searching.name = fullname
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching.name = None
        if spec is not None and spec.loader is not None:
            spec.loader = StandInLoader(spec.loader, self._notifying)
        return spec
