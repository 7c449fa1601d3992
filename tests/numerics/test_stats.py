"""One-pass statistics: both implementations hold to the definitions, and to each other."""

import math
import os
import signal
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphprobe.errors import UsageError
from graphprobe.numerics import native, stats_numpy
from graphprobe.numerics.item_kinds import ITEM_KINDS
from graphprobe.numerics.stats import stats_from_array, stats_from_memory
from graphprobe.records import TensorStats
from numerics.stats_both import (
    as_dtype,
    assert_agree,
    instruction_set,
    needs_native,
    random_bytes,
    stats_by,
)

LENGTHS = (0, 1, 2, 7, 8, 15, 16, 17, 63, 64, 65, 129, 511, 512, 1000, 2049, 4097, 40_001)


def test_by_hand(implementation: str) -> None:
    x = np.array([3.0, -4.0, 0.0, -0.0, np.nan, np.inf, -np.inf, -np.inf], dtype=np.float32)
    found = stats_by(implementation, x, "float32")
    assert (found.count, found.min, found.max, found.mean) == (8, -4.0, 3.0, -0.25)
    assert (found.nan, found.positive_inf, found.negative_inf, found.zeros) == (1, 1, 2, 2)
    assert found.l2 == 5.0
    assert found.std == pytest.approx(math.sqrt(25 / 4 - 0.0625), rel=1e-15)
    assert len(found.digest) == 16


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "complex64"])
def test_without_a_finite_element(implementation: str, dtype: str) -> None:
    for x in (
        np.array([], dtype=ITEM_KINDS[dtype].codes),
        np.array([np.nan, np.inf] * 40, dtype=ITEM_KINDS[dtype].codes),
    ):
        found = stats_by(implementation, x, dtype)
        assert found.min is found.max is found.mean is found.std is found.l2 is None
        assert found.count == len(x) // ITEM_KINDS[dtype].parts


@given(
    values=st.lists(st.floats(width=64, allow_nan=True, allow_infinity=True), max_size=200), repeat=st.integers(1, 3)
)
@settings(max_examples=150, deadline=None)
@example(values=[5e-324], repeat=2)
def test_definitions_in_float64(implementation: str, values: list[float], repeat: int) -> None:
    """Against exact sums of rationals: any offset, any magnitude, NaN and Inf among them."""
    x = np.array(values * repeat, dtype=np.float64)
    found = stats_by(implementation, x, "float64")
    finite = [float(v) for v in x if math.isfinite(v)]
    assert found.count == len(x)
    assert found.nan == sum(math.isnan(v) for v in x)
    assert (found.positive_inf, found.negative_inf) == (sum(v == math.inf for v in x), sum(v == -math.inf for v in x))
    assert found.zeros == finite.count(0.0)
    if not finite:
        assert found.min is None
        return
    largest = max(map(abs, finite))
    unit = 2.0 ** max(math.frexp(largest)[1] - 1, -1022) if largest else 1.0
    scaled = [v / unit for v in finite]
    mean = math.fsum(scaled) / len(scaled)
    rms = math.sqrt(math.fsum(v * v for v in scaled) / len(scaled))
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in scaled) / len(scaled))
    assert found.min == min(finite) and found.max == max(finite)
    assert found.mean is not None and found.std is not None and found.l2 is not None
    half_step = 5e-324 / unit / 2  # results are rounded to multiples of the smallest float
    assert abs(found.mean / unit - mean) <= 1e-12 * rms + half_step
    assert abs(found.std / unit - std) <= 1e-12 * std + 1e-15 * rms + half_step
    l2 = rms * math.sqrt(len(scaled))
    if l2 * unit < 1e308:
        assert abs(found.l2 / unit - l2) <= 1e-12 * l2 + half_step


def ordinary(dtype: str, length: int) -> npt.NDArray[Any]:
    values = np.random.default_rng(length).normal(1.0, 2.0, length * ITEM_KINDS[dtype].parts)
    values[::5] = 0.0
    with np.errstate(invalid="ignore"):
        return values.astype(ITEM_KINDS[dtype].codes)


@pytest.mark.parametrize("dtype", sorted(ITEM_KINDS))
def test_native_equals_fallback(instructions: str, dtype: str) -> None:
    """On any bits, and on ordinary numbers with zeros among them."""
    ordinary_ones = ("float32", "float64", "float16", "complex128", "int64", "float8_e5m2")
    for length in LENGTHS:
        raw = random_bytes(length * ITEM_KINDS[dtype].size, seed=length)
        for x in (raw, ordinary(dtype, length)) if dtype in ordinary_ones else (raw,):
            assert_agree(stats_by(instructions, x, dtype), stats_by("fallback", x, dtype), dtype)


