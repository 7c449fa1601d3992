"""Faults of the catalogue in other programs are recognised; faults of the same operations for another cause are not."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import planting
import pytest
import torch
from torch import nn
from torch.nn import functional

import graphprobe
from graphprobe.diagnose.workarounds import known_faults
from graphprobe.diagnose.workarounds.known_faults import KnownFault, catalogue, known
from graphprobe.findings import Diagnosis, Finding, KnownIssue

aten = torch.ops.aten

Made = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A program, its arguments, and how it is diagnosed."""


class Pooled(nn.Module):
    """Convolutions with a pooling between them."""

    def __init__(self, pool: Callable[[torch.Tensor], torch.Tensor], convolution: type[nn.Module] = nn.Conv2d) -> None:
        super().__init__()
        self.before, self.pool = convolution(2, 3, 1), pool  # type: ignore[call-arg]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(self.before(x)).tanh() * 3


def of_layers(inner: Callable[..., torch.Tensor], *more: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function behind a linear layer and in front of some more."""
    layer = nn.Linear(6, 6).requires_grad_(False)
    return lambda x: inner(layer(x), *more).float().mean() + layer(x).sum() * 0.25


def distances(x: torch.Tensor) -> torch.Tensor:
    return 3 - torch.acosh(x.abs()).reshape(5, 7)


def interpolated(x: torch.Tensor) -> torch.Tensor:
    return functional.interpolate(x.relu(), size=(x.shape[-2] // 2, 4), mode="area") * 2


def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.binary_cross_entropy(torch.sigmoid(x.sin()), target) * 3


def either(x: torch.Tensor) -> torch.Tensor:
    found = torch.add(x > 0, x < 1, alpha=3)
    return torch.where(found, x, x * 2)


def positions(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    places = torch.ones((3, 5), dtype=torch.bool).cumsum(0, dtype=torch.bfloat16)
    return x.cos() * 3, places


def per_group(total: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    return torch.div(total * 2, groups, rounding_mode="trunc") + 1


def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x.exp() * (1 - mask)


def best_row(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1).sum(-1).argmax()


def through_numpy(x: Any) -> Any:
    return np.cumsum(x)


def shifted(bias: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.addmm(bias, x.relu(), y) * 2


def tuned(fn: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(fn, options={"max_autotune": True})


LARGE = torch.tensor([3.0, 1e20, 2e38, 5.0, 1e12] * 7)
MASK = torch.tensor([True, False, True, False, False, True])

AGAIN: dict[str, Callable[[], Made]] = {
    "acosh": lambda: (distances, (LARGE,), {}),
    "adaptive_max_pool3d": lambda: (
        Pooled(lambda x: functional.adaptive_max_pool3d(x, (2, 3, 4)), nn.Conv3d),
        (torch.randn(2, 2, 4, 6, 8).contiguous(memory_format=torch.channels_last_3d),),
        {"grad": True},
    ),
    "interpolate": lambda: (
        interpolated,
        (),
        {"dynamic": True, "calls": [((torch.randn(2, 3, 9, 5),), {}), ((torch.randn(2, 3, 11, 5),), {})]},
    ),
    "avg_pool2d": lambda: (
        Pooled(lambda x: functional.avg_pool2d(x, 3, 2, ceil_mode=True)),
        (torch.randn(2, 2, 10, 10),),
        {"grad": True},
    ),
    "binary_cross_entropy": lambda: (loss, (torch.randn(3, 6), torch.full((3, 6), 2.0)), {}),
    "add": lambda: (either, (torch.randn(80),), {}),
    "cumsum": lambda: (positions, (torch.randn(6),), {}),
    "div": lambda: (per_group, (torch.arange(6), torch.tensor([1, 0, 2, 3, 1, 1])), {}),
    "rsub": lambda: (masked, (torch.randn(6), MASK), {}),
    "argmax": lambda: (best_row, (torch.randn(6, 7, 8),), {}),
    "numpy": lambda: (through_numpy, (np.array([90, 100, 110, 5], dtype=np.int8),), {}),
    "addmm": lambda: (tuned(shifted), (torch.tensor(2.0), torch.randn(6, 5), torch.randn(5, 6)), {}),
}
"""Twelve faults of real programs, each written anew: other shapes and values, and more around it."""


def half(right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What an operation returns, halved; of those that return several the first."""
    made = right(*args, **kwargs)
    halve = torch._inductor.lowering.lowerings[aten.mul.Tensor]
    return (halve(made[0], 0.5), *made[1:]) if isinstance(made, tuple) else halve(made, 0.5)


def first(right: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
    return right(torch._inductor.lowering.lowerings[aten.neg.default](x), *args, **kwargs)


def too_low(self: torch.Tensor, target: torch.Tensor, *_: Any) -> torch.Tensor:
    return -(target * self.log()).mean()


SMALL = torch.tensor([1.5, 2.0, 3.0, 4.0, 5.0] * 7)

ALIKE: dict[str, tuple[Callable[[], Made], Callable[[], contextlib.AbstractContextManager[Any]]]] = {
    "acosh": (lambda: (distances, (SMALL,), {}), lambda: planting.lowering(aten.acosh.default, half)),
    "adaptive_max_pool3d": (
        lambda: (
            Pooled(lambda x: functional.adaptive_max_pool3d(x, (2, 3, 4)), nn.Conv3d),
            (torch.randn(2, 2, 4, 6, 8),),
            {"grad": False},
        ),
        lambda: planting.decomposition(aten.adaptive_max_pool3d.default, lambda x, size: (x[..., :2, :3, :4] * 2, x)),
    ),
    "interpolate": (
        lambda: (interpolated, (torch.randn(2, 3, 9, 5),), {}),
        lambda: planting.lowering(aten._adaptive_avg_pool2d.default, half),
    ),
    "avg_pool2d": (
        lambda: (Pooled(lambda x: functional.avg_pool2d(x, 2, 2)), (torch.randn(2, 2, 10, 10),), {"grad": True}),
        lambda: planting.lowering(aten.avg_pool2d_backward.default, half),
    ),
    "binary_cross_entropy": (
        lambda: (loss, (torch.randn(3, 6), torch.rand(3, 6)), {}),
        lambda: planting.decomposition(aten.binary_cross_entropy.default, too_low),
    ),
    "add": (
        lambda: (lambda x: torch.add(x, x.sin(), alpha=3), (torch.randn(80),), {}),
        lambda: planting.lowering(aten.add.Tensor, half),
    ),
    "cumsum": (
        lambda: (lambda x: x.cos().cumsum(0), (torch.randn(6, 4),), {}),
        lambda: planting.lowering(aten.cumsum.default, first),
    ),
    "div": (
        lambda: (lambda x, y: torch.div(x, y, rounding_mode="trunc"), (torch.randn(6) * 9, torch.rand(6) + 1), {}),
        lambda: planting.lowering(aten.div.Tensor_mode, half),
    ),
    "rsub": (
        lambda: (masked, (torch.randn(6), torch.rand(6)), {}),
        lambda: planting.decomposition(aten.rsub.Scalar, lambda self, other, alpha=1: self - other),
    ),
    "argmax": (
        lambda: (lambda x: x.sin().argmax(-1), (torch.randn(6, 7),), {}),
        lambda: planting.lowering(aten.argmax.default, first),
    ),
    "numpy": (
        lambda: (lambda x: np.cumsum(x), (np.array([1.5, 2.0, 3.5]),), {}),
        lambda: planting.lowering(aten.cumsum.default, first),
    ),
    "addmm": (
        lambda: (shifted, (torch.randn(6), torch.randn(6, 5), torch.randn(5, 6)), {}),
        lambda: planting.decomposition(aten.addmm.default, lambda bias, x, y, **_: x @ y - bias),
    ),
}
"""The same operations, wrong for another cause, which is planted."""


def diagnosed(made: Made, out: Path) -> Diagnosis:
    fn, args, how = made
    return graphprobe.diagnose(fn, *args, out=out, workaround=False, **how)


@pytest.mark.heavy
@pytest.mark.parametrize("name", AGAIN)
def test_a_known_fault_in_another_program_is_recognised(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    found = diagnosed(AGAIN[name](), tmp_path)
    assert any(one.known is not None for one in found.findings), found.findings


@pytest.mark.heavy
@pytest.mark.parametrize("name", ALIKE)
def test_a_fault_of_the_same_operation_for_another_cause_is_not(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    make, plant = ALIKE[name]
    with plant():
        found = diagnosed(make(), tmp_path)
    assert found.verdict == "fault"
    assert not any(one.known for one in found.findings), found.findings


ROW = KnownFault(
    issue="pytorch#1", case="one", kind="wrong_value", stage="lowering", op="acosh", versions={"2.13": True}
)


def finding(**other: Any) -> Finding:
    facts: dict[str, Any] = {"kind": "wrong_value", "stage": "lowering", "op": "aten.acosh.default", "proof": "program"}
    return Finding(**facts | other)


def test_a_finding_is_known_by_kind_stage_operation_and_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    other = KnownFault(case="other", kind="wrong_value", stage="lowering", op="sinh", condition=("calls mul",))
    monkeypatch.setattr(known_faults, "catalogue", lambda: [ROW, other])
    assert known(finding()) == KnownIssue(issue="pytorch#1", there=["2.13"], gone=[])
    assert known(finding(op="aten.sinh.default")) is None
    assert known(finding(kind="crash_compile")) is None
    assert known(finding(stage="codegen")) is None
    assert known(finding(pass_="fold")) is None
    assert known(finding(proof=None)) is None
    assert known(finding(backend="mine")) is None


def test_of_two_issues_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    two = KnownFault(issue="pytorch#2", case="two", kind="wrong_value", stage="lowering", op="acosh")
    monkeypatch.setattr(known_faults, "catalogue", lambda: [ROW, two])
    assert known(finding()) is None


def test_versions_are_told() -> None:
    assert KnownIssue(issue="pytorch#7", there=["2.13"], gone=["2.15"]).in_words == (
        "looks like pytorch#7: there with torch 2.13, not with 2.15"
    )
    assert KnownIssue(there=["2.13"], gone=[]).in_words == (
        "looks like a fault that is known, and has no issue: there with torch 2.13"
    )


def test_rows_of_the_catalogue_are_particular_and_were_seen_to_fail() -> None:
    rows = catalogue()
    assert len(rows) > 40
    for row in rows:
        assert row.condition, row
        assert row.versions["2.13"], row
        assert len(row.versions) >= 2, row
