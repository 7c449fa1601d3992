"""A budget that is spent, limits of time and memory: what is known by then is the verdict."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ladders import LATE, OFF, MadeUp, X, program, states

import graphprobe
from conftest import Finished
from graphprobe.diagnose import check_case, ladder, notes, references, unexplained
from graphprobe.diagnose.exceptions import Origin
from graphprobe.diagnose.ladder import Ladder
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.rungs import RungReport
from graphprobe.diagnose.settings import Compilation, Limits
from graphprobe.engine import memory
from graphprobe.engine.forked_child import Outcome
from graphprobe.engine.memory import Sizes
from graphprobe.errors import SettingError
from graphprobe.findings import Diagnosis, Finding, Rung, Worst, read_document
from graphprobe.judge import Difference, Reference
from graphprobe.settings import text_from_size
from graphprobe.settings.limits import Alarm, NoTimeLeft, TimeBudget

SPENT = "the budget of 60 s is spent: "
NOT_FOUND_OUT = SPENT + "whether the compiled program is right was not found out"
WRONG_PLAIN = {"plain": [OFF]}


def test_a_step_that_hangs_spends_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeUp(monkeypatch, plain=LATE)
    found = made.diagnosis(tmp_path / "out", backend="other")
    assert (found.verdict, found.exit_code, found.unfinished, found.findings) == ("undecided", 125, True, [])
    assert found.notes[0] == f"{NOT_FOUND_OUT}; the last 60 s in the step plain in hanging (program.py:3)"
    assert made.begun == ["uncompiled", "plain"], "what the user runs is the first that is compiled"
    assert states(found) == {"dynamo": "not_run", "plain": "not_run"}


def test_what_is_known_by_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = MadeUp(monkeypatch, plain=LATE, spent_at="dynamo").diagnosis(tmp_path / "out", timeout_s=10)
    assert (found.verdict, [finding.kind for finding in found.findings]) == ("fault", ["hang"])
    assert found.unfinished and any("what is wrong on the rungs dynamo, aot" in note for note in found.notes)
    made = MadeUp(monkeypatch, spent_at="uncompiled")
    found = made.diagnosis(tmp_path / "out")
    assert (found.verdict, found.exit_code, found.unfinished) == ("undecided", 125, True)
    assert made.begun == ["uncompiled"] and found.notes[0].startswith(NOT_FOUND_OUT)
    found = MadeUp(monkeypatch, WRONG_PLAIN, spent_at="float64").diagnosis(tmp_path / "out")
    assert (found.verdict, found.findings) == ("undecided", [])
    assert found.notes[0].startswith(SPENT + "whether rounding explains what differs was not found")
    found = MadeUp(monkeypatch, WRONG_PLAIN, judged=LATE).diagnosis(tmp_path / "out", timeout_s=20)
    assert (found.verdict, found.unfinished, found.findings) == ("undecided", False, [])
    assert any("plain could not be judged: it did not end within" in note for note in found.notes)
    found = MadeUp(monkeypatch, plain=Outcome(signal="SIGKILL")).diagnosis(tmp_path / "out")
    assert (found.verdict, found.findings) == ("undecided", [])
    assert "the process was ended by SIGKILL, as the system does where memory is short" in found.notes[0]


@pytest.mark.parametrize(("judge", "text"), [("identical", notes.UNSEEN), ("judged", notes.UNJUDGED)])
def test_the_judge_is_interrupted_too(judge: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = MadeUp(monkeypatch, WRONG_PLAIN, **{judge: LATE}).diagnosis(tmp_path / "out")
    assert (found.verdict, found.unfinished) == ("undecided", True)
    assert found.notes[0].startswith(SPENT) and "in hanging" in found.notes[0]
    assert found.rungs[-1].state == "unsure" and text in found.rungs[-1].difference


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

    noted(ladder, "identical")
    noted(ladder, "judged")
    noted(references, "_is_another_program")
    found = graphprobe.diagnose(program, X, backend=rounded_otherwise, out=tmp_path / "out")
    assert found.verdict == "healthy"
    rows = [line.split() for line in asked.read_text().splitlines()]
    assert {name for _, name in rows} == {"identical", "judged", "_is_another_program"}
    assert str(os.getpid()) not in {pid for pid, _ in rows}


def rounded_otherwise(gm: Any, inputs: Any) -> Any:
    return lambda *args: [value * (1 + 2**-23) for value in gm.forward(*args)]


def test_a_clock_that_runs_out_while_the_compiler_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading takes a minute on a machine that has much to do."""
    now = 0.0
    loaded: list[str] = []

    def load(module: str, name: str, *, purpose: str) -> None:
        nonlocal now
        now += 45
        loaded.append(module)

    monkeypatch.setattr("graphprobe.internals.after_fork.require", load)
    with pytest.raises(NoTimeLeft):
        ladder.after_fork.preload(TimeBudget(60, clock=lambda: now).check)
    assert len(loaded) == 2, "the clock is looked at before each"