@given(data=st.data(), dtype=st.sampled_from(["float32", "float64", "float16"]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_native_equals_fallback_on_what_hypothesis_finds(instructions: str, data: st.DataObject, dtype: str) -> None:
    width = 8 * ITEM_KINDS[dtype].size
    block = data.draw(hnp.arrays(dtype, st.integers(0, 300), elements=st.floats(width=width)))  # type: ignore[call-overload]
    x = np.tile(block, data.draw(st.integers(1, 4)))
    assert_agree(stats_by(instructions, x, dtype), stats_by("fallback", x, dtype), dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "int16"])
def test_threads_change_no_bit(instructions: str, dtype: str) -> None:
    raw = np.random.default_rng(3).normal(5.0, 2.0, 400_000).astype(np.float32)
    one = stats_by(instructions, raw, dtype)
    for threads in (2, 3, 5, 100):
        for _ in range(5):
            assert stats_by(instructions, raw, dtype, threads=threads) == one


@pytest.mark.parametrize("offset", [10.0, 1e3, 1e6, 1e8])
def test_a_large_offset_leaves_std_alone(implementation: str, offset: float) -> None:
    for seed in range(4):
        x = offset + np.random.default_rng(seed).normal(0.0, 1.0, 100_000)
        found = stats_by(implementation, x, "float64")
        assert found.std == pytest.approx(float(np.std(x - offset)), rel=1e-9)
        narrow = x.astype(np.float32)
        brain = as_dtype(narrow, "bfloat16")
        for dtype, raw, wide in (
            ("float32", narrow, narrow.astype(np.float64)),
            ("bfloat16", brain, (brain.astype(np.uint32) << 16).view(np.float32).astype(np.float64)),
        ):
            found = stats_by(implementation, raw, dtype)
            assert found.std == pytest.approx(float(np.std(wide)), rel=1e-9), (seed, dtype)
            assert found.mean == pytest.approx(float(np.mean(wide)), rel=1e-12), (seed, dtype)


@pytest.mark.parametrize("length", LENGTHS[1:])
def test_one_number_again_and_again_does_not_deviate(instructions: str, length: int) -> None:
    for value in (0.1, -7e-30, 1e30):
        found = stats_by(instructions, np.full(length, value, dtype=np.float32), "float32")
        assert (found.mean, found.std) == (float(np.float32(value)), 0.0), value


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("offset", [0.0, 3.0, 1000.0])
def test_nan_and_inf_among_others(instructions: str, dtype: str, offset: float) -> None:
    """Here and there, everywhere, in one stretch, and not at the ends: groups of the fast path with and without."""
    rng = np.random.default_rng(2)
    x = (offset + rng.normal(size=30_003)).astype(dtype)
    x[3000:6000:5] = np.nan
    x[9000:9100] = -np.inf
    x[20_000::7] = np.inf
    x[25_000], x[25_001] = np.nan, 0.0
    expected = stats_by("fallback", x, dtype)
    assert expected.nan == 601 and expected.negative_inf == 100 and expected.zeros >= 1
    assert_agree(stats_by(instructions, x, dtype), expected, dtype)
    flat = np.full(5000, offset, dtype=dtype)
    flat[::3] = np.nan
    found = stats_by(instructions, flat, dtype)
    assert (found.mean, found.std, found.zeros) == (offset, 0.0, 0 if offset else 3333)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_masks_of_negative_infinity(instructions: str, dtype: str, offset: float) -> None:
    """Alone, among zeros, everywhere, with something else in between: all ways in and out of the loop for them."""
    rng = np.random.default_rng(5)
    x = (offset + rng.normal(size=40_003)).astype("float32")
    x[2000:9000:3] = -np.inf
    x[4001] = np.nan
    x[7001:7003] = np.inf
    x[12_000:20_000] = -np.inf
    x[21_000:22_000:2] = 0.0
    x[21_001:22_000:4] = -np.inf
    x[30_000:31_000:7] = np.nan
    x[31_500:40_000:2] = -np.inf
    raw = as_dtype(x, dtype)
    expected = stats_by("fallback", raw, dtype)
    assert (expected.nan, expected.positive_inf) == (144, 2)
    assert expected.negative_inf == int(np.isneginf(x).sum()) and expected.zeros == 500
    assert_agree(stats_by(instructions, raw, dtype), expected, dtype)
    for part in (raw[12_000:20_000], raw[2000:2100], raw[19_990:20_100]):
        assert_agree(stats_by(instructions, part, dtype), stats_by("fallback", part, dtype), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize(("centre", "spread"), [(10.0, 1.0), (1e-20, 1e-23), (1.0, 0.0), (-3.0, 1e-3), (3e30, 1e29)])
def test_values_around_a_number_that_is_not_zero(instructions: str, dtype: str, centre: float, spread: float) -> None:
    x = (centre + spread * np.random.default_rng(6).normal(size=20_011)).astype("float32")
    raw = as_dtype(x, dtype)
    for some in (raw, raw[:16], raw[:100], raw[5:4101]):
        assert_agree(stats_by(instructions, some, dtype), stats_by("fallback", some, dtype), dtype)


@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e-25, 1e-19, 1e-12, 1e12, 1e19, 1e30, 3e38])
def test_float32_extremes_do_not_overflow(implementation: str, size: float) -> None:
    x = (np.random.default_rng(1).uniform(-1.0, 1.0, 10_000) * size).astype(np.float32)
    found, wide = stats_by(implementation, x, "float32"), x.astype(np.float64)
    assert found.l2 == pytest.approx(float(np.linalg.norm(wide)), rel=1e-6, abs=0)
    assert found.std == pytest.approx(float(np.std(wide)), rel=1e-6, abs=0)


