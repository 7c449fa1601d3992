"""How long each test takes: every run records it, `durations.json` keeps it, and the marks are held against it.

    python tests/durations.py        takes what the last runs have recorded into durations.json

The seconds of a test are what it takes alone: with the fixtures of its file and its classes, whichever test made them,
and without those of the session.
"""

import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "tests" / "durations.json"
RECORDED = "graphprobe/durations"
"""Where the cache of pytest has what the last runs took."""

SLOW_S, HEAVY_S = 3.0, 60.0
"""A test that takes longer carries the mark `slow`, or `heavy`."""

TOLERANCE = 2
"""The machine, and what else it does, may change a time by this factor."""

LISTED_S = 0.5
"""Shorter tests are not in the file."""

COLLECTED = pytest.StashKey[list["Marked"]]()


class Marked(NamedTuple):
    """A test that was collected, and its tier: `""`, `slow`, `heavy` or `always`."""

    test: str
    tier: str


def known() -> dict[str, float]:
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def tier_of(item: pytest.Item) -> str:
    return next((mark for mark in ("heavy", "slow", "always") if item.get_closest_marker(mark)), "")


def longest_first(items: list[pytest.Item], seconds: Mapping[str, float]) -> None:
    """Order `items` by what their files take, so that no process ends with a long one while the others are idle."""
    sums: Counter[Path] = Counter()
    for item in items:
        sums[item.path] += seconds.get(item.nodeid, LISTED_S / 10)
    items.sort(key=lambda item: -sums[item.path])


def disagreements(tests: Iterable[Marked], seconds: Mapping[str, float]) -> list[str]:
    """Where marks and times differ by more than the tolerance, a sentence each.

    Of a function whose cases share a mark, the longest case decides. A heavy test without a time is left alone, and so
    is one that is always run.
    """
    found = []
    cases: dict[tuple[str, str], list[str]] = defaultdict(list)
    for test, tier in tests:
        cases[test.partition("[")[0], tier].append(test)
    least, most = {"slow": SLOW_S, "heavy": HEAVY_S}, {"": SLOW_S, "slow": HEAVY_S}
    for (function, tier), names in cases.items():
        took, longest = max((seconds.get(name, 0.0), name) for name in names)
        if tier in most and took > most[tier] * TOLERANCE:
            wanted = "heavy" if took > HEAVY_S else "slow"
            found.append(f"{longest} takes {took:g} s: mark it {wanted}")
        elif tier in least and took < least[tier] / TOLERANCE and not (tier == "heavy" and took == 0):
            found.append(f"{function} takes {took:g} s at most: it is not {tier}")
    here = {test for test, _ in tests}
    files = {test.partition("::")[0] for test in here}
    gone = sorted(test for test in seconds if test.partition("::")[0] in files and test not in here)
    return found + [f"{test} is in {FILE.name}, and there is no such test" for test in gone]


class Recorder:
    """Follows a session: in the process of a test it sets fixtures apart, in the first process it adds up."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._file_fixtures: dict[tuple[str, str], float] = defaultdict(float)
        self._shared_s = 0.0
        self._took: dict[str, float] = defaultdict(float)
        self._unfinished: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Generator:
        began = time.perf_counter()
        try:
            return (yield)
        finally:
            took = time.perf_counter() - began
            if fixturedef.scope != "function":
                self._shared_s += took
                if fixturedef.scope != "session":
                    self._file_fixtures[request.node.nodeid.partition("::")[0], fixturedef.argname] += took

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator:
        self._shared_s = 0.0
        try:
            return (yield)
        finally:
            file, names = item.nodeid.partition("::")[0], getattr(item, "fixturenames", ())
            used = sum(self._file_fixtures.get((file, name), 0.0) for name in names)
            item.user_properties.append(("fixtures_s", used - self._shared_s))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        config.stash[COLLECTED] = [Marked(item.nodeid, tier_of(item)) for item in items]
        if hasattr(config, "workerinput"):
            longest_first(items, known())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._took[report.nodeid] += report.duration
        if report.when == "teardown":
            self._took[report.nodeid] += sum(s for name, s in report.user_properties if name == "fixtures_s")
        if not report.passed:
            self._unfinished.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        cache = getattr(self._config, "cache", None)
        if cache is not None and not hasattr(self._config, "workerinput"):
            took = {test: round(s, 1) for test, s in self._took.items() if test not in self._unfinished}
            cache.set(RECORDED, {**cache.get(RECORDED, {}), **took})


def main() -> None:
    """Take the recorded times into the file: those that differ by more than a half, and of the tests that there are."""
    path = ROOT / ".pytest_cache" / "v" / RECORDED
    recorded: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    listing = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    there = {line for line in listing.stdout.splitlines() if "::" in line}
    times = {test: took for test, took in known().items() if test in there} if FILE.exists() else {}
    for test in recorded.keys() & there:
        before, took = times.get(test, 0.0), recorded[test]
        if not took / 1.5 <= before <= took * 1.5:
            times[test] = took
    rows = {test: took for test, took in sorted(times.items()) if took >= LISTED_S}
    FILE.write_text(json.dumps(rows, indent=0) + "\n", encoding="utf-8")
    print(f"{FILE.relative_to(ROOT)}: {len(rows)} tests, {sum(rows.values()):.0f} s")


if __name__ == "__main__":
    main()
