"""The files of an API dump: whole, bounded, each value once, and readable whatever happened."""

import errno
import json
import os
import time
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from graphprobe.errors import ArtifactNotFoundError, RunNotFoundError, SchemaError, UsageError
from graphprobe.records import TensorMeta, TensorStats
from graphprobe.store import api_reader, api_writer, files
from graphprobe.store import manifest as live_manifest
from graphprobe.store.api_reader import open_api_dump
from graphprobe.store.api_writer import (
    ApiWriter,
    Handed,
    Head,
    RawCall,
    RawSlot,
    RawValue,
)
from graphprobe.store.calls import ApiManifest, Scalar
from graphprobe.store.dump_format import Shard
from graphprobe.store.reader import finds_one
from store.dump_helpers import killed, run_manifest


def new_writer(path: Path, rank: int = 0, **options: Any) -> ApiWriter:
    manifest = ApiManifest.of(run_manifest(rank=rank), plan={"data": "tensor"})
    return ApiWriter.create(path, manifest=manifest, **options)


def hand_in(writer: ApiWriter, array: np.ndarray[Any, Any], *, name: str | None = None) -> Handed:
    name = name or f"v{array.flat[0]}.float32.{array.size}"
    handed = Handed(name)
    if name not in writer.known:
        writer.known.add(name)
        data = array.reshape(-1).view(np.uint8).copy()
        writer.hand_in(RawValue(handed, None, "float32", array.size, data, None, data.nbytes))
    return handed


def call(number: int, slots: list[RawSlot], *, step: int = 0, stack: tuple[str, ...] = ()) -> RawCall:
    head = Head(step, "api", "torch.add", f"add.{number}", number, "m", "f.py:1", stack, "")
    return RawCall(head, "forward", "", slots, (), 500)


def slot(array: np.ndarray[Any, Any], handed: Handed | None) -> RawSlot:
    stats = TensorStats(array.size, max=float(array.max()), digest="d")
    return RawSlot("input.0", "input", TensorMeta("float32", array.shape), stats, None, handed)


def submit(writer: ApiWriter, number: int, array: np.ndarray[Any, Any], **options: Any) -> None:
    writer.hand_in(call(number, [slot(array, hand_in(writer, array))], **options))


def test_round_trip(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "d")
    a, b = np.full((2, 3), 1, np.float32), np.full((4,), 2, np.float32)
    submit(writer, 0, a, stack=("f.py:1 in g: x",))
    submit(writer, 1, b, step=3, stack=("f.py:1 in g: x",))
    scalar = RawSlot("kwarg.alpha", "input", scalar=Scalar("float", "1.5"))
    writer.hand_in(call(2, [slot(a, hand_in(writer, a)), scalar], step=3))
    writer.close()
    dump = open_api_dump(tmp_path / "d")
    assert (dump.format, dump.ranks(), dump.steps(0)) == ("graphprobe-api", (0,), (0, 3))
    (first,) = dump.calls(0, 0)
    assert (first.label, first.index, first.source, first.stack) == ("add.0.forward", 0, "f.py:1", ("f.py:1 in g: x",))
    np.testing.assert_array_equal(dump.values(first, first.slots[0]), a)
    second, third = dump.calls(0, 3)
    assert [second.position, third.position] == [0, 1]
    np.testing.assert_array_equal(dump.values(third, third.slots[0]), a)
    assert third.slots[1].scalar == Scalar("float", "1.5")
    assert third.slots[0].digest_kind == "graphprobe" and "l2" in third.slots[0].known
    with pytest.raises(ArtifactNotFoundError, match=r"no values of kwarg\.alpha"):
        dump.values(third, third.slots[1])
    assert dump.problems() == ()
    shards = list((tmp_path / "d").rglob("*.safetensors"))
    assert sorted(name for shard in shards for name in load_file(shard)) == ["v1.0.float32.6", "v2.0.float32.4"]
    assert finds_one(open_api_dump, tmp_path / "d") and not finds_one(open_api_dump, tmp_path)


