"""The one place that replaces attributes of other packages: each replacement is probed first and undone exactly."""

from __future__ import annotations

import inspect
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


class _Applied(msgspec.Struct):
    patch: Patch
    owner: Any
    name: str
    raw: Any
    replacement: Any
    own: bool


class PatchSet:
    """Applies patches as their modules appear and takes them back in reverse order."""

    def __init__(self) -> None:
        self._applied: list[_Applied] = []

    def apply(self, module: ModuleType, patch: Patch) -> bool:
        """Replace the attribute; False when this torch has no such name."""
        owner, name, raw = resolve(module, patch.attribute)
        if raw is _MISSING:
            return False
        original = raw.__func__ if isinstance(raw, classmethod | staticmethod) else raw
        made = patch.make(original)
        replacement = type(raw)(made) if isinstance(raw, classmethod | staticmethod) else made
        own = name in vars(owner)
        setattr(owner, name, replacement)
        self._applied.append(_Applied(patch, owner, name, raw, replacement, own))
        return True

    def undo(self) -> list[str]:
        """Restore every attribute. Returns addresses that somebody else has replaced since: those are left alone."""
        foreign: list[str] = []
        while self._applied:
            done = self._applied.pop()
            if inspect.getattr_static(done.owner, done.name, _MISSING) is not done.replacement:
                foreign.append(done.patch.address)
            elif done.own:
                setattr(done.owner, done.name, done.raw)
            else:
                delattr(done.owner, done.name)
        return foreign

    @property
    def addresses(self) -> list[str]:
        return [done.patch.address for done in self._applied]
