"""What is encoded once is, byte for byte, what the record would be encoded as."""

import contextlib
import csv
import errno
import io
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from graphprobe.records import STATISTICS, TensorMeta, TensorStats
from graphprobe.store import dump_queue, dump_records, manifest
from graphprobe.store.calls import Scalar, WrittenSlot
from graphprobe.store.dump_format import OpForm, RowForm, columns_of, encode_place, encode_rows, format_from_meta
from graphprobe.store.dump_queue import BATCH
from graphprobe.store.dump_reader import open_dump
from graphprobe.store.dump_records import DumpRecord, DumpValue, OpInfo, Place
from graphprobe.store.dump_writer import DumpWriter
from graphprobe.store.manifest import AppendFile
from graphprobe.store.schema import json_from_value
from store.dump_helpers import OP, PLACE, new_writer

SLOTS = (
    WrittenSlot("input.0", "input", TensorMeta("float32", (2, 3), (3, 1))),
    WrittenSlot("output.0", "output", TensorMeta("bool", ())),
)
SCALAR = WrittenSlot("arg.2", "input", scalar=Scalar("int", "3"))
HOSTILE = '"a",\n\udcff\\'
STATS = (TensorStats(6, min=-0.1, max=1e300, mean=1 / 3, l2=float("inf"), nan=1, digest="00ff"), TensorStats(1))


@pytest.mark.parametrize("stream_id", [0, 7])
@pytest.mark.parametrize("scalars", [(), (SCALAR,)])
@pytest.mark.parametrize("notes", [(), ("a note", HOSTILE)])
@pytest.mark.parametrize(
    "op",
    [OP, OpInfo(op_type=HOSTILE, op_name=HOSTILE, engine="kernel", perturbs=True, source=HOSTILE)],
    ids=["op", "x"],
)
def test_a_line_and_its_rows(stream_id: int, scalars: Any, notes: Any, op: OpInfo) -> None:
    form = OpForm(op, (*SLOTS, *scalars), notes)
    for wanted in ([*STATISTICS], ["Max"], []):
        columns = columns_of(wanted)
        for seq, place in ((0, PLACE), (12, Place(model_name=HOSTILE, model_id=0, data_index=1, device_id=2))):
            file = f"{dump_records.data_folder(place)}/stats.csv".encode(errors="replace").decode()
            record = DumpRecord(
                seq=seq, time_us=99, op=op, place=place, file=file, stream_id=stream_id,
                slots=(*SLOTS, *scalars), notes=notes,
            )  # fmt: skip
            line, rows = form.encode(seq, 99, stream_id, encode_place(place, file), STATS, columns)
            assert line.endswith(b"}\n") and line.count(b"\n") == 1
            assert line == json_from_value(record) + b"\n"
            assert rows.split(b"\r\n") == [
                *(row_of(record, slot, stats, wanted) for slot, stats in zip(SLOTS, STATS, strict=True)),
                b"",
            ]


def row_of(record: DumpRecord, slot: WrittenSlot, stats: TensorStats, wanted: list[str]) -> bytes:
    """A row as the csv module writes it; line ends are spelt out before."""
    texts = (record.op.op_type, record.op.op_name, record.op.source)
    op_type, op_name, source = (text.replace("\r", "\\r").replace("\n", "\\n") for text in texts)
    numbers = [getattr(stats, field) if name in wanted else None for name, field in STATISTICS.items()]
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="").writerow(
        [
            op_type, op_name, record.seq, record.stream_id, record.time_us, slot.role, slot.name, slot.meta.dtype,
            format_from_meta(slot.meta), slot.meta.shape, *numbers, source, record.op.engine, stats.digest,
        ]
    )  # fmt: skip
    return out.getvalue().encode("utf-8", "backslashreplace")


def test_rows_and_what_is_none() -> None:
    form = RowForm(b"t,n", b"input,input.0", b"s,e")
    found = encode_rows(b"1,2,3", (form, form), STATS, ("max", None, "l2"))
    assert found == (b"t,n,1,2,3,input,input.0,1e+300,,inf,s,e,00ff\r\nt,n,1,2,3,input,input.0,,,,s,e,\r\n")
    assert encode_rows(b"", (), (), ()) == b""
    for wrong in (
        ((form,), STATS, ()),
        ((form,), (None,), ("max",)),
        ((b"",), STATS[:1], ()),
        ((form,), STATS[:1], ("x",)),
    ):
        with pytest.raises((ValueError, TypeError, AttributeError)):
            encode_rows(b"1,2,3", *wrong)


FORM = OpForm(OP, SLOTS)


