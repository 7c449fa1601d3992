"""A budget that is spent, a process that is killed, and the one that goes on: nothing twice, and the same verdict."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import graphprobe
from graphprobe.diagnose import check_case, ladder, notes, references
from graphprobe.diagnose.ladder import Ladder
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.settings import Compilation, Limits
from graphprobe.engine import memory
from graphprobe.engine.finished import FinishedSteps, Identity
from graphprobe.engine.forked_child import Outcome
from graphprobe.engine.memory import Sizes
from graphprobe.engine.memory import told as told_size
from graphprobe.errors import SettingError
from graphprobe.findings import Diagnosis, Finding, Rung, Worst, read_document
from graphprobe.judge import judging
from graphprobe.judge.uncompiled import Reference
from graphprobe.settings.limits import Alarm, TimeBudget

X = torch.linspace(-2, 2, 24).reshape(4, 6)

PROGRAM = '''
import logging
import os
import sys
import time

import torch

import graphprobe


def program(x):
    return (x * 2).relu().sum(1)


def wrong(gm, inputs):
    def run(*args):
        stop_at("compiled")
        return [value + 1 for value in gm.forward(*args)]

    return run


def stop_at(what):
    """Wait to be killed, where the test wants that."""
    if os.environ.get("STOP_AT") == what:
        open("stopped", "w").close()
        time.sleep(1000)


def told(step):
    stop_at(str(step))


log = logging.FileHandler("steps.log")
for name in ("graphprobe.diagnose.ladder", "graphprobe.engine.finished"):
    logging.getLogger(name).addHandler(log)
    logging.getLogger(name).setLevel(logging.INFO)
found = graphprobe.diagnose(program, torch.ones(4, 6), backend=wrong, out="out", on_step=told)
rungs = [(rung.name, rung.state) for rung in found.rungs]
findings = [(f.kind, f.stage, f.op, f.proof, f.dossier) for f in found.findings]
print([found.verdict, rungs, findings, found.notes])
'''

LOGGED = re.compile(r"^(\w+: \S+): [\d.]+ s$", re.MULTILINE)


def program(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).relu().sum(1)


def hanging(gm: Any, inputs: Any) -> Any:
    time.sleep(1000)
    return gm.forward


def wrong(gm: Any, inputs: Any) -> Any:
    return lambda *args: [value + 1 for value in gm.forward(*args)]


def rounded_otherwise(gm: Any, inputs: Any) -> Any:
    return lambda *args: [value * (1 + 2**-23) for value in gm.forward(*args)]


def infinite(gm: Any, inputs: Any) -> Any:
    return lambda *args: [value / 0 for value in gm.forward(*args)]


# -- the budget ------------------------------------------------------------------------------------------------------


@pytest.fixture
def told() -> list[str]:
    return []


def only_begun(told: list[str]) -> Callable[[Any], None]:
    return lambda step: None if step.seconds else told.append(step)


def test_a_step_that_hangs_is_ended_and_the_budget_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    now = 0.0

    def begun(step: Any) -> None:
        nonlocal now
        now = 50.0 if step == "kernels" else 0.0
        only_begun(told)(step)

    budget = TimeBudget(60, clock=lambda: now)
    monkeypatch.setattr("graphprobe.diagnose.api.TimeBudget", lambda seconds: budget)
    found = graphprobe.diagnose(program, X, backend=hanging, out=tmp_path / "out", on_step=begun)
    assert (found.verdict, found.exit_code, found.unfinished, found.findings) == ("undecided", 125, True, [])
    reason = found.notes[0]
    assert reason.startswith("the budget of 60 s is spent: whether the compiled program is right was not found out")
    assert "the last 10 s in the step kernels in hanging" in reason and "test_limits.py" in reason
    assert told == ["uncompiled", "kernels"], "what the user runs is the first that is compiled"
    assert [rung.state for rung in found.rungs] == ["not_run", "not_run"]


class SpentAt:
    """A budget that is spent from the moment on at which a step of that name is to run."""

    seconds, told = 60.0, "the budget of 60 s is spent"
    left_s = float("inf")

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._name = name
        monkeypatch.setattr("graphprobe.diagnose.api.TimeBudget", lambda seconds: self)
        monkeypatch.setattr(Ladder, "on_step", self._on_step(Ladder.on_step))
        self._now, self._spent = "", False

    def _on_step(self, real: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
        def on_step(made: Any, name: str) -> None:
            self._now = name
            real(made, name)

        return on_step

    def check(self) -> None:
        self._spent = self._spent or self._now == self._name
        if self._spent:
            raise ladder.NoTimeLeft(self.told)


@pytest.mark.heavy
def test_a_step_limit_makes_a_hang_of_what_a_budget_only_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SpentAt("dynamo", monkeypatch)
    found = graphprobe.diagnose(program, X, backend=hanging, out=tmp_path / "out", step_limit_s=10)
    assert (found.verdict, [finding.kind for finding in found.findings]) == ("fault", ["hang"])
    assert found.unfinished and any("what is wrong on the rungs dynamo was not" in note for note in found.notes)


@pytest.mark.parametrize("backend", [rounded_otherwise, wrong, infinite])
def test_numbers_that_differ_are_neither_right_nor_a_fault_before_rounding_is_measured(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SpentAt("float64", monkeypatch)
    found = graphprobe.diagnose(program, X, backend=backend, out=tmp_path / "out")
    assert (found.verdict, found.findings) == ("undecided", [])
    assert found.notes[0].startswith(
        "the budget of 60 s is spent: whether rounding explains what differs was not found"
    )


def endless(*args: Any, **kwargs: Any) -> Any:
    while True:
        time.sleep(0.01)


@pytest.mark.parametrize("judge", ["identical", "judged"])
def test_the_judge_is_interrupted_too(judge: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, now = Ladder._judge, 0.0

    def begun(self: Ladder, step: Any, kind: Any) -> Any:
        nonlocal now
        now = 59.5 if step.func is endless else now
        return real(self, step, kind)

    budget = TimeBudget(60, clock=lambda: now)
    monkeypatch.setattr("graphprobe.diagnose.api.TimeBudget", lambda seconds: budget)
    monkeypatch.setattr(Ladder, "_judge", begun)
    monkeypatch.setattr(ladder, judge, endless)
    found = graphprobe.diagnose(program, X, backend=wrong, out=tmp_path / "out")
    assert (found.verdict, found.unfinished) == ("undecided", True)
    assert found.notes[0].startswith("the budget of 60 s is spent: ") and "in endless" in found.notes[0]
    shown = next(rung for rung in found.rungs if rung.name == "kernels")
    text = {"identical": notes.UNSEEN, "judged": notes.UNJUDGED}[judge]
    assert shown.state == "unsure" and text in shown.difference


@pytest.mark.heavy
def test_a_judge_that_takes_longer_than_a_step_may_is_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "judged", endless)
    found = graphprobe.diagnose(program, X, backend=wrong, out=tmp_path / "out", step_limit_s=20)
    assert (found.verdict, found.unfinished, found.findings) == ("undecided", False, [])
    assert any("kernels could not be judged: it did not end within" in note for note in found.notes)


def test_the_process_that_waits_judges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long with large values is in the steps, which are ended in time."""
    asked = tmp_path / "asked"

    def noted(module: Any, name: str) -> None:
        real = getattr(module, name)

        def told(*args: Any, **kwargs: Any) -> Any:
            with asked.open("a") as file:
                file.write(f"{os.getpid()} {name}\n")
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, told)

    noted(judging, "_all_equal")
    noted(judging, "_compare_value")
    noted(references, "_is_another_program")
    found = graphprobe.diagnose(program, X, backend=rounded_otherwise, out=tmp_path / "out")
    assert found.verdict == "healthy"
    rows = [line.split() for line in asked.read_text().splitlines()]
    assert {name for _, name in rows} == {"_all_equal", "_compare_value", "_is_another_program"}
    assert str(os.getpid()) not in {pid for pid, _ in rows}


