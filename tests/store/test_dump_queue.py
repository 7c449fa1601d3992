"""The queue of a writer and its thread; what is written is of the tests of each writer."""

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from graphprobe.store import dump_queue
from graphprobe.store.dump_queue import BATCH, LARGE_BYTES, CopyPool, QueuedWriter
from graphprobe.store.dump_records import DumpManifest
from store.dump_helpers import new_manifest


class Item(NamedTuple):
    name: str
    size_bytes: int = 1


class Keeping(QueuedWriter[DumpManifest, Item]):
    """Writes nothing; `batches` has what was written together, `gate` holds up the thread."""

    noun = "item"
    wake_items, wake_bytes = 3, 1000

    def __init__(self, folder: Path, queue_bytes: int = 1 << 20, queue_items: int = 1 << 20) -> None:
        self.batches: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()
        self.does: Callable[[], object] = bool
        super().__init__(folder, new_manifest(), None, queue_bytes=queue_bytes, queue_items=queue_items)

    def put(self, *names: str, size_bytes: int = 1) -> None:
        for name in names:
            self.hand_in(Item(name, size_bytes))

    def _write_items(self, items: list[Item]) -> None:
        self.begun.set()
        assert self.gate.wait(30)
        self.batches.append([item.name for item in items])
        self.does()

    def _close_files(self) -> None:
        self.batches.append(["closed"])


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread does nothing before it is woken."""
    monkeypatch.setattr(dump_queue, "INTERVAL_S", 3600.0)


def until(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.005)
    return holds()


@pytest.mark.usefixtures("patient")
def test_the_thread_is_woken_once_many_wait_or_much(tmp_path: Path) -> None:
    writer = Keeping(tmp_path)
    writer.put("a", "b")
    time.sleep(0.05)
    assert writer.batches == []
    writer.put("c")
    assert until(lambda: writer.batches == [["a", "b", "c"]])
    writer.put("large", size_bytes=1000)
    assert until(lambda: writer.batches[1:] == [["large"]])
    writer.put("d")
    writer.close()
    assert writer.batches[2:] == [["d"], ["closed"]]


@pytest.mark.parametrize("how", ["nobody", "flush", "close"])
def test_what_waits_is_written(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself after a while; at once where somebody waits for that."""
    if how != "nobody":
        monkeypatch.setattr(dump_queue, "INTERVAL_S", 3600.0)
    writer = Keeping(tmp_path)
    writer.put("a")
    if how == "flush":
        assert writer.flush(30)
    elif how == "close":
        writer.close()
    assert until(lambda: writer.batches[:1] == [["a"]])
    writer.close()


@pytest.mark.usefixtures("patient")
def test_small_items_are_written_together_and_a_large_one_is_the_last_of_them(tmp_path: Path) -> None:
    writer = Keeping(tmp_path)
    writer.gate.clear()
    writer.put("first", size_bytes=1000)
    assert writer.begun.wait(30)
    writer.put("a", "b")
    writer.put("L", size_bytes=LARGE_BYTES)
    writer.put(*["c"] * (BATCH + 1))
    writer.gate.set()
    writer.close()
    assert writer.batches == [["first"], ["a", "b", "L"], ["c"] * BATCH, ["c"], ["closed"]]
    assert writer.manifest.queue_peak_bytes == 1000 + 2 + LARGE_BYTES + BATCH + 1


@pytest.mark.parametrize("bound", [{"queue_bytes": 10}, {"queue_items": 1}])
def test_the_program_waits_for_room(bound: dict[str, int], tmp_path: Path) -> None:
    writer = Keeping(tmp_path, **bound)
    writer.gate.clear()
    writer.put("a", size_bytes=9)
    assert writer.begun.wait(30)
    done = threading.Event()
    other = threading.Thread(target=lambda: (writer.put("b", "c", "d", size_bytes=9), done.set()))
    other.start()
    assert not done.wait(0.1)
    assert not writer.flush(0.01)
    writer.gate.set()
    assert done.wait(30)
    other.join()
    writer.close()
    assert [*itertools.chain(*writer.batches)] == ["a", "b", "c", "d", "closed"]
    assert writer.manifest.blocked_ns > 5 * 10**7


def test_the_writing_thread_does_not_wait_for_itself(tmp_path: Path) -> None:
    writer = Keeping(tmp_path, queue_bytes=10)
    found: list[bool] = []

    def hand_in_more() -> None:
        if not found:
            writer.put("b", "c", "d", size_bytes=100)
            found.append(writer.flush())

    writer.does = hand_in_more
    writer.put("a", size_bytes=100)
    assert writer.flush(30)
    writer.close()
    assert found == [False]
    assert [*itertools.chain(*writer.batches)] == ["a", "b", "c", "d", "closed"]


def test_the_thread_outlives_an_error(tmp_path: Path) -> None:
    writer = Keeping(tmp_path)

    def fail() -> None:
        writer.does = bool
        raise MemoryError("no room")

    writer.does = fail
    writer.put("a")
    assert writer.flush(30)
    writer.put("b")
    writer.close()
    assert writer.batches == [["a"], ["b"], ["closed"]]
    assert writer.manifest.missing == ["1 item not written: MemoryError: no room"]


def test_nothing_is_taken_after_the_end(tmp_path: Path) -> None:
    writer = Keeping(tmp_path)
    writer.close()
    writer.put("a", "b", "c")
    assert writer.flush(0) and not writer.accepts
    writer.close("failed")
    assert writer.batches == [["closed"]]
    assert writer.manifest.state == "finished"


BIG = 1 << 20


def view(fill: int, size_bytes: int = BIG) -> memoryview:
    return memoryview(np.full(size_bytes, fill, np.uint8).data)


def test_memory_is_used_again() -> None:
    pool = CopyPool(4 * BIG)
    first = pool.copy(view(1))
    second = pool.copy(view(2))
    assert (first[0], second[-1]) == (1, 2)
    pool.give_back([first])
    assert pool.idle_bytes == BIG
    third = pool.copy(view(3))
    assert third is first
    assert (third == 3).all() and (second == 2).all()
    assert pool.idle_bytes == 0
    assert pool.copy(view(4, BIG + 1)).size == BIG + 1


def test_no_more_is_kept_than_allowed() -> None:
    pool = CopyPool(2 * BIG)
    copies = [pool.copy(view(number, BIG - number)) for number in range(4)]
    pool.give_back(copies)
    assert pool.idle_bytes == sum(copy.size for copy in copies[2:])
    assert pool.copy(view(9, BIG - 3)) is copies[3]
    assert pool.copy(view(9, BIG)) is not copies[0]
    pool.clear()
    assert pool.idle_bytes == 0


def test_small_and_huge_copies_are_not_kept() -> None:
    pool = CopyPool(BIG)
    pool.give_back([pool.copy(view(1, 100)), pool.copy(view(1, 2 * BIG))])
    assert pool.idle_bytes == 0
