from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from graphprobe.errors import SchemaError
from graphprobe.records import SCHEMA_VERSION, Event, Manifest, Where
from graphprobe.store import schema

OLD = {"version": "0.0.1", "schema": 0, "python": "3.11", "platform": "linux", "argv": [], "cwd": "/", "pid": 1}
OLD |= {"parent_pid": 0, "started_ns": 5}


def encoded(**fields: object) -> bytes:
    return json.dumps(OLD | {"graphprobe": "0.1", "schema": SCHEMA_VERSION} | fields).encode()


def manifest_of(data: bytes, *, path: str) -> Manifest:
    return msgspec.convert(schema.read_manifest(data, path=path)[0], Manifest)


def renamed(document: dict[str, Any]) -> dict[str, Any]:
    return {("graphprobe" if key == "version" else key): value for key, value in document.items()}


def test_round_trip_spells_out_schema_and_state() -> None:
    manifest = manifest_of(encoded(), path="m")
    data = schema.encode_manifest(manifest)
    assert (json.loads(data)["schema"], json.loads(data)["state"]) == (SCHEMA_VERSION, "running")
    assert manifest_of(data, path="m") == manifest


def test_newer_schema_is_refused_with_both_versions() -> None:
    with pytest.raises(SchemaError) as caught:
        manifest_of(encoded(schema=SCHEMA_VERSION + 6, graphprobe=3), path="run/manifest.json")
    for text in (f"schema {SCHEMA_VERSION + 6}", f"schema {SCHEMA_VERSION}", "run/manifest.json"):
        assert text in str(caught.value)
    assert "upgrade graphprobe" in caught.value.hint and caught.value.exit_code == 125


def test_old_schema_is_upgraded_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    data = json.dumps(OLD).encode()
    with pytest.raises(SchemaError, match="no way leads from schema 0"):
        manifest_of(data, path="m")
    monkeypatch.setitem(schema.UPGRADES, 0, renamed)
    for version in range(1, SCHEMA_VERSION):
        assert version in schema.UPGRADES, "a version without a way to the next"
    manifest = manifest_of(data, path="m")
    assert (manifest.graphprobe, manifest.schema) == ("0.0.1", SCHEMA_VERSION)


def test_upgrades_run_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 3)
    steps = {n: (lambda d, n=n: {**d, "steps": [*d.get("steps", []), n]}) for n in (0, 1, 2)}
    assert schema.upgrade({}, 1, steps, path="m", every_step=True) == {"steps": [1, 2], "schema": 3}
    assert schema.upgrade({}, 0, {2: steps[2]}, path="m", every_step=False) == {"steps": [2]}


def test_old_event_lines_are_upgraded(monkeypatch: pytest.MonkeyPatch) -> None:
    line = b'{"number": 4, "time_ns": 1, "where": {}, "kind": "note", "name": "n", "future": 1}'
    monkeypatch.setitem(schema.EVENT_UPGRADES, 0, lambda document: document | {"seq": document["number"]})
    assert schema.decode_event(line, 0, path="e") == Event(4, 1, Where(), "note", "n")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"3", b"{}", b'{"schema": "1"}', b'{"schema": true}', b"\xff\xfe"])
def test_what_is_no_manifest(data: bytes) -> None:
    with pytest.raises(SchemaError, match=r"m\.json is no manifest"):
        manifest_of(data, path="m.json")
