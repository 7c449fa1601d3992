"""The rung of the kernels shows the values inside of a graph where that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphprobe.diagnose.program import Program
from graphprobe.diagnose.rungs import RungReport, Watch, kernel_rung, run_program
from graphprobe.diagnose.settings import Compilation


def inside(x: torch.Tensor) -> torch.Tensor:
    return (x.relu() @ x).cos().sum()


@pytest.mark.parametrize("expose", [True, False])
def test_values_are_shown_where_that_is_asked_for(expose: bool, tmp_path: Path) -> None:
    watch, report = Watch(), RungReport()
    program = Program(inside, [((torch.ones(3, 3),), {})])
    run_program(program, Compilation("inductor", None, tmp_path), kernel_rung(watch, expose=expose), report)
    (graph,) = watch.compiled
    assert graph.problem == ""
    assert graph.shown == (["relu", "mm", "cos"] if expose else [])
    assert [len(values) for values in graph.values] == ([len(graph.shown) + 1] if expose else [])  # and the result
