"""Reads the JSON file `{"dump": {...}}`, and refuses what it may not hold and settings that exclude each other.

One table serves the check and the published JSON Schema.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from graphprobe.dump_plan.options import OPTIONS, SWITCH, file_fault, path_hint
from graphprobe.dump_plan.plan import DATA, MODES, POSITION
from graphprobe.dump_plan.shapes import (
    Choice,
    Items,
    JsonPlace,
    Key,
    TableShape,
    TextShape,
    conflict_fault,
    shown,
    syntax_fault,
    type_fault,
    value_fault,
)
from graphprobe.errors import SettingError
from graphprobe.records import STATISTICS
from graphprobe.select import steps_from_text
from graphprobe.select.matching import token_from_text

_ONE_KIND = "overflow is a kind of dump of its own"
_ONE_RUN = "run the program twice, or leave one of them out"

MAX_FILE_BYTES = 16 * 1024**2
SCENES = ("watcher", "exception")
_COMMENT = re.compile(r"\s*(//|/\*|#)")
_Trail = tuple[Any, str | int] | None
_TRAILING_COMMA = re.compile(r",\s*[\]}]")

_EXCEPTIONS = ("lite_exception", "aic_err_brief_dump", "aic_err_norm_dump", "aic_err_detail_dump")
_NOT_HERE = "this is an option: CompilerConfig().dump_config.{0}, or the environment variable {1}"


class Given(msgspec.Struct, frozen=True):
    """A setting that somebody set: its value, what the user knows it by, and who set it, as in `SettingValue`."""

    value: Any
    called: str
    source: str


class Condition(msgspec.Struct, frozen=True):
    """A setting that has certain values.

    Attributes:
        key: of the JSON file or an option.
        holds: whether a value is meant; it may return the part of it that is, as a path below the key (`[0].layer`).
        schema: JSON Schema of the values that are meant; None for what only an option can set.
        absent: it also holds when nobody set it.
    """

    key: str
    holds: Callable[[Any], bool | str]
    schema: Mapping[str, Any] | None
    absent: bool = False


class Conflict(msgspec.Struct, frozen=True):
    """Two conditions that may not both hold, and why."""

    one: Condition
    other: Condition
    why: str
    hint: str


def _is(key: str, value: str) -> Condition:
    return Condition(key, lambda found: bool(found == value), {"const": value})


def _is_not(key: str, value: str, *, absent: bool = False) -> Condition:
    return Condition(key, lambda found: bool(found != value), {"not": {"const": value}}, absent)


def _any_entry_has(key: str) -> Condition:
    def holds(entries: Any) -> bool | str:
        return next((f"[{at}].{key}" for at, entry in enumerate(entries) if key in entry), False)

    return Condition("dump_list", holds, {"contains": {"required": [key]}})


_STATS = Condition("dump_stats", lambda found: True, {})
_LAYER_OPTION = Condition("dump_layer", lambda found: True, None)
_OVERFLOW = _is("dump_debug", "on")
_SINGLE_OPS = _is("dump_op_switch", "on")
_WATCH = _is("dump_scene", "watcher")
_SOME_MODEL = Condition("dump_list", lambda found: bool(found), {"minItems": 1})

CONFLICTS: tuple[Conflict, ...] = (
    Conflict(
        _STATS,
        _is_not("dump_data", "stats", absent=True),
        "it chooses among the statistics",
        'set dump_data to "stats"',
    ),
    Conflict(_OVERFLOW, _SOME_MODEL, _ONE_KIND, _ONE_RUN),
    Conflict(_OVERFLOW, _LAYER_OPTION, _ONE_KIND, _ONE_RUN),
    Conflict(_OVERFLOW, _SINGLE_OPS, _ONE_KIND, _ONE_RUN),
    Conflict(_OVERFLOW, _WATCH, _ONE_KIND, _ONE_RUN),
    Conflict(_WATCH, _SINGLE_OPS, "single ops are not watched", _ONE_RUN),
    Conflict(_WATCH, _LAYER_OPTION, "what is watched stands in dump_list", "name ops in dump_list[].layer"),
    Conflict(_WATCH, _is_not("dump_mode", "output"), "only outputs are watched", "dump_mode is 'output', or left out"),
    Conflict(_WATCH, _any_entry_has("model_name"), "every model is watched", "leave model_name out"),
    Conflict(_WATCH, _any_entry_has("optype_blacklist"), "it has no effect there", "name ops in layer"),
    Conflict(_WATCH, _any_entry_has("opname_blacklist"), "it has no effect there", "name ops in layer"),
    Conflict(
        _any_entry_has("watcher_nodes"),
        _is_not("dump_scene", "watcher", absent=True),
        "nodes are watched in watch mode only",
        'add "dump_scene": "watcher"',
    ),
)


def refuse_conflicts(given: Mapping[str, Given], *, file: str = "") -> None:
    """Raises DumpConfigError, which names both settings, if two of those that were set exclude each other.

    `file` is the JSON file that some of them come from, for the message.
    """
    for conflict in CONFLICTS:
        one, other = _named(conflict.one, given), _named(conflict.other, given)
        if one is not None and other is not None:
            prefix = f"{file}: " if file else ""
            message = f"{prefix}{one[1]} and {other[1]} exclude each other: {conflict.why}"
            raise conflict_fault(one[0], message, hint=conflict.hint)


def _named(condition: Condition, given: Mapping[str, Given]) -> tuple[str, str] | None:
    """If the condition holds: where it was set, and that with its value."""
    found = given.get(condition.key)
    if found is None:
        return (f"$.dump.{condition.key}", f"$.dump.{condition.key} (not set)") if condition.absent else None
    part = condition.holds(found.value)
    if part is False:
        return None
    if isinstance(part, str):
        return found.called + part, found.called + part
    return found.called, f"{found.called} = {shown(found.value)}"


def _schema_of(condition: Condition) -> dict[str, Any]:
    holds = {"properties": {condition.key: dict(condition.schema or {})}, "required": [condition.key]}
    missing = {"not": {"required": [condition.key]}}
    return {"anyOf": [holds, missing]} if condition.absent else holds


SCHEMA_RULES: tuple[dict[str, Any], ...] = tuple(
    {"not": {"allOf": [_schema_of(conflict.one), _schema_of(conflict.other)]}}
    for conflict in CONFLICTS
    if conflict.one.schema is not None and conflict.other.schema is not None
)
"""The conflicts within a file, for the object `dump`."""


def _token(text: str) -> str:
    return token_from_text(text.strip()).text


def _name(text: str) -> None:
    if token_from_text(text.strip()).kind == "source":
        raise SettingError("a source line is no name", hint="name an op, or a type of ops")


def _one_name(text: str) -> None:
    if token_from_text(text.strip()).kind != "literal":
        raise SettingError("it names no single op", hint="the first or last op of the range by its name")


def _position(text: str) -> None:
    if not POSITION.fullmatch(text):
        raise SettingError("it names no input or output", hint="input0 is the first input, input stands for all")


_LAYERS = Items(TextShape(_token), same=_token)
_BLACKLIST = Items(
    TableShape(
        {
            "name": Key(TextShape(_name), "name or type of the ops, or a glob", required=True),
            "pos": Key(
                Items(TextShape(_position, f"^{POSITION.pattern}$"), empty=True, same=str),
                "what is left out: input0, output1, input; nothing or an empty array leaves the op out whole",
            ),
        }
    )
)
_RANGES = Items(
    TableShape(
        {
            "begin": Key(TextShape(_one_name), "first op of the range", required=True),
            "end": Key(TextShape(_one_name), "last op of the range", required=True),
        }
    )
)
_ENTRY = TableShape(
    {
        "model_name": Key(TextShape(), "name of the model, or a glob; left out, every model"),
        "layer": Key(_LAYERS, "the ops, as in the option dump_layer; left out, all"),
        "watcher_nodes": Key(_LAYERS, "ops whose outputs are watched"),
        "optype_blacklist": Key(_BLACKLIST, "ops left out by their type"),
        "opname_blacklist": Key(_BLACKLIST, "ops left out by their name"),
        "opname_range": Key(_RANGES, "ops from one to another, in the order of the graph"),
    },
    elsewhere=dict.fromkeys(("layers", "dump_layer"), "the key is 'layer'"),
    rules=({"dependentRequired": {"opname_range": ["model_name"]}},),
)
DUMP = TableShape(
    {
        "dump_path": Key(TextShape(), "directory that exists and can be read and written", required=True),
        "dump_list": Key(Items(_ENTRY, empty=True), "what of which models; left out, everything of every model"),
        "dump_mode": Key(Choice(MODES), "which side of an op is kept"),
        "dump_data": Key(Choice(DATA), "the values, or their statistics"),
        "dump_stats": Key(Items(Choice(tuple(STATISTICS)), same=str), "which statistics; left out, all"),
        "dump_step": Key(
            TextShape(steps_from_text, r"^[0-9]+(-[0-9]+)?(\|[0-9]+(-[0-9]+)?)*$"),
            "which steps: 0|3-5|10; left out, all",
        ),
        "dump_op_switch": Key(Choice(SWITCH), "also dump the ops that run outside compiled graphs"),
        "dump_debug": Key(Choice(SWITCH), "dump ops that overflow"),
        "dump_scene": Key(
            Choice(SCENES, dict.fromkeys(_EXCEPTIONS, "'exception' is the one here")),
            "watch outputs for being overwritten, or keep the inputs of an op that raises",
        ),
    },
    elsewhere={
        **{row.name: _NOT_HERE.format(row.name, row.env) for row in OPTIONS if not row.in_file},
        "dump_layer": "in the file, name ops in dump_list: {'layer': [...]}",
        "dump_level": "leave it out: the option engine says whether kernels or nodes are dumped",
        "dump_kernel_data": "leave it out: kernels of torch.compile print nothing",
    },
    empty=True,
    rules=({"allOf": list(SCHEMA_RULES)},),
)
DOCUMENT = TableShape({"dump": Key(DUMP, 'an object: {"dump": {"dump_path": ...}}', required=True)}, empty=True)


class _Object(dict[str, object]):
    """A JSON object that remembers a key which stood twice."""

    twice: str | None = None


def read_document(path: str) -> dict[str, Any]:
    """The content of `dump`, with every type, choice and value checked, but neither conflicts nor `dump_path`.

    Raises:
        DumpConfigError: of every kind but `conflict`, which is only for entries of one name.
    """
    root = JsonPlace(path)
    fault = file_fault(path)
    if fault is not None:
        raise value_fault(root, f"cannot be read: {fault}", hint=path_hint(path, "file"))
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise value_fault(root, f"cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise value_fault(root, f"is larger than {MAX_FILE_BYTES} bytes")
    document = _parsed(data, root)
    _refuse_twice(document, root)
    DOCUMENT.check(document, root)
    dump: dict[str, Any] = document["dump"]
    _check_entries(dump.get("dump_list", []), root.key("dump").key("dump_list"))
    return dump


def schema() -> dict[str, Any]:
    """The JSON Schema of the file; paths that exist and the tokens of `layer` are beyond it."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "graphprobe dump_config_path",
        **DOCUMENT.schema(),
    }


