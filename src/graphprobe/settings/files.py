"""A JSON file with options: one object, with one section that has them by name."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from graphprobe.errors import SettingError, nearest

MAX_FILE_BYTES = 1 << 20


def section_from_file(
    path: str | Path, section: str, names: Iterable[str], *, called: str, alone: bool = True
) -> dict[str, object]:
    """The values in `{section: {name: value}}` by name, unchecked.

    Args:
        path: of the file.
        section: the key that has the values.
        names: the keys that may be in the section.
        called: what the user knows `path` by, for the message.
        alone: the file may have no other key, and be an empty object; else the section must be there.

    Raises:
        SettingError: the file cannot be read, is too large, is no such document, or has another key.
    """
    path = str(path)
    try:
        if not Path(path).is_file():  # of a FIFO or a device nothing is read
            os.stat(path)
            raise OSError(errno.EINVAL, "it is no file")
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SettingError(f"{called} is {path!r}, which cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise SettingError(f"{path} is too large: a file of settings has at most {MAX_FILE_BYTES} bytes")
    try:
        document = json.loads(data, object_pairs_hook=_object_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise SettingError(f"{path}: $ is {json_type(document)}; it must be an object with the key {section!r}")
    if alone:
        _refuse_unknown(path, "$", document, [section])
    elif section not in document:
        raise SettingError(f"{path} has no key {section!r}", hint=f'{{"{section}": {{...}}}}')
    values = document.get(section, {})
    if not isinstance(values, dict):
        raise SettingError(f"{path}: $.{section} is {json_type(values)}; it must be an object of settings")
    _refuse_unknown(path, f"$.{section}", values, list(names))
    return values


def json_type(value: object) -> str:
    """What JSON calls the type of a value, with an article."""
    names = {"NoneType": "null", "bool": "a boolean", "int": "a number", "float": "a number", "str": "a string"}
    return names.get(type(value).__name__, "an array" if isinstance(value, list) else "an object")


def _refuse_unknown(path: str, where: str, found: Mapping[str, object], known: Iterable[str]) -> None:
    for key in found:
        if key not in known:
            raise SettingError(f"{path}: {where}.{key} is unknown", hint=nearest(key, known))


def _object_without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) != len(pairs):
        names = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in names if names.count(key) > 1)!r} stands twice in one object")
    return document
