import csv
import io
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from graphprobe.errors import ArtifactNotFoundError, SchemaError
from graphprobe.records import STATISTICS, TensorMeta, TensorStats
from graphprobe.store.calls import WrittenSlot
from graphprobe.store.dump_convert import write_text
from graphprobe.store.dump_format import COLUMNS, HEADER, OpForm, StatsRow, columns_of, format_from_meta, read_stats
from graphprobe.store.dump_reader import open_dump
from graphprobe.store.dump_records import DumpRecord, DumpValue
from store.dump_helpers import OP, PLACE, new_manifest, new_writer

STATS = TensorStats(
    24, min=-1.5, max=2.25, mean=0.1, std=1.0, l2=3.0, nan=1, positive_inf=2, negative_inf=3, zeros=4, digest="0f" * 8
)
META = TensorMeta("bfloat16", (2, 3, 4))
RECORD = DumpRecord(seq=7, time_us=1234567, op=OP, place=PLACE, file="0/m/0/0/stats.csv", stream_id=2)
SLOT = WrittenSlot("output.0", "output", META)


def row_of(record: DumpRecord, slot: WrittenSlot, stats: TensorStats) -> bytes:
    columns = columns_of(STATISTICS)
    return OpForm(record.op, [slot]).encode(record.seq, record.time_us, record.stream_id, b"", (stats,), columns)[1]


def rows_of(path: Path) -> tuple[list[StatsRow], list[str]]:
    problems: list[str] = []
    return list(read_stats(path, problems)), problems


def test_the_columns_are_those_of_the_documentation() -> None:
    assert HEADER == (
        b"Op Type,Op Name,Task ID,Stream ID,Timestamp,Input/Output,Slot,Data Type,Format,Shape,"
        b"Max,Min,Avg,Nan,Negative Inf,Positive Inf,L2norm,Source,Engine,Digest\r\n"
    )


def test_a_row_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "stats.csv"
    path.write_bytes(HEADER + row_of(RECORD, SLOT, STATS))
    ((row,), problems) = rows_of(path)
    assert problems == []
    stats = {"Max": 2.25, "Min": -1.5, "Avg": 0.1, "Nan": 1, "Negative Inf": 3, "Positive Inf": 2, "L2norm": 3.0}
    assert row == StatsRow(
        op_type="add", op_name="add_1", task_id=7, stream_id=2, time_us=1234567, side="output", slot="output.0",
        dtype="bfloat16", format="ND", shape=(2, 3, 4), stats=stats, source="model.py:12", engine="kernel",
        digest="0f" * 8,
    )  # fmt: skip


def test_only_what_the_plan_asks_for_is_filled(tmp_path: Path) -> None:
    writer = new_writer(tmp_path, manifest=new_manifest())
    writer.close()
    manifest = new_manifest()
    manifest.statistics = ["Max", "Nan"]
    writer = new_writer(tmp_path, manifest=manifest)
    nothing_finite = TensorStats(3, nan=3)
    for stats in (STATS, nothing_finite):
        writer.submit(OP, PLACE, [DumpValue("output.0", "output", META, stats=stats)])
    writer.submit(OP, PLACE, [DumpValue("output.0", "output", META, stats=lambda: STATS)])
    writer.close()
    dump = open_dump(writer.time_dir)
    assert [row.stats for row in dump.stats()] == [{"Max": 2.25, "Nan": 1}, {"Nan": 3}, {"Max": 2.25, "Nan": 1}]
    assert [op.path.name for op in dump.ops()] == ["stats.csv"] * 3
    with pytest.raises(ArtifactNotFoundError, match="only statistics"):
        next(dump.ops()).values()


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.tuples(text, text, st.floats(), st.lists(st.integers(0, 9), max_size=3).map(tuple)), max_size=5))
def test_any_text_and_any_number(
    tmp_path_factory: pytest.TempPathFactory, cases: list[tuple[str, str, float, tuple[int, ...]]]
) -> None:
    path = tmp_path_factory.mktemp("stats") / "stats.csv"
    data = HEADER
    for name, source, number, shape in cases:
        op = msgspec.structs.replace(OP, op_name=name, source=source)
        record = msgspec.structs.replace(RECORD, op=op)
        slot = WrittenSlot("output.0", "output", TensorMeta("float32", shape))
        data += row_of(record, slot, TensorStats(3, max=number, min=number))
    path.write_bytes(data)
    rows, problems = rows_of(path)
    assert problems == []
    with open(path, encoding="utf-8", newline="") as file:
        standard = list(csv.DictReader(file))
    for row, plain, (name, source, number, shape) in zip(rows, standard, cases, strict=True):
        expected = [one.replace("\r", "\\r").replace("\n", "\\n") for one in (name, source)]
        assert [row.op_name, row.source] == expected == [plain["Op Name"], plain["Source"]]
        assert row.shape == shape
        if math.isnan(number):
            assert math.isnan(row.stats["Max"])
        else:
            assert row.stats["Max"] == number
            assert math.copysign(1, row.stats["Min"]) == math.copysign(1, number)


