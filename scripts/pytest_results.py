"""A plugin of pytest that writes each outcome as it comes, and leaves out the tests whose outcome is there already.

    PYTEST_RESULTS=FILE pytest -p pytest_results …

FILE gets two lines of JSON a test: one when it begins, one when it has ended. Tests that a process did not live to end
are thus known by name, and the next process goes on where the last one was stopped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


class Results:
    """The outcomes in a file.

    Attributes:
        outcomes: by test, its outcome and, unless it passed, why.
        begun: the test that began last, if it has not ended.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.outcomes: dict[str, tuple[str, str]] = {}
        self.begun: str | None = None
        for line in path.read_text("utf-8").splitlines() if path.exists() else ():
            entry = json.loads(line)
            if "outcome" in entry:
                self.outcomes[entry["test"]] = entry["outcome"], entry["why"]
                self.begun = None
            else:
                self.begun = entry["test"]

    def begin(self, test: str) -> None:
        self._write({"test": test})

    def end(self, test: str, outcome: str, why: str) -> None:
        self.outcomes[test] = outcome, why
        self._write({"test": test, "outcome": outcome, "why": why})

    def forget(self, outcome: str) -> None:
        """Tests with this outcome are to run again."""
        kept = {test: found for test, found in self.outcomes.items() if found[0] != outcome}
        self._path.unlink(missing_ok=True)
        self.outcomes, self.begun = {}, None
        for test, found in kept.items():
            self.end(test, *found)

    def _write(self, entry: dict[str, str]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


class Plugin:
    """Follows a session of pytest."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self._outcome, self._why = "passed", ""

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = [item for item in items if item.nodeid in self.results.outcomes]
        if done:
            config.hook.pytest_deselected(items=done)
            items[:] = [item for item in items if item.nodeid not in self.results.outcomes]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.results.end(report.nodeid, "failed", f"not collected: {_reason(report)}")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._outcome, self._why = "passed", ""
        self.results.begin(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        expected = report.skipped and hasattr(report, "wasxfail")
        if not report.passed and not expected and self._outcome != "failed":
            self._outcome, self._why = report.outcome, _reason(report)
        if report.when == "teardown":
            self.results.end(report.nodeid, self._outcome, self._why)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """One line: what was raised, or why it was skipped."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = (
        report.longrepr[2] if isinstance(report.longrepr, tuple) else str(crash.message if crash else report.longrepr)
    )
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:300]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Plugin(Results(Path(os.environ["PYTEST_RESULTS"]))))
