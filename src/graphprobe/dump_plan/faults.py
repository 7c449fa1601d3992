"""The five kinds of fault in a JSON file, each told with the JSON path and what stood there."""

from __future__ import annotations

import json
import reprlib
from typing import NamedTuple

from graphprobe.errors import DumpConfigError

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


def type_fault(place: JsonPlace, message: str, *, hint: str = "") -> DumpConfigError:
    """A value of the wrong type, an empty one, or none where one is required."""
    return DumpConfigError(
        f"{place.file}: {place.path} {message}", where=place.path, hint=hint, slug="dump-config-type"
    )


def choice_fault(place: JsonPlace, message: str, *, hint: str = "") -> DumpConfigError:
    """A key or a value that is none of those there are."""
    return DumpConfigError(
        f"{place.file}: {place.path} {message}", where=place.path, hint=hint, slug="dump-config-choice"
    )


def value_fault(place: JsonPlace, message: str, *, hint: str = "") -> DumpConfigError:
    """A value that means nothing, or a path that cannot be used."""
    return DumpConfigError(
        f"{place.file}: {place.path} {message}", where=place.path, hint=hint, slug="dump-config-value"
    )


def syntax_fault(place: JsonPlace, message: str, *, hint: str = "") -> DumpConfigError:
    """Text that is not JSON."""
    return DumpConfigError(
        f"{place.file}: {place.path} {message}", where=place.path, hint=hint, slug="dump-config-syntax"
    )


def conflict_fault(where: str, message: str, *, hint: str = "") -> DumpConfigError:
    """Two settings that exclude each other; the message names both."""
    return DumpConfigError(message, where=where, hint=hint, slug="dump-config-conflict")


def shown(value: object) -> str:
    """A value for a message, cut to a length that a terminal bears."""
    try:
        return _REPR.repr(value)
    except (ValueError, RecursionError):  # an integer with thousands of digits has no repr
        return f"a huge {type(value).__name__}"