def _parsed(data: bytes, root: JsonPlace) -> Any:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise syntax_fault(root, f"is not UTF-8 from byte {error.start} on", hint="save the file as UTF-8") from error
    if not text.strip():
        raise syntax_fault(root, "is empty", hint='the least is {"dump": {"dump_path": "..."}}')
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}"
        raise syntax_fault(root, f"is not valid JSON: {error.msg}, {at}", hint=_syntax_hint(text, error.pos)) from error
    except RecursionError as error:
        raise syntax_fault(root, "is nested too deeply") from error
    except ValueError as error:
        raise syntax_fault(root, f"is not valid JSON: {error}") from error


def _object(pairs: list[tuple[str, object]]) -> _Object:
    document = _Object(pairs)
    if len(document) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        document.twice = next(key for key, count in counts.items() if count > 1)
    return document


def _constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _syntax_hint(text: str, position: int) -> str:
    if _COMMENT.match(text, position):
        return "JSON has no comments"
    before = text[:position].rstrip()[-1:]
    if before == "," or _TRAILING_COMMA.match(text, position):
        return "no comma stands after the last entry"
    return "strings and keys stand in double quotes" if text[position : position + 1] == "'" else ""


def _refuse_twice(document: object, root: JsonPlace) -> None:
    """Refuses a key that stands twice, wherever it is. Paths are linked, and written out only for the fault."""
    todo: list[tuple[object, _Trail]] = [(document, None)]
    while todo:
        value, trail = todo.pop()
        if isinstance(value, _Object):
            if value.twice is not None:
                place = _place(root, (trail, value.twice))
                raise syntax_fault(place, "stands twice in one object", hint="keep one of them")
            todo.extend((member, (trail, name)) for name, member in value.items() if isinstance(member, dict | list))
        elif isinstance(value, list):
            todo.extend((item, (trail, at)) for at, item in enumerate(value) if isinstance(item, dict | list))


def _place(root: JsonPlace, trail: _Trail) -> JsonPlace:
    steps: list[str | int] = []
    while trail is not None:
        trail, step = trail
        steps.append(step)
    for step in reversed(steps):
        root = root.key(step) if isinstance(step, str) else root.item(step)
    return root


def _check_entries(entries: list[dict[str, Any]], place: JsonPlace) -> None:
    """Rules that concern one key of one entry, or entries among each other."""
    seen: dict[str, int] = {}
    for at, entry in enumerate(entries):
        here = place.item(at)
        name = entry.get("model_name")
        if name is not None and seen.setdefault(name, at) != at:
            first, second = place.item(seen[name]).key("model_name"), here.key("model_name")
            raise conflict_fault(
                second.path,
                f"{place.file}: {second.path} is {name!r}, as {first.path} is",
                hint="one entry a model: put its ops into one",
            )
        if "opname_range" in entry and name is None:
            raise type_fault(
                here.key("model_name"),
                f"is missing; {here.key('opname_range').path} needs it",
                hint="a range is a part of one model's graph",
            )
