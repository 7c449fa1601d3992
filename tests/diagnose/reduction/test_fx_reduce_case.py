"""A case is reduced on disk: it ends with the smallest one, or goes on from where it was ended."""

import os
import signal
import subprocess

import pytest
from reduction import reduction_cases
from reduction.reduction_cases import calls_of, case_of, mlp, relu_fault

from conftest import ROOT, own_bytes
from graphprobe.diagnose.reduction.case_folder import JOURNAL, REPRO
from graphprobe.diagnose.reduction.load_case import load_case
from graphprobe.diagnose.reduction.problem import Problem
from graphprobe.diagnose.reduction.reduce_case import reduce_case
from graphprobe.errors import UsageError
from graphprobe.reduce import Answer, OracleVerdict

HEAVY = pytest.mark.heavy


@pytest.fixture(scope="module")
def case():
    fn, args = mlp()
    return case_of(fn, args, backend="eager")


@pytest.fixture
def reduced(case, tmp_path):
    """Reduces the case, compiled with a backend that fails on purpose, in a folder."""

    def run(name, folder="out", **options):
        return reduce_case(
            case, tmp_path / folder, backend=lambda: getattr(reduction_cases, name), timeout_s=20, **options
        )

    return run


def left(result):
    return [str(getattr(n.target, "__name__", n.target)) for n in calls_of(result.case.graph)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("raising", "crash_compile torch._dynamo.exc.BackendCompilerFailed: backend='raising' raised: | Not"),
        ("segfaulting", "segfault SIGSEGV"),
        ("adding", "wrong_value"),
        pytest.param("hanging", "hang", marks=HEAVY),
    ],
)
def test_one_call_is_left(name, signature, reduced):
    result = reduced(name)
    assert left(result) == ["relu"]
    assert result.signature.startswith(signature)
    assert result.finding.kind == signature.split()[0]
    assert result.reduction.minimal
    assert result.reduction.calls <= 12
    assert result.case.calls[0].restore()[0].numel() == 1


@pytest.mark.slow
def test_memory_that_runs_out_is_a_failure_and_stays_in_the_child(reduced):
    result = reduced("hungry", memory_bytes=own_bytes() + (1 << 29))
    assert (left(result), result.signature) == (["relu"], "crash_compile memory")


@HEAVY
def test_a_failure_that_comes_and_goes(reduced, tmp_path):
    result = reduced("flaky")
    assert left(result) == ["relu"]
    assert 0 < result.reduction.rate < 1
    assert "SETTINGS = {" in (tmp_path / "out" / REPRO / "repro.py").read_text()


def test_a_case_that_does_not_fail(tmp_path):
    fn, args = mlp(depth=2)
    result = reduce_case(case_of(fn, args, backend="eager"), tmp_path / "out", timeout_s=60)
    assert not result.reduction.failed
    assert result.case is None
    assert not (tmp_path / "out" / REPRO).exists()


def test_what_was_just_seen_is_not_asked_again(reduced, case):
    seen = Answer(OracleVerdict.FAILS, "wrong_value", "as it was", 1234.5)
    result = reduced("adding", tried=(seen, Problem.of(case, timeout_s=60)))
    assert left(result) == ["relu"]
    assert result.reduction.answers == (seen,)


@pytest.mark.slow
def test_only_what_matches_is_the_failure(reduced):
    result = reduced("raising", fail_regex="relu of graph 0x")
    assert (left(result), result.signature) == (["relu"], "crash_compile matching relu of graph 0x")


def test_hints_are_tried_first(reduced):
    result = reduced("raising", hints=["input_16"])
    assert left(result) == ["relu"]
    assert result.reduction.calls <= 7
    with pytest.raises(UsageError, match="no call named nothing"):
        reduced("raising", "other", hints=["nothing"])


