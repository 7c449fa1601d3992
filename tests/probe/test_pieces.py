"""A backend that cuts Dynamo's graph and compiles each piece by itself: every piece has files of its own."""

from pathlib import Path
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.split_module import split_module

import graphprobe
from conftest import damaged
from graphprobe.store import Run, layout

BUCKETS = """
import torch
import torch.distributed as dist

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(Net(), bucket_cap_mb=2)
torch.compile(model, backend="aot_eager")(torch.randn(8, 512)).sum().backward()
dist.destroy_process_group()
"""

THREE = [(torch.sin, "aten.sin"), (torch.cos, "aten.cos"), (torch.tanh, "aten.tanh")]


def program(x: torch.Tensor) -> torch.Tensor:
    for fn, _ in THREE:
        x = fn(x)
    return x


def in_pieces(compile_piece: Any) -> Any:
    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        calls = [node for node in gm.graph.nodes if node.op == "call_function"]
        split = split_module(gm, gm, calls.index, keep_original_order=True)
        x = inputs[0]
        for name, piece in list(split.named_children()):
            (result,) = piece.graph.output_node().args
            piece.graph.output_node().args = ((result,),)  # as AOTAutograd wants it
            piece.recompile()
            compiled = compile_piece(piece, [x])
            split.__dict__[name] = lambda *args, compiled=compiled: compiled(*args)[0]  # before the attribute
            (x,) = piece(x)
        return split

    return backend


def collected(out: Path, compile_piece: Any, x: torch.Tensor) -> Run:
    torch._dynamo.reset()
    graphprobe.enable(out_dir=out)
    try:
        result = torch.compile(program, backend=in_pieces(compile_piece))(x)
        if x.requires_grad:
            result.sum().backward()
    finally:
        graphprobe.disable()
    torch.testing.assert_close(result, program(x))
    return Run.open(out)


def texts(run: Run, graph: str) -> list[str]:
    folders = ("model__0", "model__0/piece_1", "model__0/piece_2")
    return [run.text(run.find(f"{folder}/{graph}")) for folder in folders]


def test_each_piece_has_its_forward_and_its_backward(tmp_path: Path) -> None:
    nothing = aot_autograd(fw_compiler=lambda gm, _: gm.forward)
    run = collected(tmp_path, nothing, torch.randn(4, requires_grad=True))
    (model,) = run.models()
    below = [f"{piece}{graph}" for piece in ("", "piece_1/", "piece_2/") for graph in ("backward", "forward", "joint")]
    assert sorted(model.graphs()) == sorted(below)
    for (_, op), forward in zip(THREE, texts(run, "forward/graph"), strict=True):
        assert [name for _, name in THREE if f"{name}.default" in forward] == [op]
    # They are compiled in the other order; each is beside its own forward.
    for op, backward in zip(("cos", "sin", "tanh_backward"), texts(run, "backward/graph"), strict=True):
        assert f"aten.{op}.default" in backward
    assert damaged(run) == [] and run.manifest.missing == []


def test_no_file_of_inductor_takes_the_place_of_another_pieces(tmp_path: Path) -> None:
    def standalone(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        from torch._inductor import standalone_compile

        return standalone_compile(gm, inputs, dynamic_shapes="from_graph")

    run = collected(tmp_path, standalone, torch.randn(4))
    for (_, op), code in zip(THREE, texts(run, "forward/code"), strict=True):
        assert f".{op.removeprefix('aten.')}()" in code
    for name in ("original", "optimized", "ops"):
        assert len(set(texts(run, f"forward/{name}"))) == 3
    assert "unobserved_changes" not in run.tool_dir.joinpath(layout.EVENTS).read_text()
    assert damaged(run) == [] and run.manifest.missing == []


def test_each_bucket_of_ddp_is_a_piece(run_warm: Any, tmp_path: Path) -> None:
    (tmp_path / "buckets.py").write_text(BUCKETS)
    done = run_warm("-m", "graphprobe", "run", "--out", str(tmp_path / "out"), str(tmp_path / "buckets.py"))
    assert done.code == 0, done.err
    run = Run.open(tmp_path / "out")
    (model,) = run.models()
    assert {"forward", "backward", "piece_1/forward", "piece_1/backward"} <= set(model.graphs())
    assert damaged(run) == [] and run.manifest.missing == []
