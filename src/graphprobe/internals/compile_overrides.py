"""Puts other arguments in the place of those that a program gives to `torch.compile`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from graphprobe.internals.importhook import ImportHook
from graphprobe.internals.patches import Patch, PatchSet
from graphprobe.internals.unseen import unseen


def override_compile(overrides: Mapping[str, Any]) -> Callable[[], None]:
    """Every `torch.compile` from now on gets these arguments, until what is returned is called.

    With another `backend`, `mode` and `options` are left out: they are meant for the program's own. torch is not
    imported for it. What the program gets is what torch returns.
    """
    given = dict(overrides)
    if "backend" in given:
        given |= {"mode": None, "options": None}

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def compile(model: Any = None, **settings: Any) -> Any:
            with unseen:
                return original(model, **{**settings, **given})

        return compile

    applied = PatchSet()

    def on_import(module: ModuleType) -> None:
        applied.apply(module, Patch("compile_overrides", "torch", "compile", make))

    hook = ImportHook({"torch": on_import})
    hook.install()

    def stop() -> None:
        hook.remove()
        applied.undo()

    return stop
