"""A run holds what is exported, traced and packaged, each graph with who made it, and changes nothing."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import graphprobe
from conftest import damaged
from graphprobe.store import Run, layout

LINE = torch.export.Dim("line", min=2, max=64)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x).relu()


def to_abs(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    for node in gm.graph.nodes:
        if node.target is torch.ops.aten.relu.default:
            node.target = torch.ops.aten.abs.default
    gm.recompile()
    return gm


def tidy(gm: torch.fx.GraphModule) -> None:
    gm.graph.eliminate_dead_code()


def made(run: Run, *, model: int = 0) -> list[str]:
    """Of each graph, who made it, without the line."""
    events = run.models()[model].graphs()["traced"]
    assert all(event.path for event in events)
    return [(event.where.pass_name or event.message or "").partition(" (")[0] for event in events]


def test_an_export_with_its_passes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, before = torch.randn(5, 4), sys.getprofile()
    graphprobe.enable(out_dir=tmp_path)
    try:
        exported = torch.export.export(Net(), (x,), dynamic_shapes=({0: LINE},))
        gm = exported.module()
        tidy(gm)
        result = to_abs(gm)(x)
        for _ in range(3):
            gm(x)
        assert sys.getprofile() is before  # it goes on as fast as ever
    finally:
        graphprobe.disable()
    assert bool((result >= 0).all()) and bool((result > 0).any())
    run = Run.open(tmp_path)
    assert made(run) == ["by torch.export.export", "ExportedProgram.module", "to_abs"]
    (model,) = run.models()
    assert model.compile["function"] == "Net"
    assert model.compile["reason"].startswith("by torch.export.export (")
    assert "aten.abs.default" in run.text(model.graphs()["traced"][-1])
    assert damaged(run) == [] and run.manifest.missing == []


def test_a_traced_function_and_a_symbolic_trace_are_models_of_their_own(tmp_path: Path) -> None:
    def square(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * x

    graphprobe.enable(out_dir=tmp_path)
    try:
        to_abs(make_fx(square)(torch.randn(3)))
        torch.fx.symbolic_trace(square)
        torch.compile(square, backend="eager")(torch.randn(3))
    finally:
        graphprobe.disable()
    run = Run.open(tmp_path)
    assert made(run) == ["by make_fx", "to_abs"]
    assert made(run, model=1) == ["by torch.fx.symbolic_trace"]
    assert len(run.models()) == 3
    assert damaged(run) == [] and run.manifest.missing == []


def test_nothing_is_left_in_place_and_a_compiled_graph_is_compiled_as_ever(tmp_path: Path) -> None:
    from torch.fx.graph_module import _WrappedCall

    def graphs_of(compiled: Any) -> int:
        counter = torch._dynamo.testing.CompileCounter()
        torch._dynamo.reset()
        function = torch.compile(compiled, backend=counter, fullgraph=True)
        function(torch.randn(5, 4))
        return int(counter.frame_count)

    torch.manual_seed(0)
    original, x = _WrappedCall.__call__, torch.randn(5, 4)
    gm = torch.export.export(Net().eval(), (x,)).module(check_guards=False)
    plain = torch.fx.symbolic_trace(lambda x: x * 2)
    without = graphs_of(gm), graphs_of(lambda x: plain(x) + gm(x))
    graphprobe.enable(out_dir=tmp_path)
    try:
        gm = torch.export.export(Net().eval(), (x,)).module(check_guards=False)
        state = torch.get_rng_state()
        gm(x)
        assert torch.equal(state, torch.get_rng_state())
        assert (graphs_of(gm), graphs_of(lambda x: plain(x) + gm(x))) == without
    finally:
        graphprobe.disable()
    assert _WrappedCall.__call__ is original
    with pytest.raises(RuntimeError) as raised:
        gm(torch.randn(5, 3))
    assert "graphprobe" not in str(raised.traceback)


@pytest.mark.slow
def test_a_package_is_shown_with_what_it_holds(tmp_path: Path) -> None:
    x = torch.randn(5, 4)
    graphprobe.enable(out_dir=tmp_path / "run")
    try:
        exported = torch.export.export(Net().eval(), (x,))
        path = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "net.pt2"))
        result = torch._inductor.aoti_load_package(path)(x)
    finally:
        graphprobe.disable()
    torch.testing.assert_close(result, exported.module()(x))
    run = Run.open(tmp_path / "run")
    (model,) = run.models()
    assert set(model.graphs()) == {"traced", "pre_grad", "forward"}
    files = {event.path for event in model.events if event.path}
    assert layout.code_file(model.graphs()["forward"][0].where, extension=".cpp") in files
    assert any(str(path).endswith(".wrapper.cpp") for path in files)
    assert any(str(path).endswith(".kernel.cpp") for path in files)
    assert ".wrapper.so" in run.text(run.find("model__0/package.txt"))
    assert damaged(run) == [] and run.manifest.missing == []