def test_a_clock_that_runs_out_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading the compiler takes a minute on a machine that has much to do."""
    now = 0.0
    loaded: list[str] = []

    def load(module: str, name: str, *, purpose: str) -> Any:
        nonlocal now
        if purpose == "a backward":  # not of the compiler
            return contextlib.nullcontext
        now += 45
        loaded.append(module)
        return None

    budget = TimeBudget(60, clock=lambda: now)
    monkeypatch.setattr("graphprobe.diagnose.api.TimeBudget", lambda seconds: budget)
    monkeypatch.setattr("graphprobe.internals.after_fork.require", load)
    found = graphprobe.diagnose(program, X, backend=wrong, out=tmp_path / "out")
    assert len(loaded) == 2, "the clock is looked at before each"
    assert (found.verdict, found.unfinished) == ("undecided", True)
    assert found.notes[0].startswith("the budget of 60 s is spent: whether the compiled program is right was not")


@pytest.mark.timeout(300, method="thread")  # the other method has the signal for itself
def test_an_alarm_comes_again_and_one_within_another_stands_in_for_it() -> None:
    rung: list[str] = []

    def ring(name: str) -> Callable[[], None]:
        def raise_it() -> None:
            rung.append(name)
            raise TimeoutError(name)

        return raise_it

    with Alarm(0.05, ring("outer")):
        with pytest.raises(TimeoutError, match="inner"), Alarm(0.01, ring("inner")):
            time.sleep(100)
        for _ in range(2):  # what is caught in the block does not silence it
            with pytest.raises(TimeoutError, match="outer"):
                time.sleep(100)
    assert rung == ["inner", "outer", "outer"]
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL)[0] == 0


@pytest.mark.timeout(300, method="thread")
def test_an_alarm_that_somebody_else_has_is_left_alone() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: came.append(number))
    try:
        with Alarm(0.001, endless):
            os.kill(os.getpid(), signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert came == [signal.SIGALRM]


@pytest.mark.parametrize("step", ["dynamo", "culprit", "proof"])
def test_a_fault_stays_one_however_little_is_found_out_of_it(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlike(gm: Any, inputs: Any) -> Any:
        import random

        def run(*args: Any) -> Any:
            random.random()
            return gm.forward(*args)

        return run

    SpentAt(step, monkeypatch)
    found = graphprobe.diagnose(program, X, backend=unlike, out=tmp_path / "out")
    assert (found.verdict, found.exit_code, found.unfinished) == ("fault", 1, True)
    assert [finding.kind for finding in found.findings] == ["side_effect"]
    assert any(note.startswith("the budget of 60 s is spent") for note in found.notes)


@pytest.mark.heavy
def test_excess_precision_that_nobody_could_tell_from_a_fault_is_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spent(self: Ladder, user: str) -> bool:
        raise ladder.NoTimeLeft("the budget of 60 s is spent")

    assert graphprobe.diagnose(program, X, backend=wrong, out=tmp_path / "a", first=True).verdict == "fault"
    monkeypatch.setattr(Ladder, "_is_excess", spent)
    found = graphprobe.diagnose(program, X, backend=wrong, out=tmp_path / "b")
    assert (found.verdict, found.unfinished) == ("undecided", True)
    assert "whether kernels only keep narrow values wider" in found.notes[0]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"budget_s": 0}, "diagnose(budget_s=…) is '0'; it takes a number of seconds above 0"),
        ({"budget_s": -5}, "'-5'; it takes a number of seconds above 0"),
        ({"budget_s": "abc"}, "'abc'; it takes a number of seconds above 0"),
        ({"step_limit_s": float("inf")}, "diagnose(step_limit_s=…) is 'inf'"),
        ({"budget_s": 60, "step_limit_s": 61}, "diagnose(step_limit_s=…) is 61, more than the 60"),
        ({"first": "yes"}, "diagnose(first=…) is 'yes'; it takes True or False"),
    ],
)
def test_values_that_make_no_sense_are_refused_first(values: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=re.escape(words)):
        graphprobe.diagnose(program, X, backend="no such backend", out=tmp_path / "out", **values)


def test_the_old_name_of_the_step_limit_is_deprecated(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="step_limit_s"):
        found = graphprobe.diagnose(program, X, backend="eager", out=tmp_path / "out", timeout_s=60)
    assert found.verdict == "healthy"


# -- the memory ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("backend", "verdict"), [(rounded_otherwise, "undecided"), ("eager", "healthy")])
def test_a_run_in_float64_that_does_not_fit_is_not_tried(
    backend: Any, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 100)
    monkeypatch.setattr(ladder, "measure", None)  # nobody asks for it
    found = graphprobe.diagnose(program, X, backend=backend, out=tmp_path / "out", on_step=only_begun(told))
    assert (found.verdict, found.findings, found.unfinished) == (verdict, [], False)
    cut = [note for note in found.notes if note.startswith("float64: predicted: ")]
    assert len(cut) == (verdict == "undecided")
    assert all("of 0 MiB: how far rounding may take the results is not known" in note for note in cut)


GIB = 1 << 30


@pytest.mark.parametrize(
    ("left", "shown", "notes"),
    [
        (100 * GIB, True, []),
        (
            8 * GIB,
            False,
            ["kernels: predicted: 9.1 GiB of memory, of 8.0 GiB: the values inside of its kernels were not shown"],
        ),
        (
            GIB,
            None,
            ["were not shown", "kernels as they are: predicted: 7.1 GiB of memory, of 1.0 GiB: it was left out"],
        ),
    ],
)
def test_the_kernels_are_looked_into_as_far_as_there_is_memory(
    left: int, shown: bool | None, notes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(memory, "free_memory", lambda: left)
    monkeypatch.setattr(ladder.steps, "kernels", lambda *args, expose, **kwargs: asked.append(expose))
    made = Ladder(Program(program, [((X,), {})]), Compilation("inductor", None, tmp_path), Limits())
    made.room.sizes = Sizes(state=GIB, run=GIB, ops=2 * GIB)
    step = made._fitting("kernels", made.looking("kernels"))
    if step is not None:
        step()
    assert asked == ([] if shown is None else [shown])
    assert len(made.result.notes) == len(notes)
    assert all(part in note for part, note in zip(notes, made.result.notes, strict=True))
    if left > GIB:
        assert made._board.read().endswith(f"of {told_size(left)}")


def test_a_process_that_the_system_ends_is_no_fault(tmp_path: Path) -> None:
    def ended(gm: Any, inputs: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    found = graphprobe.diagnose(program, X, backend=ended, out=tmp_path / "out")
    assert (found.verdict, found.findings) == ("undecided", [])
    assert "the process was ended by SIGKILL, as the system does where memory is short" in found.notes[0]


@pytest.mark.parametrize(("number", "fails"), [("SIGKILL", False), ("SIGSEGV", True)])
def test_a_piece_that_the_system_ends_proves_nothing(number: str, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_case, "isolated", lambda step, **_: Outcome(signal=number))
    case: Any = None
    assert check_case.check(case, reference=Reference([])).fails is fails


# -- the first fault -------------------------------------------------------------------------------------------------


def broken_below(gm: Any, inputs: Any) -> Any:
    return lambda *args: [value + 1 for value in gm.forward(*args)]


@pytest.mark.heavy
def test_first_leaves_the_rungs_above_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[str]) -> None:
    """Dynamo's graph is wrong: what comes later would only be wrong again."""
    real = ladder.steps.dynamo

    def as_if_wrong(*args: Any) -> Any:
        report = real(*args)
        report.calls = ladder.steps.plain(*args).calls
        return report

    monkeypatch.setattr(ladder.steps, "dynamo", as_if_wrong)
    with torch._inductor.config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}):
        found = graphprobe.diagnose(program, X, out=tmp_path / "out", first=True, on_step=only_begun(told))
    assert found.verdict == "fault"
    assert "dynamo" in told and not {"aot", "passes", "kernels"} & set(told)
    assert not found.unfinished


