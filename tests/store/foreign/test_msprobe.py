"""msprobe's layout: real dumps of `mindstudio-probe` 26.2 (tests/data/msprobe), and what else a folder may hold."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import ROOT
from graphprobe.errors import ArtifactNotFoundError, SchemaError, UsageError
from graphprobe.store.calls import Call, CallSlot
from graphprobe.store.foreign.msprobe import MsprobeDump

DATA = ROOT / "tests" / "data" / "msprobe"


def slots(call: Call) -> dict[str, CallSlot]:
    return {slot.name: slot for slot in call.slots}


def by_label(dump: MsprobeDump, step: int = 0) -> dict[str, Call]:
    found = {call.label: call for call in dump.calls(dump.ranks()[0], step)}
    assert [call.position for call in found.values()] == list(range(len(found)))
    return found


def test_statistics_of_modules_and_apis() -> None:
    dump = MsprobeDump(DATA / "statistics")
    assert (dump.ranks(), dump.steps(0)) == ((0,), (0, 1))
    assert (dump.facts["task"], dump.facts["level"]) == ("statistics", "mix")
    calls = by_label(dump, 1)
    linear = calls["Functional.linear.0.forward"]
    assert (linear.kind, linear.api, linear.index, linear.step) == ("api", "torch.nn.functional.linear", 0, 1)
    assert (linear.module, linear.source.rpartition(":")[0]) == ("qkv", "make.py")
    weight = slots(linear)["input.1"]
    assert weight.meta is not None and (weight.meta.dtype, weight.meta.shape) == ("bfloat16", (12, 4))
    assert weight.stats is not None and weight.stats.l2 == 1.9296875
    assert weight.known == ("max", "min", "mean", "l2") and weight.requires_grad is True
    assert not weight.value and not weight.digest
    tokens = slots(calls["Functional.embedding.0.forward"])["input.0"]
    assert tokens.known == ("max", "min")  # of integers there is no more
    add = calls["Tensor.__add__.0.backward"]
    assert (add.api, add.direction, add.index) == ("torch.Tensor.add", "backward", 0)
    assert dump.problems() == ()


def test_modules_and_their_gradients() -> None:
    calls = by_label(MsprobeDump(DATA / "statistics"))
    forward, backward = calls["Module.head.Linear.forward.0"], calls["Module.head.Linear.backward.0"]
    assert (forward.kind, forward.api, forward.module, forward.index) == ("module", "Linear", "head", 1)
    assert (backward.kind, backward.module, backward.index) == ("module", "head", 1)
    assert slots(forward)["parameter.weight"].role == "parameter"
    assert list(slots(backward)) == ["grad_output.0", "grad_input.0", "grad_parameter.weight"]
    # after its backward in the file, and yet one record; and none of its own
    assert "grad_parameter.weight" in slots(calls["Module.embed.Embedding.backward.0"])
    assert not any("parameters_grad" in label for label in calls)


def test_gradients_that_belong_to_no_backward() -> None:
    calls = by_label(MsprobeDump(DATA / "modules"))
    alone = calls["Module.conv.Conv2d.parameters_grad.0"]
    assert (alone.kind, alone.direction, alone.module, alone.index) == ("module", "backward", "conv", 0)
    assert list(slots(alone)) == ["grad_parameter.weight", "grad_parameter.bias"]


def test_gradients_of_an_api_are_those_of_its_node() -> None:
    """`linear` on 3-D input ends in a view: what msprobe has is the view's gradient, and not that of an argument."""
    calls = by_label(MsprobeDump(DATA / "statistics"))
    backward = calls["Functional.linear.1.backward"]
    assert list(slots(backward)) == ["grad_output.0", "grad_input.node.0"]
    found = slots(backward)["grad_input.node.0"].meta
    argument = slots(calls["Functional.linear.1.forward"])["input.0"].meta
    assert found is not None and argument is not None
    assert (found.shape, argument.shape) == ((6, 7), (2, 3, 4))
    assert "only where the API is one node" in backward.notes[0]


