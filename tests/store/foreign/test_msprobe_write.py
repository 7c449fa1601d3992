"""Dumps written in msprobe's layout: read back, loaded by torch, and accepted by msprobe's own comparison."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from graphprobe.errors import UsageError
from graphprobe.store.calls import CallDump, Scalar
from graphprobe.store.foreign.msprobe import MsprobeDump
from graphprobe.store.foreign.msprobe_write import item_from_scalar, write_msprobe
from msprobe_tool import DATA, compared, needs_msprobe
from store.foreign_dumps import example, scalar


def assert_same(one: CallDump, other: CallDump, *, values: bool) -> None:
    for step in one.steps(0):
        pairs = list(zip(one.calls(0, step), other.calls(0, step), strict=True))
        assert pairs
        for mine, theirs in pairs:
            for name in ("label", "kind", "api", "index", "direction", "module", "source", "stack"):
                assert getattr(mine, name) == getattr(theirs, name), (name, mine.label)
            found = {slot.name: slot for slot in theirs.slots}
            assert sorted(found) == sorted(slot.name for slot in mine.slots)
            for slot in mine.slots:
                back = found[slot.name]
                assert (slot.meta, slot.stats, slot.scalar) == (back.meta, back.stats, back.scalar)
                assert slot.requires_grad == back.requires_grad
                if values and slot.value:
                    np.testing.assert_array_equal(one.values(mine, slot), other.values(theirs, back))


@pytest.mark.parametrize("kind", ["statistics", "tensor", "modules"])
def test_a_real_dump_survives(tmp_path: Path, kind: str) -> None:
    source = MsprobeDump(DATA / kind)
    assert write_msprobe(source, tmp_path, values=kind != "statistics") == ()
    assert_same(source, MsprobeDump(tmp_path), values=kind != "statistics")
    for step in source.steps(0):
        original = next((DATA / kind / f"step{step}").iterdir())
        ours = tmp_path / f"step{step}" / "rank0"
        wanted, found = (json.loads((folder / "dump.json").read_text()) for folder in (original, ours))
        assert (found["task"], found["level"]) == (wanted["task"], wanted["level"])
        assert sorted(found["data"]) == sorted(wanted["data"])
        parents = json.loads((original / "construct.json").read_text())
        for name, parent in json.loads((ours / "construct.json").read_text()).items():
            assert parents.get(name) == parent, name


def test_any_dump(tmp_path: Path) -> None:
    source = example()
    source.add("step", 0, kind="optimizer")
    source.add("mine.Scale", 0, scalar("input.0", "tuple", "(1, None, 2.5)"))
    notes = write_msprobe(source, tmp_path)
    assert notes == ("calls of kind optimizer left out: 1",)
    folder = tmp_path / "step0" / "rank0"
    data = json.loads((folder / "dump.json").read_text())["data"]
    assert list(data) == [
        "Functional.linear.0.forward",
        "Tensor.__imul__.0.forward",
        "Torch.cat.0.forward",
        "Module.net.fc.Linear.forward.0",
        "Functional.linear.1.forward",
        "Functional.linear.0.backward",
        "Python.mine.Scale.0.forward",
    ]
    cat = data["Torch.cat.0.forward"]
    assert [item["shape"] for item in cat["input_args"][0]] == [[2, 3], [2, 3]]
    assert cat["input_kwargs"] == {"dim": {"type": "int", "value": 0}}
    assert np.isnan(cat["output"][0]["Max"])
    assert data["Python.mine.Scale.0.forward"]["input_args"] == [
        [{"type": "int", "value": 1}, None, {"type": "float", "value": 2.5}]
    ]
    mul = torch.load(folder / "dump_tensor_data" / "Tensor.__imul__.0.forward.input.0.pt", weights_only=True)
    assert mul.dtype == torch.bfloat16 and mul.tolist() == [1.5, -2.25, 3.0]
    back = list(MsprobeDump(tmp_path).calls(0, 0))
    assert [slot.name for slot in back[5].slots] == ["grad_output.0", "grad_input.node.0", "grad_input.node.1"]


def test_a_method_that_is_written_out_keeps_its_name(tmp_path: Path) -> None:
    source = example()
    source.add("torch.Tensor.add", 0, stack=("m.py:1 in f: y = x.add(1)",))
    source.add("torch.Tensor.add", 1, stack=("m.py:2 in f: y = x + 1",))
    write_msprobe(source, tmp_path, values=False)
    data = json.loads((tmp_path / "step0" / "rank0" / "dump.json").read_text())
    assert {"Tensor.add.0.forward", "Tensor.__add__.0.forward"} <= set(data["data"])
    assert data["task"] == "statistics" and data["dump_data_dir"] is None


@pytest.mark.parametrize(
    ("given", "item"),
    [
        (Scalar("dtype", "torch.float16"), {"type": "torch.dtype", "value": "torch.float16"}),
        (Scalar("device", "device(type='cuda', index=1)"), {"type": "torch.device", "value": "cuda:1"}),
        (Scalar("float", "nan"), {"type": "float", "value": "nan"}),
        (Scalar("slice", "slice(None, 3, None)"), {"type": "slice", "value": [None, 3, None]}),
        (Scalar("str", "'mean'"), {"type": "str", "value": "mean"}),
        (Scalar("memory_format", "torch.channels_last"), {"type": "torch.memory_format", "format": "channels_last"}),
        (Scalar("Odd", "<Odd>"), {"type": "Odd", "value": "<Odd>"}),
    ],
)
def test_scalars(given: Scalar, item: object) -> None:
    found = item_from_scalar(given)
    if given.text == "nan":
        assert np.isnan(found["value"])
    else:
        assert found == item


def test_an_old_dump_is_overwritten_on_request_only_by_the_same_steps(tmp_path: Path) -> None:
    two = MsprobeDump(DATA / "statistics")
    write_msprobe(two, tmp_path, values=False)
    with pytest.raises(UsageError, match="has a dump already"):
        write_msprobe(two, tmp_path, values=False)
    write_msprobe(two, tmp_path, values=False, overwrite=True)
    assert_same(two, MsprobeDump(tmp_path), values=False)
    with pytest.raises(UsageError, match="step1/rank0 has a dump already"):
        write_msprobe(example(), tmp_path, overwrite=True)


def test_who_wrote_it(tmp_path: Path) -> None:
    """A copy of msprobe's own dump stays msprobe's."""
    write_msprobe(example(), tmp_path / "ours")
    write_msprobe(MsprobeDump(DATA / "tensor"), tmp_path / "copy")
    assert MsprobeDump(tmp_path / "ours").facts["writer"] == "graphprobe"
    assert "writer" not in MsprobeDump(tmp_path / "copy").facts


@pytest.mark.heavy
@needs_msprobe
@pytest.mark.parametrize("kind", ["statistics", "tensor"])
@pytest.mark.parametrize("wrong", [False, True])
def test_msprobe_compares_it(tmp_path: Path, kind: str, wrong: bool) -> None:
    """Its own comparison finds our copy of its dump equal, and a number that was changed in it."""
    write_msprobe(MsprobeDump(DATA / kind), tmp_path / "ours", values=kind == "tensor")
    shutil.copytree(DATA / kind, tmp_path / "theirs")
    if wrong:
        path = tmp_path / "ours" / "step0" / "rank0" / "dump.json"
        document = json.loads(path.read_text())
        document["data"]["Functional.linear.0.forward"]["output"][0]["shape"] = [9, 9]
        path.write_text(json.dumps(document))
    found = compared(tmp_path / "ours" / "step0", tmp_path / "theirs" / "step0", tmp_path / "out")
    rows = {row["NPU Name"]: row["Result"] for row in found}
    assert len(rows) > 40
    odd = {name for name, verdict in rows.items() if verdict != "pass"}
    assert bool(odd) == wrong
    assert all("linear.0.forward" in name for name in odd if name != "N/A")
