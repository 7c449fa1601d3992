"""The worst element: which one, both values, how far off, how far it may be, and all of it in words."""

from typing import Any

import numpy as np
import pytest
import torch

from graphprobe.errors import Raised
from graphprobe.findings import Worst, in_words
from graphprobe.judge.judging import Difference, compare, log_of, worst_of
from graphprobe.judge.observation import Observation
from graphprobe.judge.uncompiled import Reference
from graphprobe.judge.worst import worst_exact, worst_number, worst_scalar


def number(expected: torch.Tensor, actual: torch.Tensor, sigma: float = 0.0) -> Worst:
    wide = expected.to(torch.complex128 if expected.is_complex() else torch.float64).numpy()
    return worst_number("output 0", expected, actual, wide, np.full(expected.shape, sigma))


def call(*outputs: Any, inputs: tuple[Any, ...] = (), gradients: tuple[Any, ...] = ()) -> Observation:
    return Observation(None, outputs=list(outputs), inputs=list(inputs), gradients=list(gradients))


def differences(expected: Observation, actual: Observation, *, wide: Observation | None = None) -> list[Difference]:
    runs = None if wide is None else [wide]
    return compare(Reference([[expected], [expected]], wide=runs, perturbed=[runs] if runs else []), [actual])


def test_the_largest_error_among_those_out_of_bounds() -> None:
    expected = torch.ones(8, 16)
    actual = expected + torch.linspace(0, 2e-7, 128).reshape(8, 16)  # rounding
    actual[5, 7], actual[1, 1] = -1.0698, 1.5
    worst = number(expected, actual)
    assert (worst.index, worst.wrong, worst.of) == ((5, 7), 2, 128)
    assert worst.expected == 1.0 and worst.actual == pytest.approx(-1.0698)
    assert worst.off == pytest.approx(2.0698) and 1e-7 < (worst.legitimate or 0) < 1e-4
    first, second, third = in_words(worst).split("; ")
    assert first == "expected 1, got -1.07 at (5, 7) of output 0"
    assert second.startswith("off by 2.07, where rounding explains ")
    assert third == "2 of 128 elements are wrong"
    expected, actual = torch.ones(4), torch.tensor([1.0, 1.1, 1.0, 3.0])
    assert number(expected, actual).wrong == 2
    assert number(expected, actual, sigma=0.02).wrong == 1, "noise of the program widens it"
    expected = torch.linspace(1, 2, 64)
    worst = number(expected, expected * (1 + 12 * 2**-24))
    assert worst.wrong > 0 and worst.off > (worst.legitimate or 0), "it is tighter where all are a little off"
    actual = torch.tensor([[9.0, 0.0], [float("nan"), 0.0]], dtype=torch.bfloat16)
    worst = number(torch.zeros(2, 2, dtype=torch.bfloat16), actual)
    assert worst.index == (1, 0) and worst.wrong == 2
    assert in_words(worst) == "expected 0, got NaN at (1, 0) of output 0; 2 of 4 elements are wrong"
    worst = number(torch.tensor([1 + 2j, 3]), torch.tensor([2 + 2j, 3]))
    assert (worst.expected, worst.actual, worst.off, worst.wrong) == ("1+2j", "2+2j", 1.0, 1)
    assert worst_exact("o", torch.tensor([200], dtype=torch.uint8), torch.tensor([100], dtype=torch.uint8)).off == 100
    assert worst_scalar("output 0", "a", 1) is None


def test_in_words() -> None:
    for worst, words in (
        (number(torch.tensor(float("inf")), torch.tensor(1.0)), "expected infinity, got 1 in output 0"),
        (number(torch.tensor(1.5), torch.tensor(1.500125)), "expected 1.5, got 1.50013 in output 0; off by 0.000125"),
        (worst_scalar("output 0", 1.0, 2.0), "expected 1, got 2 in output 0; off by 1"),
        (
            worst_exact("output 0", torch.tensor([1, 2**62]), torch.tensor([1, 2**62 + 1])),
            "expected 4611686018427387904, got 4611686018427387905 at index 1 of output 0; off by 1; "
            "1 of 2 elements is wrong",
        ),
        (
            worst_exact("input 0 after the call", torch.tensor([True, False]), torch.tensor([False, False])),
            "expected True, got False at index 0 of input 0 after the call; 1 of 2 elements is wrong",
        ),
    ):
        assert in_words(worst).startswith(words)


def test_the_judge_tells_it() -> None:
    expected, wrong = torch.zeros(3, 4), torch.zeros(3, 4)
    wrong[2, 1] = 5.0
    (found,) = differences(call(expected), call(wrong), wide=call(expected.double()))
    assert found.certain and found.worst is not None and found.worst == worst_of([found])
    assert in_words(found.worst).startswith("expected 0, got 5 at (2, 1) of output 0; off by 5")
    (found,) = differences(call(expected), call(wrong))  # without a reference nobody knows what rounding explains
    assert found.weight == "unsure" and found.worst is not None and found.worst.legitimate is None
    assert worst_of([found]) is None
    (found,) = differences(call(gradients=(expected,)), call(gradients=(wrong,)), wide=call(gradients=(expected,)))
    assert found.worst is not None and found.worst.label == "gradient 0"
    (found,) = differences(call(torch.tensor([1, 2])), call(torch.tensor([1, 5])))
    assert found.worst is not None and (found.worst.expected, found.worst.actual) == (2, 5)
    (found,) = differences(call(1.0), call(2.0))
    assert found.worst is not None and found.worst.off == 1.0
    (found,) = compare(Reference([[call(1), call(1)]]), [call(1), call(2)])
    assert found.worst is not None and found.worst.label == "output 0 of call 1"
    raised = Observation(Raised("RuntimeError", "no", ""))
    for other in (call(torch.zeros(4, 3)), call(torch.zeros(3, 4).double()), call(torch.zeros(4, 3).t()), raised):
        (found,) = differences(call(torch.zeros(3, 4)), other)
        assert found.worst is None and worst_of([found]) is None
    assert log_of([found]) == "RuntimeError: no" and log_of([]) == ""
    assert Raised("E", "no", "Traceback …\nE: no").log.startswith("Traceback")
    assert Raised("E", "x.cpp:1:2: error: no", "Traceback …").log == "E: x.cpp:1:2: error: no"
