from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys

import pytest
from reduction import reduction_cases
from reduction.reduction_cases import calls_of, case_of, mlp, relu_fault

from conftest import ROOT, own_bytes
from graphprobe.diagnose.reduction.case_folder import BEST, JOURNAL, REPRO
from graphprobe.diagnose.reduction.load_case import load_case
from graphprobe.diagnose.reduction.problem import Problem
from graphprobe.diagnose.reduction.reduce_case import reduce_case
from graphprobe.errors import UsageError
from graphprobe.reduce.outcome import Answer, OracleVerdict


def reduced(name, folder, **options):
    fn, args = mlp()
    case = case_of(fn, args, backend="eager")
    return reduce_case(case, folder, backend=lambda: getattr(reduction_cases, name), timeout_s=20, **options)


def left(result):
    return [str(getattr(n.target, "__name__", n.target)) for n in calls_of(result.case.graph)]


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("raising", "crash_compile torch._dynamo.exc.BackendCompilerFailed: backend='raising' raised: | Not"),
        ("segfaulting", "segfault SIGSEGV"),
        ("adding", "wrong_value"),
    ],
)
def test_one_call_is_left(name, signature, tmp_path):
    result = reduced(name, tmp_path / "out")
    assert left(result) == ["relu"]
    assert result.signature.startswith(signature)
    assert result.reduction.minimal
    assert result.reduction.calls <= 12
    assert result.case.calls[0].restore()[0].numel() == 1


def test_memory_that_runs_out_is_a_failure_and_stays_in_the_child(tmp_path):
    result = reduced("hungry", tmp_path / "out", memory_bytes=own_bytes() + (1 << 29))
    assert left(result) == ["relu"]
    assert result.signature == "crash_compile memory"


@pytest.mark.heavy
def test_a_hang_is_a_failure(tmp_path):
    result = reduced("hanging", tmp_path / "out")
    assert left(result) == ["relu"]
    assert result.signature == "hang"
    assert result.finding.kind == "hang"


@pytest.mark.heavy
def test_a_failure_that_comes_and_goes(tmp_path):
    result = reduced("flaky", tmp_path / "out")
    assert left(result) == ["relu"]
    assert 0 < result.reduction.rate < 1
    assert "SETTINGS = {" in (tmp_path / "out" / REPRO / "repro.py").read_text()


def test_a_case_that_does_not_fail(tmp_path):
    fn, args = mlp(depth=2)
    result = reduce_case(case_of(fn, args, backend="eager"), tmp_path / "out", timeout_s=60)
    assert not result.reduction.failed
    assert result.case is None
    assert not (tmp_path / "out" / REPRO).exists()


def test_what_was_just_seen_is_not_asked_again(tmp_path):
    fn, args = mlp()
    case = case_of(fn, args, backend="eager")
    seen = Answer(OracleVerdict.FAILS, "wrong_value", "as it was", 1234.5)
    tried = (seen, Problem.of(case, timeout_s=60))
    result = reduce_case(case, tmp_path / "out", backend=lambda: reduction_cases.adding, timeout_s=20, tried=tried)
    assert left(result) == ["relu"]
    assert result.reduction.answers == (seen,)


def test_resuming_where_nothing_is_begins(tmp_path):
    result = reduced("raising", tmp_path / "out", max_calls=2, resume=True)
    assert result.reduction.calls == 2
    assert load_case(tmp_path / "out").calls


def test_resuming_puts_right_what_was_killed_as_it_began(tmp_path):
    """The process was killed before the original lay there whole."""
    reduced("raising", tmp_path / "out", max_calls=2)
    (tmp_path / "out" / "original").rename(tmp_path / "out" / ".original.new")
    (tmp_path / "out" / JOURNAL).unlink()
    assert left(reduced("raising", tmp_path / "out", resume=True)) == ["relu"]
    assert load_case(tmp_path / "out").calls
    assert not (tmp_path / "out" / ".original.new").exists()


def test_only_what_matches_is_the_failure(tmp_path):
    result = reduced("raising", tmp_path / "out", fail_regex="relu of graph 0x")
    assert left(result) == ["relu"]
    assert result.signature == "crash_compile matching relu of graph 0x"


def test_a_budget_ends_it_with_what_was_found(tmp_path):
    result = reduced("raising", tmp_path / "out", max_calls=4)
    assert result.reduction.stopped
    assert 1 < result.after < result.before
    assert (tmp_path / "out" / REPRO / "repro.py").is_file()


def test_resuming_repeats_no_question(tmp_path):
    first = reduced("raising", tmp_path / "out", max_calls=5)
    second = reduced("raising", tmp_path / "out", resume=True)
    assert left(second) == ["relu"]
    assert second.reduction.replayed == first.reduction.calls
    third = reduced("raising", tmp_path / "out", resume=True)
    assert (third.reduction.calls, left(third)) == (0, ["relu"])


def test_resuming_another_case_is_refused(tmp_path):
    reduced("raising", tmp_path / "out", max_calls=3)
    with pytest.raises(UsageError, match="holds something"):
        reduced("raising", tmp_path / "out")
    with pytest.raises(UsageError, match="another case"):
        reduced("raising", tmp_path / "out", resume=True, fail_regex="x")


