import io
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from graphprobe.store.dump_convert import write_text

DTYPES = "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64 complex64 complex128".split()


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    return draw(npst.arrays(dtype, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))


def text_of(array: np.ndarray[Any, Any]) -> str:
    file = io.BytesIO()
    write_text(file, array, dtype=str(array.dtype), note="a note")
    return file.getvalue().decode()


def same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> None:
    np.testing.assert_array_equal(a, b)
    if a.dtype.kind in "fc":
        for part_a, part_b in ((a.real, b.real), (a.imag, b.imag)):
            there = ~np.isnan(part_a)
            np.testing.assert_array_equal(np.signbit(part_a)[there], np.signbit(part_b)[there])


@settings(max_examples=150, deadline=None)
@given(arrays())
def test_text_gives_every_value_back(array: np.ndarray[Any, Any]) -> None:
    text = text_of(array)
    lines = text.splitlines()
    assert lines[0] == f"# dtype: {array.dtype}"
    assert lines[1] == f"# shape: {' '.join(map(str, array.shape))}".rstrip()
    assert lines[2] == "# note: a note"
    if array.size:
        read_as = "int8" if array.dtype == bool else array.dtype
        back = np.loadtxt(io.StringIO(text), dtype=read_as, ndmin=1).reshape(array.shape).astype(array.dtype)
        same(back, array)
    else:
        assert len(lines) == 3


def test_a_structured_array() -> None:
    array = np.array(
        [("a\tb\n", 1.5, 7), ("c", np.nan, 8)], dtype=[("Op Name", "U8"), ("Max", "f8"), ("Task ID", "i8")]
    )
    assert text_of(array).splitlines()[3:] == ["Op Name\tMax\tTask ID", "a\\tb\\n\t1.5\t7", "c\t\t8"]