def test_a_line_that_is_cut_off_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "stats.csv"
    row = row_of(RECORD, SLOT, STATS)
    whole = HEADER + row + row
    for keep in range(len(whole) + 1):
        path.write_bytes(whole[:keep])
        rows, problems = rows_of(path)
        assert len(rows) == max(0, keep - len(HEADER)) // len(row)
        assert all("cut off" in problem for problem in problems)
        ended = keep in (0, len(HEADER), len(HEADER + row), len(whole))
        assert (problems == []) == ended


def test_a_line_that_is_no_row_is_told(tmp_path: Path) -> None:
    path = tmp_path / "stats.csv"
    row = row_of(RECORD, SLOT, STATS)
    for bad in (
        b"a,b\r\n",
        row.replace(b",7,", b",seven,"),
        row.replace(b"(2, 3, 4)", b"2 x 3"),
        b'"\r\n',
        b"\xff\r\n",
    ):
        path.write_bytes(HEADER + bad + row)
        rows, problems = rows_of(path)
        assert len(rows) == 1
        assert len(problems) == 1
        assert "line 2 is no row" in problems[0]


def test_another_csv_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "stats.csv"
    path.write_bytes(b"a,b\r\n1,2\r\n")
    with pytest.raises(SchemaError, match="first line"):
        rows_of(path)
    with pytest.raises(ArtifactNotFoundError, match="No such file"):
        rows_of(tmp_path / "absent")


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((), (), "ND"),
        ((2, 3), (), "ND"),
        ((2, 3), (3, 1), "ND"),
        ((2, 3), (1, 2), "strided"),
        ((1, 3), (77, 1), "ND"),
        ((0, 3), (9, 9), "ND"),
        ((2, 3, 4, 5), (60, 20, 5, 1), "ND"),
        ((2, 3, 4, 5), (60, 1, 15, 3), "NHWC"),
        ((2, 3, 4, 5, 6), (360, 1, 90, 18, 3), "NDHWC"),
        ((2, 3, 4, 5), (60, 5, 15, 1), "strided"),
        ((3,), (0,), "strided"),
    ],
)
def test_the_format_of_a_tensor(shape: tuple[int, ...], strides: tuple[int, ...], expected: str) -> None:
    assert format_from_meta(TensorMeta("float32", shape, strides)) == expected


def test_many_folders_share_few_open_files(tmp_path: Path) -> None:
    writer = new_writer(tmp_path, queue_bytes=0)
    for turn in range(2):
        for index in range(20):
            place = msgspec.structs.replace(PLACE, data_index=index)
            stats = TensorStats(1, max=float(turn))
            writer.submit(OP, place, [DumpValue("output.0", "output", META, stats=stats)])
    writer.close()
    (folder,) = open_dump(tmp_path).folders
    assert [path.parent.name for path in folder.stats_files()] == [str(index) for index in range(20)]
    assert [row.stats["Max"] for row in folder.stats()] == [0.0, 1.0] * 20
    assert all(path.read_bytes().startswith(HEADER) for path in folder.stats_files())
    assert len(COLUMNS) == 20


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
