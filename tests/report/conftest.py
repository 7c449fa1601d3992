"""`open_report` opens a report in Chromium and, when the test ends, holds the page to what every report promises."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from report.browser import SCREENSHOTS, Opened, OpenReport, chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    """One for each file of tests: while it runs, asyncio thinks that this thread is in a loop already."""
    if request.config.getoption("--without-torch"):
        pytest.skip("Chromium takes too long for `make test-fast`")
    with chromium() as started:
        yield started


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[None]:
    report = yield
    if report.when == "call" and report.failed:
        item.stash[FAILED] = True
    return report


FAILED = pytest.StashKey[bool]()


@pytest.fixture
def open_report(browser: Browser, request: pytest.FixtureRequest) -> Iterator[OpenReport]:
    """`open_report(file, dark=False, width=1280, height=900)`; no console error and no request, or the test fails."""
    opened: list[Opened] = []

    def open_file(file: Path, *, dark: bool = False, width: int = 1280, height: int = 900) -> Opened:
        context = browser.new_context(
            color_scheme="dark" if dark else "light", viewport={"width": width, "height": height}, offline=True
        )
        page = context.new_page()
        result = Opened(page, file)
        opened.append(result)
        address = file.resolve().as_uri()
        page.on("console", lambda said: result.errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: result.errors.append(str(error)))
        page.on(
            "request",
            lambda asked: None if asked.url.split("#")[0] == address else result.requests.append(asked.url),
        )
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        return result

    yield open_file
    faults = [fault for one in opened for fault in one.faults()]
    if faults or FAILED in request.node.stash:
        for number, one in enumerate(opened):
            SCREENSHOTS.mkdir(exist_ok=True)
            name = re.sub(r"[^\w.-]+", "_", request.node.nodeid.split("/")[-1])
            one.page.screenshot(path=SCREENSHOTS / f"{name}-{number}.png", full_page=True)
    for one in opened:
        one.page.context.close()
    assert faults == []


@pytest.fixture
def beside_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, in which the program lies."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
