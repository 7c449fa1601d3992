"""Reports that are made up: pages of any sections, and the comparisons of `bench/report_cases.py`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from graphprobe.report.document import Report, Section, Verdict
from graphprobe.report.html.page import write_page

CASES = Path(__file__).resolve().parents[2] / "bench" / "report_cases.py"


def report_cases() -> Any:
    """The module that the benchmark makes comparisons with."""
    if "report_cases" not in sys.modules:
        spec = importlib.util.spec_from_file_location("report_cases", CASES)
        assert spec is not None and spec.loader is not None
        module = sys.modules["report_cases"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["report_cases"]


def page_of(file: Path, *sections: Section, **more: Any) -> Path:
    """A page of these sections."""
    return page(file, Report("made up", "made up", Verdict("info", "MADE UP", "Nothing."), list(sections), **more))


def page(file: Path, report: Report) -> Path:
    with file.open("w", encoding="utf-8") as out:
        write_page(report, out)
    return file
