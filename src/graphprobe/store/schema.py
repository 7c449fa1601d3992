"""Decodes the manifest of a run, and refuses one of another schema; JSON of anything."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from graphprobe.errors import SchemaError
from graphprobe.records import SCHEMA_VERSION, Manifest
from graphprobe.store.files import lines_at

T = TypeVar("T")

_LINES_TOGETHER = 128

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises of JSON that is torn, not of the right form, no UTF-8, or nested beyond any sense."""


def encode_manifest(manifest: Manifest) -> bytes:
    """`manifest` as indented JSON; `schema` and `state` are always spelt out."""
    document = {"schema": manifest.schema, "state": manifest.state}
    document |= msgspec.to_builtins(manifest)
    return msgspec.json.format(json_from_value(document), indent=2) + b"\n"


def read_manifest(data: bytes, *, path: str) -> dict[str, Any]:
    """The manifest in `data`.

    Raises:
        SchemaError: it is no manifest, or one of another schema; the message has `path`.
    """
    try:
        document = msgspec.json.decode(data)
        version = document.get("schema", 1) if isinstance(document, dict) else None
        if not isinstance(version, int) or isinstance(version, bool):
            raise SchemaError(f"{path} is no manifest of a run: it names no schema")
        check_version(version, SCHEMA_VERSION, path=path)
        msgspec.convert(document, Manifest)
    except UNREADABLE as error:
        raise SchemaError(f"{path} is no manifest of a run: {error}") from error
    found: dict[str, Any] = document
    return found


def check_version(version: object, known: int, *, path: object, what: str = "") -> None:
    """Raises SchemaError where a file is not of the schema that this graphprobe knows."""
    if version != known or isinstance(version, bool):
        newer = isinstance(version, int) and version > known
        raise SchemaError(
            f"{path} has {what}schema {version}; this graphprobe reads {what}schema {known}",
            hint="upgrade graphprobe: pip install --upgrade graphprobe" if newer else "write it anew",
        )


def lines_of(
    source: Path | bytes,
    decoder: msgspec.json.Decoder[T],
    *,
    tell: Callable[[str], object],
    name: str = "",
    noun: str = "record",
) -> Iterator[tuple[int, int, T]]:
    """The lines of a file of any length, or of its content: number, place in bytes, record.

    `tell` is told which cannot be read, by `name`, or else by the path.
    """
    offset, found, name = 0, [], name or str(source)
    try:
        lines = io.BytesIO(source) if isinstance(source, bytes) else lines_at(source)
        for number, line in enumerate(lines, start=1):
            try:
                found.append((number, offset, decoder.decode(line)))
            except UNREADABLE as error:
                yield from found
                found = []
                if line.strip():
                    torn = not line.endswith(b"\n")
                    why = "is cut off, as by a killed process or a full disk" if torn else f"is no {noun}: {error}"
                    tell(f"{name} line {number} {why}")
            offset += len(line)
            # Some lines at a time: decoding many goes faster than decoding one between other things.
            if len(found) == _LINES_TOGETHER:
                yield from found
                found = []
    except OSError as error:
        tell(f"{name} cannot be read: {error.strerror}")
    yield from found


def json_from_value(value: object) -> bytes:
    """JSON of anything; text that UTF-8 cannot hold (an argument with stray bytes) becomes a backslash escape."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(msgspec.to_builtins(value)))


def json_line(value: object) -> str:
    """JSON of anything on a line of its own, with its newline."""
    return json_from_value(value).decode() + "\n"


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


def is_plain_data(value: object) -> bool:
    """Whether a value is made of numbers, texts, lists, tuples and dicts with texts as keys; NaN and infinity count."""
    if isinstance(value, (list, tuple)):
        return all(is_plain_data(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain_data(item) for key, item in value.items())
    return value is None or isinstance(value, (bool, int, float, str))
