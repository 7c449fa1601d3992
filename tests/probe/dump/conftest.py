"""A program that dumps, and what it left behind."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import graphprobe
from graphprobe.probe.dump.sessions import close_all
from graphprobe.store import DumpedOp, DumpFolder, open_dump


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

    def ran(self, **wanted: Any) -> list[DumpedOp]:
        """The ops that are no inputs of a graph."""
        return [op for op in self.ops(**wanted) if op.record.op.op_type != "Data"]

    def names(self, **wanted: Any) -> list[str]:
        return [op.record.op.op_name for op in self.ran(**wanted)]

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

    def backend_of_file(self, name: str = "aot_eager", **keys: Any) -> Any:
        """The same with a JSON file of these keys; what none can say is given as an option."""
        options = {name: keys.pop(name) for name in ("engine", "dump_layer") if name in keys}
        path = self.path.parent / "dump.json"
        path.write_text(json.dumps({"dump": {"dump_path": str(self.path), **keys}}), "utf-8")
        return self.backend(name, dump_path=None, dump_config_path=str(path), **options)

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
def operator() -> Iterator[Callable[..., Any]]:
    """Makes a function of `x` an operator of that name, which is gone after the test; its output is like its input."""
    library = torch.library.Library("gp_scene", "FRAGMENT")

    def define(function: Any, *, writes: bool = False) -> Any:
        name = function.__name__
        library.define(f"{name}({'Tensor(a!)' if writes else 'Tensor'} x) -> Tensor")
        library.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"gp_scene::{name}", torch.empty_like, lib=library)
        return getattr(torch.ops.gp_scene, name)

    yield define
    library._destroy()


@pytest.fixture
def dump_of(dumping: Dumping) -> Callable[..., Dumped]:
    """Compiles a function with a dump, calls it once, and gives back what lies on disk."""

    def run(function: Any, *args: Any, backend: str = "aot_eager", **options: Any) -> Dumped:
        dumping.compile(function, backend, **options)(*args)
        return dumping.end()

    return run
