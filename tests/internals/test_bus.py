"""Subscribers at patched names: told in order, detached when they raise, there as modules appear, gone exactly."""

import importlib
import os
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphprobe.internals import bus
from graphprobe.internals.bus import Advice, Patch, PatchSet, Subscriber, Subscription, advised, resolve


class Observer:
    """Notes what it is told, and raises where it is to."""

    def __init__(self, name: str, notes: list[str], *, raises: str = "") -> None:
        self.name, self.notes, self.raises = name, notes, raises

    def event(self, what: str) -> str:
        self.notes.append(f"{self.name}: {what}")
        if what == self.raises:
            raise ValueError(f"{self.name} cannot take {what}")
        return f"{self.name} took {what}"

    def failed(self, what: str, details: str) -> None:
        self.notes.append(f"{self.name} failed at {what}: {details.splitlines()[-1]}")


def patch(module: str, to: Subscriber[Observer], attribute: str = "function") -> Patch:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(value: int) -> int:
            to.tell(attribute, lambda: to.observer.event(attribute), "")
            result: int = original(value)
            return result

        return call

    return Patch("tap", module, attribute, make)


def module(name: str = "patched") -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(function=lambda value: value + 1, other=lambda value: value + 2)
    return made


def test_advice_is_around_a_call_and_never_in_its_way() -> None:
    notes = list[str]()

    def advice(value: int) -> Advice:
        notes.append(f"given {value}")
        result, error = yield
        notes.append(f"ended with {result}, {error!r}")
        return result + 10 if result is not None else None

    def function(value: int, by: int = 1) -> float:
        return value / by

    watched = advised("tap", "module", "function", advice).make(function)
    assert watched(4) == 14
    with pytest.raises(TypeError):
        watched("4")
    assert watched(4, by=2) == 2, "a torch that calls with other arguments is left alone"
    assert notes[:2] == ["given 4", "ended with 4.0, None"] and notes[3].startswith("ended with None, TypeError")
    assert len(notes) == 4


def test_subscribers_of_one_name_are_told_in_order_and_may_leave_in_any() -> None:
    target, notes = module(), list[str]()
    original = target.function
    sets = {name: PatchSet() for name in "abc"}
    for name, one in sets.items():
        one.apply(target, patch("patched", Subscriber(Observer(name, notes))))
    assert target.function(1) == 2
    assert notes == ["c: function", "b: function", "a: function"]
    for leaving, left in (("a", ["c: function", "b: function"]), ("c", ["b: function"])):
        assert sets[leaving].undo() == []
        notes.clear()
        assert target.function(1) == 2
        assert notes == left
    assert sets["b"].undo() == []
    assert target.function is original


def test_one_that_raises_is_detached_and_told_and_the_others_go_on() -> None:
    target, notes = module(), list[str]()
    good, bad = Subscriber(Observer("good", notes)), Subscriber(Observer("bad", notes, raises="function"))
    both = PatchSet()
    for to in (good, bad):
        both.apply(target, patch("patched", to))
        both.apply(target, patch("patched", to, "other"))
    assert [target.function(1), target.function(2), target.other(1)] == [2, 3, 3]
    assert notes == [
        "bad: function",
        "bad failed at function: ValueError: bad cannot take function (nothing more of it is collected)",
        "good: function",
        "good: function",
        "bad: other",  # what it has not failed at goes on
        "good: other",
    ]
    both.undo()


def test_what_is_told_gives_the_default_once_it_has_failed_or_is_closed() -> None:
    notes: list[str] = []
    to = Subscriber(Observer("a", notes, raises="x"))
    assert to.tell("y", lambda: to.observer.event("y"), "default") == "a took y"
    assert to.tell("x", lambda: to.observer.event("x"), "default") == "default"
    told = len(notes)
    assert to.tell("x", lambda: to.observer.event("x"), "default") == "default"
    to.close()
    assert to.tell("y", lambda: to.observer.event("y"), "default") == "default"
    assert len(notes) == told
    with pytest.raises(KeyboardInterrupt):  # the user's, not ours
        Subscriber(Observer("b", notes)).tell("x", _interrupted, None)


def _interrupted() -> None:
    raise KeyboardInterrupt


def test_between_two_of_ours_somebody_else() -> None:
    target, notes = module(), list[str]()
    original, other = target.function, target.other
    first, second, to = PatchSet(), PatchSet(), Subscriber(Observer("first", notes))
    first.apply(target, patch("patched", to))
    first.apply(target, patch("patched", to, "other"))
    ours = target.function
    target.function = theirs = lambda value: ours(value) * 10
    second.apply(target, patch("patched", Subscriber(Observer("second", notes))))
    assert target.function(1) == 20
    assert notes == ["second: function", "first: function"]
    assert first.undo() == ["patched:function"] and target.other is other
    assert second.undo() == []
    assert target.function is theirs
    target.function = ours  # they leave: what stayed below is as it was
    assert target.function(1) == original(1)


