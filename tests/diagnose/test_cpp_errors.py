"""Which op is named where the C++ compiler refuses a kernel: the one whose text is wrong, not the last one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import planting
import pytest
import torch

import graphprobe

BROKEN = "compile error!"


def fused(x: torch.Tensor) -> torch.Tensor:
    return ((x.sin() * 2 + torch.cos(x)).sigmoid() - 1).sum()


def only_in_the_backward(x: torch.Tensor) -> torch.Tensor:
    return (torch.sin(x * 2) + 1).exp().sum()  # the derivative of a sine


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("fn", "direction"), [(fused, "forward"), (only_in_the_backward, "backward")])
def test_the_op_is_named_and_the_compiler_quoted(fn: Callable[..., Any], direction: str, tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 64).reshape(8, 8).requires_grad_(direction == "backward")
    with planting.cpp("cos", lambda x: BROKEN):
        (finding,) = graphprobe.diagnose(fn, x, out=tmp_path / "out").findings
    assert (finding.kind, finding.stage, finding.op) == ("crash_compile", "codegen", "aten.cos.default")
    assert finding.direction == direction
    assert finding.source == f"{__file__}:{fn.__code__.co_firstlineno + 1}"
    assert "C++ compile error: ‘compile’ was not declared in this scope, in `auto tmp" in finding.reason
    report = (Path(finding.dossier or "") / "REPORT.md").read_text("utf-8")
    assert "aten.sum" not in report and "legitimate noise" not in report and BROKEN in report
