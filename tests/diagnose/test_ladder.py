"""What the user runs is run first and decides; what is seen inside of a healthy program is latent, and no more."""

import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from ladders import OFF, RUNGS, Begun, MadeUp, X, program, states, unexplained

import graphprobe
from conftest import Finished
from graphprobe.diagnose import kernel_check, notes, steps
from graphprobe.diagnose.kernel_check import CompiledGraph, check_graph
from graphprobe.diagnose.ladder import Ladder
from graphprobe.diagnose.local import Checked, LocalError, Suspect
from graphprobe.diagnose.passes import Step
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.prove import Prover
from graphprobe.diagnose.rungs import RungReport
from graphprobe.diagnose.settings import Compilation, Limits
from graphprobe.diagnose.unexplained import accuse
from graphprobe.engine import memory
from graphprobe.engine.interpret import run_graph
from graphprobe.engine.value_file import LARGE
from graphprobe.engine.values import same_bits
from graphprobe.findings import Finding, NamedStep
from graphprobe.judge import Difference

ALL_RIGHT = dict.fromkeys(RUNGS, "right")


@pytest.fixture
def told() -> Begun:
    return Begun()


def test_facts_are_told_as_they_come(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the user sees with the user's line, then each proof; of a program that is right, nothing."""
    words = 'from user code:\n  File "model.py", line 7, in f'
    wrong = {rung: [Difference("crash_compile", 0, "", "ValueError: no", log=words)] for rung in ("kernels", "plain")}
    finding = Finding(kind="crash_compile", stage="lowering", op="aten.sin", dossier="proofs/sin", proof="piece")
    report = RungReport(findings=[finding, Finding(kind="crash_compile", stage="lowering", op="aten.cos")])

    def facts_of(made: MadeUp) -> list[str]:
        told: list[NamedStep] = []
        on_step = lambda step: (made.begun.append(step), told.append(step))  # noqa: E731
        Ladder(*made.parts(tmp_path / "out"), on_step).climb(partial(accuse, explain=unexplained), lambda _: None)
        return [step.fact for step in told if step.fact]

    assert facts_of(MadeUp(monkeypatch, wrong, kernels=report)) == [
        "compiled, it raises ValueError: no, at model.py:7; looking for the smallest case …",
        "proven: Compiled, sin cannot be compiled: the compiler itself fails. Stage: lowering. "
        "python proofs/sin/repro.py",
    ]
    assert facts_of(MadeUp(monkeypatch)) == []


@pytest.mark.slow
def test_a_healthy_program_is_not_looked_into(tmp_path: Path, told: Begun) -> None:
    found = graphprobe.diagnose(program, X, out=tmp_path / "out", on_step=told.append)
    assert (found.verdict, found.exit_code, found.findings, found.latent) == ("healthy", 0, [], [])
    assert told[:2] == ["uncompiled", "plain"]
    assert set(told) <= {"uncompiled", "plain", "float64"}
    assert states(found) == {**dict.fromkeys(RUNGS, "not_run"), "plain": "right"}
    assert not (tmp_path / "out").exists() and found.raises == ""


@pytest.mark.slow
def test_deep_looks_into_it_all_the_same(tmp_path: Path, told: Begun, large: None) -> None:
    found = graphprobe.diagnose(program, X, out=tmp_path / "out", on_step=told.append, deep=True)
    assert (found.verdict, found.findings, found.latent) == ("healthy", [], [])
    assert [name for name in told if name in RUNGS] == ["plain", "dynamo", "aot", "passes", "kernels"]
    assert states(found) == ALL_RIGHT and found.compiles >= 1
    assert any(line.startswith("forward kernels") for line in found.ruled_out)


def adam(weights: list[torch.Tensor], means: list[torch.Tensor], squares: list[torch.Tensor]) -> None:
    """A step of Adam, written as `torch.optim` does for a list of parameters."""
    gradients = [w.sin() for w in weights]
    torch._foreach_mul_(means, 0.9)
    torch._foreach_add_(means, gradients, alpha=0.1)
    torch._foreach_mul_(squares, 0.99)
    torch._foreach_addcmul_(squares, gradients, gradients, 0.01)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_add_(roots, 1e-8)
    torch._foreach_addcdiv_(weights, means, roots, -1e-3)


@pytest.mark.heavy
def test_lists_that_are_written_to_are_right_on_each_rung(tmp_path: Path) -> None:
    torch.manual_seed(0)
    lists = [[torch.rand(3, 4), torch.rand(5)] for _ in range(3)]
    found = graphprobe.diagnose(adam, *lists, out=tmp_path / "out", deep=True, grad=False)
    assert (found.verdict, found.findings, found.latent) == ("healthy", [], [])
    assert states(found) == dict.fromkeys(RUNGS, "right")
    assert not [note for note in found.notes if "could not be shown" in note]


PLANTED = LocalError("worse", "wrong_value", 9e9, 9e9, "planted")


def suspect_in(graph: Any, inputs: Any, stage: Any, direction: str, pass_: str | None = None) -> Suspect:
    run = run_graph(graph, inputs)
    node = next(n for n in graph.graph.nodes if n.op == "call_function")
    return Suspect(stage, direction, graph, node, run.values, PLANTED, pass_=pass_)


def in_decompositions(graph: Any, inputs: Any, **_: Any) -> Any:
    return Checked([suspect_in(graph.graph, inputs, "decomposition", graph.direction)], checked=1)


def in_passes(log: Any, inputs: Any, direction: str) -> Step:
    if not log.snapshots:
        return Step([], [])
    return Step([suspect_in(log.snapshots[0].graph, inputs, log.phase, direction, "planted_pass")], [])


def in_kernels(compiled: Any, call: int, show: Any) -> Any:
    report = check_graph(compiled, call, show)
    report.suspects = [suspect_in(compiled.final, compiled.inputs[call], "codegen", compiled.direction)]
    return report


def in_lone_ops(suspects: Any, prover: Any) -> Any:
    return [replace(suspect, wrong_alone=True) for suspect in suspects]


def in_launches(compiled: Any, wrong: Any, suspects: Any, notes: Any, **_: Any) -> Any:
    return [*suspects, *(suspect_in(graph.final, graph.inputs[0], "codegen", graph.direction) for graph in compiled)]


CHECKS: dict[str, Callable[..., Any]] = {
    "check_decompositions": in_decompositions,
    "analyse": in_passes,
    "check_graph": in_kernels,
    "alone": in_lone_ops,
    "name_kernels": in_launches,
}


def prove(self: Prover, suspect: Suspect) -> Finding:
    return Finding(
        kind=suspect.kind,
        stage=suspect.stage,
        pass_=suspect.pass_,
        op=suspect.op,
        node=suspect.node.name,
        proof="piece",
        reason=suspect.error.reason,
    )


@pytest.mark.slow
@pytest.mark.parametrize("prover", [prove, lambda self, suspect: None], ids=["proven", "not confirmed"])
def test_suspects_of_all_checks_do_not_convict(prover: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, planted in CHECKS.items():
        monkeypatch.setattr(steps, name, planted)
    monkeypatch.setattr(Prover, "prove", prover)
    found = graphprobe.diagnose(program, X, out=tmp_path / "out", deep=True)
    assert states(found) == ALL_RIGHT
    assert (found.verdict, found.exit_code, found.findings) == ("healthy", 0, [])
    planted_in = {(one.kind, one.stage) for one in found.latent if "planted" in one.reason}
    assert planted_in >= {("wrong_value", stage) for stage in ("decomposition", "post_grad", "codegen")}
    assert all(one.op and one.node for one in found.latent)


def ending(*_: Any, **__: Any) -> RungReport:
    signal.raise_signal(signal.SIGSEGV)  # in this thread, before anything else
    raise AssertionError("it has ended")


def raising_step(*_: Any, **__: Any) -> RungReport:
    raise IndexError("list index out of range")


@pytest.mark.slow
def test_instruments_that_break_do_not_convict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole step does not say what the program did on it; a check that is part of one leaves that."""
    broken = {
        "dynamo": raising_step,
        "passes": ending,
        "check_decompositions": raising_step,
        "check_graph": raising_step,
    }
    for name, instrument in broken.items():
        monkeypatch.setattr(steps, name, instrument)
    found = graphprobe.diagnose(program, X, out=tmp_path / "out", deep=True)
    assert (found.verdict, found.findings) == ("healthy", [])
    assert states(found) == {**ALL_RIGHT, "dynamo": "not_run", "passes": "wrong"}
    told = "{} could not be looked into: IndexError: list index out of range"
    assert {told.format(name) for name in ("dynamo", "aot", "kernels")} <= set(found.notes)


def broken_graph(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


def penalty(x: torch.Tensor) -> torch.Tensor:
    (first,) = torch.autograd.grad((x.sin() * x).sum(), x, create_graph=True)
    return first.pow(2).sum()


@pytest.mark.parametrize(
    ("fn", "args", "words", "remedy"),
    [
        (torch.compile(broken_graph, backend="eager", fullgraph=True), (X,), "graph_break", "Leave out fullgraph=True"),
        (penalty, (X.clone().requires_grad_(),), "double backward", "second derivative"),
    ],
    ids=["fullgraph and a graph break", "double backward"],
)
def test_a_refusal_is_no_fault(fn: Any, args: Any, words: str, remedy: str, tmp_path: Path, told: Begun) -> None:
    backend = "aot_eager" if fn is penalty else None
    found = graphprobe.diagnose(fn, *args, backend=backend, out=tmp_path / "out", on_step=told.append)
    assert (found.verdict, found.exit_code) == ("undecided", 125)
    (finding,) = found.findings
    assert (finding.kind, finding.dossier, finding.proof) == ("unsupported", None, None)
    assert words in finding.reason and remedy in finding.reason
    assert found.notes[0] == finding.reason, "the reason stands first"
    assert [name for name in told if name in RUNGS] == ["plain"], "nothing is looked for"


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def drawing(gm: Any, inputs: Any) -> Any:
    """A backend with a fault: what it compiles moves Python's random generator."""
    import random

    def run(*args: Any) -> Any:
        random.random()
        return gm.forward(*args)

    return run


@pytest.mark.slow
@pytest.mark.usefixtures("warm_proofs")
def test_a_side_effect_has_the_program_as_its_proof(run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    found = graphprobe.diagnose(plus_one, X, backend=drawing, out=tmp_path / "out")
    assert (found.verdict, found.exit_code) == ("fault", 1)
    (finding,) = found.findings
    assert (finding.kind, finding.proof) == ("side_effect", "program")
    assert "random generator of Python" in found.rungs[-1].difference
    done = run_warm(f"{finding.dossier}/repro.py")
    assert done.code == 1, done.out + done.err


def refusing(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    if y.shape[0] == 4:
        raise ValueError("no batches of four")
    return y


def mismatched(x: torch.Tensor) -> torch.Tensor:
    return x @ x[1:]


NO_FOUR = "ValueError: no batches of four"


@pytest.mark.parametrize(
    ("fn", "raises", "note"),
    [
        (refusing, NO_FOUR, f"uncompiled and compiled it raises {NO_FOUR}$"),
        (mismatched, "RuntimeError: ", "uncompiled it raises RuntimeError: .*mat1 and mat2.*; compiled TorchRuntimeE"),
    ],
)
def test_a_program_that_raises_both_ways_is_healthy(fn: Any, raises: str, note: str, tmp_path: Path) -> None:
    found = graphprobe.diagnose(fn, X, backend="eager", out=tmp_path / "out")
    assert (found.verdict, found.findings) == ("healthy", [])
    assert found.raises.startswith(raises) and re.match(note, found.notes[0])


def rough(x: torch.Tensor) -> torch.Tensor:
    return x * 1.0 if torch.compiler.is_compiling() else (x + 1000.0) - 1000.0


def test_the_uncompiled_program_is_the_one_that_is_off(tmp_path: Path) -> None:
    found = graphprobe.diagnose(rough, torch.rand(64) + 1, backend="eager", out=tmp_path / "out")
    assert (found.verdict, found.findings) == ("healthy", [])
    assert found.notes[0].startswith("outputs[0] differs, and the uncompiled program is the one that is off: ")


def test_what_runs_agree_on_is_kept_once(tmp_path: Path) -> None:
    """Two uncompiled runs, each with parameters before and after, and gradients: in the file they lie once."""
    model, x = torch.nn.Linear(512, 512), torch.ones(1, 512)
    ladder = Ladder(Program(model, [((x,), {})], grad=True), Compilation("inductor", None, tmp_path), Limits())
    reference = ladder.uncompiled()
    assert reference is not None and len(reference.eager) == 2 and reference.eager[0][0].raised is None
    weight = model.weight.nbytes
    assert 2 * weight <= os.fstat(ladder.file._file.fileno()).st_size < 2 * weight + LARGE
    for run in reference.eager:
        assert same_bits(model.weight, run[0].inputs[1]) == []
    assert same_bits(model.weight, reference.before[0][1]) == []


PASSES_FIRST = {"dynamo": "not_run", "aot": "not_run", "passes": "right", "kernels": "wrong", "plain": "wrong"}
KERNELS_FIRST = PASSES_FIRST | {"passes": "not_run"}


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program counts as large, and references of large results are kept in a file."""
    monkeypatch.setattr(memory, "LARGE", 1)
    monkeypatch.setattr(kernel_check, "LARGE", 1)


RELU = Finding(kind="wrong_value", stage="codegen", op="aten.relu.default", proof="piece")
PASS = Finding(kind="wrong_value", stage="post_grad", pass_="a_pass", op="aten.relu.default", proof="piece")
EACH = {"dynamo": "right", "aot": "right", "passes": "wrong", "kernels": "wrong", "plain": "wrong"}


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    ("far_off", "passes", "first", "expected", "note"),
    [
        (True, "right", False, KERNELS_FIRST, [notes.KERNELS_FIRST]),
        (False, "right", False, PASSES_FIRST, [notes.SPARED]),
        (False, "wrong", False, EACH, []),
        (False, "wrong", True, EACH | {"kernels": "not_run"}, []),
    ],
)
def test_which_rungs_of_a_large_program_are_run(
    far_off: bool, passes: str, first: bool, expected: Any, note: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {"plain": [OFF], "kernels": [OFF], **({"passes": [OFF]} if passes == "wrong" else {})}
    reports = {"kernels": RungReport(findings=[RELU]), "passes": RungReport(findings=[PASS])}
    made = MadeUp(monkeypatch, wrong, far_off=far_off, **reports)
    found = made.diagnosis(tmp_path, first=first)
    assert (found.verdict, states(found), found.notes) == ("fault", expected, note)
    assert [f.stage for f in found.findings][:1] == ["codegen" if passes == "right" else "post_grad"]
    for step in made.asked:
        if step.func.__name__ == "kernels":
            assert step.keywords["everywhere"] is False and ("values" in step.keywords) is far_off


ADDS_ONE = {"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}
"""relu is x + 1."""


@pytest.mark.slow
@pytest.mark.usefixtures("large", "warm_proofs")
@pytest.mark.parametrize("far", [True, pytest.param(False, marks=pytest.mark.heavy)])
def test_what_is_wrong_in_a_large_program(far: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are shown only where no launch is far off."""
    torch.manual_seed(0)
    far_off = steps.far_off_launches

    def told(graphs: list[CompiledGraph], prover: Prover) -> list[Suspect]:  # in a child process
        found = far_off(graphs, prover)
        (tmp_path / "far_off").write_text(f"{len(found)}")
        return found

    monkeypatch.setattr(steps, "far_off_launches", told)
    x, w = (torch.randn if far else torch.rand)(160, 160), torch.randn(160, 160)
    x, w = (x, w.requires_grad_()) if far else (100 * x, w.abs().requires_grad_())
    with torch._inductor.config.patch(ADDS_ONE):
        found = graphprobe.diagnose(lambda x, w: (x @ w).relu() @ w, x, w, out=tmp_path)
    (finding,) = found.findings
    assert (finding.stage, finding.op) == ("codegen", "aten.relu.default"), found.notes
    assert states(found) == (KERNELS_FIRST if far else PASSES_FIRST)
    if far:
        assert found.notes == [notes.KERNELS_FIRST]
        assert found.ruled_out == [], "nothing but the wrong launch was looked into"
        assert finding.kernel and "alone, the result is right" in finding.reason
    else:
        assert (tmp_path / "far_off").read_text() == "0"
        assert notes.SPARED in found.notes and not any(line.startswith("passes") for line in found.ruled_out)
