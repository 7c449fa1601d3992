"""Which ops are dumped: by name, glob, operator, module, source line, range; which sides; with the inputs they read."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import graphprobe
from graphprobe.compat import torchair
from probe.dump.conftest import Dumped, Dumping
from probe.dump.scenes import findings


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(x).relu()


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        total = x + y  # line of the sum
        return total.sigmoid() - y


LINE = next(
    number for number, text in enumerate(Path(__file__).read_text("utf-8").splitlines(), 1) if "# line of the s" in text
)
X, Y = torch.randn(3, 4), torch.randn(3, 4)


@pytest.fixture
def names(dump_of: Callable[..., Any]) -> Callable[..., list[str]]:
    def run(layer: str) -> list[str]:
        found = dump_of(Network(), X, Y, dump_layer=layer)
        assert found.manifest.missing == []
        return found.names(direction="forward")

    return run


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        ("relu_1", ["relu_1"]),
        ("relu*", ["relu", "relu_1"]),
        ("aten.addmm", ["addmm", "addmm_1"]),
        ("aten.sub.Tensor", ["sub"]),
        ("blocks.1", ["t_1", "addmm_1", "relu_1"]),
        ("blocks.*.mlp", ["t", "addmm", "t_1", "addmm_1"]),
        (f"test_selection.py:{LINE}", ["add"]),
        ("Add", ["add"]),
        ("sub relu", ["relu", "sub"]),
    ],
)
def test_layer(layer: str, expected: list[str], names: Callable[..., list[str]]) -> None:
    found = [name for name in names(layer) if not name.startswith("detach")]
    assert found == expected


def test_the_line_of_a_call_selects_what_is_below_it(names: Callable[..., list[str]]) -> None:
    assert "addmm_1" in names(f"test_selection.py:{LINE - 1}")


def test_inputs_that_a_selected_op_reads_are_dumped_with_it(dump_of: Callable[..., Any]) -> None:
    found = dump_of(Network(), X, Y, dump_layer="add")
    (op,) = [op for op in found.ops(op_type="Data") if op.record.op.direction == "forward"]
    assert op.values()["output.0"].array().tolist() == Y.tolist()


SIDES = [("input", {"input"}), ("output", {"output"}), ("all", {"input", "output"})]


@pytest.mark.parametrize(("mode", "sides"), SIDES)
def test_mode(mode: str, sides: set[str], dump_of: Callable[..., Any]) -> None:
    found = dump_of(Network(), X, Y, dump_mode=mode, dump_layer="sub")
    assert {slot.role for slot in found.op("sub").record.slots} == sides
    assert found.inputs(), "the data that it reads is there in every mode"


def test_json_file(dumping: Any) -> None:
    entry = {
        "model_name": "Network",
        "layer": ["relu"],
        "opname_range": [{"begin": "add", "end": "sub"}],
        "optype_blacklist": [{"name": "sub", "pos": ["input1"]}],
    }
    backend = dumping.backend_of_file(dump_list=[entry, {"model_name": "Other"}])
    torch.compile(Network(), backend=backend)(X, Y)
    found = dumping.end()
    names = [name for name in found.names(direction="forward") if not name.startswith("detach")]
    assert names == ["relu", "add", "sigmoid", "sub"]
    assert [slot.name for slot in found.op("sub").record.slots] == ["input.0", "output.0"]
    assert [note for note in found.manifest.notes if "'Other'" in note]


def test_records_say_where_an_op_comes_from(dump_of: Callable[..., Any]) -> None:
    found = dump_of(Network(), X, Y, dump_layer="relu_1")
    assert found.inputs() == [], "it reads none"
    op = found.op("relu_1").record.op
    file, _, line = op.source.rpartition(":")
    assert file == __file__
    assert "self.mlp(x).relu()" in Path(__file__).read_text("utf-8").splitlines()[int(line) - 1]
    assert (op.op_type, op.target, op.module) == ("relu", "aten.relu.default", "blocks.1")
    assert (op.engine, op.perturbs, op.direction) == ("interpreter", False, "forward")


def test_names_that_mean_nothing_and_options_that_disagree_are_told_once(
    dump_of: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    document = {"dump": {"dump_path": str(tmp_path / "dump"), "dump_mode": "input"}}
    (tmp_path / "dump.json").write_text(json.dumps(document), "utf-8")
    options = {"dump_mode": "output", "dump_config_path": str(tmp_path / "dump.json")}
    with caplog.at_level(logging.WARNING, logger="graphprobe"):
        found = dump_of(Network(), X, Y, dump_layer="reLu_7 sub", **options)
    (name,) = [note for note in found.manifest.notes if "reLu_7" in note]
    assert "matched no op" in name and "relu" in name
    assert name in caplog.text
    (mode,) = [note for note in found.manifest.notes if "dump_mode" in note]
    assert [record.getMessage() for record in caplog.records].count(f"dump: {mode}") == 1


W = torch.ones(3)


def marked(x: torch.Tensor) -> torch.Tensor:
    with graphprobe.scope.data_dump():
        y = W - x
    return (y.sin() - x).relu()


def unmarked(x: torch.Tensor) -> torch.Tensor:
    return x.cos() * 2


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_of_two_subtractions_the_one_in_the_block_and_its_gradient(backend: str, dumping: Dumping) -> None:
    x = torch.randn(3, requires_grad=True)
    torch.compile(marked, backend=dumping.backend(backend), fullgraph=True)(x).sum().backward()
    found = dumping.end()
    forward = found.ran(direction="forward")
    if backend == "inductor":  # one kernel computes all of it; it carries the marked node out
        assert any("sub" in op.record.op.fx_nodes for op in forward)
    else:
        inside = str(marked.__code__.co_firstlineno + 2)
        assert [(op.record.op.op_name, op.record.op.source.rpartition(":")[2]) for op in forward] == [("sub", inside)]
        assert [op.record.op.op_type for op in found.ran(direction="backward")] == ["neg"]
    assert len(found.ops(op_type="Data", direction="forward")) >= 1, "the input that it reads comes along"


def test_graphs_without_a_mark_are_not_dumped_whichever_came_first(dumping: Dumping) -> None:
    backend = dumping.backend("aot_eager")
    first, second, third = (torch.compile(f, backend=backend) for f in (unmarked, marked, lambda x: x.tan()))
    x = torch.randn(3)
    for _ in range(2):
        for function in (first, second, third):
            function(x)
    found = dumping.end()
    steps = [(op.record.place.model_name, op.record.place.step) for op in found.ops()]
    assert ("unmarked", 0) in steps, "before the first mark was compiled, nothing was known of it"
    assert set(steps) - {("unmarked", 0)} == {("marked", 0), ("marked", 1)}
    assert set(found.names()) == {"cos", "mul", "sub"}


def test_parts_between_graph_breaks(dumping: Dumping) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with graphprobe.scope.data_dump():
            x = x - 1
        torch._dynamo.graph_break()
        return x.cos()

    dumping.compile(program, "aot_eager")(torch.randn(3))
    assert set(dumping.end().names()) == {"sub"}


def test_a_dump_without_marks_is_whole_though_another_has_some(dumping: Dumping, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    dumping.compile(marked, "aot_eager")(torch.randn(3))
    dumping.compile(unmarked, "aot_eager", dump_path=str(tmp_path / "other"))(torch.randn(3))
    assert dumping.end().names() == ["sub"]
    assert Dumped(tmp_path / "other").names() == ["cos", "mul"]


class Second(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = x.sin()
        b = a * 3
        c = (b - a).exp()
        return c.cos() + b, c / a, b


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
    assert all(slot.role == "output" for op in found.ops() for slot in op.record.slots)


def test_statistics_of_the_options_page(dumping: Dumping) -> None:
    backend = dumping.backend_of_file(dump_data="stats", dump_stats=["Max", "L2norm"])
    torch.compile(Second(), backend=backend)(torch.ones(2))
    rows = list(dumping.end().folder.stats())
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
