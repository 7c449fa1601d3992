import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from compare.made import MemoryDump, call, tensor
from graphprobe.errors import ArtifactNotFoundError, RunNotFoundError, SchemaError
from graphprobe.records import TensorMeta, TensorStats
from graphprobe.store import layout
from graphprobe.store.calls import CallSlot, Scalar, WithStatistics, WrittenSlot
from graphprobe.store.dump_reader import GraphCalls, open_dump
from graphprobe.store.dump_records import INDEX, DumpValue, Place
from graphprobe.store.reader import finds_one
from store.dump_helpers import OP, new_manifest, new_run, new_writer, value

META = TensorMeta("float32", (1,))


def record(root: Path, *, rank: int = 0, started_ns: int = 10**18) -> Path:
    """Two models, two calls each; the second call of a model leaves statistics only. Returns the time folder."""
    writer = new_writer(root, manifest=new_manifest(rank=rank, world_size=2, started_ns=started_ns))
    for model in ("a", "b"):
        place = Place(model_name=model, model_id=0, data_index=0)
        for number in range(2):
            writer.submit(OP, place, [value("output.0", np.array([number]))])
        place = Place(model_name=model, model_id=0, data_index=1)
        writer.submit(OP, place, [DumpValue("output.0", "output", META, stats=TensorStats(1, max=1.0))])
    writer.close()
    return writer.time_dir


def seqs(dump: GraphCalls) -> list[int]:
    return [op.record.seq for op in dump.ops()]


def test_a_dump_opens_at_every_level(tmp_path: Path) -> None:
    first = record(tmp_path, rank=1)
    second = record(tmp_path, rank=0, started_ns=2 * 10**18)
    whole = open_dump(tmp_path)
    assert [folder.time_dir for folder in whole.folders] == [first, second]
    assert seqs(whole) == [*range(6), *range(6)]
    assert len(list(whole.stats())) == 4
    for path, expected in (
        (first.parent, [0, 1, 2, 3, 4, 5]),
        (first, [0, 1, 2, 3, 4, 5]),
        (first / "0", [0, 1, 2, 3, 4, 5]),
        (first / "0" / "b", [3, 4, 5]),
        (first / "0" / "b" / "0", [3, 4, 5]),
        (first / "0" / "b" / "0" / "0", [3, 4]),
        (first / "0" / "b" / "0" / "1", [5]),
    ):
        dump = open_dump(path)
        assert seqs(dump) == expected, path
        assert len(list(dump.stats())) == sum(number in (2, 5) for number in expected)
        assert dump.problems() == ()
        assert [folder.state for folder in dump.folders] == ["finished"]
    op = next(open_dump(first).ops())
    (alone,) = open_dump(op.path).ops()
    assert alone.record == op.record
    assert alone.values()["output.0"].array() == [0]
    stats_file = first / "0" / "b" / "0" / "1" / "stats.csv"
    assert [row.task_id for row in open_dump(stats_file).stats()] == [5]
    assert seqs(open_dump(stats_file)) == []


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    time_dir = record(tmp_path)
    monkeypatch.chdir(time_dir / "0" / "b")
    assert seqs(open_dump(".")) == [3, 4, 5]
    assert [op.values()["output.0"].array().tolist() for op in open_dump("0/0").ops()] == [[0], [1]]


def test_a_folder_out_of_its_tree_is_read_by_its_files(tmp_path: Path) -> None:
    time_dir = record(tmp_path / "dump")
    shutil.copytree(time_dir / "0" / "a" / "0" / "0", tmp_path / "copy")
    (tmp_path / "copy" / "notes.txt").write_text("mine")
    file = next((tmp_path / "copy").glob("add*"))
    (tmp_path / "copy" / f"{layout.TEMPORARY_PREFIX}1-2").write_bytes(file.read_bytes())
    copy = open_dump(tmp_path / "copy")
    assert seqs(copy) == [0, 1]
    assert [folder.state for folder in copy.folders] == [None]
    file.write_bytes(file.read_bytes()[:-1])
    assert len(seqs(copy)) == 1
    assert "cut off" in copy.problems()[0]
    shutil.copytree(time_dir / "0" / "a" / "0" / "1", tmp_path / "rows")
    assert len(list(open_dump(tmp_path / "rows").stats())) == 1


