"""Which piece of a program Dynamo gets wrong: the one without which the rest of it is compiled rightly."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import planted_python
import pytest
import torch

from graphprobe.diagnose.dynamo import experiment
from graphprobe.diagnose.dynamo.experiment import accused
from graphprobe.diagnose.exceptions import Culprit
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.settings import Compilation
from graphprobe.engine.forked_child import isolated
from graphprobe.internals import after_fork

COMPILATION = Compilation("inductor", None, Path("unused"))


def accused_of(function: Callable[..., Any], *args: Any, plant: Any = None, grad: bool | None = None) -> Culprit | None:
    def step() -> Culprit | None:
        random.seed(1)
        program = Program(function, [(args, {})], grad=grad)
        with (plant or torch.enable_grad)():
            return accused(program, COMPILATION)

    outcome = isolated(step)
    assert outcome.raised is None, outcome.raised.trace
    return msgspec.convert(outcome.value, Culprit | None)


def text_of(source: str | None) -> str:
    file, _, line = (source or "").rpartition(":")
    return Path(file).read_text(encoding="utf-8").splitlines()[int(line) - 1]


QUICK = ("refused", "metaclass")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case[0].__name__ in QUICK else pytest.mark.slow) for case in planted_python.CASES],
    ids=lambda case: f"{case[0].__name__}-{case[3]}",
)
def test_the_piece_is_named_with_its_line(case: planted_python.Case) -> None:
    function, args, plant, op = case
    found = accused_of(function, *args, plant=plant)
    assert found is not None
    assert op in (found.op, *found.also[:2])
    assert "# here" in text_of(found.source)


def test_what_is_right_or_does_not_run_accuses_nothing() -> None:
    assert accused_of(planted_python.rounded, *planted_python.WITH) is None
    assert accused_of(lambda x: torch._C._nothing(x), torch.ones(1)) is None


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 2

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return tangents[0] * 100


@pytest.mark.slow
def test_a_function_of_the_users_is_named_as_dynamo_calls_it() -> None:
    found = accused_of(lambda x: torch.func.jvp(Twice.apply, (x,), (x,)), torch.ones(3))
    assert found is not None
    assert (found.op, found.also[:2]) == ("autograd_function_apply", ["Twice.apply", "torch.func.jvp"])


@pytest.mark.slow
def test_functions_are_as_they_were_where_a_fork_is_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    def step() -> tuple[str, bool]:
        code = planted_python.rounded.__code__
        with monkeypatch.context() as patch, planted_python.answers(round, 7)():
            patch.setattr(after_fork, "can_fork", lambda: False)
            found = accused(Program(planted_python.rounded, [(planted_python.WITH, {})]), COMPILATION)
        return found.op if found is not None else "", planted_python.rounded.__code__ is code

    assert isolated(step).value == ["round", True]


@pytest.mark.slow
def test_few_questions_find_one_of_many_pieces() -> None:
    def many(x: torch.Tensor, n: float) -> torch.Tensor:
        y = x.sin().cos().tan().exp().sin().cos() + 1
        k = round(n)
        return (y * k).sin().cos().tan().exp().sin().cos() + 2

    def step() -> int:
        with planted_python.answers(round, 7)():
            test = experiment.Experiment(Program(many, [((torch.ones(2), 1.25), {})]), COMPILATION)
            pieces = test.pieces_run()
            found = test.accused(pieces)
        assert found is not None and found.op == "round" and len(pieces) == 16
        return test.asked

    assert isolated(step).value <= 16