def test_hints_are_tried_first(tmp_path):
    result = reduced("raising", tmp_path / "out", hints=["input_16"])
    assert left(result) == ["relu"]
    assert result.reduction.calls <= 7
    with pytest.raises(UsageError, match="no call named nothing"):
        reduced("raising", tmp_path / "other", hints=["nothing"])


def test_a_command_judges(tmp_path):
    fn, args = mlp(depth=4, at=2)
    case = case_of(fn, args, backend="eager")
    command = "grep -q relu graph.txt && echo found && exit 3 || exit 0"
    result = reduce_case(case, tmp_path / "out", check=command, fail_regex="found", timeout_s=20)
    assert left(result) == ["relu"]
    other = reduce_case(case, tmp_path / "other", check=command, fail_regex="lost", timeout_s=20)
    assert not other.reduction.failed


KILLED = """
import sys
import time
sys.path.insert(0, {diagnose!r})
from pathlib import Path
from reduction import reduction_cases
from graphprobe.diagnose.reduction.reduce_case import reduce_case
fn, args = reduction_cases.mlp()
case = reduction_cases.case_of(fn, args, backend="eager")
asked = []
def progress(p):
    asked.append(p)
    if len(asked) == 6:
        print("SIX", flush=True)
        time.sleep(60)
reduce_case(case, Path({out!r}), backend=lambda: reduction_cases.raising, on_progress=progress, resume={resume})
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.heavy)])
def test_whatever_ends_it_leaves_a_repro_and_a_journal(end, tmp_path):
    out = tmp_path / "out"
    code = KILLED.format(diagnose=str(ROOT / "tests" / "diagnose"), out=str(out), resume=False)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env, text=True)
    assert process.stdout is not None
    assert "SIX" in process.stdout.readline()
    process.send_signal(end)
    process.wait(timeout=60)
    assert (out / REPRO / "repro.py").is_file()
    assert (out / BEST).is_file()
    answers = len((out / JOURNAL).read_text().splitlines()) - 1
    assert answers >= 6
    result = reduced("raising", out, resume=True)
    assert left(result) == ["relu"]
    assert result.reduction.replayed == answers


ANY_MOMENT = """
import sys
sys.path.insert(0, {diagnose!r})
from pathlib import Path
from reduction import reduction_cases
from graphprobe.diagnose.reduction.reduce_case import reduce_case
fn, args = reduction_cases.mlp()
case = reduction_cases.case_of(fn, args, backend="eager")
out = Path({out!r})
print("BEGINS", flush=True)
result = reduce_case(case, out, backend=lambda: reduction_cases.raising, resume=True)
print("DONE" if result.reduction.minimal else "ENDED", result.after, result.signature, flush=True)
"""


@pytest.mark.heavy
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_killed_again_and_again_at_any_moment_it_still_gets_there(end, tmp_path):
    """At every moment the repro on disk is whole; what was answered is never asked again; it ends as without kills."""
    out = tmp_path / "out"
    code = ANY_MOMENT.format(diagnose=str(ROOT / "tests" / "diagnose"), out=str(out))
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    rng = random.Random(7)
    kills = 0
    while True:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env, text=True)
        assert process.stdout is not None
        assert "BEGINS" in process.stdout.readline()
        if kills < 6:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0.0, 4.0 + 2 * kills))
            process.send_signal(end)
            kills += 1
        said = process.communicate(timeout=120)[0]
        assert process.returncode in (0, 1, -end, 130)
        if (out / REPRO).exists():
            compile((out / REPRO / "repro.py").read_text(), "repro.py", "exec")
            assert calls_of(load_case(out / REPRO).graph)
        if "DONE" in said:
            break
    assert kills >= 2
    assert said.startswith("DONE 1 crash_compile")
    lines = [json.loads(line) for line in (out / JOURNAL).read_text().splitlines()[1:]]
    asked = [line["digest"] for line in lines if line["by"] not in ("original", "confirm")]
    assert len(asked) == len(set(asked))
    whole = reduced("raising", tmp_path / "whole")
    assert whole.reduction.calls == len(lines)


@pytest.mark.heavy
def test_a_fault_of_inductor_ends_as_a_repro_that_shows_it(tmp_path):
    fn, args = mlp()
    result = reduce_case(case_of(fn, args, **relu_fault("accuracy")), tmp_path / "out", timeout_s=120)
    assert left(result) == ["relu"]
    assert result.repro_exit == 1
    again = load_case(tmp_path / "out" / REPRO)
    assert len(calls_of(again.graph)) == 1


@pytest.mark.heavy
def test_a_fault_in_the_backward(tmp_path):
    fn, args = mlp(depth=4, at=2)
    case = case_of(fn, args, grad=True, **relu_fault("compile_error"))
    result = reduce_case(case, tmp_path / "out", timeout_s=120)
    assert left(result) == ["relu"]
    assert result.repro_exit == 1


def test_the_original_is_kept_and_found_again(tmp_path):
    reduced("raising", tmp_path / "out", max_calls=3)
    case = load_case(tmp_path / "out")
    fn, args = mlp()
    assert len(calls_of(case.graph)) == len(calls_of(case_of(fn, args, backend="eager").graph))
    assert calls_of(case.graph)[3].meta["nn_module_stack"]
