"""Every setting in one table; each resolved value remembers where it came from.

Precedence: call argument, context manager, JSON file, environment, default. Nothing here reads the environment by
itself: the caller hands the mapping in.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, TypedDict

import msgspec

from graphprobe.errors import SettingError, nearest
from graphprobe.records import SettingValue

Scalar = str | int | bool | None
Type = Literal["path", "choice", "flag", "size", "names"]

ENV_PREFIX = "GRAPHPROBE_"
FILE_SECTION = "graphprobe"
MAX_SIZE_BYTES = 2**63 - 1

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_UNIT_BYTES = {"": 1, "b": 1}
_UNIT_BYTES |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)}
_UNIT_BYTES |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)}
_SIZE = re.compile(r"([0-9]{1,20})(?:\.([0-9]{1,9}))?\s*([a-zA-Z]*)", re.ASCII)
_SIZE_ACCEPTED = "a size in bytes: a number, or one with a unit (B, KB, MB, GB, TB, KiB, MiB, GiB, TiB), such as 2GiB"


class Setting(msgspec.Struct, frozen=True):
    """One row of the table: what the setting is called, what it takes and what it does."""

    name: str
    type: Type
    default: Scalar
    env: str
    help: str
    allowed: tuple[str, ...] = ()
    in_file: bool = True

    @property
    def accepted(self) -> str:
        """What the setting takes, in words."""
        if self.type == "choice":
            return "one of " + ", ".join(self.allowed)
        if self.type == "flag":
            return "one of " + ", ".join((*_TRUE, *_FALSE))
        if self.type == "names":
            return "names with commas between, or a list of names"
        return _SIZE_ACCEPTED if self.type == "size" else "a path"


TABLE: tuple[Setting, ...] = (
    Setting("out_dir", "path", None, "GRAPHPROBE_OUT", "folder the runs are written to (default torch_compile_debug)"),
    Setting("save_inputs", "flag", False, "GRAPHPROBE_SAVE_INPUTS", "keep the real inputs of every compiled graph"),
    Setting(
        "graph_dump",
        "choice",
        "txt",
        "GRAPHPROBE_GRAPH_DUMP",
        "format of the compiler's own graphs: readable text, ONNX text for Netron, or a Python script",
        ("txt", "pbtxt", "py"),
    ),
    Setting(
        "log_level",
        "choice",
        "info",
        "GRAPHPROBE_LOG_LEVEL",
        "what is kept in debug.log and shown",
        ("warning", "info", "debug"),
    ),
    Setting(
        "logs", "names", None, "GRAPHPROBE_LOGS", "logs kept in files of their own, by component: see docs/logs.md"
    ),
    Setting(
        "only_function",
        "names",
        None,
        "GRAPHPROBE_ONLY_FUNCTION",
        "compile only functions that match one of these globs",
    ),
    Setting("max_bytes", "size", 8 * 1024**3, "GRAPHPROBE_MAX_BYTES", "most that one run may write; 0 writes nothing"),
    Setting("capture_ops", "flag", True, "GRAPHPROBE_CAPTURE_OPS", "list what the compiled code launches, in order"),
    Setting("record_frames", "flag", False, "GRAPHPROBE_RECORD_FRAMES", "record frames that fail to trace, for replay"),
    Setting("config_path", "path", None, "GRAPHPROBE_CONFIG", "JSON file with settings", in_file=False),
)
BY_NAME: dict[str, Setting] = {row.name: row for row in TABLE}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in force. `sources` tells, by name, who set each: see `SettingValue`; `max_bytes` is in bytes."""

    out_dir: str | None = None
    save_inputs: bool = False
    graph_dump: Literal["txt", "pbtxt", "py"] = "txt"
    log_level: Literal["warning", "info", "debug"] = "info"
    logs: str | None = None
    only_function: str | None = None
    max_bytes: int = 8 * 1024**3
    capture_ops: bool = True
    record_frames: bool = False
    config_path: str | None = None
    sources: dict[str, str] = {}

    def as_manifest(self) -> dict[str, SettingValue]:
        """Every value with its source, as the manifest keeps it."""
        return {
            row.name: SettingValue(value=getattr(self, row.name), source=self.sources.get(row.name, "default"))
            for row in TABLE
        }


Names = str | list[str] | tuple[str, ...]


class BackendSettings(TypedDict, total=False):
    """The settings that can differ from backend to backend, as keyword arguments; None is "not given"."""

    save_inputs: bool | None
    graph_dump: Literal["txt", "pbtxt", "py"] | None
    logs: Names | None
    only_function: Names | None
    capture_ops: bool | None
    record_frames: bool | None


class RunSettings(BackendSettings, total=False):
    """Every setting but `out_dir`, as keyword arguments; `max_bytes` is in bytes, or text such as "2GiB"."""

    log_level: Literal["warning", "info", "debug"] | None
    max_bytes: int | str | None
    config_path: str | Path | None


