import errno
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphprobe.errors import UsageError
from graphprobe.records import TensorMeta, TensorStats
from graphprobe.store import dump_queue, layout, manifest
from graphprobe.store.dump_reader import DumpFolder, open_dump
from graphprobe.store.dump_records import DumpValue, Place
from graphprobe.store.dump_writer import DumpWriter
from store.dump_helpers import OP, PLACE, in_a_fork, killed, new_manifest, new_writer, value, written

ONES = value("output.0", np.ones(1000))


def folder_of(writer: DumpWriter) -> DumpFolder:
    (folder,) = open_dump(writer.time_dir).folders
    return folder


def numbers(writer: DumpWriter) -> list[int]:
    """The executions that can be read back, values included."""
    folder = folder_of(writer)
    ops = list(folder.ops())
    for one in (one for op in ops for one in op.values().values() if one.is_there):
        one.array()
    assert folder.problems == []
    return [op.record.seq for op in ops]


@pytest.fixture(params=[0, 1 << 20], ids=["synchronous", "queued"])
def queue_bytes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_a_dump_from_start_to_end(tmp_path: Path, queue_bytes: int) -> None:
    writer = new_writer(tmp_path, queue_bytes=queue_bytes, manifest=new_manifest(rank=1, world_size=2))
    assert writer.time_dir.parent == tmp_path / "worldsize2_global_rank1"
    assert writer.accepts
    assert writer.submit(OP, PLACE, [ONES]) == 0
    assert writer.submit(OP, Place(model_name="a", model_id=0, data_index=1, device_id=2), [ONES]) == 1
    writer.note("once")
    writer.note("once")
    writer.missing("the engine cannot see it", name="relu_1")
    assert writer.flush()
    assert folder_of(writer).state == "running"
    writer.close("failed", "ValueError: no")
    writer.close("finished")
    assert not writer.accepts
    assert writer.submit(OP, PLACE, [ONES]) is None
    manifest = folder_of(writer).manifest
    assert manifest == writer.manifest
    assert manifest is not None
    assert (manifest.state, manifest.exception, manifest.ops) == ("failed", "ValueError: no", 2)
    assert (manifest.collected_files, manifest.notes) == (2, ["once"])
    assert manifest.missing == ["1 op not written: the engine cannot see it; first: relu_1"]
    assert (manifest.engine, manifest.plan, manifest.queue_bytes) == ("kernel", {"dump_mode": "all"}, queue_bytes)
    files = written(writer.time_dir) - {layout.MANIFEST}
    assert manifest.collected_bytes == sum((writer.time_dir / name).stat().st_size for name in files)
    assert not any(name.rpartition("/")[2].startswith(".") for name in files)
    assert numbers(writer) == [0, 1]


def test_what_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, options, said in (
        ("absent", {}, "No such file"),
        ("file", {}, "Not a directory"),
        (".", {"max_bytes": 0}, "max_bytes"),
        (".", {"queue_bytes": -1}, "queue_bytes"),
    ):
        with pytest.raises(UsageError, match=said):
            DumpWriter.create(tmp_path / folder, manifest=new_manifest(), **options)  # type: ignore[arg-type]
    assert written(tmp_path) == {"file"}


