"""The text of numbers: the core and Python write the same, and it reads back as the same."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphprobe.numerics import native
from graphprobe.numerics.number_text import Numbers, numbers_text, numbers_text_in_python

NUMBERS = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats()).map(tuple)
WRITERS = [numbers_text_in_python, *([] if native.core is None else [native.core.numbers_text])]


@pytest.mark.parametrize("write", WRITERS)
@given(NUMBERS)
def test_reads_back_as_the_same(write: object, numbers: Numbers) -> None:
    assert callable(write)
    text = write(numbers)
    assert text == numbers_text_in_python(numbers)
    fields = text.split(",") if numbers else []
    for value, field in zip(numbers, fields, strict=True):
        if value is None:
            assert field == ""
        elif isinstance(value, float) and math.isnan(value):
            assert field == "nan"
        else:
            assert type(value)(field) == value


@pytest.mark.parametrize("write", WRITERS)
def test_around_powers_of_ten_and_two(write: object) -> None:
    """Where Python goes over from places to exponents, and where the shortest text is hard to find."""
    assert callable(write)
    powers = [10.0**e for e in range(-320, 309)] + [2.0**e for e in range(-1074, 1024)]
    near = [math.nextafter(value, to) for value in powers for to in (0.0, math.inf)]
    numbers = tuple(sign * value for value in [0.0, 123456.789, 0.00012345, *powers, *near] for sign in (1, -1))
    assert write(numbers) == ",".join(map(repr, numbers))


def test_the_core_is_used_where_it_is_there() -> None:
    assert (numbers_text is numbers_text_in_python) == (native.core is None)


@pytest.mark.skipif(native.core is None, reason="the core is not built")
@pytest.mark.parametrize("wrong", [[1.0], (2**64,), ("1",)])
def test_what_is_no_number_is_refused(wrong: object) -> None:
    assert native.core is not None
    with pytest.raises((TypeError, OverflowError)):
        native.core.numbers_text(wrong)