def test_l2_beyond_float64_is_infinite_and_the_rest_is_not(implementation: str) -> None:
    found = stats_by(implementation, np.full(64, 1.7e308), "float64")
    assert found.l2 == math.inf
    assert found.min == 1.7e308
    assert found.mean == pytest.approx(1.7e308, rel=1e-15)
    assert found.std == pytest.approx(0.0, abs=1e293)


def test_complex_numbers_count_by_their_modulus(implementation: str) -> None:
    x = np.array([3 + 4j, 0j, complex(np.inf, np.nan), complex(np.nan, 1), -5 + 12j], dtype=np.complex64)
    found = stats_by(implementation, x, "complex64")
    assert (found.count, found.min, found.max, found.zeros) == (5, 0.0, 13.0, 1)
    assert (found.positive_inf, found.negative_inf, found.nan) == (1, 0, 1)
    assert found.mean == 6.0


def test_integers_of_64_bits_are_rounded_once(implementation: str) -> None:
    x = np.array([2**63 - 1, -(2**63), 2**53 + 1, 5], dtype=np.int64)
    found = stats_by(implementation, x, "int64")
    assert (found.min, found.max) == (-(2.0**63), 2.0**63)
    assert stats_by(implementation, np.array([2**53 + 1], dtype=np.int64), "int64").max == 2.0**53
    assert stats_by(implementation, np.array([2**64 - 1], dtype=np.uint64), "uint64").max == 2.0**64


