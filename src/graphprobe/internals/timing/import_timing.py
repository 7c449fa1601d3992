"""How long imports take that happen while something is compiled, or that load the compiler itself."""

from __future__ import annotations

import importlib.machinery
import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType

from graphprobe.internals.importhook import StandInLoader
from graphprobe.internals.timing.span_recorder import SpanRecorder

COMPILER = ("torch._dynamo", "torch._inductor", "torch._functorch")
"""Packages whose import counts also outside of a compile: the first use of torch.compile loads them."""


class _Busy(threading.local):
    inside = False


class ImportTimer(MetaPathFinder):
    """A span for each outermost import; modules that those import are part of them.

    Modules that are there already cost nothing. Outside of a span only the compiler's packages are looked at.
    """

    def __init__(self, recorder: SpanRecorder) -> None:
        self.recorder = recorder
        self.busy = _Busy()

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if self.busy.inside or not self.recorder.on:
            return None
        if self.recorder.inside is None and not fullname.startswith(COMPILER):
            return None
        self.busy.inside = True  # a finder may search the others itself, and comes by here again
        try:
            spec = self._find(fullname, path, target)
        finally:
            self.busy.inside = False
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _TimedLoader(spec.loader, self)
        return spec

    def _find(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in list(sys.meta_path):
            if finder is not self and (spec := finder.find_spec(fullname, path, target)) is not None:
                return spec
        return None


class _TimedLoader(StandInLoader):
    """Loads within a span."""

    def __init__(self, inner: Loader, timer: ImportTimer) -> None:
        super().__init__(inner)
        self._timer = timer

    def load(self, module: ModuleType) -> None:
        recorder = self._timer.recorder
        span = recorder.quietly(lambda: recorder.begin(module.__name__, "import"))
        outer, self._timer.busy.inside = self._timer.busy.inside, True
        try:
            super().load(module)
        finally:
            self._timer.busy.inside = outer
            if span is not None:
                recorder.quietly(lambda: recorder.end(span))
