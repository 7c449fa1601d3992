"""Writes docs/formats/diagnosis.schema.json from the structs in `graphprobe.findings`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from graphprobe.findings import DIAGNOSIS_SCHEMA, Diagnosis, ScriptDocument

FILE = Path(__file__).resolve().parent.parent / "docs" / "formats" / "diagnosis.schema.json"
NUMBER = {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]}
"""JSON has no infinity; `to_json` writes a text."""


def diagnosis_schema() -> dict[str, Any]:
    """The schema of both documents: one diagnosis, or those of a script."""
    references, components = msgspec.json.schema_components([Diagnosis, ScriptDocument], ref_template="#/$defs/{name}")
    for component in components.values():
        component.pop("description", None)  # docs/formats/diagnosis.md says what the fields mean
    script = components["ScriptDocument"]["properties"]["schema"]
    script.clear()
    script["const"] = DIAGNOSIS_SCHEMA
    components["ScriptDocument"]["required"] = ["schema", "target", "diagnoses"]
    numbers = {"Finding": ("local_z", "accumulated_z"), "LargestZ": ("z",), "Worst": ("off",)}
    for name, fields in numbers.items():
        properties = components[name]["properties"]
        for field in fields:
            default = {"default": properties[field]["default"]} if "default" in properties[field] else {}
            properties[field] = {**NUMBER, **default}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "graphprobe diagnose --json",
        "anyOf": list(references),
        "$defs": components,
    }


def schema_text() -> str:
    """The file's content."""
    return json.dumps(diagnosis_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(schema_text(), encoding="utf-8")
