"""What a verdict on a script is about: which calls were compared, `--call`, and results that are not finite."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from conftest import Finished
from graphprobe.diagnose import notes
from graphprobe.diagnose.script_calls import is_finite
from graphprobe.findings import CallsLookedAt, Worst, extent_in_words
from graphprobe.judge import Difference

SCRIPT = """\
import sys
import torch

def backend(graph, inputs):
    def run(*args):
        found = graph(*args)
        if {fault} and any(float(x.max()) > 100 for x in args):
            found = [x / 0 for x in found]
        return found
    return run

@torch.compile(backend=backend)
def f(x):
    return x * x

for step in range(1, 21):
    f(torch.full((4,), {large} if step == 13 else 1.0))
print("ended")
"""

Python = Callable[..., Finished]


def diagnosed(run_warm: Python, folder: Path, *options: str, fault: bool = False, large: float = 200.0) -> Finished:
    (folder / "train.py").write_text(SCRIPT.format(fault=fault, large=large), "utf-8")
    done = run_warm("-m", "graphprobe", "diagnose", "--json", "result.json", *options, "train.py", cwd=folder)
    assert "ended" in done.out, done.out + done.err
    return done


@pytest.mark.slow
def test_a_late_call_that_is_not_finite_is_diagnosed(run_warm: Python, tmp_path: Path) -> None:
    done = diagnosed(run_warm, tmp_path, fault=True)
    assert done.code == 1, done.out + done.err
    assert "f (train.py:12), call 13" in done.out
    assert "compiled, expected 4e+04, got infinity" in done.err and "looking for the smallest case" in done.err
    [calls] = json.loads((tmp_path / "result.json").read_text("utf-8"))["calls"]
    assert (calls["calls"], calls["not_finite"]) == (20, 13) and 13 in calls["looked_at"]


@pytest.mark.slow
def test_the_last_line_says_which_calls_were_compared(run_warm: Python, tmp_path: Path) -> None:
    done = diagnosed(run_warm, tmp_path)
    assert done.code == 0, done.out + done.err
    assert "HEALTHY on 6 of 20 calls (1, 2, 3, 4, 8, 16): train.py: 1 healthy" in done.out
    assert "not finite" not in done.out


@pytest.mark.slow
def test_what_is_not_finite_uncompiled_either_is_told(run_warm: Python, tmp_path: Path) -> None:
    done = diagnosed(run_warm, tmp_path, "--call", "13-14", large=1e30)
    assert done.code == 0, done.out + done.err
    assert "HEALTHY on 2 of 20 calls (13, 14)" in done.out
    assert "f (train.py:12): the result of call 13, uncompiled too" in " ".join(done.out.split())


def test_the_extent_in_words() -> None:
    some = CallsLookedAt("f", 300, [1, 2, 3, 4, 8, 16, 32, 64, 128, 256])
    assert extent_in_words([some]) == " on 10 of 300 calls (1, 2, 3, 4, 8, …, 256)"
    assert extent_in_words([some, CallsLookedAt("g", 2, [1, 2])]) == " on 12 of 302 calls"
    assert extent_in_words([CallsLookedAt("f", 2, [1, 2])]) == extent_in_words([]) == ""


@pytest.mark.parametrize(
    ("result", "finite"),
    [
        (torch.ones(2), True),
        ([torch.ones(2), {"a": torch.tensor([1.0, float("nan")])}], False),
        (torch.tensor(complex(1, float("inf"))), False),
        ((torch.arange(3), 3, None), True),
        (torch.nested.nested_tensor([torch.ones(2)]), True),
        (torch.ones(2).to(torch.float8_e4m3fn), True),
        (torch.ones(2, device="meta"), True),
    ],
)
def test_what_is_finite(result: object, finite: bool) -> None:
    assert is_finite(result) is finite


def test_a_look_inside_vmap_harms_nothing() -> None:
    seen = []

    def doubled(x: torch.Tensor) -> torch.Tensor:
        seen.append(is_finite(x * 2))
        return x * 2

    assert torch.equal(torch.vmap(doubled)(torch.ones(3)), torch.full((3,), 2.0)) and seen == [True]


@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        (Difference("crash_compile", 0, "", "InductorError: a\nb", log="…"), "compiled, it raises InductorError: a b"),
        (Difference("segfault", 0, "", "killed by SIGSEGV", log="…"), "compiled, killed by SIGSEGV"),
        (
            Difference("wrong_value", 0, "outputs[0]", "", worst=Worst(label="output 0", expected=1, actual=2, off=1)),
            "compiled, expected 1, got 2 in output 0; off by 1; 1 more differ",
        ),
    ],
)
def test_the_first_fact_is_one_line(difference: Difference, expected: str) -> None:
    again = [difference] if difference.worst is None else [difference, difference]
    assert notes.first_fact(again) == expected
