"""Copies of a program sleep, one runs on to the step that failed; it does no harm, and none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import graphprobe
from conftest import ROOT
from graphprobe.engine.forked_child import descendants
from watch.test_watch import GPT, LSTM, MLP, SparseSmallGPT, line_of, same, spoil_row, watched
from watch.trainings import Training, numbers_of, tokens_of

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    """The process of the tests may have children of its own."""
    before = set(descendants(os.getpid()))
    yield
    assert set(descendants(os.getpid())) <= before


def test_the_step_in_which_a_parameter_was_spoilt_is_named(tmp_path: Path) -> None:
    def batch(step: int) -> torch.Tensor:  # row 1 is not used before step 16
        tokens = tokens_of(step)
        return tokens if step >= 16 else tokens.masked_fill(tokens == 1, 2)

    training = Training(SparseSmallGPT, batch, before=spoil_row)
    answer, _ = watched(training, 17, tmp_path, keep=2)
    assert (answer.step, answer.state) == (16, ["tok.weight"])
    assert "tok.weight was finite before step 11, and not before step 12" in answer.notes
    assert "a copy of the program ran steps 11 to 16 again, each parameter observed" in answer.notes


def test_an_operation_outside_of_compiled_code_is_named(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 1)
    compiled = None
    with graphprobe.watch(out_dir=tmp_path, quiet=True, every=4, keep=1) as watch:
        compiled = torch.compile(layer, backend="eager")
        optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
        for step in range(1, 12):
            out = compiled(torch.ones(2, 3))
            loss = torch.log(out * (0.0 if step == 10 else 1.0) + (0.0 if step == 10 else 9.0)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    answer = watch.answer
    assert answer is not None and answer.operation is not None
    assert (answer.step, answer.uncompiled, answer.operation.op) == (10, "yes", "torch.log")
    assert answer.operation.source.endswith(
        line_of("(0.0 if step == 10 else 9.0)" + ").mean()", "test_further_back.py")
    )


@pytest.mark.parametrize("training", [GPT, MLP, LSTM], ids=["gpt", "mlp", "lstm"])
def test_a_healthy_training_is_the_same_with_copies(training: Training, tmp_path: Path) -> None:
    plain = training.run(24)
    answer, came = watched(training, 24, tmp_path, keep=3)
    assert answer is None
    assert same(plain, came)


def test_a_copy_writes_no_file_and_reads_at_its_own_place(tmp_path: Path) -> None:
    data = tmp_path / "data.txt"
    data.write_text("".join(f"{number}\n" for number in range(1, 31)), "utf-8")

    def run(folder: Path, *, watching: bool) -> tuple[str, str, Any]:
        folder.mkdir()
        with data.open(encoding="utf-8", buffering=1) as lines, (folder / "log").open("w", encoding="utf-8") as log:

            def batch(step: int) -> torch.Tensor:
                number = int(os.read(lines.fileno(), 2 if step < 10 else 3))
                log.write(f"{number}\n")
                log.flush()
                with (folder / "saved").open("a", encoding="utf-8") as saved:
                    saved.write(f"{step} {'watched' if step == 22 else ''}\n")
                return numbers_of(number) * (float("nan") if step == 22 else 1.0)

            training = replace(MLP, batch=batch)
            answer = watched(training, 25, folder, keep=2)[0] if watching else training.run(25) and None
        return (folder / "log").read_text("utf-8"), (folder / "saved").read_text("utf-8"), answer

    *plain, _ = run(tmp_path / "plain", watching=False)
    *came, answer = run(tmp_path / "watched", watching=True)
    assert answer.step == 22
    assert plain == came


KILLED = """
import sys, time, torch
layer = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
for step in range(1, 100_000):
    layer(torch.ones(2, 3)).mean().backward()
    optimizer.step()
    if step == 30:
        print("ready", flush=True)
        time.sleep(60)
"""


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_is_left_behind(by: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(KILLED, "utf-8")
    command = [sys.executable, "-m", "graphprobe", "watch", "-q", "--every", "10", "--keep", "2", "train.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
        asleep = descendants(started.pid)
        assert len(asleep) == 2
        started.send_signal(by)
        assert started.wait(60) != 0
    until = time.monotonic() + 20
    while any(Path(f"/proc/{process}").exists() for process in asleep) and time.monotonic() < until:
        time.sleep(0.1)
    assert [process for process in asleep if Path(f"/proc/{process}").exists()] == []
