"""What is encoded once is, byte for byte, what the record would be encoded as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dump_helpers import OP, PLACE, new_writer
from graphprobe.records import TensorMeta, TensorStats
from graphprobe.store import dump_layout
from graphprobe.store.dump_form import OpForm, encode_place
from graphprobe.store.dump_reader import open_dump
from graphprobe.store.dump_records import STAT_FIELDS, Argument, DumpRecord, DumpValue, OpInfo, Place, Slot
from graphprobe.store.dump_stats import RowNumbers, encode_row
from graphprobe.store.schema import _json_from_value as json_from_value

SLOTS = (
    Slot("input.0", "input", TensorMeta("float32", (2, 3), (3, 1))),
    Slot("output.0", "output", TensorMeta("bool", ())),
)
HOSTILE = '"a",\n\udcff\\'
STATS = (TensorStats(6, min=-0.1, max=1e300, mean=1 / 3, l2=float("inf"), nan=1, digest="00ff"), TensorStats(1))


@pytest.mark.parametrize("stream_id", [0, 7])
@pytest.mark.parametrize("arguments", [(), (Argument("arg.2", "int", "3"),)])
@pytest.mark.parametrize("notes", [(), ("a note", HOSTILE)])
@pytest.mark.parametrize(
    "op",
    [OP, OpInfo(op_type=HOSTILE, op_name=HOSTILE, engine="kernel", perturbs=True, source=HOSTILE)],
    ids=["op", "x"],
)
def test_a_line_and_its_rows(stream_id: int, arguments: Any, notes: Any, op: OpInfo) -> None:
    form = OpForm(op, SLOTS, arguments, notes)
    for wanted in ([*STAT_FIELDS], ["Max"], []):
        numbers = RowNumbers(wanted)  # type: ignore[arg-type]
        for seq, place in ((0, PLACE), (12, Place(model_name=HOSTILE, model_id=0, data_index=1, device_id=2))):
            file = f"{dump_layout.data_folder(place)}/stats.csv".encode(errors="replace").decode()
            record = DumpRecord(
                seq=seq, time_us=99, op=op, place=place, file=file, stream_id=stream_id, slots=SLOTS,
                arguments=arguments, notes=notes,
            )  # fmt: skip
            line = form.line(seq, 99, stream_id, encode_place(place, file))
            assert line.endswith(b"}\n") and line.count(b"\n") == 1
            assert line == json_from_value(record) + b"\n"
            rows = form.rows(seq, 99, stream_id, STATS, numbers)
            assert rows == b"".join(
                encode_row(record, slot, stats, wanted)  # type: ignore[arg-type]
                for slot, stats in zip(SLOTS, STATS, strict=True)
            )


def test_forms_and_single_values_give_the_same_files(tmp_path: Path) -> None:
    """The same executions by `submit_form` and by `submit`, with and without a queue."""
    found = []
    for name, queue_bytes in (("form", 1 << 20), ("single", 1 << 20), ("plain", 0)):
        writer = new_writer(tmp_path / name, queue_bytes=queue_bytes)
        form = OpForm(OP, SLOTS, (Argument("arg.2", "int", "3"),), ("a note",))
        for index in range(150):
            place = Place(model_name="m", model_id=0, data_index=index // 40)
            if name == "form":
                assert writer.submit_form(form, place, stats=STATS) == index
            else:
                values = [DumpValue(s.name, s.side, s.meta, stats=t) for s, t in zip(SLOTS, STATS, strict=True)]
                writer.submit(OP, place, values, arguments=form.arguments, notes=form.notes)
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
