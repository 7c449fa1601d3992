"""Describes what JSON values may look like: one description is the check, with its errors, and the JSON Schema."""

from __future__ import annotations

import functools
import json
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from graphprobe.errors import DumpConfigError, SettingError, nearest
from graphprobe.settings.option import json_type

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80
_MAX_KEY = 80


class JsonPlace(NamedTuple):
    """A value in a JSON file: the file as the user named it, and the JSON path."""

    file: str
    path: str = "$"

    def key(self, name: str) -> JsonPlace:
        """The place of an object's member."""
        plain = name.isascii() and name.isidentifier()
        shown = name if len(name) <= _MAX_KEY else name[:_MAX_KEY] + "…"
        return JsonPlace(self.file, f"{self.path}.{shown}" if plain else f"{self.path}[{json.dumps(shown)}]")

    def item(self, index: int) -> JsonPlace:
        """The place of an array's element."""
        return JsonPlace(self.file, f"{self.path}[{index}]")


def _fault(place: JsonPlace, message: str, *, slug: str, hint: str = "") -> DumpConfigError:
    return DumpConfigError(f"{place.file}: {place.path} {message}", where=place.path, hint=hint, slug=slug)


type_fault = functools.partial(_fault, slug="dump-config-type")
"""A value of the wrong type, an empty one, or none where one is required."""

choice_fault = functools.partial(_fault, slug="dump-config-choice")
"""A key or a value that is none of those there are."""

value_fault = functools.partial(_fault, slug="dump-config-value")
"""A value that means nothing, or a path that cannot be used."""

syntax_fault = functools.partial(_fault, slug="dump-config-syntax")
"""Text that is not JSON."""


def conflict_fault(where: str, message: str, *, hint: str = "") -> DumpConfigError:
    """Two settings that exclude each other; the message names both."""
    return DumpConfigError(message, where=where, hint=hint, slug="dump-config-conflict")


def shown(value: object) -> str:
    """A value for a message, cut to a length that a terminal bears."""
    try:
        return _REPR.repr(value)
    except (ValueError, RecursionError):  # an integer with thousands of digits has no repr
        return f"a huge {type(value).__name__}"


class Shape(Protocol):
    """A set of JSON values."""

    def check(self, value: object, place: JsonPlace) -> None:
        """Raises DumpConfigError if `value`, which stands at `place`, is none of them."""

    def schema(self) -> dict[str, Any]:
        """The same as JSON Schema."""


class TextShape(msgspec.Struct, frozen=True):
    """A string that is not empty; `parse` raises SettingError for one that means nothing, `pattern` is its grammar."""

    parse: Callable[[str], object] | None = None
    pattern: str | None = None

    def check(self, value: object, place: JsonPlace) -> None:
        if not isinstance(value, str):
            raise type_fault(place, f"is {shown(value)}, {json_type(value)}; it must be a string")
        if not value.strip():
            raise type_fault(place, f"is {value!r}; it must not be empty")
        if self.parse is not None:
            try:
                self.parse(value)
            except SettingError as error:
                raise value_fault(place, f"is {shown(value)}: {error}", hint=error.hint) from error

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": self.pattern or r"\S"}


class Choice(msgspec.Struct, frozen=True):
    """One of some strings. `hints` says something helpful about strings that other tools take here."""

    values: tuple[str, ...]
    hints: Mapping[str, str] = {}

    def check(self, value: object, place: JsonPlace) -> None:
        wanted = "one of " + ", ".join(self.values)
        if not isinstance(value, str):
            raise type_fault(place, f"is {shown(value)}, {json_type(value)}; it must be {wanted}")
        if not value:
            raise type_fault(place, f"is empty; it must be {wanted}")
        if value not in self.values:
            hint = self.hints.get(value) or nearest(value, self.values)
            raise choice_fault(place, f"is {shown(value)}; it must be {wanted}", hint=hint)

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.values)}


class Items(msgspec.Struct, frozen=True):
    """An array of equally shaped values. With `same`, two strings of which it makes the same thing are refused."""

    item: Shape
    empty: bool = False
    same: Callable[[str], object] | None = None

    def check(self, value: object, place: JsonPlace) -> None:
        if not isinstance(value, list):
            raise type_fault(place, f"is {shown(value)}, {json_type(value)}; it must be an array")
        if not value and not self.empty:
            raise type_fault(place, "is empty; it must have an entry, or be left out")
        seen: dict[object, int] = {}
        for index, item in enumerate(value):
            self.item.check(item, place.item(index))
            first = index if self.same is None else seen.setdefault(self.same(item), index)
            if first != index:
                raise value_fault(
                    place.item(index), f"is {shown(item)}, as {place.item(first).path} is", hint="name it once"
                )

    def schema(self) -> dict[str, Any]:
        result: dict[str, Any] = {"type": "array", "items": self.item.schema()}
        result |= {} if self.empty else {"minItems": 1}
        return result | ({"uniqueItems": True} if self.same else {})


class Key(msgspec.Struct, frozen=True):
    """A member of an object."""

    shape: Shape
    help: str
    required: bool = False


class TableShape(msgspec.Struct, frozen=True):
    """An object with known keys. `elsewhere` says where keys belong that users may expect here."""

    keys: Mapping[str, Key]
    elsewhere: Mapping[str, str] = {}
    empty: bool = False
    rules: tuple[Mapping[str, Any], ...] = ()

    def check(self, value: object, place: JsonPlace) -> None:
        if not isinstance(value, dict):
            raise type_fault(place, f"is {shown(value)}, {json_type(value)}; it must be an object")
        for name in value:
            if name not in self.keys:
                hint = self.elsewhere.get(name) or nearest(name, self.keys)
                raise choice_fault(place.key(name), "is unknown", hint=hint)
        if not value and not self.empty:
            raise type_fault(place, "is an empty object", hint="keys: " + ", ".join(self.keys))
        for name, key in self.keys.items():
            if name in value:
                key.shape.check(value[name], place.key(name))
            elif key.required:
                raise type_fault(place.key(name), "is missing", hint=key.help)

    def schema(self) -> dict[str, Any]:
        properties = {name: {"description": key.help} | key.shape.schema() for name, key in self.keys.items()}
        required = [name for name, key in self.keys.items() if key.required]
        result = {"type": "object", "additionalProperties": False, "properties": properties}
        result |= {"required": required} if required else {}
        result |= {} if self.empty or required else {"minProperties": 1}
        for rule in self.rules:
            result |= rule
        return result
