"""A dump of compiled graphs, read as calls."""

from pathlib import Path

import numpy as np
import pytest

from compare.made import MemoryDump, call, tensor
from graphprobe.errors import ArtifactNotFoundError, RunNotFoundError
from graphprobe.records import TensorMeta, TensorStats
from graphprobe.store.calls import CallSlot, WithStatistics
from graphprobe.store.dump_records import Argument, DumpValue, Place
from graphprobe.store.graph_calls import is_graph_dump, open_graph_dump
from store.dump_helpers import OP, new_manifest, new_writer, value


def test_values(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "d", manifest=new_manifest(rank=1, world_size=2))
    for step in (4, 4, 7):
        place = Place(model_name="m", model_id=0, data_index=step, step=step)
        arrays = [value("input.0", np.arange(3.0) + step), value("output.0", np.float32([[1, 2]]))]
        writer.submit(OP, place, arrays, arguments=[Argument("input.1", "float", "1.5")], notes=["cut"])
    writer.close()
    assert is_graph_dump(tmp_path / "d") and not is_graph_dump(tmp_path / "other")
    dump = open_graph_dump(tmp_path / "d")
    assert (dump.format, dump.ranks(), dump.steps(1)) == ("graphprobe-graph", (1,), (4, 7))
    first, second = dump.calls(1, 4)
    assert (first.kind, first.api, first.index, second.index) == ("kernel", "aten.add.Tensor", 0, 1)
    assert (first.module, first.source, first.step, second.position) == ("layers.3", "model.py:12", 4, 1)
    assert first.label != second.label
    assert first.notes == ("cut", "nodes add_1, relu")
    assert [(s.name, s.role) for s in first.slots] == [
        ("input.0", "input"),
        ("output.0", "output"),
        ("input.1", "input"),
    ]
    assert first.slots[2].scalar is not None and first.slots[2].scalar.text == "1.5"
    (third,) = dump.calls(1, 7)
    np.testing.assert_array_equal(dump.values(third, third.slots[0]), np.arange(3.0) + 7)
    np.testing.assert_array_equal(dump.values(first, first.slots[1]), np.float32([[1, 2]]))
    with pytest.raises(ArtifactNotFoundError):
        dump.values(first, first.slots[2])
    with pytest.raises(ArtifactNotFoundError, match="rank 0"):
        dump.steps(0)
    assert dump.problems() == ()


def test_statistics(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "d")
    for number in range(2):
        stats = TensorStats(3, min=-1.0, max=float(number), mean=0.5, l2=2.0, nan=1, digest="ab" * 8)
        row = DumpValue("output.0", "output", TensorMeta("float32", (3,)), stats=stats)
        writer.submit(OP, Place(model_name="m", model_id=0, data_index=0), [row])
    writer.close()
    dump = open_graph_dump(tmp_path / "d")
    calls = list(dump.calls(0, 0))
    for number, one in enumerate(calls):
        (slot,) = one.slots
        assert slot.stats is not None
        assert (slot.stats.count, slot.stats.max, slot.stats.min, slot.stats.nan) == (3, number, -1.0, 1)
        assert (slot.digest, slot.digest_kind, slot.value) == ("ab" * 8, "graphprobe", "")
        assert {"count", "max", "nan"} <= set(slot.known) and "std" not in slot.known
        with pytest.raises(ArtifactNotFoundError, match="no values"):
            dump.values(one, slot)
    with pytest.raises(RunNotFoundError):
        open_graph_dump(tmp_path / "other")


def test_values_without_statistics_get_them() -> None:
    values: dict[str, np.ndarray] = {}
    slot = tensor("output.0", "output", np.arange(6, dtype=np.float32), values=values, digest=False)
    narrow = CallSlot(name="output.1", role="output", meta=TensorMeta("bfloat16", (2,)), value="narrow")
    values["narrow"] = np.array([0x3F80, 0x4000], np.uint16)  # 1.0 and 2.0
    bare = CallSlot(name=slot.name, role="output", meta=slot.meta, value=slot.value)
    (read,) = WithStatistics(MemoryDump([call(0, "f", bare, narrow)], values)).calls(0, 0)
    assert read.slots[0].stats == slot.stats and "mean" in read.slots[0].known
    assert read.slots[1].stats is not None and (read.slots[1].stats.min, read.slots[1].stats.max) == (1.0, 2.0)