@given(
    shape=hnp.array_shapes(max_dims=4, max_side=9),
    steps=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    data=st.data(),
)
@settings(max_examples=80, deadline=None)
def test_strides_do_not_matter(
    implementation: str, shape: tuple[int, ...], steps: list[int], data: st.DataObject
) -> None:
    base = np.arange(math.prod(shape), dtype=np.int32).reshape(shape) - 7
    view = base.transpose(data.draw(st.permutations(range(len(shape)))))
    view = view[tuple(slice(None, None, step) for step in steps[: len(shape)])]
    if data.draw(st.booleans()):
        view = np.broadcast_to(view, (3, *view.shape))
    strides = tuple(s // 4 for s in view.strides)
    found = stats_by(implementation, view, "int32", shape=view.shape, strides=strides)
    assert found == stats_by(implementation, np.ascontiguousarray(view), "int32")


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32", "float64", "complex128"])
def test_layouts_are_read_in_logical_order(instructions: str, dtype: str) -> None:
    """Whole and broken tiles, panels and their borders, few rows, long rows, runs; the memory ends with the tensor."""
    item = np.dtype((np.void, ITEM_KINDS[dtype].size))
    rng = np.random.default_rng(4)
    layouts: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
        *(((m, n), (1, 0), (1, 1)) for m, n in ((64, 64), (67, 33), (5, 700), (700, 5), (3, 3), (301, 211))),
        *(((m, n), (1, 0), steps) for m, n in ((131, 90), (40, 9)) for steps in ((1, 2), (2, 1), (3, 3))),
        ((40_000, 3), (1, 0), (1, 1)),  # rows longer than a chunk, few of them
        ((2, 65, 3, 17), (0, 2, 1, 3), (1, 1, 1, 1)),  # heads and positions exchanged
        ((2, 65, 3, 17), (0, 2, 3, 1), (1, 1, 1, 1)),
        ((2, 6, 7, 20), (0, 3, 1, 2), (1, 1, 1, 1)),  # channels last
        ((30, 3, 3, 20), (0, 3, 1, 2), (1, 1, 1, 1)),
        ((9, 11, 13), (2, 1, 0), (1, 1, 1)),
        ((70, 130), (0, 1), (1, 2)),
        ((70, 130), (0, 1), (3, 1)),
        ((70, 133), (0, 1), (1, 3)),
    ]
    for shape, order, steps in layouts:
        reach = tuple((n - 1) * step + 1 for n, step in zip(shape, steps, strict=True))
        values = rng.normal(size=math.prod(reach) * ITEM_KINDS[dtype].size).astype(np.float32)
        memory = np.frombuffer(values.tobytes()[: math.prod(reach) * item.itemsize], dtype=item).reshape(reach)
        view = memory[tuple(slice(None, None, step) for step in steps)].transpose(order)
        strides = tuple(s // item.itemsize for s in view.strides)
        expected = stats_by(instructions, np.ascontiguousarray(view), dtype, shape=view.shape)
        for threads in (1, 2):
            found = stats_by(instructions, memory, dtype, shape=view.shape, strides=strides, threads=threads)
            assert repr(found) == repr(expected), (shape, order, steps, threads)


@pytest.mark.parametrize("shape", [(2100, 300), (300, 2100), (60, 70_000), (4, 280_000)])
def test_panels_of_a_large_transposed_matrix(instructions: str, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(5).normal(size=shape).astype(np.float32)
    with instruction_set(instructions):
        expected = stats_from_array(np.ascontiguousarray(x.T))
        assert [stats_from_array(x.T, threads=threads) for threads in (1, 2, 3)] == [expected] * 3
        swapped = x.copy()
        swapped[1, 2], swapped[2, 1] = x[2, 1], x[1, 2]
        assert stats_from_array(swapped.T).digest != expected.digest


def test_public_entry() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    expected = stats_from_array(x)
    assert (expected.count, expected.mean, expected.zeros) == (12, 5.5, 1)
    assert stats_from_memory(x.ctypes.data, "float32", (3, 4)) == expected
    assert stats_from_memory(x.ctypes.data, "float32", (3, 4), (4, 1), threads=4) == expected
    assert stats_from_array(x.T) == stats_from_array(np.ascontiguousarray(x.T)) != expected
    assert stats_from_array(x[:, ::-1]) == stats_from_array(np.ascontiguousarray(x[:, ::-1]))
    assert stats_from_array(np.array(2.0, dtype=np.float32)).count == 1


def test_wrong_use_is_told() -> None:
    x = np.zeros(4, dtype=np.float32)
    for arguments, threads, said in (
        (("qint8", (4,)), 1, "no statistics of dtype 'qint8'"),
        (("float32", (-1,)), 1, "negative size"),
        (("float32", (4,), (1, 1)), 1, "strides"),
        (("float32", (4,), (-1,)), 1, "strides"),
        (("float32", (4,)), 0, "threads is 0"),
    ):
        with pytest.raises(UsageError, match=said):
            stats_from_memory(x.ctypes.data, *arguments, threads=threads)
    with pytest.raises(UsageError, match="byte order"):
        stats_from_array(x.astype(">f4"))


@needs_native
def test_the_core_refuses_nonsense() -> None:
    assert native.core is not None
    x = np.zeros(4, dtype=np.float32)
    good = (TensorStats, x.ctypes.data, 0, (4,), None, 1, 0)
    assert native.core.stats(*good).zeros == 4
    for position, value, error in (
        (1, 0, ValueError),
        (2, 99, ValueError),
        (2, 15, ValueError),
        (3, (-4,), ValueError),
        (3, "x", TypeError),
        (4, (1, 1), ValueError),
        (5, "x", TypeError),
    ):
        with pytest.raises(error):
            native.core.stats(*good[:position], value, *good[position + 1 :])
    with pytest.raises(TypeError):
        native.core.stats(*good[:6])


def test_a_fork_gets_threads_of_its_own() -> None:
    """The pool of the parent is gone in a child; without one of its own the child would wait for ever."""
    x = np.random.default_rng(0).normal(size=300_000).astype(np.float32)
    expected = stats_from_array(x, threads=2)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        os._exit(0 if stats_from_array(x, threads=2) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert stats_from_array(x, threads=2) == expected


def test_fallback_reads_in_chunks() -> None:
    x = np.random.default_rng(0).normal(3.0, 1.0, stats_numpy.CHUNK_BYTES // 8 * 2 + 5)
    found = stats_by("fallback", x, "float64")
    assert found.std == pytest.approx(float(np.std(x)), rel=1e-12)
    assert found.mean == pytest.approx(float(np.mean(x)), rel=1e-12)
