"""Two tensors in one pass: the definitions by a second way, and both implementations equal in every bit."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphprobe.errors import UsageError
from graphprobe.numerics import native, pair, pair_numpy
from graphprobe.numerics.item_kinds import ITEM_KINDS
from graphprobe.numerics.pair import PairStats, coarser, compare_pairs
from numerics.stats_both import instruction_set, needs_native, random_bytes

Array = npt.NDArray[Any]
LENGTHS = (0, 1, 8, 9, 1024, 1025, 65_537 + 2000)
REAL = sorted(name for name in ITEM_KINDS if name != "float4_e2m1fn_x2" and not name.startswith("complex"))


@contextmanager
def using(implementation: str) -> Iterator[None]:
    kept = pair.compute
    try:
        if implementation == "fallback":
            pair.compute = pair_numpy.compute
            yield
        else:
            pair.compute = native.core.pair  # type: ignore[union-attr]
            with instruction_set(implementation):
                yield
    finally:
        pair.compute = kept


def compare(implementation: str, candidate: Array, reference: Array, **options: Any) -> PairStats:
    with using(implementation):
        return compare_pairs(candidate, reference, **options)


def normal(size: int, seed: int, dtype: type = np.float32) -> Array:
    return np.random.default_rng(seed).normal(0.0, 2.0, size).astype(dtype)


def test_by_hand(implementation: str) -> None:
    c = np.array([1, -2.5, 0, 0, 1e-3, np.nan, np.inf, np.inf, 5], dtype=np.float32)
    r = np.array([1, -2.0, 0, 4, 0, np.nan, np.inf, -np.inf, np.nan], dtype=np.float32)
    found = compare(implementation, c, r, unit_roundoff=0.25, floor=0.5, limit=1.0)
    assert (found.count, found.finite, found.unequal, found.mismatched, found.first_mismatch) == (9, 5, 5, 2, 7)
    assert found.classes == ((5, 1, 0, 0), (0, 1, 0, 0), (0, 0, 1, 1), (0, 0, 0, 0))
    assert not found.bits_equal
    small = float(np.float32(1e-3))
    assert (found.dot, found.reference_squares) == (6.0, 21.0)
    assert found.candidate_squares == pytest.approx(7.25 + small * small, rel=1e-15)
    assert found.cosine == pytest.approx(6.0 / math.sqrt(found.candidate_squares * 21.0), rel=1e-15)
    assert found.l2_error == pytest.approx(math.sqrt(0.25 + 16 + small * small), rel=1e-15)
    assert (found.max_abs, found.max_abs_index) == (4.0, 3)
    assert (found.max_relative, found.max_relative_index) == (1.0, 3)
    assert (found.zero_reference, found.within_1_1000, found.within_5_1000) == (1, 2, 2)
    assert found.max_ulp == pytest.approx(small * 2.0**33, rel=1e-12)  # exponent of 1e-3 is -10
    z = [0.5 / (0.25 * 2.5 + 0.5), 4 / 1.5, small / (0.25 * small + 0.5)]
    assert (found.z_max, found.z_max_index, found.z_above) == (z[1], 3, 1)
    assert found.z_rms == pytest.approx(math.sqrt(sum(v * v for v in z) / 5), rel=1e-15)
    assert (found.candidate.finite, found.candidate.max, found.reference.finite) == (6, 5.0, 5)
    assert (found.reference.min, found.reference.max, found.reference.mean) == (-2.0, 4.0, 0.6)
    assert found.reference.l2 == pytest.approx(math.sqrt(21.0), rel=1e-15)


def test_empty_0d_and_zeros(implementation: str) -> None:
    empty = compare(implementation, np.zeros((0, 3)), np.zeros((0, 3)))
    assert (empty.count, empty.bits_equal, empty.cosine, empty.z_rms, empty.candidate.min) == (0, True, None, 0.0, None)
    one = compare(implementation, np.array(3.0), np.array(4.0, dtype=np.float32))
    assert (one.count, one.max_abs, one.max_relative, one.cosine) == (1, 1.0, 0.25, 1.0)
    zeros = compare(implementation, np.zeros(5), -np.zeros(5))
    assert (zeros.cosine, zeros.unequal, zeros.bits_equal, zeros.within_1_1000) == (1.0, 0, False, 5)
    assert (zeros.max_abs_index, zeros.z_max_index, zeros.max_relative_index) == (None, None, None)
    assert math.copysign(1.0, zeros.reference.min or 0.0) == 1.0
    lone = compare(implementation, np.zeros(5), np.ones(5))
    assert (lone.cosine, lone.max_relative, lone.zero_reference) == (0.0, 1.0, 0)
    assert compare(implementation, np.ones(5), np.zeros(5)).zero_reference == 5


def test_what_is_not_finite_alike_is_no_difference(implementation: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf] * 700, dtype=np.float64)
    found = compare(implementation, x, x.copy())
    assert (found.bits_equal, found.unequal, found.mismatched, found.first_mismatch) == (True, 0, 0, None)
    assert (found.finite, found.cosine, found.candidate.mean, found.within_5_1000) == (0, None, None, 0)
    other = x.copy()
    other[1501] = 0.0
    found = compare(implementation, other, x)
    assert (found.unequal, found.first_mismatch, found.classes[0]) == (1, 1501, (0, 0, 1, 0))
    assert (found.candidate.l2, found.reference.l2) == (0.0, None)


def expected_sums(c: Array, r: Array) -> dict[str, float]:
    """The figures of finite float64 values by exact sums, or directly."""
    gap, size = np.abs(c - r), np.maximum(np.abs(c), np.abs(r))
    some = r != 0
    relative = gap[some] / np.abs(r[some])
    return {
        "dot": math.fsum(c * r),
        "candidate_squares": math.fsum(c * c),
        "reference_squares": math.fsum(r * r),
        "l2_error": math.sqrt(math.fsum(gap * gap)),
        "max_abs": float(gap.max()),
        "max_relative": float(relative.max()),
        "within_1_1000": int((relative < 0.001).sum() + ((r == 0) & (c == 0)).sum()),
        "within_5_1000": int((relative < 0.005).sum() + ((r == 0) & (c == 0)).sum()),
        "unequal": int((c != r).sum()),
        "size": float(size.max()),
    }


def test_definitions(implementation: str) -> None:
    r = normal(70_000, 1)
    c = r * (1 + normal(70_000, 2) * 1e-3).astype(np.float32)
    r[::11] = 0.0
    c[::22] = 0.0
    found = compare(implementation, c, r)
    for name, value in expected_sums(c.astype(np.float64), r.astype(np.float64)).items():
        if name != "size":
            assert getattr(found, name) == pytest.approx(value, rel=1e-12), name
    gap = np.abs(c.astype(np.float64) - r)
    assert found.max_abs_index == int(gap.argmax())
    z = gap / (2.0**-24 * np.maximum(np.maximum(np.abs(c), np.abs(r)).astype(np.float64), 2.0**-126))
    assert (found.z_max, found.z_max_index) == (z.max(), int(z.argmax()))
    assert found.z_above == int((z > 4).sum()) and found.z_rms == pytest.approx(
        float(np.sqrt((z * z).mean())), rel=1e-12
    )
    ulps = gap / np.spacing(np.maximum(np.abs(c), np.abs(r))).astype(np.float64)
    assert found.max_ulp == ulps.max()
    assert found.candidate.mean == pytest.approx(float(c.astype(np.float64).mean()), rel=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"])
def test_neighbours_are_one_ulp_apart(implementation: str, dtype: str) -> None:
    codes = np.arange(1, 0x77, dtype=f"uint{8 * ITEM_KINDS[dtype].size}")
    step = (codes * (1 << (8 * ITEM_KINDS[dtype].size - 8))).astype(codes.dtype)
    for begin in (codes, step):
        options = {"candidate_dtype": dtype, "reference_dtype": dtype}
        found = compare(implementation, begin, begin + begin.dtype.type(1), **options)
        assert found.unequal == len(begin) and found.max_ulp == 1.0
        assert compare(implementation, begin, begin, **options).max_ulp == 0.0


@pytest.mark.parametrize("dtype", REAL)
def test_native_equals_fallback_on_any_bits(instructions: str, dtype: str) -> None:
    """Exactly: NaN, infinities and subnormal numbers among them, against the same dtype and against others."""
    for length in LENGTHS:
        for other in (dtype, "float32", "bfloat16"):
            sides = [random_bytes(length * ITEM_KINDS[name].size, seed) for name, seed in ((dtype, length), (other, 1))]
            c, r = (raw.view(f"u{ITEM_KINDS[name].size}") for raw, name in zip(sides, (dtype, other), strict=True))
            options: dict[str, Any] = {"candidate_dtype": dtype, "reference_dtype": other, "floor": 1e-3}
            assert repr(compare(instructions, c, r, **options)) == repr(compare("fallback", c, r, **options)), length


@given(
    data=st.data(), dtype=st.sampled_from(["float32", "float64", "float16"]), limit=st.sampled_from([-1.0, 0.0, 3.0])
)
@settings(max_examples=60, deadline=None)
def test_every_instruction_set_equals_the_fallback(
    instructions: str, data: st.DataObject, dtype: str, limit: float
) -> None:
    values = hnp.arrays(dtype, st.integers(0, 60), elements=st.floats(width=8 * ITEM_KINDS[dtype].size))  # type: ignore[call-overload]
    block = data.draw(values)
    c = np.tile(block, data.draw(st.integers(1, 40)))
    r = c.copy()
    if len(r):
        at = data.draw(st.lists(st.integers(0, len(r) - 1), max_size=5))
        r[at] = data.draw(st.floats(width=16))
    options = {"limit": limit, "floor": data.draw(st.sampled_from([0.0, 1e-6]))}
    assert repr(compare(instructions, c, r, **options)) == repr(compare("fallback", c, r, **options))


def test_threads_change_no_bit(instructions: str) -> None:
    c, r = normal(300_001, 3), normal(300_001, 4)
    c[5000:9000:7] = np.nan
    one = compare(instructions, c, r)
    assert one.first_mismatch == 5000
    for threads in (2, 3, 100):
        assert compare(instructions, c, r, threads=threads) == one


@pytest.mark.parametrize("at", [0, 1023, 1024, 65_535, 65_536, 140_001])
def test_one_wrong_element_is_found_where_it_is(implementation: str, at: int) -> None:
    r = np.ones(140_002, dtype=np.float32)
    c = r.copy()
    assert compare(implementation, c, r).bits_equal
    c[at] = 1.5
    found = compare(implementation, c, r)
    assert (found.bits_equal, found.unequal, found.max_abs) == (False, 1, 0.5)
    assert found.max_abs_index == found.max_relative_index == found.z_max_index == at
    c[at] = np.inf
    found = compare(implementation, c, r)
    assert (found.unequal, found.first_mismatch, found.max_abs) == (1, at, 0.0)


def test_64_bit_integers_are_subtracted_exactly(implementation: str) -> None:
    c = np.array([2**62 + 1, -(2**63), 5], dtype=np.int64)
    r = np.array([2**62, 2**63 - 1, 5], dtype=np.int64)
    found = compare(implementation, c, r)
    assert (found.unequal, found.max_abs, found.max_abs_index, found.max_ulp) == (2, 2.0**64, 1, 2.0**64)
    assert (found.z_max, found.z_above) == (math.inf, 2)
    same = compare(implementation, c[:1], r[:1])
    assert (same.unequal, same.max_abs) == (1, 1.0)
    big = np.array([2**64 - 1], dtype=np.uint64)
    assert compare(implementation, big, big - np.uint64(1)).max_abs == 1.0


def test_complex_and_packed_values_count_by_their_parts(implementation: str) -> None:
    c = np.array([1 + 2j, complex(np.nan, 3)], dtype=np.complex64)
    r = np.array([1 + 2.5j, complex(np.nan, 3)], dtype=np.complex64)
    found = compare(implementation, c, r)
    assert (found.count, found.finite, found.max_abs, found.max_abs_index, found.classes[1][1]) == (4, 3, 0.5, 1, 1)
    packed = np.array([0x21, 0x40], dtype=np.uint8)
    options = {"candidate_dtype": "float4_e2m1fn_x2", "reference_dtype": "float4_e2m1fn_x2"}
    found = compare(implementation, packed, np.array([0x21, 0x20], dtype=np.uint8), **options)
    assert (found.count, found.unequal, found.max_abs, found.max_abs_index) == (4, 1, 1.0, 3)


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_extreme_values_keep_their_cosine(implementation: str, size: float) -> None:
    c, r = np.array([3.0, 4.0, 0.0]) * size, np.array([3.0, 0.0, 4.0]) * size
    found = compare(implementation, c, r)
    assert found.cosine == pytest.approx(9 / 25, rel=1e-12)
    assert found.candidate.l2 == pytest.approx(5 * size, rel=1e-12)
    assert found.l2_error == pytest.approx(math.sqrt(32) * size, rel=1e-12)
    mixed = compare(implementation, c, np.array([3.0, 0.0, 4.0]))
    assert mixed.cosine == pytest.approx(9 / 25, rel=1e-12)


def test_layouts_and_mapped_files(implementation: str, tmp_path: Path) -> None:
    c, r = normal(6000, 5).reshape(60, 100), normal(6000, 6).reshape(60, 100)
    straight = compare(implementation, c.T.copy(), r.T.copy())
    assert compare(implementation, c.T, r.T) == straight
    for name, values in (("c.npy", c), ("r.npy", r)):
        np.save(tmp_path / name, values)
    mapped = [np.load(tmp_path / name, mmap_mode="r") for name in ("c.npy", "r.npy")]
    assert compare(implementation, mapped[0], mapped[1]) == compare(implementation, c, r)


def test_the_coarser_dtype() -> None:
    assert coarser("float32", "bfloat16") == coarser("bfloat16", "float16") == "bfloat16"
    assert coarser("int64", "float32") == "float32"
    found = compare_pairs(
        np.array([1.0 + 2.0**-8], dtype=np.float32), np.array([0x3F80], np.uint16), reference_dtype="bfloat16"
    )
    assert found.max_ulp == 0.5 and found.z_max == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reference": np.zeros(4, np.float32)}, "shape"),
        ({"candidate_dtype": "bfloat16"}, "items of 4 bytes, bfloat16 has 2"),
        ({"candidate_dtype": "qint8"}, "qint8"),
        ({"reference": np.zeros(3, np.complex64)}, "do not pair up"),
        ({"reference": np.zeros(3, ">f4")}, "byte order"),
        ({"unit_roundoff": 0.6}, "unit_roundoff is 0.6"),
        ({"unit_roundoff": math.nan}, "unit_roundoff is nan"),
        ({"floor": -1.0}, "floor is -1.0"),
        ({"floor": math.inf}, "floor is inf"),
        ({"limit": math.nan}, "limit is NaN"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_wrong_use_is_told(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"candidate": np.zeros(3, np.float32), "reference": np.zeros(3, np.float32)}
    call: Callable[..., PairStats] = compare_pairs
    assert call(**good).count == 3
    with pytest.raises(UsageError, match=message):
        call(**(good | change))


@needs_native
def test_the_core_refuses_nonsense() -> None:
    assert native.core is not None
    x = np.zeros(4, dtype=np.float32)
    good = (x.ctypes.data, 0, 0, x.ctypes.data, 0, 0, 4, 1, 2.0**-126, 2.0**-24, 0.0, 4.0, 1.0, 1.0)
    assert native.core.pair(*good)[0] is True
    for position, value, error in (
        (0, 0, ValueError),
        (1, 99, ValueError),
        (1, 5, ValueError),
        (4, 15, ValueError),
        (6, -1, ValueError),
        (7, "x", TypeError),
        (9, "x", TypeError),
    ):
        with pytest.raises(error):
            native.core.pair(*good[:position], value, *good[position + 1 :])
    with pytest.raises(TypeError):
        native.core.pair(*good[:13])