@pytest.mark.timeout(300, method="thread")  # the other method has the signal for itself
def test_alarms() -> None:
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
    came: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: came.append(number))
    try:
        with Alarm(0.001, lambda: None):
            os.kill(os.getpid(), signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert came == [signal.SIGALRM]


@pytest.mark.parametrize("step", ["dynamo", "culprit", "proof"])
def test_a_fault_stays_one_whatever_is_found_out(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = Difference("side_effect", 0, "the random generator of Python", "it was moved")
    made = MadeUp(monkeypatch, {"plain": [moved]}, spent_at=step)
    explain = unexplained.findings_for if step == "culprit" else None
    found = made.diagnosis(tmp_path / "out", backend="other", explain=explain)
    assert (found.verdict, found.exit_code, found.unfinished) == ("fault", 1, True)
    assert [finding.kind for finding in found.findings] == ["side_effect"] and step in made.begun
    assert any(note.startswith("the budget of 60 s is spent") for note in found.notes)


@pytest.mark.parametrize("named", [True, False])
def test_what_an_error_names_after_the_budget(named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raised = Difference("crash_compile", 0, "", "LoweringException: tile mismatch")
    place = {"op": "aten.cumsum.default", "module": "7", "within": "7 (Block) of Sequential"} if named else {}
    report = RungReport(origin=Origin(stage="lowering", source="train.py:52", **place))  # type: ignore[arg-type]
    made = MadeUp(monkeypatch, {"plain": [raised]}, spent_at="culprit", plain=report)
    found = made.diagnosis(tmp_path / "out", explain=unexplained.findings_for)
    note = "; ".join(note for note in found.notes if note.startswith(SPENT))
    assert ("torch's error names stage and op; no smaller program was tried" in note) == named
    assert ("which stage, pass and op is to blame was not found out" in note) != named
    assert found.findings[0].module_in_words == ("module 7 (Block) of Sequential" if named else "")


def test_excess_precision_or_a_fault_is_undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(reference: Reference, *_: object, **__: object) -> list[str]:
        reference.rounded = [reference.eager[0]]
        return []

    assert MadeUp(monkeypatch, WRONG_PLAIN).diagnosis(tmp_path / "a").verdict == "fault"
    made = MadeUp(monkeypatch, WRONG_PLAIN, spent_at="rounded")
    monkeypatch.setattr(ladder, "measure", narrow)
    found = made.diagnosis(tmp_path / "b")
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


@pytest.mark.parametrize(("wrong", "verdict"), [(WRONG_PLAIN, "undecided"), ({}, "healthy")])
def test_a_float64_run_does_not_fit(wrong: Any, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 100)
    made = MadeUp(monkeypatch, wrong)
    found = made.diagnosis(tmp_path / "out")
    assert (found.verdict, found.findings, found.unfinished) == (verdict, [], False)
    assert "in_float64" not in made.names
    cut = [note for note in found.notes if note.startswith("float64: predicted: ")]
    assert len(cut) == (verdict == "undecided")
    assert all("of 100 B: how far rounding may take the results is not known" in note for note in cut)


GIB = 1 << 30
NOT_SHOWN = "the values inside of its kernels were not shown"


@pytest.mark.parametrize(
    ("left", "shown", "notes"),
    [
        (100 * GIB, True, []),
        (8 * GIB, False, [f"kernels: predicted: 9.1 GiB of memory, of 8 GiB: {NOT_SHOWN}"]),
        (GIB, None, [NOT_SHOWN, "kernels as they are: predicted: 7.1 GiB of memory, of 1 GiB: it was left out"]),
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
        assert made.runner.board.read().endswith(f"of {text_from_size(left)}")


@pytest.mark.parametrize(("number", "fails"), [("SIGKILL", False), ("SIGSEGV", True)])
def test_a_piece_that_the_system_ends_proves_nothing(number: str, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_case, "isolated", lambda step, **_: Outcome(signal=number))
    case: Any = None
    assert check_case.check(case, reference=Reference([])).fails is fails


def test_first_leaves_the_rungs_above_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo's graph is wrong: what comes later would only be wrong again."""
    made = MadeUp(monkeypatch, {**WRONG_PLAIN, "dynamo": [OFF]})
    found = made.diagnosis(tmp_path / "out", first=True)
    assert (found.verdict, found.unfinished) == ("fault", False)
    assert "dynamo" in made.begun and not {"aot", "passes", "kernels"} & set(made.begun)


SCRIPT = """
import os, time
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


Diagnosed = Callable[..., tuple[Finished, dict[str, Any]]]


@pytest.mark.slow
def test_a_script_ends_where_its_budget_is_spent(diagnosed: Diagnosed, tmp_path: Path) -> None:
    done, document = diagnosed("--budget", "15", "script.py", text=SCRIPT, code=125, env={"HANG": "1"})
    assert document["unfinished"] is True
    assert [d["verdict"] for d in document["diagnoses"]] == ["healthy", "undecided"]
    assert document["ended"] == "the script was ended: the budget of 15 s is spent"
    assert "s in the step plain in slow (" in document["diagnoses"][1]["notes"][0]
    assert "tensor([2., 2., 2.])" not in done.out and not (tmp_path / "graphprobe-diagnosis").exists()


SLOW = """
import os, signal
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
def test_a_script_is_ended_between_its_compiled_calls_too(when: str, verdict: str, diagnosed: Diagnosed) -> None:
    done, document = diagnosed("--budget", "600", "script.py", text=SLOW, code=125, env={"WHEN": when})
    assert [d["verdict"] for d in document["diagnoses"]] == [verdict], done.err
    assert document["ended"] == "the script was ended: the budget of 600 s is spent"
    if when == "before":
        assert "the budget of 600 s is spent: no compiled function was called until then" in done.out


def test_a_program_that_takes_too_long_to_be_made_is_undecided(diagnosed: Diagnosed, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\n\ndef make():\n    time.sleep(1000)\n")
    done, _ = diagnosed("--budget", "1", "slow.py:make", code=125)
    assert "the budget of 1 s is spent: the program was not there until then" in done.out


WRONG = """
def wrong(gm, inputs):
    return lambda *args: [value + 1 for value in gm.forward(*args)]


"""


@pytest.mark.slow
def test_a_script_is_ended_at_its_first_fault(diagnosed: Diagnosed) -> None:
    text = SCRIPT.replace('backend="eager"', "backend=wrong").replace("@torch", WRONG + "@torch", 1)
    _, document = diagnosed("--first", "script.py", text=text, code=1)
    assert (document["unfinished"], [d["verdict"] for d in document["diagnoses"]]) == (False, ["fault"])
    assert document["ended"] == "the script was ended: there is a first fault"


def test_a_diagnosis_reads_back_as_it_was_kept() -> None:
    worst = Worst(label="output 0", index=(1, 2), expected=1.0, actual=2.0, off=float("inf"))
    finding = Finding(
        kind="nonfinite", stage="codegen", pass_="fuse", local_z=float("inf"), worst=worst, places=["a:1"]
    )
    made = Diagnosis(verdict="fault", findings=[finding], rungs=[Rung(name="plain", state="wrong")], unfinished=True)
    assert read_document(json.loads(json.dumps(made.to_json())), Diagnosis) == made