def test_no_dump(tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match="does not exist"):
        open_dump(tmp_path / "absent")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / layout.MANIFEST).write_text("{}")
    with pytest.raises(RunNotFoundError, match="no dump at"):
        open_dump(tmp_path)
    with pytest.raises(SchemaError, match="no safetensors file"):
        open_dump(tmp_path / "notes.txt")
    run = new_run(tmp_path / "run")
    run.close("finished")
    with pytest.raises(RunNotFoundError, match="no dump at"):
        open_dump(run.tool_dir)


def test_manifests_that_cannot_be_read(tmp_path: Path) -> None:
    path = record(tmp_path) / layout.MANIFEST
    document = json.loads(path.read_text())
    for changed, message in (
        (document | {"dump_schema": 99}, "dump schema 99"),
        (document | {"schema": 99}, "schema 99"),
        (document | {"ops": "many"}, "no manifest of a dump"),
    ):
        path.write_text(json.dumps(changed))
        with pytest.raises(SchemaError, match=message):
            open_dump(path.parent)
    path.write_text(json.dumps(document | {"field of tomorrow": 1}))
    assert len(seqs(open_dump(path.parent))) == 6


def test_lines_of_the_index_that_cannot_be_read(tmp_path: Path) -> None:
    time_dir = record(tmp_path)
    index = time_dir / INDEX
    lines = index.read_bytes().splitlines(keepends=True)
    outside = lines[1].replace(b'"file":"0/', b'"file":"../')
    absolute = lines[1].replace(b'"file":"0/', b'"file":"/')
    absent = lines[1].replace(b'"file":"0/', b'"file":"1/')
    index.write_bytes(b"".join([lines[0], b"garbage\n", b"\n", outside, absolute, absent, *lines[2:5], lines[5][:-5]]))
    dump = open_dump(time_dir)
    assert seqs(dump) == [0, 2, 3, 4]
    assert seqs(dump) == [0, 2, 3, 4]
    expected = ["line 2 is no record", "line 4 names", "line 5 names", "line 6 names", "line 10 is cut off"]
    assert len(dump.problems()) == len(expected)
    assert all(text in problem for text, problem in zip(expected, dump.problems(), strict=True))


def test_a_dump_whose_index_is_gone_is_read_by_its_files(tmp_path: Path) -> None:
    time_dir = record(tmp_path)
    (time_dir / INDEX).unlink()
    assert seqs(open_dump(time_dir)) == [0, 1, 3, 4]
    assert seqs(open_dump(time_dir / "0" / "b")) == [3, 4]


def test_values(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "d", manifest=new_manifest(rank=1, world_size=2))
    for step in (4, 4, 7):
        place = Place(model_name="m", model_id=0, data_index=step, step=step)
        arrays = [value("input.0", np.arange(3.0) + step), value("output.0", np.float32([[1, 2]]))]
        writer.submit(
            OP, place, arrays, scalars=[WrittenSlot("input.1", "input", scalar=Scalar("float", "1.5"))], notes=["cut"]
        )
    writer.close()
    assert finds_one(open_dump, tmp_path / "d") and not finds_one(open_dump, tmp_path / "other")
    dump = open_dump(tmp_path / "d")
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
    dump = open_dump(tmp_path / "d")
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
        open_dump(tmp_path / "other")


def test_values_without_statistics_get_them() -> None:
    values: dict[str, np.ndarray] = {}
    slot = tensor("output.0", "output", np.arange(6, dtype=np.float32), values=values, digest=False)
    narrow = CallSlot(name="output.1", role="output", meta=TensorMeta("bfloat16", (2,)), value="narrow")
    values["narrow"] = np.array([0x3F80, 0x4000], np.uint16)  # 1.0 and 2.0
    bare = CallSlot(name=slot.name, role="output", meta=slot.meta, value=slot.value)
    (read,) = WithStatistics(MemoryDump([call(0, "f", bare, narrow)], values)).calls(0, 0)
    assert read.slots[0].stats == slot.stats and "mean" in read.slots[0].known
    assert read.slots[1].stats is not None and (read.slots[1].stats.min, read.slots[1].stats.max) == (1.0, 2.0)
