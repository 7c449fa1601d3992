"""Steps in fresh processes, where a fork is impossible: the same outcomes and verdicts as with a fork."""

import contextlib
import ctypes
import dataclasses
import threading
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import graphprobe
from graphprobe.diagnose import steps
from graphprobe.diagnose.fresh.processes import FreshProcesses, requested
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.settings import Compilation
from graphprobe.engine.forked_child import Board, Outcome, isolated
from graphprobe.engine.value_file import LARGE, ValueFile
from graphprobe.errors import SettingError
from graphprobe.findings import Diagnosis
from graphprobe.internals import after_fork

X = torch.linspace(-1, 1, 64).reshape(8, 8)
LOCK = threading.Lock()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.calls = [0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls[0] += 1
        return torch.relu(self.linear(x)).sum(-1) + torch.rand(1)


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ x) + 1


def locked(x: torch.Tensor) -> torch.Tensor:
    with LOCK:
        return x + 1


def right(gm: Any, inputs: Any) -> Any:
    return gm


def wrong(gm: Any, inputs: Any) -> Any:
    return lambda *args: tuple(value + 1 for value in gm(*args))


def crashing(gm: Any, inputs: Any) -> Any:
    return lambda *args: ctypes.string_at(0)


def hanging(gm: Any, inputs: Any) -> Any:
    def run(*args: Any) -> Any:
        while True:
            pass

    return run


def losing(gm: Any, inputs: Any) -> Any:
    """As a kernel does that ends the device: every later call of it in the process would raise, too."""

    def run(*args: Any) -> Any:
        raise RuntimeError("CUDA error: device-side assert triggered")

    return run


@pytest.fixture
def no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(after_fork.ISOLATION, "process")


def of(fn: Any, backend: Any = right, *, grad: bool | None = None) -> tuple[Program, Compilation]:
    return Program(fn, [((X,), {})], None, grad, file=ValueFile()), Compilation(backend, None, Path("unused"))


def outcome(step: partial[Any], program: Program, compilation: Compilation, limit_s: float = 300.0) -> Outcome:
    notes: list[str] = []
    processes = FreshProcesses(program, compilation, notes.append)
    with contextlib.closing(processes):
        found = processes.outcome(step, limit_s, float("inf"), Board(), lambda: None)
    assert found is not None and not notes, notes
    return found


@pytest.mark.slow
def test_a_step_gives_what_it_gives_in_a_fork() -> None:
    """Random numbers are drawn from where the program stands; large values come through the file that both have."""
    torch.manual_seed(3)
    program, compilation = of(Net(), grad=True)
    big = torch.ones(LARGE, 1).view(-1, 8)[:, :8]
    program = dataclasses.replace(program, calls=[((X,), {}), ((big,), {})])
    step = partial(steps.eager, program, unlike=False)
    forked, fresh = isolated(step), outcome(step, program, compilation)
    assert fresh.raised is None and forked.raised is None, fresh
    one, other = (msgspec.convert(outcome.value, steps.EagerReport) for outcome in (fresh, forked))
    assert (one.before, one.calls[0], one.draws) == (other.before, other.calls[0], other.draws) and one.draws
    assert program.fn.calls == [0]
    assert program.file is not None and program.file.size > big.nbytes


@pytest.mark.slow
def test_a_hang_is_told_and_ends_nothing_here() -> None:
    program, compilation = of(function, hanging)
    hang = outcome(partial(steps.plain, program, compilation), program, compilation, limit_s=3)
    assert hang.timed_out and ", in run" in hang.stack and "test_fresh.py" in hang.stack
    assert "within 3 s" in hang.end


def told(diagnosis: Diagnosis) -> tuple[Any, ...]:
    findings = [(f.kind, f.stage, f.op, f.source) for f in diagnosis.findings]
    return diagnosis.verdict, [(r.name, r.state) for r in diagnosis.rungs], findings


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("backend", "verdict", "kind"), [
    (right, "healthy", None),
    (wrong, "fault", "wrong_value"),
    (crashing, "fault", "segfault"),
    (hanging, "fault", "hang"),
    (losing, "fault", "crash_runtime"),
])  # fmt: skip
def test_same_verdict(backend: Any, verdict: str, kind: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def diagnosed(isolation: str) -> Diagnosis:
        monkeypatch.setenv(after_fork.ISOLATION, isolation)
        return graphprobe.diagnose(function, X, backend=backend, step_limit_s=10, out=tmp_path / isolation)

    forked, fresh = diagnosed("fork"), diagnosed("process")
    assert fresh.verdict == verdict, fresh.notes
    kinds = [f.kind for f in fresh.findings]
    assert set(kinds) == ({kind} if kind else set())
    assert kinds == [f.kind for f in forked.findings]
    assert told(fresh)[:2] == told(forked)[:2]


def swapped(graph: torch.fx.Graph) -> None:
    for node in graph.nodes:
        if node.target is torch.ops.aten.relu.default:
            node.target = torch.ops.aten.neg.default


@pytest.mark.heavy
def test_a_wrong_pass_is_named_with_its_line(no_fork: None, tmp_path: Path) -> None:
    with torch._inductor.config.patch(post_grad_custom_pre_pass=swapped):
        found = graphprobe.diagnose(function, X, out=tmp_path / "proofs")
    assert found.verdict == "fault", found.notes
    (finding,) = found.findings
    assert (finding.stage, finding.proof) == ("post_grad", "piece")
    line = function.__code__.co_firstlineno + 1
    assert finding.source is not None and finding.source.endswith(f"test_fresh.py:{line}")


def test_which_steps_are_asked_for() -> None:
    notes: list[str] = []
    program, compilation = of(locked)
    processes = FreshProcesses(program, compilation, notes.append)
    assert processes.outcome(partial(steps.eager, program), 60, float("inf"), Board(), lambda: None) is None
    (note,) = notes
    assert "LOCK" in note and "the steps ran in this process" in note
    program, _ = of(function)
    assert requested(partial(steps.eager, program), program, 1, 0, Board()) is not None
    assert requested(lambda: steps.eager(program), program, 1, 0, Board()) is None
    assert requested(partial(steps.eager, of(function)[0]), program, 1, 0, Board()) is None


def test_values_that_are_refused_or_told_late(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(after_fork.ISOLATION, "thread")
    with pytest.raises(SettingError, match="GRAPHPROBE_ISOLATION is 'thread'; it takes 'fork' or 'process'") as caught:
        graphprobe.diagnose(function, X, out=tmp_path / "proofs")
    assert "where that is possible" in caught.value.hint
    monkeypatch.undo()

    def lost() -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    program = Program(lambda x: x + 1, [((X,), {})], effects=False)
    assert [record.raised for record in program.run(lambda fn: fn)] == [None]
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    (record,) = program.run(lambda fn: fn)
    assert record.raised is not None and "device-side assert" in record.raised.message


@pytest.mark.cuda
@pytest.mark.heavy
def test_on_a_gpu_a_crash_is_a_finding(tmp_path: Path) -> None:
    found = graphprobe.diagnose(function, X.cuda(), backend=crashing, out=tmp_path / "proofs")
    assert (found.verdict, [f.kind for f in found.findings]) == ("fault", ["segfault"])
