"""The one place that replaces attributes of other packages: each name once, for all who want it, and undone exactly."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec

_MISSING = object()


class Patch(msgspec.Struct, frozen=True):
    """One attribute to replace.

    Attributes:
        tap: the capability that stands on it.
        module: dotted module name.
        attribute: dotted path inside the module, e.g. `OutputGraph.call_user_compiler`.
        make: gets the original, returns the replacement.
    """

    tap: str
    module: str
    attribute: str
    make: Callable[[Any], Any]

    @property
    def address(self) -> str:
        return f"{self.module}:{self.attribute}"


def resolve(module: ModuleType, attribute: str) -> tuple[Any, str, Any]:
    """The owner of the last name, that name, and the raw (undescribed) value, or `_MISSING` as value."""
    owner: Any = module
    *path, name = attribute.split(".")
    for part in path:
        owner = getattr(owner, part, _MISSING)
        if owner is _MISSING:
            return None, name, _MISSING
    return owner, name, inspect.getattr_static(owner, name, _MISSING)


def exists(module: ModuleType, attribute: str) -> bool:
    """Whether the dotted path leads to something."""
    return resolve(module, attribute)[2] is not _MISSING


class _Link:
    """What one subscriber has made of a name."""

    __slots__ = ("made", "patch")

    def __init__(self, patch: Patch, made: Any) -> None:
        self.patch = patch
        self.made = made


class _Tap:
    """One name while somebody replaces it: the original, and around it what each subscriber makes, in their order.

    torch has the outermost one, so that between torch and its own function stand the subscribers and nothing else.
    """

    def __init__(self, owner: Any, name: str, raw: Any) -> None:
        self.owner, self.name, self.raw = owner, name, raw
        self.own = name in vars(owner)
        self.links: list[_Link] = []
        self.replacement = raw

    @property
    def in_place(self) -> bool:
        """Whether the name is what was put there last, and not what somebody else has put on top."""
        return inspect.getattr_static(self.owner, self.name, _MISSING) is self.replacement

    def add(self, patch: Patch) -> _Link:
        link = _Link(patch, patch.make(self._inside(len(self.links))))
        self.links.append(link)
        self._put(link.made)
        return link

    def drop(self, link: _Link) -> bool:
        """Take one subscriber out; False where somebody else stands on top, and nothing can be taken from below."""
        in_place, place = self.in_place, self.links.index(link)
        del self.links[place]
        if not in_place:
            return False
        for number in range(place, len(self.links)):
            self.links[number].made = self.links[number].patch.make(self._inside(number))
        if self.links:
            self._put(self.links[-1].made)
        elif self.own:
            setattr(self.owner, self.name, self.raw)
        else:
            delattr(self.owner, self.name)
        return True

    def _inside(self, number: int) -> Any:
        if number:
            return self.links[number - 1].made
        return self.raw.__func__ if isinstance(self.raw, classmethod | staticmethod) else self.raw

    def _put(self, made: Any) -> None:
        self.replacement = type(self.raw)(made) if isinstance(self.raw, classmethod | staticmethod) else made
        setattr(self.owner, self.name, self.replacement)


class _Board:
    """The taps of this process; of one name there are several only where somebody else stands between them."""

    def __init__(self) -> None:
        self.taps: dict[tuple[int, str], list[_Tap]] = {}
        self.lock = threading.RLock()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.lock = threading.RLock()  # another thread of the parent may have held it

    def add(self, module: ModuleType, patch: Patch) -> tuple[_Tap, _Link] | None:
        """None when the module has no such name."""
        with self.lock:
            owner, name, raw = resolve(module, patch.attribute)
            if raw is _MISSING:
                return None
            taps = self.taps.get((id(owner), name), [])
            tap = next((tap for tap in taps if tap.in_place), None)
            if tap is not None:
                return tap, tap.add(patch)
            tap = _Tap(owner, name, raw)
            link = tap.add(patch)
            self.taps[id(owner), name] = [*taps, tap]
            return tap, link

    def drop(self, tap: _Tap, link: _Link) -> bool:
        with self.lock:
            done = tap.drop(link)
            if not tap.links:
                key = (id(tap.owner), tap.name)
                self.taps[key] = [other for other in self.taps[key] if other is not tap]
                if not self.taps[key]:
                    del self.taps[key]
            return done


_board = _Board()


class PatchSet:
    """What one subscriber has replaced. Whoever else replaces the same names may come and go in any order."""

    def __init__(self) -> None:
        self._applied: list[tuple[_Tap, _Link]] = []

    def apply(self, module: ModuleType, patch: Patch) -> bool:
        """Replace the attribute; False when this torch has no such name."""
        done = _board.add(module, patch)
        if done is None:
            return False
        self._applied.append(done)
        return True

    def undo(self) -> list[str]:
        """Take every replacement out. Returns addresses that somebody else has replaced since: those are left alone."""
        foreign: list[str] = []
        while self._applied:
            tap, link = self._applied.pop()
            if not _board.drop(tap, link):
                foreign.append(link.patch.address)
        return foreign

    @property
    def addresses(self) -> list[str]:
        return [link.patch.address for _, link in self._applied]
