"""Reports that are made up: pages of any sections, and the comparisons of `bench/report_cases.py`."""

import base64
import json
import zlib
from pathlib import Path
from typing import Any

from conftest import module_at
from graphprobe.report.document import DocumentVerdict, Section
from graphprobe.report.html.page import Report, write_page


def report_cases() -> Any:
    """The module that the benchmark makes comparisons with."""
    return module_at("bench", "report_cases.py")


def page_of(file: Path, *sections: Section, **more: Any) -> Path:
    return page(
        file, Report("made up", "made up", DocumentVerdict("info", "MADE UP", "Nothing."), list(sections), **more)
    )


def page(file: Path, report: Report) -> Path:
    with file.open("w", encoding="utf-8") as out:
        write_page(report, out)
    return file


def body_of(data: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(data["packed"]))) if "packed" in data else data
    return found
