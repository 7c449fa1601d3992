"""All taps together: put in place as torch's modules appear, taken out exactly, and listed for `doctor`."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from graphprobe.internals import aot, dynamo, graph_breaks, inductor, recompiles, step_taps
from graphprobe.internals.importhook import ImportHook
from graphprobe.internals.observer import CompileObserver
from graphprobe.internals.patches import Patch, PatchSet, exists

LOSES = {
    "dynamo_graph": "nothing can be collected: no compile is seen",
    "aot_graphs": "no joint, forward or backward graphs, and none of their passes",
    "passes": "no graph after each pass",
    "silent_passes": "view_to_reshape shows as unobserved changes",
    "pre_grad_passes": "passes before AOTAutograd are not told apart",
    "joint_passes": "joint-graph passes are not told apart",
    "post_grad_passes": "passes after AOTAutograd are not told apart",
    "nested_graphs": "before AOTAutograd, nested graphs are not told apart from the graph that they lie in",
    "lowering": "no scheduler IR and no output_code.py",
    "inductor_result": "no captured_ops.json, and no inputs for output_code.py",
    "metrics": "no timings and no recompile reason in compile.json",
    "guards": "no guards in compile.json",
    "recompiles": "no recompiles.jsonl: which guards failed is not known",
    "steps": "`graphprobe logs` knows fewer of the compiler's steps, or none",
    "graph_breaks": "only those graph breaks that ended a graph, without their whole reason",
    "uncompiled": "functions that Dynamo leaves uncompiled are not listed",
    "debug_dir": "torch's own debug files go to a folder of their own",
}
"""What is missing from a run when the installed torch lacks the tap."""


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
        return {tap: LOSES[tap] for tap, status in self.status.items() if status.startswith("missing")}

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


def probe() -> dict[str, str]:
    """Import torch's modules and say of every tap whether it could be put in place: `ok` or `missing: <address>`."""
    found: dict[str, str] = {}
    for patch in _all(_Nobody()):  # type: ignore[arg-type]  # never called: nothing is applied
        try:
            there = exists(importlib.import_module(patch.module), patch.attribute)
        except ImportError:
            there = False
        if not there:
            found[patch.tap] = f"missing: {patch.address}"
        else:
            found.setdefault(patch.tap, "ok")
    return found


class _Nobody:
    """Stands in for an observer where patches are only listed."""
