import json

import msgspec
import pytest

from graphprobe.errors import SchemaError
from graphprobe.records import SCHEMA_VERSION, Manifest
from graphprobe.store import schema

MANIFEST = {
    "graphprobe": "0.3",
    "schema": SCHEMA_VERSION,
    "python": "3.11",
    "platform": "linux",
    "argv": [],
    "cwd": "/",
}
MANIFEST |= {"pid": 1, "parent_pid": 0, "started_ns": 5}


def encoded(**fields: object) -> bytes:
    return json.dumps(MANIFEST | fields).encode()


def manifest_of(data: bytes, *, path: str) -> Manifest:
    return msgspec.convert(schema.read_manifest(data, path=path), Manifest)


def test_round_trip_spells_out_schema_and_state() -> None:
    manifest = manifest_of(encoded(), path="m")
    data = schema.encode_manifest(manifest)
    assert (json.loads(data)["schema"], json.loads(data)["state"]) == (SCHEMA_VERSION, "running")
    assert manifest_of(data, path="m") == manifest


def test_another_schema_is_refused_with_both_versions() -> None:
    for version, hint in ((SCHEMA_VERSION + 6, "upgrade graphprobe"), (SCHEMA_VERSION - 1, "write it anew")):
        with pytest.raises(SchemaError) as caught:
            manifest_of(encoded(schema=version, graphprobe=3), path="run/manifest.json")
        for text in (f"schema {version}", f"schema {SCHEMA_VERSION}", "run/manifest.json"):
            assert text in str(caught.value)
        assert hint in caught.value.hint and caught.value.exit_code == 125


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"3", b"{}", b'{"schema": "1"}', b'{"schema": true}', b"\xff\xfe"])
def test_what_is_no_manifest(data: bytes) -> None:
    with pytest.raises(SchemaError, match=r"m\.json is no manifest"):
        manifest_of(data, path="m.json")
