"""Which op is named where the C++ compiler refuses a kernel: the one whose text is wrong, not the last one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch._inductor.codegen import cpp

import graphprobe

BROKEN = "compile error!"


@pytest.fixture
def broken_cos(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inductor writes C++ that is none for a cosine."""
    for overrides in (cpp.CppOverrides, cpp.CppVecOverrides):
        monkeypatch.setattr(overrides, "cos", staticmethod(lambda x: BROKEN))
    with torch._inductor.config.patch({"force_disable_caches": True}):
        yield


def fused(x: torch.Tensor) -> torch.Tensor:
    return ((x.sin() * 2 + torch.cos(x)).sigmoid() - 1).sum()


def only_in_the_backward(x: torch.Tensor) -> torch.Tensor:
    return (torch.sin(x * 2) + 1).exp().sum()  # the derivative of a sine


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("broken_cos")
@pytest.mark.parametrize(("fn", "direction"), [(fused, "forward"), (only_in_the_backward, "backward")])
def test_the_op_is_named_and_the_compiler_quoted(fn: Callable[..., Any], direction: str, tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 64).reshape(8, 8).requires_grad_(direction == "backward")
    found = graphprobe.diagnose(fn, x, out=tmp_path / "out")
    (finding,) = found.findings
    assert (finding.kind, finding.stage, finding.op) == ("crash_compile", "codegen", "aten.cos.default")
    assert finding.direction == direction
    line = fn.__code__.co_firstlineno + 1
    assert finding.source == f"{__file__}:{line}"
    assert "C++ compile error: ‘compile’ was not declared in this scope, in `auto tmp" in finding.reason
    report = (Path(finding.dossier or "") / "REPORT.md").read_text("utf-8")
    assert "aten.sum" not in report and "legitimate noise" not in report and BROKEN in report
