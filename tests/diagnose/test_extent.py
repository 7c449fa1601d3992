"""What a verdict on a script is about: which calls were compared, `--call`, and results that are not finite."""

from typing import Any

import pytest
import torch

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

HEALTHY_ON = "HEALTHY on 6 of 20 calls (1, 2, 3, 4, 8, 16): train.py: 1 healthy"
FINITE_ON = ["HEALTHY on 2 of 20 calls (13, 14)", "f (train.py:12): the result of call 13, uncompiled too"]
FAULT_IN = ["f (train.py:12), call 13", "compiled, expected 4e+04, got infinity", "looking for the smallest case"]


ONLY_THIS = """\
import torch

KEPT = torch.ones(3)

@torch.compile(backend="eager")
def f(x):
    if x is not KEPT:
        raise ValueError("another tensor")
    return x + 1

print("ended", f(KEPT).sum().item())
"""


def test_a_call_that_raises_only_as_it_is_repeated_is_not_healthy(diagnosed: Any) -> None:
    done, document = diagnosed("train.py", text=ONLY_THIS, code=125)
    assert "ended 6.0" in done.out
    [note] = document["diagnoses"][-1]["notes"]
    assert "call 1 returns in the script, and raises ValueError: another tensor as it is repeated" in note


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "fault", "large", "said"),
    [((), True, 200.0, FAULT_IN), ((), False, 200.0, [HEALTHY_ON]), (("--call", "13-14"), False, 1e30, FINITE_ON)],
    ids=["a late call", "the last line", "uncompiled, too"],
)
def test_what_was_compared_or_not_finite(options: Any, fault: bool, large: float, said: Any, diagnosed: Any) -> None:
    done, document = diagnosed(*options, "train.py", text=SCRIPT.format(fault=fault, large=large), code=int(fault))
    told = " ".join((done.out + done.err).split())
    assert [part for part in (*said, "ended") if part not in told] == []
    [calls] = document["calls"]
    assert not fault or (calls["calls"], calls["not_finite"], 13 in calls["looked_at"]) == (20, 13, True)
    assert fault or options or "not finite" not in told


def test_the_extent_and_the_first_fact_in_words() -> None:
    some = CallsLookedAt("f", 300, [1, 2, 3, 4, 8, 16, 32, 64, 128, 256])
    assert extent_in_words([some]) == " on 10 of 300 calls (1, 2, 3, 4, 8, …, 256)"
    assert extent_in_words([some, CallsLookedAt("g", 2, [1, 2])]) == " on 12 of 302 calls"
    assert extent_in_words([CallsLookedAt("f", 2, [1, 2])]) == extent_in_words([]) == ""
    for difference, expected in (
        (Difference("crash_compile", 0, "", "InductorError: a\nb", log="…"), "compiled, it raises InductorError: a b"),
        (Difference("segfault", 0, "", "killed by SIGSEGV", log="…"), "compiled, killed by SIGSEGV"),
        (
            Difference("wrong_value", 0, "outputs[0]", "", worst=Worst(label="output 0", expected=1, actual=2, off=1)),
            "compiled, expected 1, got 2 in output 0; off by 1; 1 more differ",
        ),
    ):
        again = [difference] if difference.worst is None else [difference, difference]
        assert notes.first_fact(again) == expected


def test_what_is_finite() -> None:
    for result, finite in (
        (torch.ones(2), True),
        ([torch.ones(2), {"a": torch.tensor([1.0, float("nan")])}], False),
        (torch.tensor(complex(1, float("inf"))), False),
        ((torch.arange(3), 3, None), True),
        (torch.nested.nested_tensor([torch.ones(2)]), True),
        (torch.ones(2).to(torch.float8_e4m3fn), True),
        (torch.ones(2, device="meta"), True),
    ):
        assert is_finite(result) is finite
    seen = []

    def doubled(x: torch.Tensor) -> torch.Tensor:
        seen.append(is_finite(x * 2))
        return x * 2

    assert torch.equal(torch.vmap(doubled)(torch.ones(3)), torch.full((3,), 2.0)) and seen == [True]
