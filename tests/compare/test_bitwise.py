"""`exact`: of two dumps that are the same within noise, the first call that gives other bits of the same inputs."""

from typing import Any

import numpy as np
import pytest

from compare.made import MemoryDump, call, tensor
from graphprobe.compare import compare_dumps
from graphprobe.compare.options import Options
from graphprobe.compare.result import Summary
from graphprobe.store import Call, CallSlot

APIS = ["torch.add", "torch.mul", "torch.tanh", "torch.exp"]


def up(values: np.ndarray) -> np.ndarray:
    moved = values.copy()
    moved[3] = np.nextafter(moved[3], np.float32(np.inf))
    return moved


def dump(*off: int, whole: bool = True, digest: bool = True, modules: bool = False) -> MemoryDump:
    """A program in which each call gets what the one before gave; the calls `off` give one element an ulp too large."""
    kept: dict[str, Any] = {}
    values = np.random.default_rng(0).standard_normal(64).astype(np.float32)

    def slots(given: np.ndarray, made: np.ndarray) -> list[CallSlot]:
        keep = kept if whole else None
        named = (("input.0", "input", given), ("output.0", "output", made))
        return [tensor(name, role, array, digest=digest, values=keep) for name, role, array in named]

    first, calls = values, list[Call]()
    for i, api in enumerate(APIS):
        made = up(np.roll(values, 1)) if i in off else np.roll(values, 1)
        calls.append(call(i, api, *slots(values, made), module="net.layer" if modules else ""))
        values = made
    if modules:
        around = call(0, "Net", *slots(first, values), kind="module", module="net", label="Net.net.forward")
        calls.insert(0, around)
    return MemoryDump(calls, kept)


def compared(a: MemoryDump, b: MemoryDump, *, exact: bool = True) -> Summary:
    with compare_dumps(a, b, Options(exact=exact, jobs=1)) as comparison:
        return comparison.summary


@pytest.mark.parametrize(("whole", "digest"), [(True, True), (True, False), (False, True)])
def test_the_first_call_that_gives_other_bits_is_named(whole: bool, digest: bool) -> None:
    a, b = dump(1, 2, whole=whole, digest=digest), dump(whole=whole, digest=digest)
    assert compared(a, b, exact=False).outcome == "same"
    summary = compared(a, b)
    assert summary.outcome == "different" and summary.first is not None
    assert (summary.first.kind, summary.first.verdict, summary.first.slot) == ("not_bitwise", "differs", "output.0")
    assert summary.first.candidate is not None and summary.first.candidate.api == "torch.mul"
    assert "gets the same bits on both sides, and gives others" in summary.first.evidence[0]
    assert summary.findings == [summary.first]


@pytest.mark.parametrize("whole", [True, False])
def test_equal_bits_are_the_same(whole: bool) -> None:
    assert compared(dump(1, whole=whole), dump(1, whole=whole)).outcome == "same"


def test_without_bits_and_digests_nobody_knows() -> None:
    summary = compared(dump(whole=False, digest=False), dump(whole=False, digest=False))
    assert summary.outcome == "undecided" and summary.first is None
    assert "of 8 values the dumps have neither bits nor digests" in summary.notes[0]


def test_a_call_inside_of_a_module_comes_before_the_module() -> None:
    a, b = dump(2, modules=True), dump(modules=True)
    first = compared(a, b).first
    assert first is not None and first.candidate is not None and first.candidate.api == "torch.tanh"
    a.list, b.list = a.list[:1], b.list[:1]
    first = compared(a, b).first
    assert first is not None and first.candidate is not None and first.candidate.kind == "module"
    assert "no call inside of it is known" in first.evidence[0]


def test_the_sign_of_zero_does_not_count() -> None:
    kept: dict[str, Any] = {}
    x = np.ones(4, np.float32)
    given = tensor("input.0", "input", x, values=kept)
    zeros = [tensor("output.0", "output", np.float32(zero) * x, values=kept) for zero in (0.0, -0.0)]
    both = [MemoryDump([call(0, "torch.mul", given, zero)], kept) for zero in zeros]
    assert compared(*both).outcome == "same"


def test_what_is_beyond_noise_is_told_as_ever() -> None:
    a, b = dump(), dump()
    slot = a.list[1].slots[1]
    a.arrays[slot.value] = a.arrays[slot.value] * 2
    moved = tensor("output.0", "output", a.arrays[slot.value], values=a.arrays)
    a.list[1] = call(1, "torch.mul", a.list[1].slots[0], moved)
    exact, plain = compared(a, b), compared(a, b, exact=False)
    assert exact.outcome == plain.outcome == "different"
    assert exact.first is not None and plain.first is not None and exact.first.kind == plain.first.kind != "not_bitwise"
