"""Writes docs/formats/dump_config.schema.json from the description in `graphprobe.dump_plan.document`."""

from __future__ import annotations

import json
from pathlib import Path

from graphprobe.dump_plan.document import schema

FILE = Path(__file__).resolve().parent.parent / "docs" / "formats" / "dump_config.schema.json"


def schema_text() -> str:
    """The file's content."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(schema_text(), encoding="utf-8")
