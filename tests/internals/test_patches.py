"""Replacing attributes and putting back the very same objects."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest

from graphprobe.internals.bus import Patch, PatchSet, exists


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


def module() -> types.ModuleType:
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
    target = module()
    classes = (target.Base, target.Derived)
    before = [dict(vars(owner)) for owner in (target, *classes)]
    note: list[str] = []
    patches = PatchSet()
    assert patches.apply(target, Patch("tap", "patched", attribute, wrapping(note)))
    assert call(target) == result
    assert note
    assert patches.addresses == [f"patched:{attribute}"]
    assert patches.undo() == []
    assert patches.addresses == []
    note.clear()
    assert call(target) == result
    assert note == []
    after = [dict(vars(owner)) for owner in (target, *classes)]
    for old, new in zip(before, after, strict=True):
        assert {k: id(v) for k, v in old.items() if not k.startswith("__")} == {
            k: id(v) for k, v in new.items() if not k.startswith("__")
        }


def test_an_inherited_attribute_is_not_left_on_the_subclass() -> None:
    target = module()
    patches = PatchSet()
    patches.apply(target, Patch("tap", "patched", "Derived.method", wrapping([])))
    assert "method" in vars(target.Derived)
    patches.undo()
    assert "method" not in vars(target.Derived)


@pytest.mark.parametrize(
    "attribute", ["missing", "Base.missing", "Missing.method", "Base.Inner.value.deeper", "Base.x.y"]
)
def test_a_missing_name_is_told_and_nothing_is_made(attribute: str) -> None:
    target = module()
    before = dict(vars(target))
    patches = PatchSet()
    assert not exists(target, attribute)
    assert not patches.apply(target, Patch("tap", "patched", attribute, wrapping([])))
    assert vars(target) == before
    assert patches.undo() == []


def test_a_name_that_is_none_exists() -> None:
    assert exists(module(), "nothing")


def test_what_somebody_else_put_on_top_stays() -> None:
    target = module()
    original = target.function
    note: list[str] = []
    patches = PatchSet()
    patches.apply(target, Patch("tap", "patched", "function", wrapping(note)))
    patches.apply(target, Patch("tap", "patched", "Base.method", wrapping(note)))
    ours = target.function

    def theirs() -> Any:
        return ours()

    target.function = theirs
    assert patches.undo() == ["patched:function"]
    assert target.function is theirs
    assert theirs() == original()
    assert target.Base().method() == "method"
    assert note == ["seen"]


def test_two_patches_on_one_name_are_undone_in_reverse() -> None:
    target = module()
    original = target.function
    first, second = [], []  # type: ignore[var-annotated]
    patches = PatchSet()
    patches.apply(target, Patch("a", "patched", "function", wrapping(first)))
    patches.apply(target, Patch("b", "patched", "function", wrapping(second)))
    target.function()
    assert (first, second) == (["seen"], ["seen"])
    assert patches.undo() == []
    assert target.function is original


def test_a_failing_make_leaves_the_name_alone() -> None:
    target = module()
    original = target.function

    def make(_: Any) -> Any:
        raise ValueError("cannot")

    with pytest.raises(ValueError, match="cannot"):
        PatchSet().apply(target, Patch("tap", "patched", "function", make))
    assert target.function is original
