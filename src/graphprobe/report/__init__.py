"""Views of what a run holds: computed from the store, never from torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphprobe.faces import loaded_on_use, make_callable

if TYPE_CHECKING:
    from graphprobe.report.explanation import print_report as print_explanation
    from graphprobe.report.profile_document import diff_lines, profile_lines
    from graphprobe.report.run_diff import RunDiff, diff_runs
    from graphprobe.report.run_document import print_run
    from graphprobe.report.subject import kind_of

__all__ = [
    "RunDiff",
    "diff_lines",
    "diff_runs",
    "kind_of",
    "print_explanation",
    "print_run",
    "profile_lines",
]

__getattr__ = loaded_on_use(__name__)
make_callable(__name__, "graphprobe.api")
