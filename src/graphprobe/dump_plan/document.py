"""The JSON file: `{"dump": {...}}`, read and held against its description; conflicts are judged elsewhere."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from graphprobe.dump_plan.conflicts import SCHEMA_RULES
from graphprobe.dump_plan.options import OPTIONS, file_fault, path_hint
from graphprobe.dump_plan.plan import DATA, MODES, POSITION, STATS
from graphprobe.dump_plan.shapes import (
    Choice,
    Items,
    JsonPlace,
    Key,
    TableShape,
    TextShape,
    conflict_fault,
    syntax_fault,
    type_fault,
    value_fault,
)
from graphprobe.errors import SettingError
from graphprobe.select import steps_from_text
from graphprobe.select.matching import token_from_text

MAX_FILE_BYTES = 16 * 1024**2
SCENES = ("watcher", "exception")
SWITCH = ("on", "off")
_COMMENT = re.compile(r"\s*(//|/\*|#)")
_Trail = tuple[Any, str | int] | None
_TRAILING_COMMA = re.compile(r",\s*[\]}]")


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
_EXCEPTIONS = ("lite_exception", "aic_err_brief_dump", "aic_err_norm_dump", "aic_err_detail_dump")
_NOT_HERE = "this is an option: CompilerConfig().dump_config.{0}, or the environment variable {1}"
DUMP = TableShape(
    {
        "dump_path": Key(TextShape(), "directory that exists and can be read and written", required=True),
        "dump_list": Key(Items(_ENTRY, empty=True), "what of which models; left out, everything of every model"),
        "dump_mode": Key(Choice(MODES), "which side of an op is kept"),
        "dump_data": Key(Choice(DATA), "the values, or their statistics"),
        "dump_stats": Key(Items(Choice(STATS), same=str), "which statistics; left out, all"),
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
