"""Inputs that differ: what a module or the program holds is state; of the rest nobody can say where it is from."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.nn import functional as F  # noqa: N812

import graphprobe
from compare.pairs import Dumps, Run, compared
from graphprobe.cli.main import main
from graphprobe.compare import open_dump
from graphprobe.compare.slots import is_weight_by_name
from store.dump_helpers import write_ptdbg


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