def test_tensors_are_what_torch_loads() -> None:
    dump = MsprobeDump(DATA / "tensor")
    kept = [(call, slot) for call in dump.calls(0, 0) for slot in call.slots if slot.value]
    assert len(kept) == 40
    for call, slot in kept:
        file = DATA / "tensor" / "step0" / "rank0" / "dump_tensor_data" / slot.value
        np.testing.assert_array_equal(dump.values(call, slot), torch.load(file, weights_only=True).detach().numpy())
    call = by_label(dump)["Tensor.mul_.0.forward"]
    before, after = (dump.values(call, slots(call)[name]) for name in ("input.0", "output.0"))
    np.testing.assert_array_equal(before * 2, after)


def test_arguments_that_are_no_tensors() -> None:
    calls = by_label(MsprobeDump(DATA / "tensor"))
    found = slots(calls["Functional.conv2d.0.forward"])
    scalar = found["input.3"].scalar
    assert scalar is not None and (scalar.type, scalar.text) == ("list", "[1, 1]")
    norm = slots(calls["Functional.batch_norm.0.forward"])
    assert [s.scalar.text for s in norm.values() if s.scalar] == ["True", "0.1", "1e-05"]
    attention = slots(by_label(MsprobeDump(DATA / "md5"))["Functional.scaled_dot_product_attention.0.forward"])
    assert attention["kwarg.is_causal"].scalar is not None


def test_checksums_are_called_what_they_are() -> None:
    """msprobe calls them md5; they are CRC-32."""
    found = [s for call in MsprobeDump(DATA / "md5").calls(0, 0) for s in call.slots if s.meta is not None]
    assert {(slot.digest_kind, len(slot.digest)) for slot in found} == {("crc32", 8)}


@pytest.mark.parametrize("below", ["", "step0", "step0/proc1000", "step0/proc1000/dump.json"])
def test_any_level_can_be_opened(below: str) -> None:
    dump = MsprobeDump(DATA / "modules" / below)
    assert (dump.ranks(), dump.steps(0)) == ((0,), (0,))
    assert len(list(dump.calls(0, 0))) == 6


def edited(tmp_path: Path, record: dict[str, Any], **more: Any) -> MsprobeDump:
    head = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": record, **more}
    (tmp_path / "dump.json").write_text(json.dumps(head, indent=1))
    return MsprobeDump(tmp_path)


def tensor(**more: Any) -> dict[str, Any]:
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": 1.0, "Min": 0.0, **more}


def test_nan_and_infinity(tmp_path: Path) -> None:
    """Python writes what JSON has not; a text that looks alike stays a text."""
    item = tensor(Mean=float("nan"), Norm=float("inf"))
    note = {"type": "str", "value": "\n NaN,\n"}
    dump = edited(tmp_path, {"Torch.abs.0.forward": {"input_args": [item, note], "output": [item]}})
    (call,) = dump.calls(0, 0)
    stats = slots(call)["input.0"].stats
    assert stats is not None and stats.mean is not None and np.isnan(stats.mean) and stats.l2 == float("inf")
    text = slots(call)["input.1"].scalar
    assert text is not None and text.text == repr("\n NaN,\n")


