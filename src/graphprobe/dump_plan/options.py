"""The options of a dump, one row each: `CompilerConfig().dump_config`, the command line and the environment."""

from __future__ import annotations

import os

from graphprobe.dump_plan.faults import shown
from graphprobe.dump_plan.paths import directory_fault, file_fault
from graphprobe.dump_plan.plan import DATA, ENGINES, MODES
from graphprobe.errors import SettingError
from graphprobe.settings import BY_NAME as SETTINGS
from graphprobe.settings import Option

OPTIONS: tuple[Option, ...] = (
    Option("enable_dump", "flag", False, "GRAPHPROBE_ENABLE_DUMP", in_file=False),
    Option(
        "dump_mode", "choice", "all", "GRAPHPROBE_DUMP_MODE", "--dump-mode", "which side of an op is kept",
        allowed=MODES
    ),
    Option(
        "dump_path", "directory", None, "GRAPHPROBE_DUMP_PATH", "--dump-path",
        "where to (default: the working directory)", metavar="DIR"
    ),
    Option(
        "quant_dumpable", "flag", False, "GRAPHPROBE_QUANT_DUMPABLE", "--dump-quant",
        "keep what is before a quantisation dumpable", in_file=False
    ),
    Option(
        "dump_step", "steps", None, "GRAPHPROBE_DUMP_STEP", "--dump-step", "which steps (default: every one)",
        metavar="STEPS"
    ),
    Option(
        "dump_layer", "layers", None, "GRAPHPROBE_DUMP_LAYER", "--dump-layer", "which ops (default: all)",
        metavar="OPS", in_file=False
    ),
    Option(
        "dump_data", "choice", "tensor", "GRAPHPROBE_DUMP_DATA", "--dump-graph",
        "dump what the ops of compiled graphs read and write: the values, or their statistics", allowed=DATA
    ),
    Option(
        "dump_config_path", "file", None, "GRAPHPROBE_DUMP_CONFIG_PATH", "--dump-config",
        "JSON file that describes a dump", metavar="FILE", in_file=False
    ),
    Option(
        "engine", "choice", None, "GRAPHPROBE_DUMP_ENGINE", "--dump-engine", "what takes the values",
        allowed=ENGINES, in_file=False
    ),
    Option(
        "max_bytes", "size", SETTINGS["max_bytes"].default, "GRAPHPROBE_DUMP_MAX_BYTES", "--dump-max-bytes",
        "most that is written; then dumping stops, the program does not", metavar="SIZE", least=1, in_file=False
    ),
    Option(
        "write_through", "flag", False, "GRAPHPROBE_DUMP_WRITE_THROUGH", "--dump-write-through",
        "each op is on disk before the program goes on; for one that crashes or is killed", in_file=False
    ),
)  # fmt: skip
"""`enable_dump` is not on the command line: `--dump-graph` and `--dump-config` stand for it."""

BY_NAME: dict[str, Option] = {row.name: row for row in OPTIONS}


def checked_option(row: Option, value: object, *, called: str, from_text: bool = False, touch: bool = True) -> object:
    """`value` as the option keeps it, see `Option.converted`.

    Args:
        row: the option.
        value: not None.
        called: what the user knows the option by, for the message.
        from_text: the value comes from the environment, where a flag is text.
        touch: look at the file system, too.

    Raises:
        SettingError: the option cannot take the value.
    """
    try:
        kept: object = row.converted(value, from_text=from_text)
        if kept is not None and touch and row.type in ("directory", "file"):
            fault = directory_fault(str(kept)) if row.type == "directory" else file_fault(str(kept))
            if fault is not None:
                raise SettingError(fault, hint=path_hint(str(kept), row.type))
    except SettingError as error:
        raise SettingError(f"{called} = {shown(value)}: {error}", hint=error.hint) from error
    if kept is None:
        accepted = row.accepted(from_text=from_text)
        raise SettingError(f"{called} = {shown(value)} ({type(value).__name__})", hint=f"expected {accepted}")
    return kept


def path_hint(path: str, kind: str) -> str:
    """What to do about a path of this type, `directory` or `file`, that cannot be used."""
    if path.startswith("~"):
        return "~ is not expanded: write the path out"
    shape = "make the directory first" if kind == "directory" else "name a JSON file"
    return shape if os.path.isabs(path) else f"{shape}; a relative path starts at the working directory"
