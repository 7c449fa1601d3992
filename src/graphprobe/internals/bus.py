"""Who is told at what is patched: subscribers that cannot harm the program, and the names that they stand at."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Generic, Protocol, TypeVar

from graphprobe.internals.importhook import ImportHook
from graphprobe.internals.patches import Patch, PatchSet

T = TypeVar("T")


class Listener(Protocol):
    """Whoever is told of something."""

    def failed(self, what: str, details: str) -> None:
        """What was told has raised; it is not told again."""


Observer = TypeVar("Observer", bound=Listener)


class Subscriber(Generic[Observer]):
    """An observer, told of events that have names. What it raises at one is reported to it, and ends that event for it.

    The program never sees what it raises, and other subscribers are told as before.
    """

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self._detached: set[str] = set()
        self._closed = False

    def tell(self, event: str, call: Callable[[], T], default: T) -> T:
        """`call()`, or `default` where the observer is not told, or raises."""
        if self._closed or event in self._detached:
            return default
        try:
            return call()
        except Exception as error:  # the observed program must not see our faults
            self._detached.add(event)
            told = "".join(traceback.format_exception(error)).rstrip()
            self.observer.failed(event, f"{told} (nothing more of it is collected)")
            return default

    def close(self) -> None:
        """Be told of nothing any more, also where a patch had to stay because somebody else stands on top of it."""
        self._closed = True


class Subscription:
    """The patches of one subscriber: put in as their modules are imported, which nothing here does, and taken out.

    Attributes:
        status: by address, `waiting`, `on`, or `missing: <address>` with the error there was.
    """

    def __init__(self, patches: Iterable[Patch], *, imported: Callable[[ModuleType], None] | None = None) -> None:
        """`imported` is called with each module once its patches are in."""
        self._patches = PatchSet()
        self._imported = imported
        self._wanted: dict[str, list[Patch]] = {}
        for patch in patches:
            self._wanted.setdefault(patch.module, []).append(patch)
        self._hook = ImportHook(dict.fromkeys(self._wanted, self._on_import))
        self.status = {patch.address: "waiting" for wanted in self._wanted.values() for patch in wanted}

    def install(self) -> None:
        """Patch what is imported, and wait for the rest."""
        self._hook.install()

    def remove(self) -> list[str]:
        """Take everything out; returns addresses that somebody else has patched over, which were left alone."""
        self._hook.remove()
        return self._patches.undo()

    @property
    def missing(self) -> list[str]:
        """The address of each name that this torch lacks, with the error there was."""
        begins = "missing: "
        return [status.removeprefix(begins) for status in self.status.values() if status.startswith(begins)]

    def _on_import(self, module: ModuleType) -> None:
        for patch in self._wanted[module.__name__]:
            try:
                there = self._patches.apply(module, patch)
                self.status[patch.address] = "on" if there else f"missing: {patch.address}"
            except Exception as error:  # inside the program's own import of torch, which must not fail
                self.status[patch.address] = f"missing: {patch.address} ({type(error).__name__}: {error})"
        if self._imported is not None:
            self._imported(module)
