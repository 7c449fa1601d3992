"""Which ops are dumped: by name, glob, operator, module, source line, range; which sides; with the inputs they read."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch


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
    assert {slot.side for slot in found.op("sub").record.slots} == sides
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
