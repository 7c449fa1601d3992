"""Patches each name of torch once, notifies its subscribers without harm to the program, and undoes it exactly."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from graphprobe.internals.importhook import ImportHook
from graphprobe.internals.unseen import unseen

log = logging.getLogger(__name__)

_MISSING = object()

T = TypeVar("T")

Advice = Generator[None, tuple[Any, BaseException | None], Any]
"""What happens around one call: what is in front of its `yield` before it, the rest behind it. See `advised`."""


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


def advised(tap: str, module: str, attribute: str, advice: Callable[..., Advice]) -> Patch:
    """A patch that runs `advice(*args, **kwargs)` around each call, which itself is as without it.

    `result, error = yield` is how the call ended. What the advice returns, unless it is None, takes the place of a
    result. One that returns without a `yield` has the call to itself. Where torch calls with other arguments than the
    advice takes, the call runs without it.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                around = advice(*args, **kwargs)
            except TypeError as error:  # no line of a generator has run: its arguments are others
                log.warning("%s is not watched: %s", attribute, error)
                with unseen:
                    return original(*args, **kwargs)
            next(around, None)
            try:
                with unseen:
                    result = original(*args, **kwargs)
            except BaseException as error:
                _end(around, None, error)
                raise
            instead = _end(around, result, None)
            return result if instead is None else instead

        return call

    return Patch(tap, module, attribute, make)


def _end(around: Advice, result: Any, error: BaseException | None) -> Any:
    try:
        around.send((result, error))
    except StopIteration as end:
        return end.value


def resolve(module: ModuleType, attribute: str) -> tuple[Any, str, Any]:
    """The owner of the last name, that name, and the raw (undescribed) value, or `_MISSING` as value."""
    owner: Any = module
    *path, name = attribute.split(".")
    for part in path:
        owner = getattr(owner, part, _MISSING)
        if owner is _MISSING:
            return None, name, _MISSING
    return owner, name, inspect.getattr_static(owner, name, _MISSING)


@dataclass(slots=True, eq=False)
class _Link:
    """What one subscriber has made of a name."""

    patch: Patch
    made: Any


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

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Patched inside of the block."""
        self.install()
        try:
            yield
        finally:
            self.remove()

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
