"""Which settings exclude each other. One table serves the check and the published JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from graphprobe.dump_plan.shapes import conflict_fault, shown


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
_ONE_KIND = "overflow is a kind of dump of its own"
_ONE_RUN = "run the program twice, or leave one of them out"

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
