"""The entries of `dump_list`, once they have been checked, as the plan has them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from graphprobe.dump_plan.plan import Blacklisted, ModelEntry, NameRange, Position, WatchEntry
from graphprobe.select import LayerSelection, layers_from_list

POSITION = re.compile(r"(input|output)([0-9]{1,6})?", re.ASCII)
"""An input or output of an op: `input0`, or `input` for all of them."""


def model_entries(entries: Sequence[Mapping[str, Any]]) -> tuple[ModelEntry, ...]:
    """The entries of a dump of models."""
    return tuple(
        ModelEntry(
            model_name=entry.get("model_name"),
            layers=_layers(entry, "layer"),
            blacklist=_blacklist(entry, "name") + _blacklist(entry, "type"),
            ranges=tuple(NameRange(found["begin"], found["end"]) for found in entry.get("opname_range", ())),
            where=f"$.dump.dump_list[{at}]",
        )
        for at, entry in enumerate(entries)
    )


def watch_entries(entries: Sequence[Mapping[str, Any]] | None) -> tuple[WatchEntry, ...]:
    """The entries of the watch mode; without any, everything is watched."""
    if not entries:
        return (WatchEntry(where="$.dump.dump_scene"),)
    return tuple(
        WatchEntry(_layers(entry, "layer"), _layers(entry, "watcher_nodes"), f"$.dump.dump_list[{at}]")
        for at, entry in enumerate(entries)
    )


def _layers(entry: Mapping[str, Any], key: str) -> LayerSelection | None:
    return layers_from_list(entry[key]) if key in entry else None


def _blacklist(entry: Mapping[str, Any], by: Literal["name", "type"]) -> tuple[Blacklisted, ...]:
    return tuple(
        Blacklisted(by, found["name"].strip(), tuple(_position(text) for text in found.get("pos", ())))
        for found in entry.get(f"op{by}_blacklist", ())
    )


def _position(text: str) -> Position:
    match = POSITION.fullmatch(text)
    assert match is not None  # `document` has refused what is none
    side: Literal["input", "output"] = "input" if match[1] == "input" else "output"
    return Position(side, None if match[2] is None else int(match[2]))
