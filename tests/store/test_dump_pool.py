from __future__ import annotations

import numpy as np

from graphprobe.store.dump_queue import CopyPool

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
