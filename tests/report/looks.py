"""The kinds of report, and how each is looked at; scripts/report_pictures.py draws them for docs/pictures/reports."""

from dataclasses import dataclass
from pathlib import Path

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "reports"

REPORTS = {
    "fault": ["report result.json -o {out}"],
    "run": ["report runs -o {out}"],
    "comparison": ["compare new old -o {folder}/compared", "report {folder}/compared -o {out}"],
    "dump": ["report new -o {out}"],
    "profile": ["report cold.json -o {out}"],
}
"""Commands that make a report of the data of `cli.captures`, by its kind; the last one writes the page `out`."""


@dataclass(frozen=True)
class Look:
    """How a page is looked at: pixels, colours, and whether it is on paper."""

    width: int
    height: int
    dark: bool = False
    printed: bool = False


LOOKS = {
    "desktop": Look(1280, 900),
    "dark": Look(1280, 900, dark=True),
    "phone": Look(390, 844),
    "print": Look(700, 990, printed=True),  # between the margins of a page
}
