"""The page of whatever lies at a path: made by the reader of its kind, and written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphprobe.errors import UsageError
from graphprobe.store import layout

if TYPE_CHECKING:
    from graphprobe.report.html.page import Report

MARKS = (b"<title>graphprobe",)
"""What every page has."""


def page_of(source: Path, *, source_roots: Sequence[Path] = ()) -> Report:
    """The page of whatever `source` is; only what that needs is imported.

    Raises:
        RunNotFoundError: nothing is there.
        UsageError: something is there, and no page can be made of it.
        SchemaError: it was written by a newer graphprobe.
    """
    from graphprobe.report.subject import kind_of

    kind = kind_of(source)
    if kind == "run":
        from graphprobe.report.html.sections_run import report_from
    elif kind == "diagnosis":
        from graphprobe.report.html.sections_diagnosis import report_from
    elif kind == "profile":
        from graphprobe.report.html.flame import report_from
    elif kind == "comparison":
        from graphprobe.report.html.sections_comparison import report_from
    else:
        from graphprobe.report.html.sections_dump import report_from
    return report_from(source, source_roots=source_roots)


def write_page_to(target: Path, page: Report, *, named: str) -> None:
    """Write the page; what was at `target` stays until it is whole. Raises UsageError if it cannot be written."""
    from graphprobe.report.html.page import write_page

    temporary = target.with_name(f"{layout.TEMPORARY_PREFIX}{os.getpid()}-{target.name}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            write_page(page, file)
        temporary.replace(target)
    except OSError as error:
        raise UsageError(f"{named}: it cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
