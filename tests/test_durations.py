"""`tests/durations.py`: the marks fit the times, a run records its times, and each rule can fail."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import ROOT, Finished
from durations import COLLECTED, RECORDED, Marked, disagreements, known


def test_marks_and_times_agree(request: pytest.FixtureRequest) -> None:
    found = disagreements(request.config.stash[COLLECTED], known())
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("tests", "seconds", "expected"),
    [
        ({"a.py::quick": ""}, {"a.py::quick": 5.9}, []),
        ({"a.py::long": ""}, {"a.py::long": 6.1}, ["a.py::long takes 6.1 s: mark it slow"]),
        ({"a.py::long": ""}, {"a.py::long": 61}, ["a.py::long takes 61 s: mark it heavy"]),
        ({"a.py::long": "slow"}, {"a.py::long": 119}, []),
        ({"a.py::long": "slow"}, {"a.py::long": 121}, ["a.py::long takes 121 s: mark it heavy"]),
        ({"a.py::quick": "slow"}, {"a.py::quick": 1.6}, []),
        ({"a.py::quick": "slow"}, {"a.py::quick": 1.4}, ["a.py::quick takes 1.4 s at most: it is not slow"]),
        ({"a.py::quick": "slow"}, {}, ["a.py::quick takes 0 s at most: it is not slow"]),
        ({"a.py::f[1]": "slow", "a.py::f[2]": "slow"}, {"a.py::f[1]": 0.6, "a.py::f[2]": 4}, []),
        ({"a.py::f[1]": "", "a.py::f[2]": "slow"}, {"a.py::f[1]": 0.6, "a.py::f[2]": 4}, []),
        ({"a.py::big": "heavy"}, {"a.py::big": 29}, ["a.py::big takes 29 s at most: it is not heavy"]),
        ({"a.py::big": "heavy"}, {}, []),
        ({"a.py::first": "always"}, {"a.py::first": 99}, []),
        (
            {"a.py::here": ""},
            {"a.py::gone": 1, "b.py::not_collected": 1},
            ["a.py::gone is in durations.json, and there is no such test"],
        ),
    ],
)
def test_what_disagrees(tests: dict[str, str], seconds: dict[str, float], expected: list[str]) -> None:
    assert disagreements([Marked(*test) for test in tests.items()], seconds) == expected


CONFTEST = """
import sys
sys.path.insert(0, {folder!r})
from durations import Recorder

def pytest_configure(config):
    config.pluginmanager.register(Recorder(config))
"""
TESTS = """
import pytest, time

@pytest.fixture(scope="session")
def of_all():
    time.sleep(0.6)

@pytest.fixture(scope="module")
def of_file():
    time.sleep(0.3)

def test_first(of_all, of_file): pass
def test_second(of_file): pass
def test_without(): pass
def test_failed(of_file): assert not time.sleep(0.1), 1 / 0
def test_skipped(): pytest.skip("not here")
"""


def test_a_run_records_what_each_test_takes_alone(run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.format(folder=str(ROOT / "tests")), "utf-8")
    (tmp_path / "test_it.py").write_text(TESTS.replace("assert not", "assert"), "utf-8")
    done = run_warm("-m", "pytest", "-q", "--rootdir", str(tmp_path), str(tmp_path), cwd=tmp_path)
    assert "1 failed, 3 passed, 1 skipped" in done.out, done.out + done.err
    times = json.loads((tmp_path / ".pytest_cache" / "v" / RECORDED).read_text("utf-8"))
    quick, with_fixture = pytest.approx(0, abs=0.15), pytest.approx(0.3, abs=0.15)
    assert times == {
        "test_it.py::test_first": with_fixture,
        "test_it.py::test_second": with_fixture,
        "test_it.py::test_without": quick,
    }
