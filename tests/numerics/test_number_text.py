"""The text of numbers reads back as the same."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from graphprobe.numerics.number_text import numbers_text

NUMBERS = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats()).map(tuple)


@given(NUMBERS)
def test_reads_back_as_the_same(numbers: tuple[float | int | None, ...]) -> None:
    text = numbers_text(numbers)
    fields = text.split(",") if numbers else []
    for value, field in zip(numbers, fields, strict=True):
        if value is None:
            assert field == ""
        elif isinstance(value, float) and math.isnan(value):
            assert field == "nan"
        else:
            assert type(value)(field) == value


def test_around_powers_of_ten_and_two() -> None:
    """Where Python goes over from places to exponents, and where the shortest text is hard to find."""
    powers = [10.0**e for e in range(-320, 309)] + [2.0**e for e in range(-1074, 1024)]
    near = [math.nextafter(value, to) for value in powers for to in (0.0, math.inf)]
    numbers = tuple(sign * value for value in [0.0, 123456.789, 0.00012345, *powers, *near] for sign in (1, -1))
    assert numbers_text(numbers) == ",".join(map(repr, numbers))
