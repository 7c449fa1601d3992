"""What tells of a stage: the IR of a graph, right or not, and why it could not be looked into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from graphprobe.diagnose import evidence, steps
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.settings import Compilation
from graphprobe.errors import UnsupportedTorchError
from graphprobe.internals.inductor import executable_snapshots


def lacking() -> evidence.Seen:
    raise UnsupportedTorchError("torch 2.99 keeps a Kernel of its IR otherwise")


def compilation(folder: Path) -> Compilation:
    return Compilation("inductor", None, folder, timeout_s=60)


def test_a_result_that_is_none_is_right() -> None:
    """As in a backward, of an input without a gradient."""
    x = torch.ones(3)
    assert evidence.loops_of(make_fx(lambda x: (None, x * 2))(x), [x]) == "right"


def test_why_the_ir_was_not_looked_into_is_kept(tmp_path: Path) -> None:
    lost = evidence._seen(lacking, compilation(tmp_path)).lost
    assert lost == "UnsupportedTorchError: torch 2.99 keeps a Kernel of its IR otherwise"
    assert evidence._seen(lambda: evidence.Seen(loops="right"), compilation(tmp_path)).lost == ""


@pytest.mark.parametrize(("entries", "notes"), [(executable_snapshots.PATTERN_ENTRIES, []), (("NoSuch",), ["NoSuch"])])
def test_passes_that_cannot_be_watched_are_noted(
    entries: Any, notes: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(executable_snapshots, "PATTERN_ENTRIES", entries)
    report = steps.passes(Program(torch.sin, [((torch.ones(3),), {})]), compilation(tmp_path))
    told = "not every pass was looked into: this torch lacks torch._inductor.pattern_matcher:{}.apply"
    assert report.notes == [told.format(name) for name in notes]
