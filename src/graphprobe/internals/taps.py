"""All taps of a session together: put in place as torch's modules appear, and taken out exactly."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from graphprobe.internals import aot, dynamo, graph_breaks, inductor, recompiles, step_taps
from graphprobe.internals.importhook import ImportHook
from graphprobe.internals.names import RUN_LOSES
from graphprobe.internals.observer import CompileObserver
from graphprobe.internals.patches import Patch, PatchSet


class Taps:
    """The taps of one observer.

    `status` maps each tap to `on`, `waiting` (its torch module is not imported yet) or `missing: <address>`.
    """

    def __init__(self, observer: CompileObserver, *, follow_run_dir: str | None = None) -> None:
        """`follow_run_dir` is where torch is to put its own debug files, None to leave that to torch."""
        self._patches = PatchSet()
        self._wanted: dict[str, list[Patch]] = {}
        self.status: dict[str, str] = {}
        wanted = _all(observer)
        if follow_run_dir is not None:
            wanted.append(dynamo.follow_run_dir(follow_run_dir))
        for patch in wanted:
            self._wanted.setdefault(patch.module, []).append(patch)
            self.status.setdefault(patch.tap, "waiting")
        self._hook = ImportHook(dict.fromkeys(self._wanted, self._on_import))

    def install(self) -> None:
        self._hook.install()

    def remove(self) -> list[str]:
        """Undo everything; returns addresses that somebody else patched over, which were left alone."""
        self._hook.remove()
        return self._patches.undo()

    def missing(self) -> dict[str, str]:
        """Taps this torch lacks, with what is lost."""
        return {tap: RUN_LOSES[tap] for tap, status in self.status.items() if status.startswith("missing")}

    def _on_import(self, module: ModuleType) -> None:
        for patch in self._wanted[module.__name__]:
            try:
                applied = self._patches.apply(module, patch)
            except Exception as error:  # inside the program's own import of torch, which must not fail
                self.status[patch.tap] = f"missing: {patch.address} ({type(error).__name__}: {error})"
                continue
            if not applied:
                self.status[patch.tap] = f"missing: {patch.address}"
            elif not self.status[patch.tap].startswith("missing"):
                self.status[patch.tap] = "on"


def _all(observer: CompileObserver) -> list[Patch]:
    # What steps are told to may be a part of the observer.
    steps: Any = getattr(observer, "step_observer", observer)
    return [
        *step_taps.patches(steps),
        *dynamo.patches(observer),
        *aot.patches(observer),
        *inductor.patches(observer),
        *graph_breaks.patches(observer),
        *recompiles.patches(observer),
    ]
