"""Distances in units of noise: by values and by statistics, and arguments that are no tensors."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.nn import functional as F  # noqa: N812

import graphprobe
from compare.made import KNOWN, replaced
from compare.pairs import Dumps, Run, compared
from graphprobe.cli.main import main
from graphprobe.compare import open_dump
from graphprobe.compare.measures import HUGE, measure_statistics, measure_values, typical_of_sample
from graphprobe.compare.slots import is_weight_by_name, scalar_difference
from graphprobe.numerics import stats_from_array
from graphprobe.records import TensorStats
from graphprobe.store import Scalar
from store.dump_helpers import write_ptdbg

VALUES = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
SINGLE, NARROW = ("float32", "float32"), ("bfloat16", "float32")


def bits(values: np.ndarray) -> np.ndarray:
    """Rounded to bfloat16, to nearest even."""
    raw = values.view(np.uint32)
    return ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(np.uint16)


def test_equal_values_are_no_distance() -> None:
    found = measure_values(VALUES, VALUES, SINGLE)
    assert (found.level, found.unequal, found.rounding, found.accuracy) == (0.0, 0, True, "Yes")


def test_rounding_once_is_recognized_and_more_is_not() -> None:
    rounded = measure_values(bits(VALUES), VALUES, NARROW)
    assert rounded.rounding and 0.2 < rounded.level < 1
    noisy = VALUES * (1 + 1e-3 * np.random.default_rng(1).standard_normal(4096).astype(np.float32))
    assert not measure_values(bits(noisy), VALUES, NARROW).rounding


def test_bfloat16_that_a_format_widened_is_judged_as_bfloat16() -> None:
    widened = (bits(VALUES).astype(np.uint32) << 16).view(np.float32)
    a, b = measure_values(widened, VALUES, NARROW), measure_values(bits(VALUES), VALUES, NARROW)
    assert (a.level, a.ulp, a.rounding) == (b.level, b.ulp, True)


def test_a_flipped_element_is_the_worst_and_classes_are_counted() -> None:
    other = VALUES.copy()
    other[1234] *= -1
    found = measure_values(other, VALUES, SINGLE)
    assert found.worst == 1234 and found.level > 1e4 and found.cosine is not None and found.cosine > 0.99
    other = VALUES.copy()
    other[[3, 5]] = np.nan, np.inf
    found = measure_values(other, VALUES, SINGLE)
    assert (found.mismatched, found.worst, found.candidate_worse) == (2, 3, True)
    assert not measure_values(VALUES, other, SINGLE).candidate_worse


def test_a_mean_near_zero_does_not_explode() -> None:
    centred = (VALUES - VALUES.mean()).astype(np.float32)
    shaken = centred * (1 + 2.0**-9 * np.random.default_rng(2).choice([-1, 1], 4096))
    a, b = stats_from_array(shaken.astype(np.float32)), stats_from_array(centred)
    assert a.mean is not None and b.mean is not None and abs(a.mean - b.mean) > 20 * abs(b.mean)
    assert measure_statistics(a, b, frozenset(KNOWN), NARROW).level < 4


@pytest.mark.parametrize("change", [lambda v: v * 1.02, lambda v: v + 0.05, lambda v: np.where(v > 3, 5 * v, v)])
def test_statistics_show_what_they_can(change) -> None:  # type: ignore[no-untyped-def]
    a, b = stats_from_array(change(VALUES).astype(np.float32)), stats_from_array(VALUES)
    assert measure_statistics(a, b, frozenset(KNOWN), NARROW).level > 8
    assert measure_statistics(a, b, frozenset(KNOWN), SINGLE).level > 1000


def test_statistics_of_another_class() -> None:
    a = replaced(stats_from_array(VALUES), nan=3)
    found = measure_statistics(a, stats_from_array(VALUES), frozenset(KNOWN), SINGLE)
    assert found.mismatched == 3 and found.candidate_worse
    blind = frozenset(KNOWN) - {"nan"}
    assert measure_statistics(a, stats_from_array(VALUES), blind, SINGLE).mismatched == 0
    infinite = replaced(stats_from_array(VALUES), l2=float("inf"))
    assert measure_statistics(infinite, stats_from_array(VALUES), frozenset(KNOWN), SINGLE).level == HUGE


SLICES = "[slice(None, None, None), slice(None, -1, None)]", "(slice(None, None, None), slice(None, -1, None))"
SCALARS: list[tuple[str, str, bool, bool | None]] = [
    # one side, the other, whether they differ in one format, and in two formats
    ("1e-05", "1e-06", True, None),
    ("'tanh'", "'none'", True, True),
    ("0.1", "0.101", True, True),
    ("True", "False", True, None),
    ("1", "1.0", False, None),
    ("nan", "nan", False, None),
    ("(1, 2)", "[1, 2]", False, None),
    ("(1, 2)", "(1, 3)", True, False),
    ("torch.float32", "torch.bfloat16", False, None),
    ("device(type='cuda', index=0)", "device(type='cpu')", False, None),
    ("0.12345678901", "0.12345678999", False, None),
    ("0.12345678901", "0.22345678999", True, None),
    ("<object object at 0x7f01>", "<object object at 0x7f02>", False, None),
    ("None", "<torch._C.Generator>", True, False),
    (*SLICES, True, False),
]


@pytest.mark.parametrize(("mine", "theirs", "differs", "between"), SCALARS)
def test_scalars(mine: str, theirs: str, differs: bool, between: bool | None) -> None:
    pair = Scalar("x", mine), Scalar("x", theirs)
    assert bool(scalar_difference(*pair, roundoff=2.0**-9)) is differs
    if between is not None:
        assert bool(scalar_difference(*pair, roundoff=2.0**-9, same_format=False)) is between


OWN = frozenset(("max", "min", "mean", "l2"))
"""What tools have that reduce in the tensor's own dtype."""


