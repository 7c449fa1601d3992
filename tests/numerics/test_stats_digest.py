"""The digest: equal for equal bits in equal order, and for nothing else that a fault is likely to make."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphprobe.numerics import stats_numpy
from numerics.stats_both import random_bytes, stats_by

KNOWN = ("297de9df42ffcf3b", "d957aa5abc4c7d1b", "687a4e85e53dd078")


def digest(implementation: str, x: npt.NDArray[np.generic]) -> str:
    return stats_by(implementation, x, "uint8").digest


def test_known_values() -> None:
    """What is on disk must stay comparable: a change of the digest is a change of the schema."""
    assert stats_by("fallback", np.zeros(0, dtype=np.uint8), "uint8").digest == KNOWN[0]
    assert stats_by("fallback", np.arange(256, dtype=np.uint8), "uint8").digest == KNOWN[1]
    assert stats_by("fallback", np.arange(9001, dtype=np.int32), "int32").digest == KNOWN[2]


def test_keys_keep_their_promises() -> None:
    keys = stats_numpy.block_keys().astype(np.int64)
    assert len(np.unique(np.abs(keys))) == len(keys) == 4096
    assert np.all(keys % 2 == 1) and np.abs(keys).min() >= 4097
    assert 0.45 < (keys > 0).mean() < 0.55


def test_dtype_and_shape_do_not_count_but_bits_do(implementation: str) -> None:
    x = np.arange(600, dtype=np.float32)
    assert stats_by(implementation, x, "float32").digest == stats_by(implementation, x, "int16").digest
    assert stats_by(implementation, x, "float32", shape=(20, 30)).digest == digest(implementation, x)


def test_every_single_bit_counts(implementation: str) -> None:
    x = random_bytes(200, seed=5)
    seen = {digest(implementation, x)}
    for bit in range(8 * len(x)):
        changed = x.copy()
        changed[bit // 8] ^= 1 << (bit % 8)
        seen.add(digest(implementation, changed))
    assert len(seen) == 1 + 8 * len(x)


def test_one_bit_changes_half_of_the_digest(implementation: str) -> None:
    x = random_bytes(20_000, seed=6)
    first = int(digest(implementation, x), 16)
    flipped = []
    for at in range(0, len(x), 101):
        changed = x.copy()
        changed[at] ^= 1
        flipped.append((int(digest(implementation, changed), 16) ^ first).bit_count())
    assert 28 < np.mean(flipped) < 36
    assert min(flipped) > 8


def test_zeros_at_the_end_and_lengths_count(implementation: str) -> None:
    lengths = [*range(200), 8191, 8192, 8193, 16384, 100_000]
    assert len({digest(implementation, np.zeros(n, dtype=np.uint8)) for n in lengths}) == len(lengths)
    x = random_bytes(77, seed=7)
    grown = {digest(implementation, np.concatenate([x, np.zeros(n, dtype=np.uint8)])) for n in range(300)}
    assert len(grown) == 300


def test_order_counts(implementation: str) -> None:
    x = np.random.default_rng(8).normal(size=7000).astype(np.float32)
    rng = np.random.default_rng(9)
    seen = {digest(implementation, x), digest(implementation, x[::-1].copy()), digest(implementation, np.sort(x))}
    count = 3
    # Neighbours, one lane apart, one stripe apart, one block apart, and any two.
    pairs = [(i, i + step) for step in (1, 2, 16, 32, 2048, 4096) for i in range(0, 2800, 97)]
    pairs += [(int(a), int(b)) for a, b in rng.integers(0, len(x), (300, 2)) if a != b]
    for a, b in dict.fromkeys(pairs):
        changed = x.copy()
        changed[a], changed[b] = x[b], x[a]
        seen.add(digest(implementation, changed))
        count += 1
    for shift in range(1, 40):
        seen.add(digest(implementation, np.roll(x, shift)))
        count += 1
    assert len(seen) == count


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_signs_count(implementation: str, dtype: type) -> None:
    x = np.random.default_rng(10).normal(size=300).astype(dtype)
    x[::7] = 0.0
    seen, count = {digest(implementation, x), digest(implementation, -x), digest(implementation, np.abs(x))}, 3
    for some in (*((i,) for i in range(60)), *itertools.combinations(range(0, 300, 8), 2)):
        changed = x.copy()
        changed[list(some)] = -changed[list(some)]
        seen.add(digest(implementation, changed))
        count += 1
    assert len(seen) == count


def test_pairs_of_equal_sum_count(implementation: str) -> None:
    """x[a] + d and x[b] - d: what a plain sum cannot see."""
    x = np.arange(2000, dtype=np.int32)
    seen, count = {digest(implementation, x)}, 1
    for a in range(0, 400, 37):
        for step in (1, 16, 32, 160):
            for d in (1, 2, 255, 65536):
                changed = x.copy()
                changed[a] += d
                changed[a + step] -= d
                seen.add(digest(implementation, changed))
                count += 1
    assert len(seen) == count


def test_payloads_of_nan_count(implementation: str) -> None:
    x = np.full(5, 0x7FC00000, dtype=np.uint32)
    y = x.copy()
    y[3] = 0x7FC00001
    assert np.isnan(y.view(np.float32)).all()
    assert digest(implementation, x) != digest(implementation, y)


def test_small_tensors_do_not_collide(implementation: str) -> None:
    """All patterns of 10 elements over two values of bfloat16: as structured as it gets."""
    patterns = np.arange(1 << 10)
    bits = ((patterns[:, None] >> np.arange(10)) & 1).astype(np.uint16)
    for zero, one in ((0, 0x8000), (0x3F80, 0xBF80), (0, 0x3F80), (0x3F80, 0x4000)):
        rows = np.where(bits == 1, one, zero).astype(np.uint16)
        assert len({digest(implementation, row) for row in rows}) == len(rows)


@given(a=st.binary(max_size=400), b=st.binary(max_size=400))
@settings(max_examples=200, deadline=None)
def test_equal_only_if_equal(a: bytes, b: bytes) -> None:
    x, y = (np.frombuffer(data + b"x", dtype=np.uint8) for data in (a, b))
    assert (digest("fallback", x) == digest("fallback", y)) == (a == b)
