"""A program that dumps, and what it left behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import graphprobe
from graphprobe.probe.dump.sessions import close_all
from graphprobe.store.dump_reader import DumpedOp, DumpFolder, open_dump


@dataclasses.dataclass
class Dumped:
    """The dump of one program, closed."""

    path: Path

    @property
    def folder(self) -> DumpFolder:
        (only,) = open_dump(self.path).folders
        return only

    @property
    def manifest(self) -> Any:
        return self.folder.manifest

    def ops(self, **wanted: Any) -> list[DumpedOp]:
        found = self.folder.ops()
        return [op for op in found if all(getattr(op.record.op, name) == value for name, value in wanted.items())]

    def op(self, name: str, **wanted: Any) -> DumpedOp:
        (only,) = self.ops(op_name=name, **wanted)
        return only

    def names(self, **wanted: Any) -> list[str]:
        """Names of the ops that are no inputs of a graph."""
        return [op.record.op.op_name for op in self.ops(**wanted) if op.record.op.op_type != "Data"]

    def inputs(self) -> list[str]:
        return [op.record.op.op_name for op in self.ops(op_type="Data")]


@dataclasses.dataclass
class Dumping:
    """Backends that dump below `path`."""

    path: Path

    def backend(self, name: str = "inductor", **options: Any) -> Any:
        config = graphprobe.CompilerConfig()
        config.dump_config.enable_dump = True
        for option, value in {"dump_path": str(self.path), **options}.items():
            setattr(config.dump_config, option, value)
        return graphprobe.get_backend(compiler_config=config, backend=name)

    def compile(self, model: Any, name: str = "inductor", *, dynamic: bool | None = None, **options: Any) -> Any:
        return torch.compile(model, backend=self.backend(name, **options), dynamic=dynamic)

    def end(self) -> Dumped:
        close_all()
        return Dumped(self.path)


@pytest.fixture
def dumping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dumping]:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "dump"
    path.mkdir()
    yield Dumping(path)
    close_all()
    graphprobe.disable()


@pytest.fixture
def dump_of(dumping: Dumping) -> Callable[..., Dumped]:
    """Compiles a function with a dump, calls it once, and gives back what lies on disk."""

    def run(function: Any, *args: Any, backend: str = "aot_eager", **options: Any) -> Dumped:
        dumping.compile(function, backend, **options)(*args)
        return dumping.end()

    return run