def reduced(values: np.ndarray, dtype: torch.dtype) -> tuple[TensorStats, TensorStats]:
    """Statistics of `values` in `dtype` as torch reduces them, and ours."""
    t = torch.from_numpy(values).to(dtype)
    own = TensorStats(t.numel(), t.min().item(), t.max().item(), t.mean().item(), l2=torch.norm(t).item())
    return own, stats_from_array(t.float().numpy())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shift", [0.0, 1.0])
@pytest.mark.parametrize("count", [3, 4096, 1 << 20])
def test_a_reduction_in_the_own_dtype_is_no_difference(dtype: torch.dtype, shift: float, count: int) -> None:
    values = np.random.default_rng(count).standard_normal(count).astype(np.float32) + np.float32(shift)
    own, exact = reduced(values, dtype)
    name = str(dtype).removeprefix("torch.")
    u = max(torch.finfo(dtype).eps / 2, 2.0**-24)
    assert own.l2 != exact.l2
    for pair in ((own, exact), (exact, own)):
        found = measure_statistics(*pair, OWN, (name, name), reduction=u)
        assert found.unequal == 0 and found.rounding and found.level <= 1
        wrong = replaced(pair[0], l2=(pair[0].l2 or 0) * 1.1)
        assert measure_statistics(wrong, pair[1], OWN, (name, name), reduction=u).unequal == 1
        wrong = replaced(pair[0], max=(pair[0].max or 0) * 1.01)
        assert measure_statistics(wrong, pair[1], OWN, (name, name), reduction=u).unequal == 1


def test_a_norm_that_overflowed_says_nothing() -> None:
    own, exact = reduced(np.full(8, 60000, dtype=np.float32), torch.float16)
    assert own.l2 == np.inf and exact.l2 is not None and np.isfinite(exact.l2)
    assert measure_statistics(own, exact, OWN, ("float16", "float16"), reduction=2.0**-11).level == 0
    assert measure_statistics(own, exact, OWN, ("float16", "float16")).level == HUGE
    infinite = replaced(own, max=np.inf)
    assert measure_statistics(infinite, exact, OWN, ("float16", "float16"), reduction=2.0**-11).level == HUGE


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_tool_without_counts_tells_nan_and_inf_in_its_statistics(odd: float) -> None:
    values = np.array([1.0, odd, -2.0], dtype=np.float32)
    own, exact = reduced(values, torch.float32)
    found = measure_statistics(own, exact, OWN, SINGLE, reduction=2.0**-24)
    assert (found.level, found.unequal) == (0.0, 0)
    healthy = stats_from_array(np.array([1.0, 1.0, -2.0], dtype=np.float32))
    assert measure_statistics(own, healthy, OWN, SINGLE, reduction=2.0**-24).level == HUGE


def test_zeros_do_not_hide_how_large_the_other_values_are() -> None:
    values = np.concatenate([np.zeros(600), np.full(400, 2.0)]).astype(np.float32)
    assert typical_of_sample(values, "float32") == pytest.approx(2.0 * np.sqrt(0.4))
    assert typical_of_sample(np.zeros(8, np.float32), "float32") == 0.0
    # The largest of a few outliers is still no measure.
    assert typical_of_sample(np.array([0, 1, 1, 1, 1e6], np.float32), "float32") == 4.0


