"""A case with many calls becomes one with few that fails alike, and its calls are named, the likeliest first."""

from collections.abc import Callable
from functools import partial

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


@pytest.mark.heavy
@pytest.mark.skipif(torch.__version__ >= (2, 15), reason="these faults of torch are gone: docs/versions.md")
@pytest.mark.parametrize(
    ("name", "lowers", "most", "ops"),
    [
        ("emb_copy_then_decay", False, 4, {"operator.setitem", "torch.Tensor.mul_"}),
        ("emb_area_of_symbols", True, 3, {"torch.nn.functional.interpolate"}),
    ],
    ids=["what a pass breaks", "what is not lowered, by its line"],
)
def test_it_is_found_without_kernels(name: str, lowers: bool, most: int, ops: set[str]) -> None:
    model, args, _ = cases.load(f"tracker/{name}").make()
    case = case_of(model, args, dynamic=lowers or None)
    hints = [n.name for n in named(case) if name in (source_of(n) or "")] if lowers else []
    backend = partial(graphs_of_inductor, lowers=lowers)
    short = shortened(case, budget_s=400, timeout_s=200, backend=backend, hints=hints)
    assert short is not None
    assert {op_of(n) for n in named(short)} >= ops and len(named(short)) <= most


def names_of(program: Callable[..., torch.Tensor]) -> list[str | None]:
    return [op_of(n) for n in named(case_of(program, (torch.randn(3, 4),)))]


def test_the_order_of_calls() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        low, high = torch.aminmax(x, dim=0)
        return torch.ops.aten.view.default(torch.sin(low) + high, [-1])

    assert names_of(program) == ["operator.add", "torch.sin", "torch.aminmax", "aten.view.default"]
    assert names_of(lambda x: x[0] + torch.aminmax(x, dim=0)[1]).count("operator.getitem") == 1