def test_places_that_can_be_opened(tmp_path: Path) -> None:
    for rank in (1, 0):
        writer = new_writer(tmp_path / "d", rank)
        submit(writer, 0, np.full(3, rank, np.float32), step=2)
        submit(writer, 1, np.full(3, rank, np.float32), step=5)
        writer.close()
    assert open_api_dump(tmp_path / "d").ranks() == (0, 1)
    one = open_api_dump(tmp_path / "d" / "rank1")
    assert one.ranks() == (1,) and one.steps(1) == (2, 5)
    assert open_api_dump(tmp_path / "d" / "rank1" / "step5").steps(1) == (5,)
    for wrong in (tmp_path, tmp_path / "none", tmp_path / "d" / "rank1" / "values"):
        with pytest.raises(RunNotFoundError):
            open_api_dump(wrong)
    with pytest.raises(UsageError, match="exists already"):
        new_writer(tmp_path / "d", 1)
    path = tmp_path / "d" / "rank1" / "manifest.json"
    path.write_text(path.read_text().replace('"api_dump_schema": 1', '"api_dump_schema": 99'))
    with pytest.raises(SchemaError, match="99"):
        open_api_dump(tmp_path / "d")


def test_torn_and_foreign_lines_and_lost_shards(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "d")
    for number in range(3):
        submit(writer, number, np.full(3, number, np.float32))
    writer.close()
    path = tmp_path / "d" / "rank0" / "step0" / "calls.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b'{"foreign": 1}\n' + lines[1] + lines[2][:-20])
    dump = open_api_dump(tmp_path / "d")
    assert [one.label for one in dump.calls(0, 0)] == ["add.0.forward", "add.1.forward"]
    assert any("cut off" in text for text in dump.problems()) and any("no record" in text for text in dump.problems())
    (shard,) = (tmp_path / "d").rglob("*.safetensors")
    data = shard.read_bytes()
    for broken in (data[:-20], data[:5], b""):
        shard.write_bytes(broken)
        dump = open_api_dump(tmp_path / "d")
        first = list(dump.calls(0, 0))[1]
        with pytest.raises(ArtifactNotFoundError):
            [dump.values(one, one.slots[0]) for one in dump.calls(0, 0)]
    shard.unlink()
    with pytest.raises(ArtifactNotFoundError):
        open_api_dump(tmp_path / "d").values(first, first.slots[0])


def test_a_budget_ends_the_dump_and_is_kept(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "d", max_bytes=400_000)
    for number in range(50):
        submit(writer, number, np.full(10_000, number, np.float32))
        writer.flush()
    assert not writer.accepts
    writer.close()
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 400_000
    dump = open_api_dump(tmp_path / "d")
    found = list(dump.calls(0, 0))
    assert 3 <= len(found) < 12
    assert [one.index for one in found] == list(range(len(found)))
    assert any("budget_bytes" in text for text in dump.problems())
    for one in found[:-1]:
        assert float(dump.values(one, one.slots[0])[0]) == one.index


def test_a_full_disk_leaves_gaps_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_manifest, "RETRY_SECONDS", 0.0)
    writer = new_writer(tmp_path / "d")
    real = api_writer.replace_file

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    submit(writer, 0, np.full(5, 0, np.float32))
    writer.flush()
    monkeypatch.setattr(api_writer, "replace_file", full)
    submit(writer, 1, np.full(5, 1, np.float32))
    submit(writer, 2, np.full(5, 0, np.float32))
    writer.flush()
    monkeypatch.setattr(api_writer, "replace_file", real)
    for number in (3, 4):
        submit(writer, number, np.full(5, 1, np.float32))
        writer.flush()
    writer.close()
    dump = open_api_dump(tmp_path / "d")
    found = {one.index: one for one in dump.calls(0, 0)}
    assert "No space left" in found[1].slots[0].missing and found[1].slots[0].stats is not None
    np.testing.assert_array_equal(dump.values(found[2], found[2].slots[0]), np.zeros(5, np.float32))
    np.testing.assert_array_equal(dump.values(found[4], found[4].slots[0]), np.ones(5, np.float32))
    assert any("No space left" in text for text in dump.problems())


PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from store.test_api_store import new_writer, submit
writer = new_writer(Path(sys.argv[1]))
for number in range(10**9):
    submit(writer, number, np.full(1 + number % 7 * 500, number, np.float32), step=number // 1000)
    if number % 500 == 499:
        writer.flush()
        print(number, flush=True)
"""


def test_a_killed_process_leaves_all_but_the_queue(tmp_path: Path) -> None:
    known = killed(PROGRAM, str(tmp_path / "d"), seconds=0.1)
    dump = open_api_dump(tmp_path / "d")
    assert dump.facts["state"] == "running"
    found = [one for step in dump.steps(0) for one in dump.calls(0, step)]
    assert [one.index for one in found] == list(range(len(found)))
    assert len(found) > known
    for one in found:
        assert (dump.values(one, one.slots[0]) == one.index).all()


def test_threads_open_a_file_of_values_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is open is kept by path, whose hash is computed in Python: between two threads that look one up at the same
    time, the interpreter itself has crashed."""
    monkeypatch.setattr(api_writer, "SHARD_BYTES", 1)
    writer = new_writer(tmp_path / "d")
    for number in range(6):
        submit(writer, number, np.full(3, number, np.float32))
        writer.flush()
    writer.close()
    dump = open_api_dump(tmp_path / "d")
    slots = [(one, one.slots[0]) for one in dump.calls(0, 0)]
    opened: Counter[Path] = Counter()

    class Slow(Shard):
        def __init__(self, path: Path) -> None:
            opened[path] += 1
            time.sleep(0.01)
            super().__init__(path)

    monkeypatch.setattr(api_reader, "Shard", Slow)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda one: dump.values(*one).tolist(), [one for one in slots for _ in range(8)]))
    assert found == [[float(number)] * 3 for number in range(6) for _ in range(8)]
    assert len(opened) > 4 and set(opened.values()) == {1}


@pytest.mark.slow
def test_calls_are_written_while_others_still_wait(tmp_path: Path) -> None:
    def slow() -> None:
        time.sleep(0.05)

    writer = new_writer(tmp_path / "d")
    for number in range(60):
        array = np.full(3, number, np.float32)
        one = slot(array, None)
        writer.hand_in(call(number, [msgspec.structs.replace(one, stats=slow)]))
    time.sleep(1)
    path = tmp_path / "d" / "rank0" / "step0" / "calls.jsonl"
    written = path.read_bytes().count(b"\n") if path.exists() else 0
    assert 5 <= written < 60
    writer.close()
    assert path.read_bytes().count(b"\n") == 60


def test_a_line_without_an_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = new_writer(tmp_path / "d")
    submit(writer, 0, np.ones(3, np.float32))
    writer.close()
    path = tmp_path / "d" / "rank0" / "step0" / "calls.jsonl"
    monkeypatch.setattr(files, "MOST_LINE_BYTES", 1000)
    path.write_bytes(path.read_bytes() + b" " * 5000 + path.read_bytes())
    dump = open_api_dump(tmp_path / "d")
    assert [one.label for one in dump.calls(0, 0)] == ["add.0.forward"]
    assert any("a line has more than 1000 bytes" in text for text in dump.problems())


def test_a_long_dump_is_read_in_little_memory(tmp_path: Path) -> None:
    folder = tmp_path / "d" / "rank0"
    writer = new_writer(tmp_path / "d")
    submit(writer, 0, np.zeros(3, np.float32))
    writer.close()
    path = folder / "step0" / "calls.jsonl"
    path.write_bytes(path.read_bytes() * 20_000)
    dump = open_api_dump(tmp_path / "d")
    tracemalloc.start()
    count = sum(1 for _ in dump.calls(0, 0))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 20_000 and peak < 5e6


def test_bad_bounds_and_the_manifest(tmp_path: Path) -> None:
    for options in ({"max_bytes": 0}, {"queue_bytes": 0}):
        with pytest.raises(UsageError, match="=0"):
            new_writer(tmp_path / "d", **options)
    assert list(tmp_path.iterdir()) == []
    new_writer(tmp_path / "d").close()
    document = json.loads((tmp_path / "d" / "rank0" / "manifest.json").read_bytes())
    assert document["api_dump_schema"] == 1 and document["state"] == "finished"
    assert document["notes"] == ["nothing was dumped: no call was handed in"]