def unseen(make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What `make` gives, called in another thread, where a dump sees no functions."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


class Net(nn.Module):
    """Uses state of every sort, and something that no dump sees."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.register_buffer("shift", torch.linspace(0.1, 0.9, 16))
        self.factor = 2.0
        self.scale = 1.0

    def forward(self, x: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
        x = self.first(x) * leaf + self.shift
        x = F.linear(x, self.second.weight.data)
        x = F.gelu(x)
        given = x
        with torch.no_grad():
            other = unseen(lambda: torch.sin(given.detach()) * self.factor)
        x = torch.mul(x, other)
        return self.third(x) * self.scale


def dumped(
    path: Path,
    change: Callable[[Net], Any] = lambda net: None,
    *,
    dtype: torch.dtype = torch.float32,
    leaf: float = 0.0,
    batch: float = 0.0,
) -> Path:
    """One backward; `leaf` and `batch` are added to an element of the leaf tensor and of the input."""
    torch.manual_seed(0)
    net, other = Net(), torch.randn(16)
    change(net)
    other[3] += leaf
    other = other.bfloat16().to(dtype).requires_grad_()
    torch.manual_seed(1)
    x = torch.randn(8, 16).bfloat16().to(dtype)
    x[0, 0] += batch
    with graphprobe.dump(path, model=net.to(dtype), data="tensor"):
        net(x, other).sum().backward()
    return path


def noisy(name: str) -> Callable[[Net], Any]:
    def change(net: Net) -> None:
        tensor = net.get_buffer(name) if name == "shift" else net.get_parameter(name)
        tensor.data.view(-1)[5] += 1e-2

    return change


def attribute(**values: float) -> Callable[[Net], Any]:
    return lambda net: [setattr(net, name, value) for name, value in values.items()]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dumped(tmp_path_factory.mktemp("good") / "dump")


def test_the_dump_tells_what_holds_an_input(good: Path) -> None:
    dump = open_dump(good)
    held = {(c.label, s.name): s.held for c in dump.calls(0, 0) for s in c.slots if s.held is not None}
    assert held["nn.functional.linear.0.forward", "input.0"] == ""
    assert held["nn.functional.linear.0.forward", "input.1"] == "parameter"
    assert held["nn.functional.linear.0.forward", "input.2"] == "parameter"
    assert held["Tensor.mul.0.forward", "input.1"] == "leaf"
    assert held["Tensor.add.0.forward", "input.1"] == "buffer"
    assert held["nn.functional.linear.1.forward", "input.1"] == "parameter"  # by its memory
    assert held["mul.0.forward", "input.1"] == ""
    assert all(s.held is None for c in dump.calls(0, 0) for s in c.slots if s.role != "input")


def test_the_same_program_is_silent(good: Path, tmp_path: Path) -> None:
    for number, dtype in enumerate((torch.float32, torch.bfloat16)):
        summary = compared(dumped(tmp_path / str(number), dtype=dtype), good)
        assert (summary.outcome, summary.findings) == ("same", []), dtype


@pytest.mark.parametrize(
    ("name", "label", "slot"),
    [
        ("first.weight", "nn.functional.linear.0.forward", "input.1"),
        ("first.bias", "nn.functional.linear.0.forward", "input.2"),
        ("shift", "Tensor.add.0.forward", "input.1"),
        ("second.weight", "nn.functional.linear.1.forward", "input.1"),
        ("leaf", "Tensor.mul.0.forward", "input.1"),
    ],
)
def test_what_is_held_is_state(name: str, label: str, slot: str, good: Path, tmp_path: Path) -> None:
    planted: dict[str, Any] = {"leaf": 1e-3} if name == "leaf" else {"change": noisy(name)}
    summary = compared(dumped(tmp_path / "dump", **planted), good)
    first = summary.first
    assert summary.outcome == "different" and first is not None and first.candidate is not None
    assert (first.kind, first.verdict, first.candidate.label, first.slot) == ("state", "differs", label, slot)


def test_what_nobody_saw_is_not_accused(good: Path, tmp_path: Path) -> None:
    folder = dumped(tmp_path / "dump", attribute(factor=2.5))
    summary = compared(folder, good)
    assert summary.outcome == "undecided"
    assert [(f.kind, f.verdict) for f in summary.findings] == [("unrecorded_origin", "inconclusive")]
    first = summary.first
    assert first is not None and first.candidate is not None
    assert (first.candidate.label, first.slot) == ("mul.0.forward", "input.1")
    assert "something that was not seen" in first.evidence[0]
    result = CliRunner().invoke(main, ["compare", str(folder), str(good), "--out", str(tmp_path / "out")])
    assert result.exit_code == 125
    assert "UNDECIDED" in result.output and "Not decided: mul.0.forward" in result.output
    assert "First divergence" not in result.output + (tmp_path / "out" / "report.html").read_text()
    rows = [json.loads(line) for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()]
    verdicts = {row["candidate"]["label"]: (row.get("verdict"), row.get("blame")) for row in rows}
    assert verdicts["mul.0.forward"] == ("inconclusive", "unrecorded")
    assert verdicts["nn.functional.linear.2.forward"] == ("inconclusive", "inherited")
    assert verdicts["nn.functional.gelu.0.forward"] == (None, None)


def test_another_batch_cannot_be_told_from_it(good: Path, tmp_path: Path) -> None:
    summary = compared(dumped(tmp_path / "dump", batch=1), good)
    assert summary.outcome == "undecided" and summary.first is not None and summary.first.candidate is not None
    found = (summary.first.kind, summary.first.candidate.label)
    assert found == ("unrecorded_origin", "nn.functional.linear.0.forward")


def test_what_is_found_besides_decides(good: Path, tmp_path: Path) -> None:
    folder = dumped(tmp_path / "dump", attribute(factor=2.5, scale=1.5))
    summary = compared(folder, good)
    assert summary.outcome == "different"
    assert [f.kind for f in summary.findings] == ["unrecorded_origin", "scalar"]
    assert summary.first is not None and summary.first.kind == "scalar"
    result = CliRunner().invoke(main, ["compare", str(folder), str(good)])
    assert result.exit_code == 1 and "DIFFERENT 1 cause found" in result.output


def without_holders(folder: Path) -> Path:
    """In the layout of ptdbg, which does not tell what holds tensors."""
    text = folder / "dump.pkl"
    write_ptdbg(open_dump(folder), text)
    return text


def test_a_dump_that_does_not_tell_goes_by_the_names_of_arguments(tmp_path: Path) -> None:
    good = without_holders(dumped(tmp_path / "good"))
    weight = compared(without_holders(dumped(tmp_path / "weight", noisy("first.weight"))), good)
    assert weight.first is not None and (weight.outcome, weight.first.kind) == ("different", "state")
    buffer = compared(without_holders(dumped(tmp_path / "buffer", noisy("shift"))), good)
    assert buffer.first is not None and (buffer.outcome, buffer.first.kind) == ("undecided", "unrecorded_origin")
    assert compared(without_holders(dumped(tmp_path / "again")), good).outcome == "same"


@pytest.mark.parametrize(
    ("api", "slot", "weight"),
    [
        ("torch.nn.functional.linear", "input.1", True),
        ("torch.nn.functional.linear", "input.0", False),
        ("torch.conv2d", "input.2", True),
        ("torch.nn.functional.batch_norm", "kwarg.weight", True),
        ("torch.nn.functional.batch_norm", "kwarg.training", False),
        ("torch.addmm", "input.2", False),
        ("torch.linear_algebra", "input.1", False),
        ("torch.nn.functional.linear", "input.1.0", False),
    ],
)
def test_weights_by_name(api: str, slot: str, weight: bool) -> None:
    assert is_weight_by_name(api, slot) is weight


def viewed(factor: float | None) -> Callable[[torch.Tensor], None]:
    """Between the call that is wrong and the one that gets its result, a view gives the same value again."""

    def program(x: torch.Tensor) -> None:
        y = torch.tanh(x)
        if factor is not None:
            flat = y.flatten()
            y = torch.cat([flat[:1] * factor, flat[1:]]).view_as(y)
        torch.exp(y).sum()

    return program


def some_values() -> torch.Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_a_lone_call_is_named_though_others_pass_on_what_it_gives(data: Any, dumps: Dumps) -> None:
    good, healthy, wrong = (dumps(Run(viewed(factor), some_values), data=data) for factor in (None, 1.0, 1.05))
    assert compared(healthy, good).outcome == "same"
    for candidate, reference, kind in ((wrong, good, "extra_call"), (good, wrong, "missing_call")):
        summary = compared(candidate, reference)
        assert [summary.outcome, *(cause.kind for cause in summary.findings)] == ["different", kind]
        named = summary.findings[0].candidate or summary.findings[0].reference
        assert named is not None and named.label in ("Tensor.__getitem__.0.forward", "Tensor.mul.0.forward")
