"""`graphprobe.ops.print`: one line a tensor, from eager and from compiled code."""

from typing import Any

import pytest
import torch

from graphprobe import ops


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_a_line_for_the_value_and_one_for_the_gradient(capsys: pytest.CaptureFixture[str], backend: str | None) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (ops.print(x * 2, "doubled") * 3).sum()

    found = f if backend is None else torch.compile(f, backend=backend, fullgraph=True)
    found(torch.tensor([1.0, float("nan"), float("-inf"), 0.5], requires_grad=True)).backward()
    assert capsys.readouterr().out.splitlines() == [
        "doubled: float32 (4,) cpu  min 1  max 2  mean 1.5  nan 1  inf 1  [2, nan, -inf, 1]",
        "doubled.grad: float32 (4,) cpu  min 3  max 3  mean 3  nan 0  inf 0  [3, 3, 3, 3]",
    ]


LINES = [
    (torch.arange(8), "int64 (8,) cpu  min 0  max 7  mean 3.5  nan 0  inf 0  [0, 1, 2, 3, 4, 5, …]"),
    (torch.tensor(True), "bool () cpu  min 1  max 1  mean 1  nan 0  inf 0  [True]"),
    (torch.empty(0, 2), "float32 (0, 2) cpu  min None  max None  mean None  nan 0  inf 0"),
    (torch.tensor([3 + 4j]), "complex64 (1,) cpu  min 5  max 5  mean 5  nan 0  inf 0  [3+4j]"),
    (torch.ones(1).to(torch.float8_e4m3fn), "float8_e4m3fn (1,) cpu  min 1  max 1  mean 1  nan 0  inf 0  [1]"),
]


@pytest.mark.parametrize(("value", "line"), LINES, ids=lambda v: "" if isinstance(v, str) else str(v.dtype))
def test_every_kind_of_value(capsys: pytest.CaptureFixture[str], value: torch.Tensor, line: str) -> None:
    assert ops.print(value) is value
    assert capsys.readouterr().out == line + "\n"


@pytest.mark.parametrize(("name", "begin"), [(("s",), "s: "), ((), "")])
def test_without_statistics_the_line_says_why(capsys: pytest.CaptureFixture[str], name: Any, begin: str) -> None:
    ops.print(torch.ones(2, 2).to_sparse(), *name)
    out = capsys.readouterr().out
    assert out.startswith(f"{begin}float32 (2, 2) cpu  no statistics: ") and "sparse" in out