# -- killed, and gone on with ----------------------------------------------------------------------------------------


def run_until(folder: Path, stop_at: str, number: int) -> subprocess.CompletedProcess[str]:
    """Run the program; where it stops, end it by this signal."""
    environ = {**os.environ, "STOP_AT": stop_at}
    command = [sys.executable, "program.py"]
    process = subprocess.Popen(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    stopped = folder / "stopped"
    while stop_at and not stopped.exists() and process.poll() is None:
        time.sleep(0.05)
    if stop_at:
        process.send_signal(number)
        stopped.unlink()
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.mark.heavy
def test_a_process_that_is_killed_again_and_again_comes_to_the_same_and_does_nothing_twice(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
        (folder / "program.py").write_text(PROGRAM)
    expected = run_until(whole, "", 0)
    assert expected.returncode == 0 and expected.stdout.startswith("['fault'"), expected.stderr
    moments = (
        ("compiled", signal.SIGKILL),  # in the middle of a step
        ("float64", signal.SIGTERM),  # between two
        ("dynamo", signal.SIGINT),
        ("culprit", signal.SIGKILL),
    )
    for stop_at, number in moments:
        assert run_until(killed, stop_at, number).returncode != 0
        assert (killed / "out" / "steps" / "head").is_file()
    found = run_until(killed, "", 0)
    assert found.stdout == expected.stdout, found.stderr
    logs = [Counter(LOGGED.findall((folder / "steps.log").read_text())) for folder in (whole, killed)]
    assert logs[0] == logs[1] and "kernels: plain" in logs[1], "each step has run once, in one process or another"
    assert not (killed / "out" / "steps").exists(), "nothing is left of them once all is done"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x * 2", "x * 3"),
        pytest.param("torch.ones(4, 6)", "torch.zeros(4, 6)", marks=pytest.mark.heavy),
        pytest.param('out="out",', 'out="out", deep=True,', marks=pytest.mark.heavy),
    ],
)
def test_a_program_that_was_changed_starts_anew(old: str, new: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    run_until(tmp_path, "float64", signal.SIGKILL)
    (tmp_path / "program.py").write_text(PROGRAM.replace(old, new))
    run_until(tmp_path, "float64", signal.SIGKILL)
    steps = Counter(LOGGED.findall((tmp_path / "steps.log").read_text()))
    assert steps["kernels: plain"] == 2, steps
    assert "belongs to another program" in (tmp_path / "steps.log").read_text()


SCRIPT = """
import os
import time

import torch


def slow(gm, inputs):
    if os.environ.get("HANG"):
        time.sleep(1000)
    return gm.forward


@torch.compile(backend="eager")
def first(x):
    return x + 1


@torch.compile(backend=slow)
def second(x):
    return x * 2


print(first(torch.ones(3)), second(torch.ones(3)))
"""


def test_a_script_goes_on_where_its_budget_was_spent(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "graphprobe", "diagnose", "--budget", "30", "--json", "r.json", "script.py"]

    def run(**environ: str) -> tuple[int, dict[str, Any], str]:
        environ = {**os.environ, **environ}
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False
        )
        return done.returncode, json.loads((tmp_path / "r.json").read_text()), done.stdout + done.stderr

    code, document, text = run(HANG="1")
    assert (code, document["unfinished"]) == (125, True)
    assert [d["verdict"] for d in document["diagnoses"]] == ["healthy", "undecided"]
    assert document["ended"] == "the script was ended: the budget of 30 s is spent"
    assert "the same command goes on from there" in text and "tensor([2., 2., 2.])" not in text
    (folder,) = (tmp_path / "graphprobe-diagnosis").iterdir()
    (kept,) = folder.glob("0-first/steps/diagnosis.json")
    marked = json.loads(kept.read_text()) | {"notes": ["taken as it was"]}
    kept.write_text(json.dumps(marked))
    code, document, text = run()
    assert (code, document["unfinished"], document["ended"]) == (0, False, None)
    assert [d["verdict"] for d in document["diagnoses"]] == ["healthy", "healthy"]
    assert document["diagnoses"][0]["notes"] == ["taken as it was"]
    assert not (tmp_path / "graphprobe-diagnosis").exists()