def test_a_subscription_follows_the_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bus_first.py").write_text("def function(value): return value + 1\n")
    (tmp_path / "bus_second.py").write_text("def other(value): return value + 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    notes: list[str] = []
    to = Subscriber(Observer("a", notes))

    def cannot(_: Any) -> Any:
        raise ValueError("another torch")

    seen: list[str] = []
    subscription = Subscription(
        [
            patch("bus_first", to),
            patch("bus_first", to, "absent"),
            patch("bus_second", to, "other"),
            Patch("tap", "bus_second", "other.__doc__", cannot),
        ],
        imported=lambda module: seen.append(module.__name__),
    )
    subscription.install()
    assert set(subscription.status.values()) == {"waiting"} and subscription.missing == []
    first = importlib.import_module("bus_first")
    assert (first.function(1), notes) == (2, ["a: function"])
    assert subscription.status["bus_second:other"] == "waiting"
    assert subscription.missing == ["bus_first:absent"]
    second = importlib.import_module("bus_second")
    assert second.other(1) == 3 and seen == ["bus_first", "bus_second"]
    assert subscription.missing == ["bus_first:absent", "bus_second:other.__doc__ (ValueError: another torch)"]
    assert subscription.remove() == []
    notes.clear()
    assert (first.function(1), second.other(1), notes) == (2, 3, [])
    assert not any(type(finder).__module__.startswith("graphprobe") for finder in sys.meta_path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_can_patch_although_another_thread_was_patching() -> None:
    board, held, done = bus._board, threading.Event(), threading.Event()

    def patching() -> None:
        with board.lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=patching)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        os._exit(0 if board.lock.acquire(blocking=False) else 1)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# Attributes are replaced, and the very same objects put back.


class Base:
    def method(self) -> str:
        return "method"

    @classmethod
    def of_class(cls, extra: str = "") -> str:
        return f"of_class {cls.__name__}{extra}"

    @staticmethod
    def static(value: int) -> int:
        return value + 1

    class Inner:
        value = 1


class Derived(Base):
    pass


def package() -> types.ModuleType:
    made = types.ModuleType("patched")
    base = type("Base", (), dict(vars(Base)))
    derived = type("Derived", (base,), {})
    vars(made).update(function=lambda: "function", Base=base, Derived=derived, nothing=None)
    return made


def wrapping(note: list[str]) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            note.append("seen")
            return original(*args, **kwargs)

        return replacement

    return make


def values(target: types.ModuleType) -> list[dict[str, int]]:
    """Which objects the module and its classes hold."""
    owners = (target, target.Base, target.Derived)
    return [{k: id(v) for k, v in vars(owner).items() if not k.startswith("__")} for owner in owners]


@pytest.mark.parametrize(
    ("attribute", "call", "result"),
    [
        ("function", lambda m: m.function(), "function"),
        ("Base.method", lambda m: m.Base().method(), "method"),
        ("Base.of_class", lambda m: m.Base.of_class(), "of_class Base"),
        ("Base.of_class", lambda m: m.Derived().of_class(extra="!"), "of_class Derived!"),
        ("Base.static", lambda m: m.Base.static(3) + m.Base().static(3), 8),
        ("Derived.method", lambda m: m.Derived().method(), "method"),
        ("Derived.of_class", lambda m: m.Derived.of_class(), "of_class Derived"),
    ],
)
def test_replaces_calls_through_and_restores(attribute: str, call: Callable[[Any], Any], result: Any) -> None:
    target, patches, note = package(), PatchSet(), list[str]()
    before = values(target)
    assert patches.apply(target, Patch("tap", "patched", attribute, wrapping(note)))
    assert call(target) == result
    assert note and patches.addresses == [f"patched:{attribute}"]
    note.clear()
    assert patches.undo() == [] and patches.addresses == []
    assert call(target) == result
    assert (note, values(target)) == ([], before)


@pytest.mark.parametrize(
    "attribute", ["missing", "Base.missing", "Missing.method", "Base.Inner.value.deeper", "Base.x.y"]
)
def test_a_missing_name_is_told_and_nothing_is_made(attribute: str) -> None:
    target, patches = package(), PatchSet()
    before = dict(vars(target))
    assert resolve(target, "nothing")[2] is None
    assert not patches.apply(target, Patch("tap", "patched", attribute, wrapping([])))
    assert vars(target) == before
    assert patches.undo() == []


def test_a_failing_make_leaves_the_name_alone() -> None:
    target = package()
    original = target.function
    with pytest.raises(ZeroDivisionError):
        PatchSet().apply(target, Patch("tap", "patched", "function", lambda _: 1 // 0))
    assert target.function is original
