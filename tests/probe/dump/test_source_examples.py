"""Each JSON example of TorchAir's page, with names of a model at hand, does what the text beside it says."""

from pathlib import Path
from typing import Any

import torch

from graphprobe.compat import torchair
from graphprobe.store import open_dump
from probe.dump.conftest import Dumped, Dumping
from probe.dump.scenes import findings


class First(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 1).relu()


class Second(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = x.sin()
        b = a * 3
        c = (b - a).exp()
        return c.cos() + b, c / a, b


class Third(Second):
    pass


def dump_of(dumping: Dumping, x: torch.Tensor, **keys: Any) -> Dumped:
    backend = dumping.backend_of_file(**keys)
    for model in (First(), Second(), Third()):
        torch.compile(model, backend=backend)(x)
    return dumping.end()


def test_models(dumping: Dumping) -> None:
    """The first whole, of the second some layers, of the third nothing; outputs as tensors."""
    entries = [{"model_name": "First"}, {"model_name": "Second", "layer": ["sin", "exp", "pool1"]}]
    others = {"dump_mode": "output", "dump_op_switch": "off", "dump_data": "tensor"}
    found = dump_of(dumping, torch.ones(2), dump_list=entries, **others)
    by_model = {(op.record.place.model_name, op.record.op.op_name) for op in found.ran()}
    assert {pair for pair in by_model if pair[0] == "First"} >= {("First", "add"), ("First", "relu")}
    assert {pair for pair in by_model if pair[0] != "First"} == {("Second", "sin"), ("Second", "exp")}
    assert {slot.side for op in found.ops() for slot in op.record.slots} == {"output"}
    assert all(value.is_there for op in found.ops() for value in op.values().values())
    assert any("'pool1' matched no op" in note for note in found.manifest.notes)


def test_single_ops(dumping: Dumping) -> None:
    """With an empty list of models, single ops are dumped and nothing else."""
    keys = {"dump_list": [], "dump_op_switch": "on", "dump_data": "tensor"}
    assert dump_of(dumping, torch.ones(2), **keys).ops() == []
    torch.compiler.reset()
    backend = dumping.backend_of_file(**keys)
    torch.compile(Second(), backend=backend)(torch.ones(2))[0].abs()
    (_, folder) = sorted(open_dump(dumping.end().path).folders, key=lambda folder: folder.time_dir.name)
    assert [op.record.op.op_name for op in folder.ops()] == ["ones", "abs"]


def test_watcher(dumping: Dumping) -> None:
    """After A and B, and after C and D, the outputs of C and D are dumped; A and B themselves are not."""
    entry = {"layer": ["cos", "add"], "watcher_nodes": ["mul", "exp"]}
    backend = dumping.backend_of_file(dump_list=[entry], dump_mode="output", dump_scene="watcher")
    torch.compile(Second(), backend=backend)(torch.ones(2))
    found = dumping.end()
    assert findings(found.path, "overwritten") == [], "nobody has trodden on them"
    seen = [op.record.op.op_name for op in found.ops()]
    assert set(seen) == {"mul", "exp"}
    after = {(op.record.op.op_name, op.record.notes[-1].split()[-1].strip("'\"")) for op in found.ops()}
    written, later = {("mul", "mul"), ("exp", "exp")}, {(node, op) for node in ("mul", "exp") for op in ("cos", "add")}
    assert after == written | later | {("mul", "exp")} and len(seen) == len(after)
    assert all(slot.side == "output" for op in found.ops() for slot in op.record.slots)


def test_statistics_of_the_options_page(dumping: Dumping) -> None:
    found = dump_of(dumping, torch.ones(2), dump_data="stats", dump_stats=["Max", "L2norm"])
    rows = list(found.folder.stats())
    assert rows and all(row.stats.keys() >= {"Max", "L2norm"} for row in rows)
    assert {name for row in rows for name, value in row.stats.items() if value is not None} == {"Max", "L2norm"}


def test_the_last_example(dumping: Dumping) -> None:
    """`scope` and `dump_layer` add up, in one graph, in float16; the dump lies in the working directory."""

    class Network(torch.nn.Module):
        def forward(self, data0: torch.Tensor, data1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            add_01 = torch.add(data0, data1)
            with torchair.scope.data_dump():
                sub_01 = torch.sub(data0, data1)
            return add_01, sub_01, torch.sub(data1, sub_01)

    config = torchair.CompilerConfig()
    config.dump_config.enable_dump = True
    config.dump_config.dump_layer = " Add "
    config.dump_config.engine = "interpreter"  # Inductor would make one kernel of all three
    model = torch.compile(
        Network(), fullgraph=True, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False
    )
    input0, input1 = (torch.randn(2, 2, dtype=torch.float16) for _ in range(2))
    model(input0, input1)
    dumping.end()
    found = Dumped(Path.cwd())
    assert found.names() == ["add", "sub"]
    assert len(found.inputs()) == 2, "what they read comes along"
