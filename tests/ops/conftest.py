"""A program that saves values, and what it left behind."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphprobe import ops
from graphprobe.ops import destination
from graphprobe.store import DumpedOp, DumpFolder, open_dump


@dataclasses.dataclass
class Saved:
    """What was saved below `path` so far."""

    path: Path

    @property
    def folder(self) -> DumpFolder:
        ops.flush()
        (only,) = open_dump(self.path).folders
        return only

    def ops(self) -> list[DumpedOp]:
        return list(self.folder.ops())

    def names(self) -> list[str]:
        return [op.record.op.op_name for op in self.ops()]

    def value(self, name: str, index: int = 0) -> torch.Tensor:
        found = [op for op in self.ops() if op.record.op.op_name == name][index]
        return torch.from_numpy(found.values()["output.0"].array())

    def assert_value(self, name: str, expected: torch.Tensor, index: int = 0, **tolerance: Any) -> None:
        torch.testing.assert_close(self.value(name, index), expected.detach(), **tolerance)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """As in a process that has saved nothing, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(destination, "_saved", destination._Saved())
    monkeypatch.setattr(destination.switch, "off", False)
    yield tmp_path
    destination._close()


@pytest.fixture
def saved(fresh: Path) -> Saved:
    ops.save_to(fresh / "values")
    return Saved(fresh / "values")