def test_the_budget_ends_the_dump_and_not_the_program(tmp_path: Path, queue_bytes: int) -> None:
    writer = new_writer(tmp_path, max_bytes=100_000, queue_bytes=queue_bytes)
    for _ in range(30):
        writer.submit(OP, PLACE, [ONES])
    writer.flush()
    assert not writer.accepts
    assert writer.submit(OP, PLACE, [value("output.0", np.ones(1))]) is None
    writer.close()
    kept = numbers(writer)
    assert 3 < len(kept) < 12
    assert kept == list(range(len(kept)))
    manifest = writer.manifest
    assert manifest.stopped == "max_bytes (97.7 KiB) was reached"
    assert manifest.missing == [f"{31 - len(kept)} ops not written: {manifest.stopped}; first: add_1 (op {len(kept)})"]
    assert sum((writer.time_dir / name).stat().st_size for name in written(writer.time_dir)) <= 100_000


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many bytes of ops and lines the disk still takes; then a write is cut short, and the next refused."""
    room = [1 << 60]

    def cut(write: Callable[..., int]) -> Callable[..., int]:
        def call(descriptor: int, data: Any) -> int:
            size = sum(map(len, data)) if isinstance(data, list) else len(data)
            if size > room[0]:
                if room[0] <= 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                whole = b"".join(data) if isinstance(data, list) else bytes(data)
                written_bytes = plain_write(descriptor, whole[: room[0]])
                room[0] -= written_bytes
                return written_bytes
            room[0] -= size
            return write(descriptor, data)

        return call

    plain_write = os.write
    monkeypatch.setattr(os, "writev", cut(os.writev))
    monkeypatch.setattr(os, "write", cut(os.write))
    return lambda size: room.__setitem__(0, size)


@pytest.mark.parametrize("room", [0, 100, 7000, 8500, 8900])
def test_a_full_disk_is_counted_and_tried_again(
    tmp_path: Path,
    full_disk: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    queue_bytes: int,
    room: int,
) -> None:
    """The room is cut off before the file, inside its header and its values, and inside the line of the index."""
    monkeypatch.setattr(manifest, "RETRY_SECONDS", 0.0)
    writer = new_writer(tmp_path, queue_bytes=queue_bytes)
    writer.submit(OP, PLACE, [ONES])
    writer.flush()
    full_disk(room)
    for _ in range(3):
        writer.submit(OP, PLACE, [ONES])
    writer.flush()
    before = writer.manifest.ops
    full_disk(1 << 60)
    assert writer.accepts
    writer.submit(OP, PLACE, [ONES])
    writer.close()
    assert before == 1
    assert numbers(writer) == [0, 4]
    (missing,) = writer.manifest.missing
    assert missing.startswith("3 ops not written: No space left on device; first: add_1 (op 1)")
    names = {name.rpartition("/")[2] for name in written(writer.time_dir)}
    assert len(names) == 4, names


def test_statistics_on_a_full_disk(
    tmp_path: Path, full_disk: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "RETRY_SECONDS", 0.0)
    writer = new_writer(tmp_path, queue_bytes=0)
    one = DumpValue("output.0", "output", TensorMeta("float32", (3,)), stats=TensorStats(3, max=1.5))
    for room in (1 << 60, 10, 200, 700, 1 << 60):
        full_disk(room)
        writer.submit(OP, PLACE, [one])
    writer.close()
    folder = folder_of(writer)
    rows = [row.task_id for row in folder.stats()]
    assert rows == [op.record.seq for op in folder.ops()]
    assert rows[0] == 0 and rows[-1] == 4 and len(rows) < 5
    assert folder.problems == []


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_an_error_costs_that_op_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue_bytes: int, code: int
) -> None:
    writer = new_writer(tmp_path, queue_bytes=queue_bytes)
    writer.submit(OP, PLACE, [ONES])
    writer.flush()

    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, "writev", fail)
        writer.submit(OP, PLACE, [ONES])
        writer.flush()
    writer.submit(OP, PLACE, [ONES])
    writer.close()
    assert numbers(writer) == [0, 2]
    assert writer.manifest.missing == [f"1 op not written: {os.strerror(code)}; first: add_1 (op 1)"]


def test_a_folder_that_is_taken_away_is_made_again(tmp_path: Path, queue_bytes: int) -> None:
    writer = new_writer(tmp_path, queue_bytes=queue_bytes)
    writer.submit(OP, PLACE, [ONES])
    writer.flush()
    shutil.rmtree(writer.time_dir / "0")
    writer.submit(OP, PLACE, [ONES])
    writer.submit(OP, PLACE, [ONES])
    writer.close()
    folder = folder_of(writer)
    assert [op.record.seq for op in folder.ops()] == [2]
    assert len(folder.problems) == 1
    assert "which is gone" in folder.problems[0]
    assert writer.manifest.missing[0].startswith("1 op not written: No such file or directory")


def test_what_cannot_be_had_of_a_value_is_a_gap_in_its_slot(tmp_path: Path, queue_bytes: int) -> None:
    def fail() -> Any:
        raise RuntimeError("device lost")

    meta, ones, stats = TensorMeta("float32", (2,)), np.ones(2, np.float32), TensorStats(2, max=1.0)
    values = [
        DumpValue("input.0", "input", meta, fail),
        DumpValue("input.1", "input", meta, b"123"),
        DumpValue("input.2", "input", meta, np.ones((4, 4), np.float32)[:, 1]),
        DumpValue("output.0", "output", meta, lambda: ones),
    ]
    statistics = [
        DumpValue("input.0", "input", meta, stats=fail),
        DumpValue("output.0", "output", meta, ones, lambda: stats),
    ]
    writer = new_writer(tmp_path, queue_bytes=queue_bytes)
    writer.submit(OP, PLACE, values)
    writer.submit(OP, PLACE, statistics)
    writer.close()
    folder = folder_of(writer)
    first, second = folder.ops()
    missing = [slot.missing.split(":")[0] for slot in first.record.slots]
    assert missing == ["RuntimeError", "ValueError", "ValueError", ""]
    assert [slot.missing for slot in second.record.slots] == ["statistics: RuntimeError: device lost", ""]
    assert [op.values()["output.0"].array().tolist() for op in (first, second)] == [[1, 1]] * 2
    assert [(row.slot, row.stats["Max"]) for row in folder.stats()] == [("output.0", 1.0)]
    assert len(writer.manifest.missing) == 4
    told = "1 value not written: RuntimeError: device lost; first: input.0 of add_1 (op 0)"
    assert writer.manifest.missing[0] == told


def test_a_dump_of_nothing_says_so(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    writer.close()
    assert writer.manifest.notes == ["nothing was dumped: no op was handed in"]
    assert list(open_dump(tmp_path).ops()) == []


def test_wrong_use_is_counted_and_not_raised(tmp_path: Path, queue_bytes: int) -> None:
    writer = new_writer(tmp_path, queue_bytes=queue_bytes)
    writer.submit(OP, PLACE, [ONES, ONES])
    assert writer.submit(OP, PLACE, None) is None  # type: ignore[arg-type]
    writer.submit(OP, Place(model_name="x", model_id=0, data_index=0), [None])  # type: ignore[list-item]
    writer.submit(OP, PLACE, [ONES])
    writer.close()
    assert len(numbers(writer)) == 1
    assert len(writer.manifest.missing) == 3
    assert any("two slots of one name" in reason for reason in writer.manifest.missing)


def test_many_threads(tmp_path: Path, queue_bytes: int) -> None:
    writer = new_writer(tmp_path, queue_bytes=queue_bytes)

    def work(thread: int) -> None:
        for step in range(25):
            place = Place(model_name="m", model_id=thread, data_index=step)
            writer.submit(OP, place, [value("output.0", np.array([thread, step]))])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    writer.close()
    found = {}
    for op in folder_of(writer).ops():
        where = (op.record.place.model_id, op.record.place.data_index)
        assert tuple(op.values()["output.0"].array().tolist()) == where
        found[op.record.seq] = where
    assert sorted(found) == list(range(100))
    assert len(set(found.values())) == 100


def test_a_forked_child_is_silent(tmp_path: Path, queue_bytes: int) -> None:
    writer = new_writer(tmp_path, queue_bytes=queue_bytes)
    writer.submit(OP, PLACE, [ONES])
    writer.flush()
    before = written(writer.time_dir)

    def child() -> bool:
        silent = writer.submit(OP, PLACE, [ONES]) is None and not writer.accepts and writer.flush()
        writer.note("child")
        writer.missing("child")
        writer.close("failed")
        return silent and writer.forked

    assert in_a_fork(child)
    assert written(writer.time_dir) == before
    writer.submit(OP, PLACE, [ONES])
    writer.close()
    assert numbers(writer) == [0, 1]
    assert writer.manifest.missing == writer.manifest.notes == []
    assert writer.manifest.state == "finished"


def test_values_are_written_at_once_and_wait_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies next is to have lost no more than what ran in the last milliseconds."""
    monkeypatch.setattr(dump_queue, "INTERVAL_S", 3600.0)
    writer = new_writer(tmp_path, queue_bytes=1 << 20)
    assert writer.submit(OP, PLACE, [value("output.0", np.ones(3))]) == 0
    deadline = time.monotonic() + 30
    while not writer.manifest.ops and time.monotonic() < deadline:
        time.sleep(0.01)
    assert numbers(writer) == [0]
    writer.close()


PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from store.dump_helpers import OP, new_writer, value
from graphprobe.records import TensorMeta, TensorStats
from graphprobe.store.dump_records import DumpValue, Place

writer = new_writer(Path(sys.argv[1]), queue_bytes=int(sys.argv[2]))
meta = TensorMeta("float32", (3,))
for number in range(10**9):
    place = Place(model_name="m", model_id=0, data_index=number // 10)
    array = np.full(1 + number % 7 * 5000, number)
    seq = writer.submit(OP, place, [value("input.0", array), value("output.0", array + 1)])
    assert seq == 2 * number, seq
    row = DumpValue("output.0", "output", meta, stats=TensorStats(3, max=float(number), digest="0" * 16))
    writer.submit(OP, place, [row])
    if number % 10 == 9:
        print(2 * number + 1, flush=True)
"""


def read_everything(folder: DumpFolder) -> tuple[list[int], list[int]]:
    """The executions with values and those with statistics; every value is compared with what was written."""
    values, only_stats = [], []
    for op in folder.ops():
        number = op.record.seq // 2
        if not op.has_values:
            only_stats.append(op.record.seq)
            continue
        loaded = {name: one.array() for name, one in op.values().items()}
        assert (loaded["input.0"] == number).all()
        assert (loaded["output.0"] == number + 1).all()
        values.append(op.record.seq)
    return values, only_stats


@pytest.mark.parametrize("turn", range(3))
def test_a_killed_process_loses_the_op_in_flight_at_most(tmp_path: Path, turn: int) -> None:
    known = killed(PROGRAM, str(tmp_path), "0", seconds=np.random.default_rng(turn).uniform(0, 0.15))
    (folder,) = open_dump(tmp_path).folders
    assert folder.state == "killed"
    values, only_stats = read_everything(folder)
    every = sorted(values + only_stats)
    assert every == list(range(len(every)))
    assert len(every) > known
    rows = [row.task_id for row in folder.stats()]
    assert only_stats == rows[: len(only_stats)]
    assert len(rows) - len(only_stats) in (0, 1)
    assert all("cut off" in problem for problem in folder.problems)
    names = [name.rpartition("/")[2] for name in written(folder.time_dir)]
    assert sum(name.startswith(layout.TEMPORARY_PREFIX) for name in names) <= 1
    on_disk = sum(name.startswith("add.") for name in names)
    assert on_disk - len(values) in (0, 1)


def test_a_killed_process_with_a_queue_leaves_a_prefix(tmp_path: Path) -> None:
    killed(PROGRAM, str(tmp_path), str(1 << 20), seconds=0.1)
    (folder,) = open_dump(tmp_path).folders
    values, only_stats = read_everything(folder)
    every = sorted(values + only_stats)
    assert every == list(range(len(every)))
    assert every
