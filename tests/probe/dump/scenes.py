"""What dumps leave beside the values."""

import json
from pathlib import Path
from typing import Any


def findings(path: Path, kind: str) -> list[dict[str, Any]]:
    lines = [line for file in path.rglob("findings.jsonl") for line in file.read_text().splitlines()]
    return [found for found in map(json.loads, lines) if found["kind"] == kind]


def documents(path: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(path.rglob(name))]