def test_forms_and_single_values_give_the_same_files(tmp_path: Path) -> None:
    """The same executions by `submit_form` and by `submit`, with and without a queue."""
    found = []
    for name, queue_bytes in (("form", 1 << 20), ("single", 1 << 20), ("plain", 0)):
        writer = new_writer(tmp_path / name, queue_bytes=queue_bytes)
        form = OpForm(OP, (*SLOTS, SCALAR), ("a note",))
        for index in range(150):
            place = Place(model_name="m", model_id=0, data_index=index // 40)
            if name == "form":
                assert writer.submit_form(form, place, stats=STATS) == index
            else:
                values = [DumpValue(s.name, s.role, s.meta, stats=t) for s, t in zip(SLOTS, STATS, strict=True)]
                writer.submit(OP, place, values, scalars=[SCALAR], notes=form.notes)
        writer.close()
        assert writer.manifest.missing == [] and writer.manifest.ops == 150
        (folder,) = open_dump(tmp_path / name).folders
        names = {path.relative_to(folder.time_dir) for path in folder.time_dir.rglob("*") if path.is_file()}
        sizes = sum((folder.time_dir / one).stat().st_size for one in names if one.name != "manifest.json")
        assert writer.manifest.collected_bytes == sizes
        records = [msgspec.structs.replace(op.record, time_us=0) for op in folder.ops()]
        rows = [msgspec.structs.replace(row, time_us=0) for row in folder.stats()]
        assert folder.problems == [] and len(rows) == 300
        found.append((names, records, rows))
    assert found[0] == found[1] == found[2]


def lines(writer: DumpWriter) -> int:
    return (writer.time_dir / dump_records.INDEX).read_bytes().count(b"\n")


def test_statistics_are_written_by_the_thread_that_hands_them_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as many wait, and on `drain`; the writing thread would wait for longer than this test takes."""
    monkeypatch.setattr(dump_queue, "INTERVAL_S", 3600.0)
    writer = new_writer(tmp_path)
    for count in range(1, 2 * BATCH + 1):
        writer.submit_form(FORM, PLACE, stats=STATS)
        assert lines(writer) == count // BATCH * BATCH
    writer.submit_form(FORM, PLACE, stats=STATS)
    writer.drain()
    assert lines(writer) == writer.manifest.ops == 2 * BATCH + 1
    writer.submit_form(FORM, PLACE, stats=STATS)
    value = DumpValue("input.0", "input", SLOTS[0].meta, data=bytes(24))
    writer.submit(OP, PLACE, [value])
    assert writer.flush(30) and lines(writer) == 2 * BATCH + 3
    writer.submit_form(FORM, PLACE, stats=STATS)
    writer.close()
    assert lines(writer) == 2 * BATCH + 4 and writer.manifest.missing == []
    numbers = [op.record.seq for op in open_dump(writer.time_dir).ops()]
    assert numbers == list(range(2 * BATCH + 4))


@pytest.fixture
def waiting(tmp_path: Path) -> DumpWriter:
    """A writer in which five lines wait."""
    writer = new_writer(tmp_path)
    for _ in range(5):
        writer.submit_form(FORM, PLACE, stats=STATS)
    return writer


def lost(writer: DumpWriter) -> int:
    return sum(int(text.split()[0]) for text in writer.manifest.missing)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()], ids=str)
def test_what_an_error_costs_is_counted_and_the_dump_goes_on(
    waiting: DumpWriter, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk at the moment of `drain` is no matter of the program; an interrupt goes on into it."""

    def fail(self: AppendFile, data: bytes) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(AppendFile, "append", fail)
        with pytest.raises(KeyboardInterrupt) if isinstance(error, KeyboardInterrupt) else contextlib.nullcontext():
            waiting.drain()
    monkeypatch.setattr(manifest, "RETRY_SECONDS", 0.0)
    waiting._retry_at = 0.0
    waiting.submit_form(FORM, PLACE, stats=STATS)
    waiting.close()
    assert lost(waiting) == 5 and waiting.manifest.ops == lines(waiting) == 1
    assert ("KeyboardInterrupt" if isinstance(error, KeyboardInterrupt) else "No space") in waiting.manifest.missing[0]
    written = (dump_records.STATS, dump_records.INDEX)
    sizes = sum(path.stat().st_size for path in waiting.time_dir.rglob("*") if path.name in written)
    assert waiting.manifest.collected_bytes == sizes


def test_a_dump_that_is_closed_while_its_statistics_are_written(
    waiting: DumpWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a signal handler: nothing hangs, and nothing goes into a file that has the number of a closed one."""
    append = AppendFile.append
    others = [tmp_path / f"other{number}" for number in range(8)]
    opened: list[int] = []

    def closing(self: AppendFile, data: bytes) -> None:
        if not opened:
            opened.append(-1)
            waiting.close()
            opened[:] = [os.open(path, os.O_WRONLY | os.O_CREAT) for path in others]
        append(self, data)

    with monkeypatch.context() as patched:
        patched.setattr(AppendFile, "append", closing)
        waiting.drain()
    for descriptor in opened:
        os.close(descriptor)
    assert len(opened) == 8 and not any(path.stat().st_size for path in others)
    assert lost(waiting) == 5


def test_values_are_left_to_the_writing_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so are the statistics behind them: lines are in the order in which ops ran."""
    monkeypatch.setattr(dump_queue, "INTERVAL_S", 3600.0)
    writer = new_writer(tmp_path)
    writer.submit_form(FORM, PLACE, stats=STATS)
    writer.submit(OP, PLACE, [DumpValue("input.0", "input", SLOTS[0].meta, data=bytes(24))])
    writer.submit_form(FORM, PLACE, stats=STATS)
    writer.drain()
    assert lines(writer) == 1
    writer.drain()
    assert lines(writer) == 1
    assert writer.flush(30) and lines(writer) == 3
    writer.close()
    assert [op.record.seq for op in open_dump(writer.time_dir).ops()] == [0, 1, 2]


def test_a_thread_that_writes_does_not_wait_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a destructor runs a dumped op in the middle of `drain`, and there is no room."""
    writer = new_writer(tmp_path, queue_bytes=1)
    append, nested = AppendFile.append, list[object]()

    def appending(self: AppendFile, data: bytes) -> None:
        if not nested:
            nested.append(writer.submit_form(FORM, PLACE, stats=STATS))
            nested.append(writer.flush())
        append(self, data)

    monkeypatch.setattr(AppendFile, "append", appending)
    writer.submit_form(FORM, PLACE, stats=STATS)
    assert nested == [1, False]
    writer.close()
    assert lines(writer) == 2 and writer.manifest.missing == []
