"""The options of a dump of calls, one row each: the arguments of `graphprobe.dump`, its JSON file, the command line."""

from __future__ import annotations

from graphprobe.settings import Option

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
        "steps", "steps", None, "", "--steps", "training steps to dump, e.g. 0|3-5|10", "STEPS",
        expected="a text such as '0|3-5|10', or a number"
    ),
    Option(
        "apis", "names", None, "", "--apis", "names or globs of APIs, separated by commas", "NAMES", expected=_NAMES
    ),
    Option(
        "path", "path", None, "", "--dump-to", "folder of that dump. Default: in the run's own", "DIR", expected=_FOLDER
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
