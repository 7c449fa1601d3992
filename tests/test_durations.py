"""`tests/durations.py`: the marks fit the times, a run records its times, and each rule can fail."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import cases
import pytest

from conftest import ROOT, Finished, module_at
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


@pytest.fixture(scope="module")
def bench():
    return module_at("bench", "harm.py")


def test_what_differs_is_named(bench):
    program, mode = bench.PROGRAMS["mutating"], bench.Mode()
    plain = bench.Said(0, "a: 1\n", "W1121 05:08:28.185000 25 it warns\n", ("modes: 0", "outputs: 1", "rng: 2"))
    later = dataclasses.replace(plain, err="W1122 06:08:28.185000 26 it warns\ngraphprobe: missing: a file\n")
    assert bench.differences(program, mode, plain, later) == []

    def names(mode=mode, **changed):
        found = bench.differences(program, mode, plain, dataclasses.replace(plain, **changed))
        return [text.partition(":")[0] for text in found]

    assert names(evidence=("modes: 0", "outputs: 3", "rng: 2")) == ["outputs"]
    assert names(evidence=("modes: 0", "outputs: 1")) == ["rng"]
    assert names(evidence=(*plain.evidence, "more: 1")) == ["nothing"]
    assert names(code=7) == ["exit code"] and names(out="") == ["stdout"] and names(err="") == ["stderr"]
    known = bench.Mode(known=("modes",))
    assert names(known, evidence=("modes: 1", *plain.evidence[1:])) == []
    assert names(known, evidence=("modes: 1", "outputs: 3", "rng: 2")) == ["outputs"]
    assert names(bench.Mode(reports=True), code=1, out="a: 1\na report\n", err="") == []


@pytest.mark.parametrize(
    ("code", "text", "there", "found"),
    [
        (0, "", True, "opened"),
        (125, "UNDECIDED: the dump ended early", True, "opened"),
        (2, "error[run-not-found]: no run", False, "absent"),
        (2, "error[run-not-found]: no run", True, "refused"),
        (2, "error[a]: one\nerror[b]: two", False, "refused"),
        (1, "Traceback (most recent call last):", True, "a fault"),
        (125, "error[internal]: … please report it", True, "a fault"),
        (-11, "", True, "refused"),
    ],
)
def test_how_a_reader_may_end(code, text, there, found, bench):
    assert bench.verdict(code, text, there=there).startswith(found)


@pytest.mark.heavy
def test_programs_are_equal_and_stores_open(bench, tmp_path, capsys):
    started = bench.Bench(tmp_path, cold=False)
    try:
        modes = ["run", "dump tensor", "graph tensor", "profile", "explain", "interpreter"]
        assert bench.table(started, ["branching", "exits"], modes), capsys.readouterr().out
        assert bench.kills(started, 3, 0, ["run", "graph tensor"]), capsys.readouterr().out
    finally:
        started.close()
    said = capsys.readouterr().out
    assert "12 of 12 equal; 2 more differ and say so" in said
    assert "3 of 3 stores readable or absent" in said


REPRO = """
class Repro(torch.nn.Module):
    def forward(self, arg0_1, arg1_1):
        view = torch.ops.aten.view.default(arg0_1, [2, 3]);  arg0_1 = None
        getitem = view[0]
        relu = torch.ops.aten.relu.default(view);  view = None
        return (relu,)
"""


def test_cases_are_there_and_calls_left_are_those_of_the_minifiers_program(tmp_path):
    bench = module_at("bench", "diagnose.py")
    for case in bench.CASES.values():
        assert case.file in cases.names(case.folder)
    (tmp_path / "repro.py").write_text(REPRO)
    assert bench.calls_left(tmp_path / "repro.py") == ["aten.view.default", "aten.relu.default"]
