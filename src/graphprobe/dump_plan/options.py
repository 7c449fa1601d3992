"""The options of dumps of graphs and of calls, one row each: in Python, JSON file, environment, command line."""

from __future__ import annotations

import os
import stat
import tempfile

from graphprobe.dump_plan.plan import DATA, ENGINES, MODES
from graphprobe.dump_plan.shapes import shown
from graphprobe.errors import SettingError, lacks_room
from graphprobe.settings import BY_NAME as SETTINGS
from graphprobe.settings import Option

SWITCH = ("on", "off")

OPTIONS: tuple[Option, ...] = (
    Option("enable_dump", "flag", False, "GRAPHPROBE_ENABLE_DUMP", in_file=False),
    Option(
        "dump_mode", "choice", "all", "GRAPHPROBE_DUMP_MODE", "--dump-mode", "which side of an op is kept",
        allowed=MODES
    ),
    Option(
        "dump_path", "directory", None, "GRAPHPROBE_DUMP_PATH", "--dump-to",
        "folder of the dump", metavar="DIR"
    ),
    Option(
        "quant_dumpable", "flag", False, "GRAPHPROBE_QUANT_DUMPABLE", "--dump-quant",
        "keep what is before a quantisation dumpable", in_file=False
    ),
    Option(
        "dump_step", "steps", None, "GRAPHPROBE_DUMP_STEP", "--steps", "which steps (default: every one)",
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
        "dump_debug", "choice", "off", "GRAPHPROBE_DUMP_DEBUG", "--overflow",
        "find the compiled op that makes the first infinity or NaN, and say whether the uncompiled program does, too",
        allowed=SWITCH
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
"""`enable_dump` is not on the command line: `--dump-graph`, `--dump-config` and `--overflow` stand for it."""

BY_NAME: dict[str, Option] = {row.name: row for row in OPTIONS}

FILE_SECTION = "api_dump"

_FOLDER = "the name of a folder"
_NAMES = "names, as a list of texts"

API_OPTIONS: tuple[Option, ...] = (
    Option(
        "data", "choice", "stats", "", "--dump", "dump every call of torch's API, uncompiled",
        allowed=("stats", "tensor")
    ),
    Option(
        "level", "choice", "api", "", "--level", "what counts as a call. Default: api",
        allowed=("api", "module", "mix")
    ),
    Option(
        "steps", "steps", None, "", "--steps", "steps to dump, e.g. 0|3-5|10. Default: every one", "STEPS",
        expected="a text such as '0|3-5|10', or a number"
    ),
    Option(
        "apis", "names", None, "", "--apis", "names or globs of APIs, separated by commas", "NAMES", expected=_NAMES
    ),
    Option(
        "path", "path", None, "", "--dump-to",
        "folder of the dump. Default: api_dump or graph_dump in the run's folder", "DIR", expected=_FOLDER
    ),
    Option("mode", "choice", "all", allowed=("all", "list", "range", "stack")),
    Option("scope", "names", expected=_NAMES),
    Option("sample", "number", least=1, most=1_000_000),
    Option("stack", "flag", False),
    Option("optimizer", "choice", "step", allowed=("step", "state", "calls", "off")),
    Option("step_at", "choice", "optimizer", allowed=("optimizer", "hand")),
    Option("budget_bytes", "size", least=1),
)  # fmt: skip

API_CONFIG = Option("config", "file", None, "", "--api-config", 'JSON file: {"api_dump": {...}}', "FILE")
"""The file that has the others."""


def directory_fault(path: str) -> str | None:
    """What is wrong with `path` as the folder of a dump, None if nothing is: it is there, can be read and written.

    Permissions alone do not tell, since root may do anything, so a file without a name is written. A disk that is full
    or read-only is no fault of the path: the dump says what it could not write, and the program runs.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        return _reason(error)
    if not stat.S_ISDIR(mode):
        return "it is no directory"
    wanted = {"read": os.R_OK, "written to": os.W_OK, "entered": os.X_OK}
    for verb, right in wanted.items():
        if not os.access(path, right) and not (right == os.W_OK and _read_only(path)):
            return f"it cannot be {verb}"
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"\0")
    except OSError as error:
        if lacks_room(error):
            return None
        return f"nothing can be written there: {_reason(error)}"
    return None


def file_fault(path: str) -> str | None:
    """What is wrong with `path` as a file to read, None if nothing is."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        return _reason(error)
    if not stat.S_ISREG(mode):
        return "it is a directory" if stat.S_ISDIR(mode) else "it is no ordinary file"
    return None if os.access(path, os.R_OK) else "it cannot be read"


def _read_only(path: str) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "it does not exist"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "it is no path" if isinstance(error, UnicodeError) else str(error)


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
