from __future__ import annotations

import threading
import time

import pytest

from graphprobe.store.dump_queue import BATCH, SMALL_BYTES, ByteQueue


def taking(queue: ByteQueue[str], linger_s: float) -> tuple[threading.Thread, list[str]]:
    """A thread that takes what there is until the queue is closed, and what it has taken so far."""
    got: list[str] = []

    def work() -> None:
        while batch := queue.get_batch(linger_s):
            got.extend(item for item, _ in batch)
            queue.give_back(sum(size for _, size in batch), len(batch))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, got


def put(queue: ByteQueue[str], item: str, size_bytes: int) -> bool:
    return queue.reserve(size_bytes, wait=False) and queue.put(lambda: item, size_bytes) == item


def test_first_in_first_out_within_bounds() -> None:
    queue: ByteQueue[str] = ByteQueue(10, 3)
    assert put(queue, "a", 4)
    assert put(queue, "b", 6)
    assert not put(queue, "c", 1)
    assert queue.get() == ("a", 4)
    assert not put(queue, "c", 1), "what is being worked on counts"
    queue.give_back(4)
    assert put(queue, "c", 1)
    assert put(queue, "d", 1)
    assert not put(queue, "e", 1), "three items are the bound"
    assert [queue.get() for _ in range(3)] == [("b", 6), ("c", 1), ("d", 1)]
    assert queue.peak_bytes == 10
    assert queue.blocked_ns == 0


def test_what_is_larger_than_the_queue_gets_in_alone() -> None:
    queue: ByteQueue[str] = ByteQueue(10, 3)
    assert put(queue, "a", 100)
    assert not put(queue, "b", 1)
    queue.get()
    queue.give_back(100)
    assert put(queue, "b", 1)
    assert not put(queue, "c", 100)


def test_closing_lets_everybody_go() -> None:
    queue: ByteQueue[str] = ByteQueue(10, 3)
    assert put(queue, "a", 10)
    done = []
    waiting = threading.Thread(target=lambda: done.append(queue.reserve(1, wait=True)))
    waiting.start()
    queue.close()
    waiting.join(30)
    assert done == [False]
    assert queue.get() == ("a", 10)
    assert queue.get() is None
    assert queue.put(lambda: "b", 1) is None


def test_waiting_until_all_is_dealt_with() -> None:
    queue: ByteQueue[str] = ByteQueue(10, 3)
    assert queue.wait_until_empty(0)
    assert put(queue, "a", 1)
    assert put(queue, "b", 1)
    queue.get()
    assert not queue.wait_until_empty(0.01)
    assert queue.abandon() == 1
    assert not queue.wait_until_empty(0.01)
    queue.give_back(1)
    assert queue.wait_until_empty(0)


def test_small_items_come_together_and_a_large_one_alone() -> None:
    queue: ByteQueue[str] = ByteQueue(10 * SMALL_BYTES, 10 * BATCH)
    for item in "abc":
        assert queue.add(lambda item=item: item, 1, wait=False) == item
    assert queue.add(lambda: "L", SMALL_BYTES + 1, wait=False) == "L"
    assert queue.add(lambda: "d", 1, wait=False) == "d"
    assert queue.get_batch(30) == [("a", 1), ("b", 1), ("c", 1)], "nobody lingers while something large waits"
    assert queue.get_batch(30) == [("L", SMALL_BYTES + 1)]
    assert queue.get_batch(0) == [("d", 1)]
    queue.give_back(4 + SMALL_BYTES + 1, 5)
    for _ in range(BATCH + 1):
        queue.add(lambda: "e", 1, wait=False)
    assert len(queue.get_batch(30)) == BATCH
    queue.close()
    assert queue.get_batch(30) == [("e", 1)]
    assert queue.get_batch(30) == []
    assert queue.add(lambda: "f", 1, wait=False) is None


@pytest.mark.parametrize("how", ["flush", "full", "close", "large"])
def test_nobody_lingers_while_somebody_waits(how: str) -> None:
    queue: ByteQueue[str] = ByteQueue(2 * SMALL_BYTES, 10)
    thread, got = taking(queue, 3600)
    queue.add(lambda: "a", SMALL_BYTES, wait=True)
    assert got == []
    if how == "flush":
        assert queue.wait_until_empty(30)
    elif how == "full":
        queue.add(lambda: "b", SMALL_BYTES + 1, wait=True)
        assert got[0] == "a"
    elif how == "large":
        queue.add(lambda: "b", SMALL_BYTES + 1, wait=False)
        assert queue.wait_until_empty(30)
    queue.close()
    thread.join(30)
    assert not thread.is_alive() and got[0] == "a"