def resolve(
    *, arguments: Mapping[str, object], context: Mapping[str, object] | None = None, environ: Mapping[str, str]
) -> Settings:
    """The settings in force, by precedence.

    Args:
        arguments: values of the call or the command line by setting name; None means "not given".
        context: the same, of the enclosing context manager.
        environ: environment variables; an empty one counts as unset.

    Raises:
        SettingError: a name that does not exist, a value that the setting cannot take, a JSON file that cannot be read.
    """
    given: dict[str, tuple[object, str]] = {}
    for row in TABLE:
        if environ.get(row.env, "") != "":
            given[row.name] = (environ[row.env], f"env:{row.env}")
    outer, inner = _by_hand(context or {}, "context"), _by_hand(arguments, "argument")
    path, path_source = (given | outer | inner).get("config_path", (None, "default"))
    from_file = {} if path is None else _from_file(str(convert("config_path", path, source=path_source)), path_source)
    given |= from_file | outer | inner
    values = {name: convert(name, value, source=source) for name, (value, source) in given.items()}
    sources = {row.name: given[row.name][1] if row.name in given else "default" for row in TABLE}
    return msgspec.convert(values | {"sources": sources}, Settings)


def convert(name: str, value: object, *, source: str) -> Scalar:
    """`value` as the type of the setting `name`; `source` is who gave it, as in `SettingValue`, for the message.

    Text becomes a flag or a size only where text is natural: from the environment, or (sizes) anywhere.

    Raises:
        SettingError: the setting cannot take the value.
    """
    row = BY_NAME[name]
    converted = _converted(row, value, from_text=source.startswith("env:"))
    if converted is not None:
        return converted
    raise SettingError(
        f"{_called(name, source)} is {value!r} ({type(value).__name__}); it takes {_accepted(row, source)}",
        hint=nearest(str(value), row.allowed),
    )


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


def torch_compile_debug_state(environ: Mapping[str, str]) -> Literal["on", "off", "ignored"]:
    """What torch 2.13 makes of TORCH_COMPILE_DEBUG: exactly `1` is on; unset, empty and `0` are off.

    Other numbers (`2`) torch ignores, in silence; other text (`true`) makes 2.13 fail when Inductor is imported. Either
    way nothing is collected, and the caller says so.
    """
    value = environ.get("TORCH_COMPILE_DEBUG", "")
    if value == "1":
        return "on"
    return "off" if value in ("", "0") else "ignored"


def _converted(row: Setting, value: object, *, from_text: bool) -> Scalar:
    """The value as the row's type, None when it cannot be one."""
    if row.type == "flag":
        if from_text and isinstance(value, str) and value.lower() in _TRUE + _FALSE:
            return value.lower() in _TRUE
        return value if isinstance(value, bool) else None
    if row.type == "choice":
        return value if isinstance(value, str) and value in row.allowed else None
    if row.type == "size":
        size = size_from_text(value) if isinstance(value, str) else value
        fits = isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= MAX_SIZE_BYTES
        return int(size) if fits and isinstance(size, int) else None
    if row.type == "names":
        names = [value] if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else []
        fits = bool(names) and all(isinstance(name, str) and name.strip() and "\0" not in name for name in names)
        return ",".join(names) if fits else None
    fits = isinstance(value, str | Path) and str(value) != "" and "\0" not in str(value)
    return str(value) if fits else None


def _by_hand(values: Mapping[str, object], source: str) -> dict[str, tuple[object, str]]:
    for name in values:
        if name not in BY_NAME:
            raise SettingError(f"{source} {name!r} is no setting", hint=nearest(name, BY_NAME))
    return {name: (value, source) for name, value in values.items() if value is not None}


def _from_file(path: str, path_source: str) -> dict[str, tuple[object, str]]:
    try:
        if not Path(path).is_file():  # of a FIFO or a device nothing is read
            os.stat(path)
            raise OSError(errno.EINVAL, "it is no file")
        document = json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=_object_without_duplicates)
    except OSError as error:
        raise SettingError(
            f"{_called('config_path', path_source)} is {path!r}, which cannot be read: {error.strerror}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise SettingError(f"{path}: $ is {_json_type(document)}; it must be an object with the key {FILE_SECTION!r}")
    _refuse_unknown(path, "$", document, [FILE_SECTION])
    section = document.get(FILE_SECTION, {})
    if not isinstance(section, dict):
        raise SettingError(f"{path}: $.{FILE_SECTION} is {_json_type(section)}; it must be an object of settings")
    names = [row.name for row in TABLE if row.in_file]
    _refuse_unknown(path, f"$.{FILE_SECTION}", section, names)
    # Checked even where an argument overrides it: a file that is wrong is wrong for every later call.
    source = f"file:{path}"
    return {name: (convert(name, value, source=source), source) for name, value in section.items()}


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


def _called(name: str, source: str) -> str:
    """What the user knows the value by: the variable, the JSON path, or the argument."""
    kind, _, detail = source.partition(":")
    if kind == "env":
        return f"environment variable {detail}"
    return f"{detail}: $.{FILE_SECTION}.{name}" if kind == "file" else f"{kind} {name}"


def _accepted(row: Setting, source: str) -> str:
    return "True or False" if row.type == "flag" and not source.startswith("env:") else row.accepted


def _json_type(value: object) -> str:
    names = {"NoneType": "null", "bool": "a boolean", "int": "a number", "float": "a number", "str": "a string"}
    return names.get(type(value).__name__, "an array" if isinstance(value, list) else "an object")
