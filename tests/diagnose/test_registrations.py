"""The program's own operators against their fake kernels and schemas: what disagrees is the user's to mend."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import planting
import pytest
import torch

from graphprobe.diagnose.api import diagnose
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.searches.registrations import disagreements

Tensor = torch.Tensor
LIBRARY = torch.library.Library("own_registered", "DEF")
RAMP = torch.arange(1.0, 11.0)


def own(name: str, kernel: Callable[..., Any], fake: Callable[..., Any], schema: str = "(Tensor x) -> Tensor") -> Any:
    """An operator with its kernel and fake kernel, as it is called."""
    LIBRARY.define(f"{name}{schema}")
    LIBRARY.impl(name, kernel, "CPU")
    torch.library.register_fake(f"own_registered::{name}", fake, lib=LIBRARY)
    return getattr(torch.ops.own_registered, name)


def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    return y, y[:1]


def at_least(count: int, columns: int = 1) -> Callable[[Tensor], Tensor]:
    def fake(x: Tensor) -> Tensor:
        size = torch.library.get_ctx().new_dynamic_size(min=count)
        return x.new_empty(*[size] * columns, dtype=torch.int64)

    return fake


def strict(x: Tensor) -> Tensor:
    if x.dim() != 2:
        raise ValueError("two dimensions only")
    return torch.empty_like(x)


def quantiles(x: Tensor) -> Tensor:
    return torch.quantile(x.view(2, 5), torch.tensor([0.2, 0.5, 0.8]), -1)


TWO = "(Tensor x) -> (Tensor, Tensor)"
WRONG: dict[str, tuple[Any, str, str]] = {
    "dtype": (own("dtype", lambda x: x.double(), torch.empty_like), "dtype float32 for the result", "makes float64"),
    "shape": (own("shape", lambda x: x.repeat(2), torch.empty_like), "the shape (10,)", "makes (20,)"),
    "dims": (own("dims", lambda x: x.view(2, 5) + 0, torch.empty_like), "the shape (10,)", "makes (2, 5)"),
    "strides": (own("strides", quantiles, lambda x: x.new_empty(3, 2)), "strides (2, 1)", "makes (1, 3)"),
    "of two": (
        own("of_two", lambda x: (x + 1, x.int()), lambda x: (torch.empty_like(x), torch.empty_like(x)), TWO),
        "dtype float32 for result 1",
        "makes int32",
    ),
    "writes": (own("writes", lambda x: x.add_(1) * 2, torch.empty_like), "leave the argument x as it is", "writes"),
    "view": (own("view", lambda x: x.view(2, 5), lambda x: x.new_empty(2, 5)), "memory of its own", "argument x"),
    "same": (own("same", lambda x: x, torch.empty_like), "memory of its own", "returns memory of the argument x"),
    "twice": (
        own("twice", pair, lambda x: (torch.empty_like(x), x.new_empty(1)), TWO),
        "memory of its own for result 1",
        "returns memory of result 0",
    ),
    "promised view": (own("promised", lambda x: x + 1, lambda x: x), "memory of the argument x", "memory of its own"),
    "too many": (own("many", lambda x: x.nonzero()[2:, 0], at_least(9)), "the shape (9 or more,)", "makes (8,)"),
    "not square": (own("square", lambda x: x.long().repeat(2, 1), at_least(1, 2)), "the shape (", "makes (2, 10)"),
    "raises": (own("raises", lambda x: x + 1, strict), "raises ValueError: two dimensions only", "raises nothing"),
}
"""An operator, what is promised, and what the kernel makes."""

RIGHT: dict[str, Any] = {
    "dtype": own("right_dtype", lambda x: x.double(), lambda x: x.new_empty(10, dtype=torch.float64)),
    "counted": own("right_counted", lambda x: x.nonzero()[:, 0], at_least(0)),
    "strides of one element": own(
        "right_unit", lambda x: x[:1].view(1, 1) + 0, lambda x: x.new_empty_strided((1, 1), (7, 9))
    ),
    "NaN": own("right_nan", lambda x: x * torch.nan, torch.empty_like),
    "told to write": own("right_write", lambda x: x.add_(1) * 2, torch.empty_like, "(Tensor(a!) x) -> Tensor"),
    "told to view": own("right_view", lambda x: x.view(2, 5), lambda x: x.view(2, 5), "(Tensor(a) x) -> Tensor(a)"),
    "no result": own("right_none", lambda x: None, lambda x: None, "(Tensor x) -> ()"),
    "a list": own(
        "right_list",
        lambda x: [v + 1 for v in x],
        lambda x: [torch.empty_like(v) for v in x],
        "(Tensor[] x) -> Tensor[]",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_promised_and_what_is_made(name: str) -> None:
    op, promised, made = WRONG[name]
    ((finding, check),) = disagreements(Program(lambda x: op(x * 1), [((RAMP,), {})]))
    assert promised in finding.reason and f"own_registered::{op.__name__} " in finding.reason and made in finding.reason
    assert (finding.kind, finding.op, finding.direction) == ("wrong_registration", f"{op.default}", "forward")
    assert str(finding.source).rpartition(":")[0] == __file__ or "schema" in finding.reason.lower()
    assert torch.equal(check.arguments()[0][0], RAMP)


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_as_registered_is_no_finding(name: str) -> None:
    given = [RAMP.clone()] if name == "a list" else torch.full((10,), torch.nan) if name == "NaN" else RAMP.clone()
    assert disagreements(Program(RIGHT[name], [((given,), {})])) == []


def test_the_call_that_disagrees_may_be_a_later_one_or_in_the_backward() -> None:
    halves = own("halves", lambda x: x[: -(-len(x) // 2)] + 0, lambda x: x.new_empty(len(x) // 2))
    program = Program(halves, [((torch.ones(n),), {}) for n in (4, 6, 5)])
    ((finding, check),) = disagreements(program)
    assert "(2,)" in finding.reason and "(3,)" in finding.reason and len(check.arguments()[0][0]) == 5

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return WRONG["dtype"][0](grads[0]).float() * 2

    doubled: Any = Doubled.apply
    ((finding, _),) = disagreements(Program(doubled, [((torch.ones(3, requires_grad=True),), {})], grad=True))
    assert finding.direction == "backward" and "dtype float32" in finding.reason


@torch.library.custom_op("own_registered_too::means", mutates_args=())
def means(x: Tensor) -> Tensor:
    return x.double().mean(-1)


@means.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[:-1])


def meaning(x: Tensor) -> Tensor:
    return means(x) * 2


def righteous(x: Tensor) -> Tensor:
    return RIGHT["dtype"](x) + torch.relu(x)


@pytest.mark.slow
def test_the_fake_kernel_is_told_with_a_proof_and_no_report(tmp_path: Path) -> None:
    found = diagnose(meaning, torch.arange(10.0).view(5, 2), out=tmp_path / "out")
    (finding,) = found.findings
    assert (finding.kind, finding.op, finding.proof) == (
        "wrong_registration",
        "own_registered_too.means.default",
        "piece",
    )
    assert f"Your fake kernel at {Path(__file__).name}:" in finding.reason and "opcheck" in finding.reason
    folder = Path(str(finding.dossier))
    assert not (folder / "REPORT.md").exists()
    run = [sys.executable, "-I", str(folder / "repro.py")]
    assert __file__ not in (folder / "repro.py").read_text()
    assert subprocess.run(run, cwd=tmp_path, capture_output=True, check=False).returncode == 1
    mended = (folder / "repro.py").read_text().replace("x.shape[:-1])", "x.shape[:-1], dtype=torch.float64)")
    (folder / "repro.py").write_text(mended)
    assert subprocess.run(run, cwd=tmp_path, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_a_fault_of_inductor_beside_a_right_operator_is_inductors(tmp_path: Path) -> None:
    with planting.cpp("relu", lambda x: f"({x} * 2)"):
        (finding,) = diagnose(righteous, RAMP, out=tmp_path / "out").findings
    assert (finding.stage, finding.op) == ("codegen", "aten.relu.default")
