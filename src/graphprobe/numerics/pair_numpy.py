"""The pass of `pair` without the C++ core: equal to it in every bit, because both add in one order.

Elements are taken 65536 at a time, a segment, in tiles of 1024. A tile is 128 rows of 8; each of the 8 columns is
added from top to bottom, then 4 columns to 4, 2 to 2, 1 to 1. Tiles are added in order, and so are segments. What is
not finite on both sides adds 0, and so does what is missing in the last tile. No multiplication is fused with an
addition.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from graphprobe.numerics.item_kinds import ITEM_KINDS, TABLE, TABLE2, Floats, ItemKind, table_at
from graphprobe.numerics.stats_numpy import memory_at, values_of

SEGMENT, TILE, LANES = 65536, 1024, 8

Bools = npt.NDArray[np.bool_]

_BY_NUMBER = {kind.number: kind for kind in ITEM_KINDS.values()}
_WIDE_INTEGERS = (ITEM_KINDS["int64"].number, ITEM_KINDS["uint64"].number)


def total(values: Floats) -> float:
    """The sum of at most SEGMENT values, in the order that the module's text says."""
    padding = -values.size % TILE
    padded = np.concatenate([values, np.zeros(padding)]) if padding else values
    part: Floats = np.add.reduce(padded.reshape(-1, TILE // LANES, LANES), axis=1)
    while part.shape[1] > 1:
        half = part.shape[1] // 2
        part = part[:, :half] + part[:, half:]
    return float(np.cumsum(part[:, 0])[-1]) + 0.0


class _Largest:
    """The largest value so far and the first element that has it; only what exceeds 0 counts."""

    def __init__(self) -> None:
        self.value, self.index = 0.0, -1

    def add(self, values: Floats, begin: int) -> None:
        at = int(np.argmax(values))
        if values[at] > self.value:
            self.value, self.index = float(values[at]), begin + at


class _Side:
    """One of the two tensors: how to read it, and what its finite elements give."""

    def __init__(self, address: int, kind_number: int, table_address: int, count: int, scale: float) -> None:
        self.kind: ItemKind = _BY_NUMBER[kind_number]
        self.table = table_at(table_address) if kind_number in (TABLE, TABLE2) else None
        self.per_item = 2 if kind_number == TABLE2 else 1
        self.bytes = memory_at(address, count // self.per_item * self.kind.size)
        self.scale = scale
        self.min, self.max = np.inf, -np.inf
        self.sum = self.squares = self.sum_alone = self.squares_alone = 0.0

    def raw(self, begin: int, end: int) -> npt.NDArray[np.uint8]:
        size = self.kind.size
        return self.bytes[begin // self.per_item * size : end // self.per_item * size]

    def values(self, begin: int, end: int) -> Floats:
        return values_of(self.raw(begin, end), self.kind, self.table)

    def add(self, values: Floats, finite: Bools, both: Bools) -> None:
        if not finite.any():
            return
        own = values[finite]
        self.min, self.max = min(self.min, float(own.min())), max(self.max, float(own.max()))
        scaled = values * self.scale
        for mask, names in ((both, ("sum", "squares")), (finite & ~both, ("sum_alone", "squares_alone"))):
            chosen = np.where(mask, scaled, 0.0)
            setattr(self, names[0], getattr(self, names[0]) + total(chosen))
            setattr(self, names[1], getattr(self, names[1]) + total(chosen * chosen))

    def result(self) -> tuple[float, float, float, float]:
        return self.min, self.max, self.sum + self.sum_alone, self.squares + self.squares_alone


def _class_numbers(values: Floats) -> npt.NDArray[np.int64]:
    """0 finite, 1 NaN, 2 +Inf, 3 −Inf."""
    classes = np.zeros(values.size, dtype=np.int64)
    classes[np.isnan(values)] = 1
    classes[values == np.inf] = 2
    classes[values == -np.inf] = 3
    return classes


def _gaps(a: _Side, b: _Side, begin: int, end: int, mine: Floats, theirs: Floats) -> Floats:
    """|c − r|; of 64-bit integers of one kind exact before it is rounded."""
    if a.kind.number == b.kind.number and a.kind.number in _WIDE_INTEGERS:
        c, r = a.raw(begin, end).view(a.kind.codes), b.raw(begin, end).view(a.kind.codes)
        larger, smaller = np.maximum(c, r).view(np.uint64), np.minimum(c, r).view(np.uint64)
        gaps: Floats = (larger - smaller).astype(np.float64)
    else:
        gaps = np.abs(mine - theirs)
    return gaps


class _Sums:
    """What is added up of both tensors, segment by segment."""

    def __init__(
        self, a: _Side, b: _Side, smallest_normal: float, unit_roundoff: float, floor: float, limit: float
    ) -> None:
        self.a, self.b = a, b
        self.smallest_normal, self.unit_roundoff, self.floor, self.limit = smallest_normal, unit_roundoff, floor, limit
        self.bits_equal = True
        self.classes = np.zeros(16, dtype=np.int64)
        self.first_mismatch, self.unequal, self.zero_reference, self.above = -1, 0, 0, 0
        self.within = [0, 0]
        self.dot = self.error_squares = self.z_squares = self.halves = 0.0
        self.absolute, self.relative, self.z_top = _Largest(), _Largest(), _Largest()

    def add(self, begin: int, end: int) -> None:
        """One segment more."""
        a, b = self.a, self.b
        mine, theirs = a.values(begin, end), b.values(begin, end)
        self.bits_equal = self.bits_equal and bool(np.array_equal(a.raw(begin, end), b.raw(begin, end)))
        classes_mine, classes_theirs = _class_numbers(mine), _class_numbers(theirs)
        self.classes += np.bincount(4 * classes_mine + classes_theirs, minlength=16)
        mismatch = np.flatnonzero(classes_mine != classes_theirs)
        self.unequal += mismatch.size
        if mismatch.size and self.first_mismatch < 0:
            self.first_mismatch = begin + int(mismatch[0])
        both = (classes_mine == 0) & (classes_theirs == 0)
        a.add(mine, classes_mine == 0, both)
        b.add(theirs, classes_theirs == 0, both)
        mine, theirs = np.where(both, mine, 0.0), np.where(both, theirs, 0.0)
        gap = _gaps(a, b, begin, end, mine, theirs)
        self.dot += total(mine * a.scale * (theirs * b.scale))
        error = gap * min(a.scale, b.scale)
        self.error_squares += total(error * error)
        self.absolute.add(gap, begin)
        self._add_ratios(gap, theirs, begin, masked=int((~both).sum()))
        self._add_units(gap, mine, theirs, begin, masked=int((~both).sum()))

    def _add_ratios(self, gap: Floats, theirs: Floats, begin: int, *, masked: int) -> None:
        """|c − r| / |r|, where r is not 0."""
        different, zero = gap != 0, theirs == 0
        self.unequal += int(different.sum())
        lost = int((zero & different).sum())
        self.zero_reference += lost
        ratio = np.where(zero, 0.0, gap / np.abs(theirs))
        self.relative.add(ratio, begin)
        bounds = zip(self.within, (0.001, 0.005), strict=True)
        self.within = [n + int((ratio < bound).sum()) - lost - masked for n, bound in bounds]

    def _add_units(self, gap: Floats, mine: Floats, theirs: Floats, begin: int, *, masked: int) -> None:
        """|c − r| in units of the last place and of the noise."""
        size = np.maximum(np.maximum(np.abs(mine), np.abs(theirs)), self.smallest_normal)
        # 2^(1-e) of a number with exponent e, by its bits: never subnormal, unlike 2^-e.
        exponent = size.view(np.int64) & 0x7FF0000000000000
        self.halves = max(self.halves, float((gap * (0x7FF0000000000000 - exponent).view(np.float64)).max()))
        z = np.where(gap != 0, gap / (self.unit_roundoff * size + self.floor), 0.0)
        self.z_top.add(z, begin)
        self.z_squares += total(z * z)
        self.above += int((z > self.limit).sum()) - (masked if self.limit < 0 else 0)

    def result(self) -> tuple[Any, ...]:
        """The fields of `pair.Raw`."""
        return (
            self.bits_equal,
            self.unequal,
            tuple(int(n) for n in self.classes),
            self.first_mismatch,
            self.dot,
            self.a.squares,
            self.b.squares,
            self.error_squares,
            self.absolute.value,
            self.absolute.index,
            self.relative.value,
            self.relative.index,
            self.zero_reference,
            *self.within,
            self.halves,
            self.z_squares,
            self.z_top.value,
            self.z_top.index,
            self.above,
            *self.a.result(),
            *self.b.result(),
        )


@np.errstate(all="ignore")  # NaN and Inf are what is being counted; a wide enough range is the caller's business
def compute(
    candidate_address: int,
    candidate_kind: int,
    candidate_table: int,
    reference_address: int,
    reference_kind: int,
    reference_table: int,
    count: int,
    threads: int,
    smallest_normal: float,
    unit_roundoff: float,
    floor: float,
    limit: float,
    candidate_scale: float,
    reference_scale: float,
    /,
) -> tuple[Any, ...]:
    """As `_native.pair`: the fields of `pair.Raw`; `threads` is of no use here.

    Args:
        count: elements of each side. Kinds of complex numbers are not taken.
        smallest_normal: below it units of the last place shrink no further; a normal float64.
        candidate_scale, reference_scale: powers of two, multiplied to the values before sums and products (of the
            differences: the smaller one). Everything else is unscaled.
    """
    a = _Side(candidate_address, candidate_kind, candidate_table, count, candidate_scale)
    b = _Side(reference_address, reference_kind, reference_table, count, reference_scale)
    sums = _Sums(a, b, smallest_normal, unit_roundoff, floor, limit)
    sums.bits_equal = candidate_kind == reference_kind and candidate_table == reference_table
    for begin in range(0, count, SEGMENT):
        sums.add(begin, min(begin + SEGMENT, count))
    return sums.result()