def test_other_arguments(tmp_path: Path) -> None:
    record = {
        "input_args": [
            None,
            {"type": "slice", "value": [None, 3, None]},
            {"type": "torch.Size", "value": [2, 3]},
            [tensor(), [tensor(), {"type": "int", "value": 3}]],
            {"type": "float", "value": 0.1},
            {"type": "Generator", "value": "<torch._C.Generator>"},
        ],
        "input_kwargs": {
            "dtype": {"type": "torch.dtype", "value": "torch.float16"},
            "device": {"type": "torch.device", "value": "cuda:1"},
            "memory_format": {"type": "torch.memory_format", "format": "channels_last"},
            "inner": {"a": tensor()},
        },
        "output": tensor(),
    }
    (call,) = edited(tmp_path, {"Torch.f.0.forward": record}).calls(0, 0)
    found = slots(call)
    assert [name for name, slot in found.items() if slot.meta is not None] == [
        "input.3.0", "input.3.1.0", "kwarg.inner.a", "output.0",
    ]  # fmt: skip
    texts = {name: slot.scalar.text for name, slot in found.items() if slot.scalar is not None}
    assert texts == {
        "input.0": "None",
        "input.1": repr(slice(None, 3, None)),
        "input.2": repr(torch.Size([2, 3])),
        "input.3.1.1": "3",
        "input.4": "0.1",
        "input.5": "<torch._C.Generator>",
        "kwarg.dtype": repr(torch.float16),
        "kwarg.device": repr(torch.device("cuda:1")),
        "kwarg.memory_format": repr(torch.channels_last),
    }


def test_killed_runs_and_what_is_no_dump(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no msprobe dump"):
        MsprobeDump(tmp_path)
    with pytest.raises(UsageError, match="cannot read"):
        MsprobeDump(tmp_path / "none")
    for text, said in (("", "is empty"), ('{"task": "tensor", "data": {"Torch.abs.0.for', "no dump of msprobe")):
        (tmp_path / "dump.json").write_text(text)
        with pytest.raises(SchemaError, match=said):
            MsprobeDump(tmp_path)


@pytest.mark.parametrize("value", [18446744073709551616, ["rank"], {}, None])
@pytest.mark.parametrize("name", ["task", "level", "framework", "dump_data_dir", "writer"])
def test_a_fact_that_is_no_text_is_left_out(name: str, value: object, tmp_path: Path) -> None:
    (tmp_path / "dump.json").write_text(json.dumps({"data": {}, name: value}))
    dump = MsprobeDump(tmp_path)
    assert name not in dump.facts and dump.steps(0) == (0,)
    assert list(dump.calls(0, 0)) == []


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    copy = tmp_path / "dump"
    shutil.copytree(DATA / "tensor" / "step0" / "rank0", copy)
    (copy / "dump_tensor_data" / "Functional.relu.0.forward.input.0.pt").unlink()
    (copy / "stack.json").write_text("{")
    torch.save(torch.ones(3), copy / "dump_tensor_data" / "Functional.relu.0.forward.output.0.pt")
    dump = MsprobeDump(copy)
    relu = by_label(dump)["Functional.relu.0.forward"]
    gone, other = slots(relu)["input.0"], slots(relu)["output.0"]
    assert not gone.value and "is not in dump_tensor_data" in gone.missing
    with pytest.raises(ArtifactNotFoundError, match="has no values"):
        dump.values(relu, gone)
    with pytest.raises(ArtifactNotFoundError, match=r"holds float32\[3\]"):
        dump.values(relu, other)
    assert relu.stack == () and "stack.json cannot be read" in dump.problems()[0]


def test_names_that_lead_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    dump = edited(tmp_path, {"Torch.abs.0.forward": {"output": [tensor(data_name="../../secret.pt")]}, "odd": {}})
    (call,) = dump.calls(0, 0)
    assert not call.slots[0].value
    assert "odd is no name of a call" in dump.problems()[0]


def test_processes_without_rank(tmp_path: Path) -> None:
    for number in (7, 12):
        folder = tmp_path / "step2" / f"proc{number}"
        folder.mkdir(parents=True)
        edited(folder, {"Torch.abs.0.forward": {"output": [tensor(Max=float(number))]}})
    dump = MsprobeDump(tmp_path)
    assert (dump.ranks(), dump.steps(1)) == ((0, 1), (2,))
    (call,) = dump.calls(1, 2)
    assert call.slots[0].stats is not None and call.slots[0].stats.max == 12
    assert "2 processes without rank" in dump.problems()[0]
