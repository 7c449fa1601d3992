"""The settings of a session in one table; each resolved value remembers where it came from.

Precedence: call argument, context manager, JSON file, environment, default. Nothing here reads the environment by
itself: the caller hands the mapping in.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

import msgspec

from graphprobe.errors import SettingError, nearest
from graphprobe.records import SettingValue
from graphprobe.settings.option import Option, from_environment, only_given, section_from_file

Scalar = str | int | bool | None

FILE_SECTION = "graphprobe"

TABLE: tuple[Option, ...] = (
    Option(
        "out_dir", "path", None, "GRAPHPROBE_OUT", "-o/--out",
        "folder that gets the run folder. Default: torch_compile_debug", metavar="DIR"
    ),
    Option(
        "save_inputs", "flag", False, "GRAPHPROBE_SAVE_INPUTS", "--save-inputs",
        "keep real inputs and outputs of every compiled graph"
    ),
    Option(
        "graph_dump", "choice", "txt", "GRAPHPROBE_GRAPH_DUMP", "--graph-dump",
        "form of the backend's own graphs: text, ONNX text for Netron, or a Python script. Default: txt",
        allowed=("txt", "pbtxt", "py")
    ),
    Option(
        "log_level", "choice", "info", "GRAPHPROBE_LOG_LEVEL", "--log-level",
        "how much of torch's log is kept. Default: info", allowed=("warning", "info", "debug")
    ),
    Option(
        "logs", "names", None, "GRAPHPROBE_LOGS", "--logs",
        "logs by component, e.g. debug, or dynamo=debug,inductor=info,+guards", metavar="SPEC", least=1
    ),
    Option(
        "only_function", "names", None, "GRAPHPROBE_ONLY_FUNCTION", "--only-function",
        "compile only functions of this name (a glob); the rest runs uncompiled",
        metavar="NAME", least=1, repeated=True
    ),
    Option(
        "max_bytes", "size", 8 * 1024**3, "GRAPHPROBE_MAX_BYTES", "--max-bytes",
        "write no more than this, e.g. 500MB; 0: nothing. Default: 8GiB", metavar="SIZE"
    ),
    Option("capture_ops", "flag", True, "GRAPHPROBE_CAPTURE_OPS", "--no-ops", "record launches (captured_ops.json)"),
    Option(
        "record_frames", "flag", False, "GRAPHPROBE_RECORD_FRAMES", "--record-frames",
        "record frames that fail to trace, for `replay`"
    ),
    Option(
        "config_path", "path", None, "GRAPHPROBE_CONFIG", "--config",
        'JSON file with settings: {"graphprobe": {...}}', metavar="FILE", in_file=False
    ),
)  # fmt: skip
BY_NAME: dict[str, Option] = {row.name: row for row in TABLE}

Names = str | list[str] | tuple[str, ...]


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
    given: dict[str, tuple[object, str]] = {**from_environment(TABLE, environ)}
    outer, inner = _by_hand(context or {}, "context"), _by_hand(arguments, "argument")
    path, path_source = (given | outer | inner).get("config_path", (None, "default"))
    from_file = {} if path is None else _from_file(str(convert("config_path", path, source=path_source)), path_source)
    given |= from_file | outer | inner
    values = {name: convert(name, value, source=source) for name, (value, source) in given.items()}
    sources = {row.name: given[row.name][1] if row.name in given else "default" for row in TABLE}
    return msgspec.convert(values | {"sources": sources}, Settings)


def convert(name: str, value: object, *, source: str) -> Scalar:
    """`value` as the setting `name` keeps it; `source` is who gave it, as in `SettingValue`, for the message.

    Raises:
        SettingError: the setting cannot take the value.
    """
    row, from_text = BY_NAME[name], source.startswith("env:")
    converted: Any = row.converted(value, from_text=from_text)
    if converted is not None:
        return ",".join(converted) if row.type == "names" else converted
    raise SettingError(
        f"{_called(name, source)} is {value!r} ({type(value).__name__}); it takes {row.accepted(from_text=from_text)}",
        hint=nearest(str(value), row.allowed),
    )


def torch_compile_debug_state(environ: Mapping[str, str]) -> Literal["on", "off", "ignored"]:
    """What torch 2.13 makes of TORCH_COMPILE_DEBUG: exactly `1` is on; unset, empty and `0` are off.

    Other numbers (`2`) torch ignores, in silence; other text (`true`) makes 2.13 fail when Inductor is imported. Either
    way nothing is collected, and the caller says so.
    """
    value = environ.get("TORCH_COMPILE_DEBUG", "")
    if value == "1":
        return "on"
    return "off" if value in ("", "0") else "ignored"


def _by_hand(values: Mapping[str, object], source: str) -> dict[str, tuple[object, str]]:
    return {name: (value, source) for name, value in only_given(TABLE, values, source, "setting").items()}


def _from_file(path: str, path_source: str) -> dict[str, tuple[object, str]]:
    names = [row.name for row in TABLE if row.in_file]
    section = section_from_file(path, FILE_SECTION, names, called=_called("config_path", path_source))
    # Checked even where an argument overrides it: a file that is wrong is wrong for every later call.
    source = f"file:{path}"
    return {name: (convert(name, value, source=source), source) for name, value in section.items()}


def _called(name: str, source: str) -> str:
    """What the user knows the value by: the variable, the JSON path, or the argument."""
    kind, _, detail = source.partition(":")
    if kind == "env":
        return f"environment variable {detail}"
    return f"{detail}: $.{FILE_SECTION}.{name}" if kind == "file" else f"{kind} {name}"
