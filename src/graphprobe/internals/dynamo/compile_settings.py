"""Stands in for `torch.compile`, so that a program's functions are compiled otherwise than it says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from graphprobe.internals.bus import Patch, Subscription
from graphprobe.internals.unseen import unseen

Backend = str | Callable[..., Any]


Settings = dict[str, Any]
"""The keyword arguments of a call of `torch.compile`."""


class CompileSettings:
    """Changes the arguments of each call of `torch.compile` while it is installed; one that disables stays as it is.

    Args:
        change: gets what the program gave, and returns what torch gets.
        imported: is called when torch is there, before the program goes on; not if it was there before.
    """

    def __init__(self, change: Callable[[Settings], Settings], *, imported: Callable[[], None] | None = None) -> None:
        self._change = change
        self._subscription = Subscription(
            [Patch("compile_settings", "torch", "compile", self._make)],
            imported=None if imported is None else lambda _: imported(),
        )

    def install(self) -> None:
        """Put it in place, now or as soon as the program imports torch."""
        self._subscription.install()

    def remove(self) -> None:
        """Give torch its function back. What was compiled meanwhile stays with its backend."""
        self._subscription.remove()

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