def test_awaited_while_somebody_waits() -> None:
    queue: ByteQueue[int] = ByteQueue(100, 100)
    assert queue.add(lambda: 1, 1, wait=True) == 1
    assert not queue.awaited
    waiting = threading.Thread(target=queue.wait_until_empty, args=(30,))
    waiting.start()
    while not queue.awaited:
        pass
    assert queue.get_batch(0) == [(1, 1)]
    queue.give_back(1)
    waiting.join(30)
    assert not waiting.is_alive() and not queue.awaited
    queue.close()
    assert queue.awaited, "what is left is to be written without a pause"


def patient(queue: ByteQueue[str], items: str) -> None:
    for item in items:
        assert queue.add(lambda item=item: item, 1, wait=False, patient=True) == item


def test_what_is_patient_is_drained_by_its_own_thread() -> None:
    queue: ByteQueue[str] = ByteQueue(100, 100)
    written: list[list[str]] = []
    queue.drain(written.append)
    patient(queue, "abc")
    queue.drain(written.append, at_least=4)
    assert written == []
    queue.drain(written.append, at_least=3)
    assert written == [["a", "b", "c"]]
    assert queue.wait_until_empty(0)
    queue.close()
    queue.drain(written.append)
    assert len(written) == 1


def test_only_what_is_alone_is_drained() -> None:
    queue: ByteQueue[str] = ByteQueue(100, 100)
    written: list[list[str]] = []
    patient(queue, "a")
    assert queue.add(lambda: "urgent", 1, wait=False) == "urgent"
    queue.drain(written.append)
    assert queue.get() == ("a", 1), "in the order they came"
    assert queue.get() == ("urgent", 1)
    patient(queue, "b")
    queue.drain(written.append)
    assert written == [], "what the other thread is working on comes first"
    queue.give_back(2, 2)
    queue.drain(written.append)
    assert written == [["b"]]


def test_what_comes_while_it_is_drained_waits() -> None:
    queue: ByteQueue[str] = ByteQueue(100, 100)
    order: list[str] = []
    thread = threading.Thread(target=lambda: order.extend(item for item, _ in queue.get_batch(0)))

    def write(items: list[str]) -> None:
        assert queue.add(lambda: "late", 1, wait=False) == "late"
        queue.drain(lambda _: order.append("nested"))
        thread.start()
        thread.join(0.05)
        assert thread.is_alive(), "the writing thread must not overtake"
        order.extend(items)

    patient(queue, "ab")
    queue.drain(write)
    thread.join(30)
    assert order == ["a", "b", "late"]


def test_an_interrupt_while_it_is_drained_leaves_the_queue_whole() -> None:
    queue: ByteQueue[str] = ByteQueue(100, 100)

    def interrupted(_: list[str]) -> None:
        raise KeyboardInterrupt

    patient(queue, "ab")
    with pytest.raises(KeyboardInterrupt):
        queue.drain(interrupted)
    assert queue.wait_until_empty(0)
    patient(queue, "c")
    assert queue.wait_until_empty(0) is False
    assert queue.get() == ("c", 1)


def test_the_thread_that_drains_does_not_wait_for_itself() -> None:
    queue: ByteQueue[str] = ByteQueue(2, 100)
    found: list[object] = []

    def write(_: list[str]) -> None:
        found.append(queue.add(lambda: "c", 1, wait=True))
        queue.close()
        found.append(queue.get_batch(3600))

    patient(queue, "ab")
    queue.drain(write)
    assert found == [None, []]


@pytest.mark.parametrize("how", ["nobody", "flush", "urgent", "close"])
def test_patience_ends(how: str) -> None:
    """By itself after a while; at once where somebody waits, or something that is urgent comes."""
    queue: ByteQueue[str] = ByteQueue(100, 100)
    thread, got = taking(queue, 0.001)
    patient(queue, "ab")
    if how == "urgent":
        queue.add(lambda: "c", 1, wait=False)
    if how == "close":
        queue.close()
        thread.join(30)
    elif how == "nobody":
        deadline = time.monotonic() + 30
        while len(got) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    else:
        assert queue.wait_until_empty(30)
    assert got == ["a", "b", "c"][: 3 if how == "urgent" else 2]
    queue.close()
    thread.join(30)
    assert not thread.is_alive()
