"""Stands in for `torch.compile`, so that a program's functions are compiled by another backend than it names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from graphprobe.internals.importhook import ImportHook
from graphprobe.internals.patches import Patch, PatchSet

Backend = str | Callable[..., Any]


class BackendChoice:
    """Asks for the backend of each call of `torch.compile` while it is installed; all else stays as the program has it.

    Args:
        choose: gets the backend that the program named, or torch's default, and returns the one to take.
        imported: is called when torch is there, before the program goes on; not if it was there before.
    """

    def __init__(self, choose: Callable[[Backend], Backend], *, imported: Callable[[], None] | None = None) -> None:
        self._choose, self._imported = choose, imported
        self._patches = PatchSet()
        self._hook = ImportHook({"torch": self._on_import})

    def install(self) -> None:
        """Put it in place, now or as soon as the program imports torch."""
        self._hook.install()

    def remove(self) -> None:
        """Give torch its function back. What was compiled meanwhile stays with its backend."""
        self._hook.remove()
        self._patches.undo()

    def _on_import(self, module: ModuleType) -> None:
        self._patches.apply(module, Patch("compile_backend", "torch", "compile", self._make))
        if self._imported is not None:
            self._imported()

    def _make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def compile(model: Any = None, **settings: Any) -> Any:
            if model is None:
                return lambda model: compile(model, **settings)
            if settings.get("disable"):
                return original(model, **settings)
            chosen = self._choose(settings.get("backend") or default_backend())
            return original(model, **{**settings, "backend": chosen})

        return compile


def default_backend() -> Backend:
    """What `torch.compile` takes when nobody names a backend."""
    from torch._dynamo.backends import registry

    found = getattr(registry, "get_default_backend", None)
    chosen: Backend = "inductor" if found is None else found()
    return chosen
