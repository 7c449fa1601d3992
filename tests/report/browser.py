"""Chromium for the tests of the report: opens a file without a network, keeps what a person would complain of."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SCREENSHOTS = Path(__file__).parent / "screenshots"
"""Where a failing test leaves what it saw; not in git."""

NAMES = ("chromium", "chromium-browser", "google-chrome")


def executable() -> str:
    """Path of the browser. Without one a test is skipped; where `CI` is set it fails, since there it has to run."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    _missing(f"there is no {', '.join(NAMES)} on the path")


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        _missing(str(error))


def _missing(message: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that runs for as long as the block does."""
    path = executable()
    with _imported("playwright.sync_api").sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Opened:
    """A report in the browser.

    Attributes:
        page: of playwright.
        file: what was opened.
        errors: what the console and uncaught exceptions said.
        requests: addresses asked for, other than the file itself.
    """

    page: Page
    file: Path
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()

    def see(self, section: str) -> None:
        self.page.locator(f"#{section}").scroll_into_view_if_needed()
        self.page.wait_for_function(
            "id => [...document.querySelectorAll(`#${id} .view`)].every(view => view.dataset.done)", arg=section
        )

    def drawn(self) -> None:
        self.page.wait_for_function("[...document.querySelectorAll('.view')].every(view => view.dataset.done)")

    def has_no_faults(self) -> bool:
        """Whether axe-core finds nothing in the page with all of its views."""
        draw_everything(self.page)
        return axe_faults(self.page) == []

    def faults(self) -> list[str]:
        return [*(f"console: {text}" for text in self.errors), *(f"request: {url}" for url in self.requests)]


def axe_faults(page: Page) -> list[str]:
    """What axe-core finds, of any level, one line each: rule, element, what to do."""
    module = _imported("axe_playwright_python.sync_playwright")
    # The page's policy lets no text be run as code; the checker is put in from outside of it.
    found: dict[str, Any] = module.Axe().run(page).response
    return [
        f"{violation['id']}: {node['html'][:160]}: {node['failureSummary']}"
        for violation in found["violations"]
        for node in violation["nodes"]
    ]


def draw_everything(page: Page) -> None:
    """Draw the views that are far down, too, as printing the page does."""
    page.evaluate("dispatchEvent(new Event('beforeprint'))")


OpenReport = Callable[..., Opened]
"""`open_report(file, dark=False, width=1280, height=900)`, the fixture of `conftest.py`."""


class Grid:
    """The table of an opened page, as a person meets it."""

    def __init__(self, opened: Opened, section: str) -> None:
        self.page = opened.page
        self.of = f"#{section}"
        self.page.evaluate("id => document.querySelector(id).scrollIntoView()", self.of)
        self.page.wait_for_selector(f"{self.of} .view[data-interactive]")
        self.grid = self.page.locator(f"{self.of} [role=grid]")

    def column(self, name: str) -> list[str]:
        """The texts of a column in the rows that are drawn, from the top."""
        return self.page.evaluate(
            """([of, name]) => {
                const heads = [...document.querySelectorAll(`${of} [role=columnheader]`)];
                const at = heads.findIndex((head) => head.querySelector(".name").textContent === name);
                return [...document.querySelectorAll(`${of} .body .row:not([hidden])`)]
                    .sort((a, b) => a.ariaRowIndex - b.ariaRowIndex).map((row) => row.children[at].textContent);
            }""",
            [self.of, name],
        )

    @property
    def count(self) -> str:
        return self.page.locator(f"{self.of} output").inner_text()

    def search(self, text: str) -> str:
        """Types into the search box, and waits for what it says then."""
        before = self.count
        self.page.locator(f"{self.of} input[type=search]").fill(text)
        self.page.wait_for_function(
            "([of, text]) => document.querySelector(`${of} output`).textContent !== text", arg=[self.of, before]
        )
        return self.count

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.page.wait_for_timeout(60)

    @property
    def active(self) -> str:
        """The text of the cell that a screen reader is on."""
        return self.page.evaluate(
            "of => document.getElementById(document.querySelector(of + ' [role=grid]')"
            ".getAttribute('aria-activedescendant'))?.textContent ?? ''",
            self.of,
        )