@pytest.mark.slow
def test_a_budget_ends_it_with_what_was_found_and_resuming_repeats_no_question(reduced, case, tmp_path):
    first = reduced("raising", max_calls=4, resume=True)  # where nothing is, it begins
    assert first.reduction.stopped and first.reduction.calls == 4
    assert 1 < first.after < first.before
    assert (tmp_path / "out" / REPRO / "repro.py").is_file()
    original = load_case(tmp_path / "out")
    assert original.calls and len(calls_of(original.graph)) == len(calls_of(case.graph))
    assert calls_of(original.graph)[3].meta["nn_module_stack"]
    with pytest.raises(UsageError, match="holds something"):
        reduced("raising")
    with pytest.raises(UsageError, match="another case"):
        reduced("raising", resume=True, fail_regex="x")
    for replayed in (first.reduction.calls, None):
        again = reduced("raising", resume=True)
        assert left(again) == ["relu"]
        assert again.reduction.replayed == replayed or (replayed, again.reduction.calls) == (None, 0)


@pytest.mark.slow
def test_resuming_puts_right_what_was_killed_as_it_began(reduced, tmp_path):
    reduced("raising", max_calls=2)
    (tmp_path / "out" / "original").rename(tmp_path / "out" / ".original.new")
    (tmp_path / "out" / JOURNAL).unlink()
    assert left(reduced("raising", resume=True)) == ["relu"]
    assert load_case(tmp_path / "out").calls
    assert not (tmp_path / "out" / ".original.new").exists()


def test_a_command_judges(monkeypatch, tmp_path):
    monkeypatch.setattr("graphprobe.diagnose.reduction.reduce_case._Saver.shorten", lambda *_: False)  # takes processes
    fn, args = mlp(depth=4, at=2)
    command = "grep -q relu graph.txt && echo found && exit 3 || exit 0"
    for words in ("found", "lost"):
        options = {"check": command, "fail_regex": words, "timeout_s": 20}
        result = reduce_case(case_of(fn, args, backend="eager"), tmp_path / words, **options)
        assert result.reduction.failed == (words == "found")
        assert words == "lost" or left(result) == ["relu"]


REDUCING = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT / "tests" / "diagnose")!r})
from pathlib import Path
from reduction import reduction_cases
from graphprobe.diagnose.reduction.reduce_case import reduce_case
fn, args = reduction_cases.mlp()
case = reduction_cases.case_of(fn, args, backend="eager")
asked = []
def progress(p):
    asked.append(p)
    if len(asked) == int(sys.argv[2]):
        print("THERE", flush=True)
        time.sleep(60)
print("BEGINS", os.getpid(), flush=True)
result = reduce_case(
    case, Path(sys.argv[1]), backend=lambda: reduction_cases.raising, on_progress=progress, resume=True
)
print("DONE" if result.reduction.minimal else "ENDED", result.after, result.signature, flush=True)
"""


@pytest.fixture
def begun(warm, tmp_path):
    """Starts a process that reduces the case, and its id; it waits after so many questions, unless these are 0."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}

    def start(questions):
        words = [warm.executable, "-c", REDUCING, str(tmp_path / "out"), str(questions)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, env=env, text=True)
        pid = int(process.stdout.readline().removeprefix("BEGINS "))
        assert not questions or process.stdout.readline() == "THERE\n"
        return process, pid

    return start


@pytest.mark.parametrize("end", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=HEAVY)])
def test_whatever_ends_it_leaves_a_repro_and_a_journal(end, begun, reduced, tmp_path):
    out = tmp_path / "out"
    process, pid = begun(6)
    os.kill(pid, end)
    process.wait(timeout=60)
    assert (out / REPRO / "repro.py").is_file()
    answers = len((out / JOURNAL).read_text().splitlines()) - 1
    assert answers >= 6
    result = reduced("raising", resume=True)
    assert left(result) == ["relu"]
    assert result.reduction.replayed == answers


@HEAVY
@pytest.mark.parametrize(("depth", "at", "grad", "kind"), [(12, 7, False, "accuracy"), (4, 2, True, "compile_error")])
def test_a_fault_of_inductor_in_forward_or_backward_ends_as_a_repro_that_shows_it(depth, at, grad, kind, tmp_path):
    fn, args = mlp(depth=depth, at=at)
    result = reduce_case(case_of(fn, args, grad=grad, **relu_fault(kind)), tmp_path / "out", timeout_s=120)
    assert left(result) == ["relu"]
    assert result.repro_exit == 1
    assert len(calls_of(load_case(tmp_path / "out" / REPRO).graph)) == 1
