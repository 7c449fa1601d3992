"""Decode what any schema up to this one wrote: old documents are upgraded step by step, newer ones are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from graphprobe.errors import SchemaError
from graphprobe.records import SCHEMA_VERSION, Event, Manifest

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]

UPGRADES: dict[int, Upgrade] = {}
"""By version: what turns a manifest of that version into one of the next."""

EVENT_UPGRADES: dict[int, Upgrade] = {}
"""By version: the same for one event line. A version without an entry left the lines as they were."""

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises of JSON that is torn, not of the right form, no UTF-8, or nested beyond any sense."""


def encode_manifest(manifest: Manifest) -> bytes:
    """`manifest` as indented JSON; `schema` and `state` are always spelt out."""
    document = {"schema": manifest.schema, "state": manifest.state}
    document |= msgspec.to_builtins(manifest)
    return msgspec.json.format(json_from_value(document), indent=2) + b"\n"


def encode_event(event: Event) -> bytes:
    """`event` as one line, its newline included."""
    return json_from_value(event) + b"\n"


def read_manifest(data: bytes, *, path: str) -> tuple[dict[str, Any], int]:
    """The manifest in `data`, brought to the schema of today, and the schema it was written with.

    Raises:
        SchemaError: it is no manifest, or one of a newer or an unknown schema; the message has `path`.
    """
    try:
        document = msgspec.json.decode(data)
        version = document.get("schema", 1) if isinstance(document, dict) else None
        if not isinstance(version, int) or isinstance(version, bool):
            raise SchemaError(f"{path} is no manifest of a run: it names no schema")
        upgraded = upgrade(document, version, UPGRADES, path=path, every_step=True)
        msgspec.convert(upgraded, Manifest)
    except UNREADABLE as error:
        raise SchemaError(f"{path} is no manifest of a run: {error}") from error
    return upgraded, version


def decode_event(line: bytes, version: int, *, path: str) -> Event:
    """One event line that a writer of schema `version` wrote.

    Raises:
        SchemaError: the schema is newer or unknown.
        msgspec.MsgspecError: the line is torn or no event.
    """
    if version == SCHEMA_VERSION:
        return msgspec.json.decode(line, type=Event)
    document = msgspec.json.decode(line, type=dict[str, Any])
    return msgspec.convert(upgrade(document, version, EVENT_UPGRADES, path=path, every_step=False), Event)


def upgrade(
    document: dict[str, Any], version: int, upgrades: Mapping[int, Upgrade], *, path: str, every_step: bool
) -> dict[str, Any]:
    """`document` brought from `version` to the schema of today.

    With `every_step`, a version that has no upgrade is unknown; without, it is one that changed nothing here.

    Raises:
        SchemaError: the version is newer than today's, or unknown.
    """
    if version > SCHEMA_VERSION:
        raise SchemaError(
            f"{path} has schema {version}; this graphprobe reads up to schema {SCHEMA_VERSION}",
            hint="upgrade graphprobe: pip install --upgrade graphprobe",
        )
    for step in range(version, SCHEMA_VERSION):
        if step in upgrades:
            document = upgrades[step](document)
        elif every_step:
            raise SchemaError(f"{path} has schema {version}; no way leads from schema {step} to {SCHEMA_VERSION}")
    return document | {"schema": SCHEMA_VERSION} if every_step else document


def json_from_value(value: object) -> bytes:
    """JSON of anything; text that UTF-8 cannot hold (an argument with stray bytes) becomes a backslash escape."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(msgspec.to_builtins(value)))


def _encodable(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list | tuple) else value


def is_json(value: object) -> bool:
    """Whether JSON gives a value back as it was."""
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
