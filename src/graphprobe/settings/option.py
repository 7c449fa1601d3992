"""An option: its names in Python, environment, JSON file and command line, and the converter of its values."""

from __future__ import annotations

import errno
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from graphprobe.errors import SettingError, nearest
from graphprobe.select import layers_from_list, layers_from_text, steps_from_text

MAX_FILE_BYTES = 1 << 20

Type = Literal["flag", "choice", "number", "seconds", "size", "path", "directory", "file", "names", "steps", "layers"]

MAX_SIZE_BYTES = 2**63 - 1
MAX_SECONDS = 1e9
"""Some thirty years: as long as the waits of every system can be."""

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_UNIT_BYTES = {"": 1, "b": 1}
_UNIT_BYTES |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)}
_UNIT_BYTES |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)}
_SIZE = re.compile(r"([0-9]{1,20})(?:\.([0-9]{1,9}))?\s*([a-zA-Z]*)", re.ASCII)
_ACCEPTED = {
    "flag": "True or False",
    "seconds": "a number of seconds above 0",
    "size": "a number, or one with a unit (B, KB, MB, GB, TB, KiB, MiB, GiB, TiB), such as 2GiB",
    "path": "a path",
    "directory": "a directory that exists and can be read and written",
    "file": "a JSON file",
    "names": "names with commas between, or a list of names",
    "steps": "text such as '0|5|10' or '0|3-5|10'",
    "layers": "op names separated by spaces, globs, operators, module paths, file.py:line",
}


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


class Option(msgspec.Struct, frozen=True):
    """One row of a table of options; None is "not given" for every option.

    Attributes:
        name: in Python and in a JSON file.
        type: what the values are.
        default: the value when nobody gives one.
        env: the environment variable; empty: there is none.
        spelled: on the command line, `-o/--out`; of a flag that is on by default, what puts it off. Empty: not there.
        help: what the option does, for the command line; of a flag that is on by default, what it does when it is on.
        metavar: what stands for the value in the help.
        allowed: the values of a choice.
        least: the smallest number or size, or the fewest names.
        most: the largest number or size.
        expected: what it takes, in words, where its type says too little.
        in_file: the option is a key of the JSON file, too.
        repeated: may be given several times on the command line.
    """

    name: str
    type: Type
    default: str | float | bool | None = None
    env: str = ""
    spelled: str = ""
    help: str = ""
    metavar: str = ""
    allowed: tuple[str, ...] = ()
    least: int = 0
    most: int = MAX_SIZE_BYTES
    expected: str = ""
    in_file: bool = True
    repeated: bool = False

    def accepted(self, *, from_text: bool = False) -> str:
        """What the option takes, in words; `from_text`: from the environment."""
        if self.type == "flag" and from_text:
            return "one of " + ", ".join(_TRUE + _FALSE)
        if self.expected:
            return self.expected
        if self.type == "choice":
            return "one of " + ", ".join(self.allowed)
        if self.type == "number":
            return f"a whole number from {self.least} " + ("on" if self.most == MAX_SIZE_BYTES else f"to {self.most}")
        if self.type == "size":
            return f"a size in bytes{' above 0' if self.least else ''}: {_ACCEPTED['size']}"
        return _ACCEPTED[self.type]

    def converted(self, value: object, *, from_text: bool = False) -> Any:
        """`value` as the option keeps it, None when it cannot take it.

        Paths and steps are kept as text, layers as they were given, names as a tuple. Text becomes a size or seconds
        anywhere, and a flag only with `from_text`: from the environment, where all is text.

        Raises:
            SettingError: steps or layers that are no such text, with the reason.
        """
        if self.type == "flag" and from_text and isinstance(value, str) and value.lower() in _TRUE + _FALSE:
            return value.lower() in _TRUE
        return _CONVERTERS[self.type](self, value)


def from_environment(rows: Iterable[Option], environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """By name, what the environment gives and who gave it, as in `SettingValue`; an empty variable counts as unset."""
    return {row.name: (environ[row.env], f"env:{row.env}") for row in rows if environ.get(row.env)}


def only_given(rows: Iterable[Option], values: Mapping[str, object], source: str, noun: str) -> dict[str, object]:
    """The values that are not None, of a call or a context manager.

    Raises:
        SettingError: a name that no row has.
    """
    names = [row.name for row in rows]
    for name in values:
        if name not in names:
            raise SettingError(f"{source} {str(name)[:80]!r} is no {noun}", hint=nearest(str(name), names))
    return {name: value for name, value in values.items() if value is not None}


def size_from_text(text: str) -> int | None:
    """Bytes from `2GiB`, `500 MB`, `1.5GB` or `1024` (fractions of a byte are cut off); None when it is no size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[3].lower() not in _UNIT_BYTES:
        return None
    whole, fraction = match[1], match[2] or ""
    unit_bytes = _UNIT_BYTES[match[3].lower()]
    return int(whole + fraction) * unit_bytes // int("1" + "0" * len(fraction))


def text_from_size(size_bytes: int) -> str:
    """A size for people, rounded to one decimal: `0 B`, `512 B`, `2 GiB`, `3.4 MiB`."""
    value, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if round(value, 1) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"


def _number(row: Option, value: object) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and isinstance(value, int) and row.least <= value <= row.most else None


def _seconds(_row: Option, value: object) -> float | None:
    try:
        seconds = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) and 0 < seconds <= MAX_SECONDS else None


def _path(_row: Option, value: object) -> str | None:
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    return text if isinstance(text, str) and text and "\0" not in text else None


def _names(row: Option, value: object) -> tuple[str, ...] | None:
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Sequence) else None
    if names is None or len(names) < row.least:
        return None
    return names if all(isinstance(name, str) and name.strip() and "\0" not in name for name in names) else None


def _layers(_row: Option, value: object) -> str | tuple[str, ...] | None:
    if isinstance(value, list | tuple) and all(isinstance(entry, str) for entry in value):
        return tuple(value) if layers_from_list(value).tokens else None
    return value if isinstance(value, str) and layers_from_text(value).tokens else None


_CONVERTERS: dict[Type, Callable[[Option, Any], Any]] = {
    "flag": lambda _row, value: value if isinstance(value, bool) else None,
    "choice": lambda row, value: value if isinstance(value, str) and value in row.allowed else None,
    "number": _number,
    "seconds": _seconds,
    "size": lambda row, value: _number(row, size_from_text(value) if isinstance(value, str) else value),
    "path": _path,
    "directory": _path,
    "file": _path,
    "names": _names,
    "steps": lambda _row, value: value if isinstance(value, str) and steps_from_text(value).ranges else None,
    "layers": _layers,
}
