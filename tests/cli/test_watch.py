"""`graphprobe watch`: the program runs and ends as under python, and what went wrong is told beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.calling import call

PROGRAM = """
import os, signal, sys
import torch

what, at = sys.argv[1], 4
torch.manual_seed(0)
layer = torch.nn.Linear(3, 3)
compiled = torch.compile(lambda x: torch.log(layer(x).square()).mean(), backend="eager")
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
for step in range(1, 7):
    if step == at and what == "nan":
        layer.bias.data.zero_()
    if step == at and what in ("SIGTERM", "SIGSEGV", "SIGINT"):
        os.kill(os.getpid(), signal.Signals[what])
    if step == at and what == "exit":
        sys.exit(3)
    if step == at and what == "raise":
        raise ValueError("no such file")
    loss = compiled(torch.zeros(2, 3) if step == at and what == "nan" else torch.ones(2, 3))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
print(float(sum(p.double().sum() for p in layer.parameters())))
"""

Run = Callable[..., Any]


def both(run: Run, folder: Path, what: str) -> tuple[Any, Any]:
    """The program under python and watched."""
    (folder / "train.py").write_text(PROGRAM, "utf-8")
    plain = run("train.py", what, cwd=folder)
    return plain, run("-m", "graphprobe", "watch", "-o", "out", "train.py", what, cwd=folder)


def shown(folder: Path) -> tuple[str, dict[str, Any]]:
    """What the command says of the run afterwards, as text and as JSON."""
    text = call("watch", folder / "out", code=0).stdout
    return text, json.loads(call("watch", folder / "out", "--json", code=0).stdout)


@pytest.mark.slow
def test_a_nan_is_named_beside_the_program_which_goes_on(run_warm: Run, tmp_path: Path) -> None:
    plain, watched = both(run_warm, tmp_path, "nan")
    assert (watched.code, watched.out) == (plain.code, plain.out)
    assert "NOT FINITE in step 4" in watched.err
    assert "torch.log at train.py:8" in watched.err
    assert "the compiler is not to blame" in watched.err
    text, document = shown(tmp_path)
    assert "NOT FINITE in step 4" in text
    assert document["answer"]["operation"]["op"] == "torch.log"
    assert [seen["step"] for seen in document["observations"]] == [1, 2, 3, 4, 5, 6]
    assert document["observations"][3]["loss"] == "-inf"
    call("report", tmp_path / "out", "-o", tmp_path / "page.html", code=0)
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "NOT FINITE" in page and "torch.log" in page
    assert page.count("<figure") == 2 and "Gradient norm, steps 1 to 4: from" in page and "not finite in 1" in page


@pytest.mark.slow
def test_nothing_is_told_of_a_program_in_which_nothing_goes_wrong(run_warm: Run, tmp_path: Path) -> None:
    plain, watched = both(run_warm, tmp_path, "nothing")
    assert (watched.code, watched.out) == (plain.code, plain.out)
    assert watched.err.splitlines()[-2].startswith("graphprobe: 6 steps watched, and no trigger came: out")
    assert len(watched.err.splitlines()) == len(plain.err.splitlines()) + 2
    text, document = shown(tmp_path)
    assert document["answer"] is None and document["state"] == "finished"
    assert text.startswith("FINISHED after step 6")


@pytest.mark.slow
@pytest.mark.parametrize(("what", "code"), [("exit", 3), ("raise", 1), ("SIGTERM", 143), ("SIGINT", -2)])
def test_the_exit_code_is_that_of_the_program(what: str, code: int, run_python: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM, "utf-8")
    watched = run_python("-m", "graphprobe", "watch", "-o", "out", "train.py", what, cwd=tmp_path)
    assert watched.code == code
    assert "3 " in watched.out
    document = shown(tmp_path)[1]
    answer, observations = document["answer"], document["observations"]
    assert [seen["step"] for seen in observations] == [1, 2, 3]
    if what == "exit":
        assert answer is None
    else:
        assert answer["kind"] == ("exception" if what == "raise" else "signal")
        assert answer["step"] == 4
    if what == "raise":
        assert "ValueError: no such file at train.py:18" in watched.err


@pytest.mark.slow
def test_a_killed_program_leaves_observations_that_can_be_read(run_python: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM.replace('"SIGSEGV", ', '"SIGKILL", '), "utf-8")
    watched = run_python("-m", "graphprobe", "watch", "-o", "out", "train.py", "SIGKILL", cwd=tmp_path)
    assert watched.code == -9
    text, document = shown(tmp_path)
    assert text.startswith("KILLED after step")
    assert document["state"] == "killed" and document["observations"]


@pytest.mark.slow
def test_a_fatal_signal_leaves_the_observations_and_where_the_program_stood(run_python: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM, "utf-8")
    watched = run_python("-m", "graphprobe", "watch", "-o", "out", "train.py", "SIGSEGV", cwd=tmp_path)
    assert watched.code == -11
    text, document = shown(tmp_path)
    assert text.startswith("KILLED after step")
    assert document["state"] == "killed"
    assert any("train.py" in line and "line 14" in line for line in document["crash"])
    assert document["observations"]


@pytest.mark.slow
def test_a_trainer_of_transformers_is_the_same_to_the_last_bit(run_python: Run, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    script = str(Path(__file__).parents[1] / "diagnose/applications/trainer.py")
    plain = run_python(script, "20", cwd=tmp_path)
    options = ("--shadow", "5", "--keep", "2", "--every", "4", "-o", "out")
    done = run_python("-m", "graphprobe", "watch", *options, script, "20", cwd=tmp_path)
    assert (done.code, done.out.splitlines()[-1]) == (plain.code, plain.out.splitlines()[-1])
    assert plain.out.splitlines()[-1].startswith("step 20 ")
    assert "20 steps watched, and no trigger came" in done.err


def test_what_cannot_be_asked_for_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)", "utf-8")
    assert "no such trigger" in call("watch", "--on", "nana", tmp_path / "train.py", code=2).output
    assert "--json goes with a run" in call("watch", "--json", "x.json", tmp_path / "train.py", code=2).output
    assert "nothing to run" in call("watch", code=2).output
