"""The options of a dump, one row each: `CompilerConfig().dump_config`, the command line and the environment."""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from graphprobe.dump_plan.faults import shown
from graphprobe.dump_plan.paths import directory_fault, file_fault
from graphprobe.dump_plan.plan import DATA, ENGINES, MODES
from graphprobe.errors import SettingError
from graphprobe.select import layers_from_list, layers_from_text, steps_from_text
from graphprobe.settings import BY_NAME as SETTINGS
from graphprobe.settings import MAX_SIZE_BYTES, size_from_text

Kind = Literal["flag", "choice", "directory", "file", "steps", "layers", "size"]

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_ACCEPTED = {
    "flag": "True or False",
    "directory": "a directory that exists and can be read and written",
    "file": "a JSON file",
    "steps": "text such as '0|5|10' or '0|3-5|10'",
    "layers": "op names separated by spaces, globs, operators, module paths, file.py:line",
    "size": "a size in bytes above 0: a number, or one with a unit, such as 2GiB",
}


class DumpOption(msgspec.Struct, frozen=True):
    """One row: what the option is called, what it takes and what it does. None is "not given" for every option."""

    name: str
    kind: Kind
    default: str | bool | int | None
    env: str
    help: str
    allowed: tuple[str, ...] = ()

    @property
    def accepted(self) -> str:
        """What the option takes, in words."""
        return "one of " + ", ".join(self.allowed) if self.kind == "choice" else _ACCEPTED[self.kind]


OPTIONS: tuple[DumpOption, ...] = (
    DumpOption("enable_dump", "flag", False, "GRAPHPROBE_ENABLE_DUMP", "dump the inputs and outputs of ops"),
    DumpOption("dump_mode", "choice", "all", "GRAPHPROBE_DUMP_MODE", "which side of an op is kept", MODES),
    DumpOption("dump_path", "directory", None, "GRAPHPROBE_DUMP_PATH", "where to (default: the working directory)"),
    DumpOption(
        "quant_dumpable", "flag", False, "GRAPHPROBE_QUANT_DUMPABLE", "keep what is before a quantisation dumpable"
    ),
    DumpOption("dump_step", "steps", None, "GRAPHPROBE_DUMP_STEP", "which steps (default: every one)"),
    DumpOption("dump_layer", "layers", None, "GRAPHPROBE_DUMP_LAYER", "which ops (default: all)"),
    DumpOption("dump_data", "choice", "tensor", "GRAPHPROBE_DUMP_DATA", "the values, or their statistics", DATA),
    DumpOption("dump_config_path", "file", None, "GRAPHPROBE_DUMP_CONFIG_PATH", "JSON file that describes a dump"),
    DumpOption("engine", "choice", None, "GRAPHPROBE_DUMP_ENGINE", "what takes the values", ENGINES),
    DumpOption(
        "max_bytes",
        "size",
        SETTINGS["max_bytes"].default,
        "GRAPHPROBE_DUMP_MAX_BYTES",
        "most that is written; then dumping stops, the program does not",
    ),
    DumpOption(
        "write_through",
        "flag",
        False,
        "GRAPHPROBE_DUMP_WRITE_THROUGH",
        "each op is on disk before the program goes on; for one that crashes or is killed",
    ),
)
BY_NAME: dict[str, DumpOption] = {row.name: row for row in OPTIONS}


def checked_option(name: str, value: object, *, called: str, from_text: bool = False, touch: bool = True) -> object:
    """`value` as the option keeps it: a path as text, a size in bytes, steps and layers as they were written.

    Args:
        name: of an option.
        value: not None.
        called: what the user knows the option by, for the message.
        from_text: the value comes from the environment, where a flag is text.
        touch: look at the file system, too.

    Raises:
        SettingError: the option cannot take the value.
    """
    row = BY_NAME[name]
    try:
        kept = _converted(row, value, from_text=from_text)
        if kept is not None and touch and row.kind in ("directory", "file"):
            fault = (directory_fault if row.kind == "directory" else file_fault)(str(kept))
            if fault is not None:
                raise SettingError(fault, hint=path_hint(str(kept), row.kind))
    except SettingError as error:
        raise SettingError(f"{called} = {shown(value)}: {error}", hint=error.hint) from error
    if kept is None:
        accepted = "one of " + ", ".join(_TRUE + _FALSE) if row.kind == "flag" and from_text else row.accepted
        raise SettingError(f"{called} = {shown(value)} ({type(value).__name__})", hint=f"expected {accepted}")
    return kept


def path_hint(path: str, kind: Literal["directory", "file"]) -> str:
    """What to do about a path that cannot be used."""
    if path.startswith("~"):
        return "~ is not expanded: write the path out"
    shape = "make the directory first" if kind == "directory" else "name a JSON file"
    return shape if os.path.isabs(path) else f"{shape}; a relative path starts at the working directory"


def _converted(row: DumpOption, value: object, *, from_text: bool) -> object:
    """The value as the row's kind, None if it cannot be one."""
    if row.kind == "flag":
        if from_text and isinstance(value, str) and value.lower() in _TRUE + _FALSE:
            return value.lower() in _TRUE
        return value if isinstance(value, bool) else None
    if row.kind == "choice":
        return value if isinstance(value, str) and value in row.allowed else None
    if row.kind == "size":
        size = size_from_text(value) if isinstance(value, str) else value
        return size if isinstance(size, int) and not isinstance(size, bool) and 0 < size <= MAX_SIZE_BYTES else None
    if row.kind == "steps":
        return value if isinstance(value, str) and steps_from_text(value).ranges else None
    if row.kind == "layers":
        if isinstance(value, list | tuple) and all(isinstance(entry, str) for entry in value):
            return tuple(value) if layers_from_list(value).tokens else None
        return value if isinstance(value, str) and layers_from_text(value).tokens else None
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    return text if isinstance(text, str) and text and "\0" not in text else None
