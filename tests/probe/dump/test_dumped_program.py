"""A program that gives its functions to `torch.compile` as ever, and is dumped."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import graphprobe
from graphprobe.backends.wrap import DumpedProgram
from graphprobe.dump_plan import plan_from
from graphprobe.probe.dump.backend import DumpBackend
from graphprobe.store import Run, layout
from probe.dump.conftest import Dumped, Dumping


class Tanh(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh()


@pytest.fixture
def program(dumping: Dumping) -> Iterator[DumpedProgram]:
    made = DumpedProgram(plan_from(options={"enable_dump": True, "dump_path": str(dumping.path)}))
    plain = torch.compile
    made.install()
    yield made
    made.remove()
    assert torch.compile is plain


def test_every_way_to_compile(program: DumpedProgram, dumping: Dumping) -> None:
    torch.compile(lambda x: x.sin(), backend="aot_eager")(torch.ones(2))

    @torch.compile(backend="eager", dynamic=False)
    def second(x: torch.Tensor) -> torch.Tensor:
        return x.cos()

    second(torch.ones(2))
    module = Tanh()
    module.compile(backend="aot_eager")
    module(torch.ones(2))
    torch.compile(lambda x: x.tan(), backend="aot_eager", disable=True)(torch.ones(2))
    assert program.folders == [dumping.end().folder.time_dir]
    assert dumping.end().names() == ["sin", "cos", "tanh"]


def test_the_same_function_is_compiled_once(program: DumpedProgram, dumping: Dumping) -> None:
    """As without: torch takes backends that are equal for one."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    for _ in range(3):
        torch.compile(function, backend="aot_eager")(torch.ones(2))
    assert {op.record.place.model_id for op in dumping.end().ops()} == {0}


def test_a_backend_that_is_a_function_stays_and_that_is_told(program: DumpedProgram, dumping: Dumping) -> None:
    def own(gm: torch.fx.GraphModule, inputs: object) -> object:
        return gm

    torch.compile(lambda x: x.sin(), backend=own)(torch.ones(2))
    torch.compile(lambda x: x.cos(), backend="aot_eager")(torch.ones(2))
    found = dumping.end()
    assert found.names() == ["cos"]
    assert any("'own'" in note and "not dumped" in note for note in found.manifest.notes)


def test_a_program_that_dumps_itself_is_not_dumped_twice(program: DumpedProgram, dumping: Dumping) -> None:
    other = dumping.path / "own"
    other.mkdir()
    dumping.compile(lambda x: x.sin(), "aot_eager", dump_path=str(other))(torch.ones(2))
    dumping.end()
    assert Dumped(other).names() == ["sin"]
    assert program.folders == [] and [path.name for path in dumping.path.iterdir()] == ["own"]


def test_a_dump_makes_no_run_unasked(dumping: Dumping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    backend = dumping.backend("aot_eager")
    torch.compile(lambda x: x.sin(), backend=backend)(torch.ones(2))
    assert not (tmp_path / layout.ROOT).exists()
    torch._dynamo.reset()
    with graphprobe.trace() as folder:
        torch.compile(lambda x: x.cos(), backend=backend)(torch.ones(2))
    assert Run.open(folder).manifest.models == 1, "a run that is on has it"
    assert dumping.end().names() == ["sin", "cos"]
    config = graphprobe.CompilerConfig()
    config.dump_config.enable_dump = True
    config.dump_config.dump_path = str(dumping.path)
    config.debug.graph_dump.type = "txt"
    graphprobe.get_backend(compiler_config=config, backend="aot_eager")
    graphprobe.disable()
    assert len(Run.find_all(tmp_path / layout.ROOT)) == 2, "the graphs were asked for"


def test_mode_and_options_go_along(program: DumpedProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def call(self: object, gm: torch.fx.GraphModule, inputs: object, **settings: object) -> object:
        seen.append(settings)
        return gm

    monkeypatch.setattr(DumpBackend, "__call__", call)
    torch.compile(lambda x: x.sin())(torch.ones(2))
    torch.compile(lambda x: x.cos(), mode="max-autotune")(torch.ones(2))
    torch.compile(lambda x: x.tan(), options={"epilogue_fusion": False})(torch.ones(2))
    assert seen == [{}, {"mode": "max-autotune"}, {"options": {"epilogue_fusion": False}}]
    assert graphprobe.disable() is None, "a dump makes no run"
