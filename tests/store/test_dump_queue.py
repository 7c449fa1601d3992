from __future__ import annotations

import threading

from graphprobe.store.dump_queue import ByteQueue


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
