"""`watch` on small trainings: each fault is named with its step, operation, line and module; each twin is silent."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import graphprobe
from graphprobe.errors import UsageError
from watch.trainings import (
    Gate,
    Perceptron,
    Recurrent,
    SmallGPT,
    Training,
    numbers_of,
    sequences_of,
    tokens_of,
    wrong_after,
    wrong_for,
)

GPT = Training(SmallGPT, tokens_of)
MLP = Training(Perceptron, numbers_of)
LSTM = Training(Recurrent, sequences_of)


def watched(training: Training, steps: int, folder: Path, **options: Any) -> tuple[Any, Any]:
    """The answer of a watched training, and what came of it."""
    with graphprobe.watch(out_dir=folder, quiet=True, **{"every": 5, "budget_s": 120.0, **options}) as watch:
        came = training.run(steps)
    assert watch.step == steps if training.scaler is None else watch.step <= steps
    return watch.answer, came


def same(a: Any, b: Any) -> bool:
    return a[0] == b[0] and all(torch.equal(x, y) for x, y in zip(a[1], b[1], strict=True))


def line_of(text: str, file: str = "trainings.py") -> str:
    """`trainings.py:12` of the line that has this text."""
    lines = (Path(__file__).parent / file).read_text("utf-8").splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if text in line]
    return f"{file}:{number}"


def overflow(model: nn.Module, step: int) -> None:
    if step == 12:
        gate = next(m for m in model.modules() if isinstance(m, Gate))
        gate.scale.fill_(1e4)


def spoil(model: nn.Module, step: int) -> None:
    if step == 12:
        with torch.no_grad():
            next(p for name, p in model.named_parameters() if p.dim() == 2)[1, 2] = float("nan")


def test_an_overflow_is_named_with_step_operation_line_and_module(tmp_path: Path) -> None:
    answer, _ = watched(replace(GPT, before=overflow), 14, tmp_path)
    assert (answer.kind, answer.step, answer.uncompiled) == ("nan", 12, "yes")
    assert answer.operation.op == "torch.exp"
    assert answer.operation.source.endswith(line_of("grown = torch.exp(x"))
    assert answer.operation.module == "blocks.0.gate (Gate)"
    assert answer.call.endswith("call 12")
    assert Path(answer.inputs).is_file()
    assert [seen.step for seen in answer.ring][-3:] == [10, 11, 12]


@pytest.mark.parametrize("training", [GPT, MLP, LSTM], ids=["gpt", "mlp", "lstm"])
def test_a_healthy_training_is_silent_and_the_same_to_the_last_bit(training: Training, tmp_path: Path) -> None:
    plain = training.run(40)
    answer, came = watched(training, 40, tmp_path, on="nan,spike=10,exception,signal")
    assert answer is None
    assert same(plain, came)


@pytest.mark.slow
@pytest.mark.parametrize("training", [GPT, MLP, LSTM], ids=["gpt", "mlp", "lstm"])
def test_a_thousand_healthy_steps_trigger_nothing(training: Training, tmp_path: Path) -> None:
    answer, _ = watched(training, 1000, tmp_path, every=100, on="nan,spike=100,exception,signal")
    assert answer is None


@pytest.mark.slow
def test_a_training_with_workers_dropout_and_accumulation_is_the_same(tmp_path: Path) -> None:
    tokens = TensorDataset(torch.cat([tokens_of(step) for step in range(1, 25)]))

    def training() -> Training:
        drawn = torch.Generator().manual_seed(3)
        loader = DataLoader(tokens, batch_size=4, shuffle=True, num_workers=2, generator=drawn)
        batches = iter(loader)
        return Training(lambda: SmallGPT(dropout=0.2), lambda step: next(batches)[0], accumulate=2)

    plain = training().run(10)
    answer, came = watched(training(), 10, tmp_path)
    assert answer is None
    assert same(plain, came)


def test_a_bad_batch_is_told_as_the_argument(tmp_path: Path) -> None:
    def batch(step: int) -> torch.Tensor:
        return numbers_of(step) * (float("nan") if step == 9 else 1.0)

    answer, _ = watched(replace(MLP, batch=batch), 10, tmp_path)
    assert (answer.step, answer.uncompiled) == (9, "yes")
    assert answer.state[0].startswith("tensor 0 of the arguments of Perceptron")
    assert answer.operation is None


def test_a_large_batch_is_told_as_the_operation_that_overflows(tmp_path: Path) -> None:
    def batch(step: int) -> torch.Tensor:
        return numbers_of(step).sign() * 3e38 if step == 9 else numbers_of(step)

    answer, _ = watched(replace(MLP, batch=batch), 10, tmp_path)
    assert (answer.step, answer.uncompiled) == (9, "yes")
    assert answer.operation.source.endswith(line_of("return self.fc2(torch.relu("))


@pytest.mark.slow
def test_a_wrong_kernel_for_a_late_shape_is_the_compilers(tmp_path: Path) -> None:
    def batch(step: int) -> torch.Tensor:
        return tokens_of(step, rows=3 if step == 11 else 4)

    training = replace(GPT, batch=batch, backend=wrong_for(3, lambda loss: loss * float("nan")))
    answer, _ = watched(training, 12, tmp_path)
    assert (answer.step, answer.uncompiled) == (11, "no")
    assert answer.diagnosis["verdict"] == "fault"
    assert "backend_with_a_wrong_kernel" in answer.diagnosis["findings"][0]["backend"]
    assert Path(answer.dossier, "repro.py").is_file()


@pytest.mark.slow
def test_a_wrong_value_for_a_late_shape_is_a_spike_of_the_compilers(tmp_path: Path) -> None:
    def batch(step: int) -> torch.Tensor:
        return tokens_of(step, rows=3 if step == 25 else 4)

    training = replace(GPT, batch=batch, backend=wrong_for(3, lambda loss: loss * 100))
    answer, _ = watched(training, 26, tmp_path, on="spike=10")
    assert (answer.kind, answer.step, answer.uncompiled) == ("spike", 25, "no")


def test_code_that_goes_wrong_later_is_the_compilers_though_afresh_it_is_right(tmp_path: Path) -> None:
    answer, _ = watched(replace(MLP, backend=wrong_after(7)), 9, tmp_path)
    assert (answer.step, answer.uncompiled) == (8, "no")
    assert answer.diagnosis["verdict"] == "healthy"
    assert any("Compiled afresh, the function is right" in note for note in answer.notes)


def test_a_spike_of_the_program_is_not_laid_on_the_compiler(tmp_path: Path) -> None:
    def batch(step: int) -> torch.Tensor:
        return sequences_of(step) * (1000.0 if step == 25 else 1.0)

    def grow(model: nn.Module, step: int) -> None:
        if step == 25:
            model.get_parameter("head.weight").data.mul_(100)

    answer, _ = watched(replace(LSTM, batch=batch, before=grow), 26, tmp_path, on="spike=10")
    assert (answer.kind, answer.step, answer.uncompiled) == ("spike", 25, "yes")


def test_a_spoilt_parameter_is_named_with_the_steps_between_which_it_was_spoilt(tmp_path: Path) -> None:
    answer, _ = watched(replace(MLP, before=spoil), 14, tmp_path)
    assert (answer.step, answer.state) == (12, ["fc1.weight"])

    def batch(step: int) -> torch.Tensor:  # row 1 is not used before step 16
        tokens = tokens_of(step)
        return tokens if step >= 16 else tokens.masked_fill(tokens == 1, 2)

    late = replace(Training(nn.Module, batch), make=SparseSmallGPT, before=spoil_row)
    answer, _ = watched(late, 17, tmp_path)
    assert (answer.step, answer.state) == (16, ["tok.weight"])
    assert any("tok.weight was finite before step 10, and not before step 15" in note for note in answer.notes)


class SparseSmallGPT(SmallGPT):
    """Its loss reads no row of the embedding but those of the batch."""


def spoil_row(model: nn.Module, step: int) -> None:
    if step == 12:
        with torch.no_grad():
            model.get_parameter("tok.weight")[1] = float("nan")


@pytest.mark.parametrize("backend", ["eager", None])
def test_an_exception_is_named_with_its_line_and_goes_on_its_way(backend: Any, tmp_path: Path) -> None:
    def batch(step: int) -> torch.Tensor:
        return tokens_of(step) + (1000 if step == 6 else 0)

    with pytest.raises(IndexError), graphprobe.watch(out_dir=tmp_path, quiet=True) as watch:
        replace(GPT, batch=batch, backend=backend).run(8)
    answer = watch.answer
    assert answer is not None and answer.operation is not None
    assert (answer.kind, answer.step, answer.uncompiled) == ("exception", 6, "yes")
    assert answer.operation.op.startswith("IndexError")
    assert answer.operation.source.endswith(line_of("x = self.tok(tokens)"))


def test_a_nan_of_inference_is_found_and_infinities_of_masks_are_none(tmp_path: Path) -> None:
    def masked(x: torch.Tensor) -> torch.Tensor:
        return torch.log(x)

    with torch.no_grad(), graphprobe.watch(out_dir=tmp_path, quiet=True) as watch:
        compiled = torch.compile(masked, backend="eager")
        compiled(torch.zeros(3))
        assert watch.answer is None
        compiled(torch.full((3,), -1.0))
    assert watch.answer is not None and watch.answer.operation is not None
    assert watch.answer.operation.op == "torch.log"


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, partial(torch.optim.AdamW, fused=True)], ids=["sgd", "fused"])
def test_a_step_that_a_scaler_leaves_out_is_no_trigger(optimizer: Any, tmp_path: Path) -> None:
    def batch(step: int) -> torch.Tensor:
        return numbers_of(step) * (float("inf") if step in (4, 9) else 1.0)

    def training() -> Training:
        return replace(MLP, batch=batch, scaler=torch.amp.GradScaler("cpu"), optimizer=optimizer)

    plain = training().run(12)
    answer, came = watched(training(), 12, tmp_path)
    assert answer is None
    assert str(plain) == str(came)


@pytest.mark.parametrize(
    "training",
    [
        Training(lambda: SmallGPT(dropout=0.2), tokens_of, backend="aot_eager"),
        Training(Perceptron, numbers_of, accumulate=3),
        Training(Recurrent, sequences_of, backend=None),
    ],
    ids=["dropout", "accumulation", "uncompiled"],
)
def test_after_a_trigger_the_program_goes_on_as_without(training: Training, tmp_path: Path) -> None:
    training = replace(training, before=spoil)
    plain = training.run(15)
    answer, came = watched(training, 15, tmp_path)
    assert answer is not None and answer.step == 12
    assert str(plain) == str(came)


def test_a_compiled_step_of_the_optimizer_is_left_alone(tmp_path: Path) -> None:
    def run() -> torch.Tensor:
        weight = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        step = torch.compile(lambda: optimizer.step(), backend="eager")
        for _ in range(3):
            weight.grad = weight.detach() * 2
            step()
        return weight.detach()

    plain = run()
    torch.compiler.reset()
    with graphprobe.watch(out_dir=tmp_path, quiet=True) as watch:
        assert torch.equal(run(), plain)
    assert watch.answer is None


@pytest.mark.parametrize("given", ["nana", "spike", "spike=x", "spike=0.5", "nan=3"])
def test_what_is_no_trigger_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="watch"):
        graphprobe.watch(on=given)


@pytest.mark.parametrize("given", [-1, 1.5, True, "2"])
def test_what_is_no_number_of_calls_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="watch\\(shadow="):
        graphprobe.watch(shadow=given)


def test_a_watch_is_begun_once_and_leaves_no_hook(tmp_path: Path) -> None:
    from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

    def hooks() -> tuple[int, int]:
        return len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)

    before, backward = hooks(), torch.autograd._engine_run_backward
    with graphprobe.watch(out_dir=tmp_path, quiet=True) as watch:
        assert hooks() != before
        with pytest.raises(UsageError, match="begun already"):
            watch.start()
    assert hooks() == before
    assert torch.autograd._engine_run_backward is backward


def test_a_step_without_an_optimizer_is_ended_by_hand(tmp_path: Path) -> None:
    graphprobe.step()  # without a watch nothing happens
    weight = nn.Linear(3, 1)
    with graphprobe.watch(out_dir=tmp_path, quiet=True, every=2) as watch:
        compiled = torch.compile(lambda x: torch.log(weight(x).square()).mean(), backend="eager")
        for step in range(1, 6):
            compiled(torch.ones(2, 3) if step != 4 else torch.full((2, 3), float("inf"))).backward()
            graphprobe.step()
            for parameter in weight.parameters():
                parameter.data.sub_(0.01 * parameter.grad.nan_to_num(0, 0, 0))
                parameter.grad = None
    answer = watch.answer
    assert watch.step == 5 and answer is not None
    assert (answer.step, answer.uncompiled) == (4, "yes")
    assert answer.what.startswith("the loss is ") and "the gradient of" in answer.what
    assert [len(seen.gradients) for seen in answer.ring] == [2, 2, 0, 2]
    graphprobe.step()
    assert watch.step == 5


def test_what_is_too_large_to_be_copied_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphprobe.watch.step_calls.MOST_COPIED_BYTES", 16)

    def fill(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.add_(x)
        return torch.log(cache).sum()

    def run(size: int) -> Any:
        with torch.no_grad(), graphprobe.watch(out_dir=tmp_path, quiet=True) as watch:
            compiled, cache = torch.compile(fill, backend="eager"), torch.zeros(size)
            for value in (1.0, 1.0, -5.0):
                compiled(cache, torch.full((size,), value))
        assert watch.answer is not None
        return watch.answer.notes

    assert any("more than 64 MiB" in note and "fill" in note for note in run(8))
    assert not any("64 MiB" in note for note in run(2))
