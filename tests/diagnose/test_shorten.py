"""A case with many calls becomes one with few that fails alike, and its calls are named, the likeliest first."""

from __future__ import annotations

import cases
import pytest
import torch
from reduction import reduction_cases
from reduction.reduction_cases import case_of, mlp

from graphprobe.diagnose.culprit import named, shortened
from graphprobe.diagnose.prove import graphs_of_inductor
from graphprobe.engine.naming import op_of, source_of


def test_one_call_is_left() -> None:
    fn, args = mlp()
    case = case_of(fn, args, backend="eager")
    short = shortened(case, budget_s=60, timeout_s=20, backend=lambda: reduction_cases.raising)
    assert short is not None
    assert [op_of(n) for n in named(short)] == ["torch.nn.functional.relu"]


def test_a_case_that_does_not_fail_stays_as_it_is() -> None:
    fn, args = mlp(depth=2, at=0)
    assert shortened(case_of(fn, args, backend="eager"), budget_s=60, timeout_s=20) is None


@pytest.mark.skipif(torch.__version__ >= (2, 15), reason="this fault of torch is gone: docs/versions.md")
def test_what_a_pass_breaks_is_found_without_kernels() -> None:
    model, args, _ = cases.load("tracker/emb_copy_then_decay").make()
    short = shortened(case_of(model, args), budget_s=400, timeout_s=200, backend=graphs_of_inductor)
    assert short is not None
    assert {op_of(n) for n in named(short)} >= {"operator.setitem", "torch.Tensor.mul_"}
    assert len(named(short)) <= 4


@pytest.mark.heavy
@pytest.mark.skipif(torch.__version__ >= (2, 15), reason="this fault of torch is gone: docs/versions.md")
def test_what_is_not_lowered_is_found_without_kernels_by_its_line() -> None:
    model, args, _ = cases.load("tracker/emb_area_of_symbols").make()
    case = case_of(model, args, dynamic=True)
    hints = [n.name for n in named(case) if "emb_area_of_symbols" in (source_of(n) or "")]
    short = shortened(case, budget_s=400, timeout_s=200, backend=lambda: graphs_of_inductor(lowers=True), hints=hints)
    assert short is not None
    assert "torch.nn.functional.interpolate" in [op_of(n) for n in named(short)]
    assert len(named(short)) <= 3


def test_views_come_last_and_later_calls_first() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        low, high = torch.aminmax(x, dim=0)
        return torch.ops.aten.view.default(torch.sin(low) + high, [-1])

    names = [op_of(n) for n in named(case_of(program, (torch.randn(3, 4),)))]
    assert names == ["operator.add", "torch.sin", "torch.aminmax", "aten.view.default"]


def test_indexing_a_tensor_counts_and_picking_a_result_does_not() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x[0] + torch.aminmax(x, dim=0)[1]

    names = [op_of(n) for n in named(case_of(program, (torch.randn(3, 4),)))]
    assert names.count("operator.getitem") == 1