SLOW = """
import os
import signal
import time

import torch


@torch.compile(backend="eager")
def double(x):
    return x * 2


if os.environ["WHEN"] == "after":
    double(torch.ones(3))
os.kill(os.getpid(), signal.SIGALRM)  # as if the clock had come that far
"""


@pytest.mark.parametrize(("when", "verdict"), [("before", "undecided"), ("after", "healthy")])
def test_a_script_is_ended_between_its_compiled_calls_too(when: str, verdict: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SLOW)
    command = [sys.executable, "-m", "graphprobe", "diagnose", "--budget", "600", "--json", "r.json", "script.py"]
    environ = {**os.environ, "WHEN": when}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False)
    document = json.loads((tmp_path / "r.json").read_text())
    assert [d["verdict"] for d in document["diagnoses"]] == [verdict], done.stderr
    assert (done.returncode, document["ended"]) == (125, "the script was ended: the budget of 600 s is spent")
    if when == "before":
        assert "the budget of 600 s is spent: no compiled function was called until then" in done.stdout


def test_a_program_that_takes_too_long_to_be_made_is_undecided(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\n\ndef make():\n    time.sleep(1000)\n")
    command = [sys.executable, "-m", "graphprobe", "diagnose", "--budget", "1", "slow.py:make"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 125, done.stderr
    assert "the budget of 1 s is spent: the program was not there until then" in done.stdout


def test_a_script_is_ended_at_its_first_fault(tmp_path: Path) -> None:
    text = SCRIPT.replace('backend="eager"', "backend=wrong").replace("@torch", WRONG + "@torch", 1)
    (tmp_path / "script.py").write_text(text)
    command = [sys.executable, "-m", "graphprobe", "diagnose", "--first", "--json", "r.json", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    document = json.loads((tmp_path / "r.json").read_text())
    assert (done.returncode, document["unfinished"]) == (1, False), done.stderr
    assert [d["verdict"] for d in document["diagnoses"]] == ["fault"]
    assert document["ended"] == "the script was ended: there is a first fault"


WRONG = """
def wrong(gm, inputs):
    return lambda *args: [value + 1 for value in gm.forward(*args)]


"""


def test_a_diagnosis_reads_back_as_it_was_kept() -> None:
    worst = Worst(label="output 0", index=(1, 2), expected=1.0, actual=2.0, off=float("inf"))
    finding = Finding(
        kind="nonfinite", stage="codegen", pass_="fuse", local_z=float("inf"), worst=worst, places=["a:1"]
    )
    made = Diagnosis(verdict="fault", findings=[finding], rungs=[Rung(name="plain", state="wrong")], unfinished=True)
    assert read_document(json.loads(json.dumps(made.to_json())), Diagnosis) == made


def test_a_step_whose_values_are_lost_is_run_again(tmp_path: Path) -> None:
    """Reading beyond the end of a mapped file would kill the process."""
    identity = Identity({"program": "x"}, {})
    steps = FinishedSteps(tmp_path, identity)
    values = steps.values_file
    assert values is not None and steps.outcome("one") is None
    values.write_bytes(b"12345678")
    steps.keep("one", Outcome(value=1))
    steps.leave()
    again = FinishedSteps(tmp_path, identity)
    assert again.outcome("one") is not None
    again.leave()
    values.write_bytes(b"1234")
    again = FinishedSteps(tmp_path, identity)
    assert again.outcome("one") is None
    again.leave()
