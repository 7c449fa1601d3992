from pathlib import Path

import numpy as np
import pytest

from graphprobe.store import layout
from graphprobe.store.dump_reader import DumpFolder, open_dump
from store.dump_helpers import killed, written

PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from store.dump_helpers import OP, new_writer, value
from graphprobe.records import TensorMeta, TensorStats
from graphprobe.store.dump_records import DumpValue, Place

writer = new_writer(Path(sys.argv[1]), queue_bytes=int(sys.argv[2]))
meta = TensorMeta("float32", (3,))
for number in range(10**9):
    place = Place(model_name="m", model_id=0, data_index=number // 10)
    array = np.full(1 + number % 7 * 5000, number)
    seq = writer.submit(OP, place, [value("input.0", array), value("output.0", array + 1)])
    assert seq == 2 * number, seq
    row = DumpValue("output.0", "output", meta, stats=TensorStats(3, max=float(number), digest="0" * 16))
    writer.submit(OP, place, [row])
    if number % 10 == 9:
        print(2 * number + 1, flush=True)
"""


def read_everything(folder: DumpFolder) -> tuple[list[int], list[int]]:
    """The executions with values and those with statistics; every value is compared with what was written."""
    values, only_stats = [], []
    for op in folder.ops():
        number = op.record.seq // 2
        if not op.has_values:
            only_stats.append(op.record.seq)
            continue
        loaded = {name: one.array() for name, one in op.values().items()}
        assert (loaded["input.0"] == number).all()
        assert (loaded["output.0"] == number + 1).all()
        values.append(op.record.seq)
    return values, only_stats


@pytest.mark.parametrize("turn", range(3))
def test_a_killed_process_loses_the_op_in_flight_at_most(tmp_path: Path, turn: int) -> None:
    known = killed(PROGRAM, str(tmp_path), "0", seconds=np.random.default_rng(turn).uniform(0, 0.15))
    (folder,) = open_dump(tmp_path).folders
    assert folder.state == "killed"
    values, only_stats = read_everything(folder)
    every = sorted(values + only_stats)
    assert every == list(range(len(every)))
    assert len(every) > known
    rows = [row.task_id for row in folder.stats()]
    assert only_stats == rows[: len(only_stats)]
    assert len(rows) - len(only_stats) in (0, 1)
    assert all("cut off" in problem for problem in folder.problems)
    names = [name.rpartition("/")[2] for name in written(folder.time_dir)]
    assert sum(name.startswith(layout.TEMPORARY_PREFIX) for name in names) <= 1
    on_disk = sum(name.startswith("add.") for name in names)
    assert on_disk - len(values) in (0, 1)


def test_a_killed_process_with_a_queue_leaves_a_prefix(tmp_path: Path) -> None:
    killed(PROGRAM, str(tmp_path), str(1 << 20), seconds=0.1)
    (folder,) = open_dump(tmp_path).folders
    values, only_stats = read_everything(folder)
    every = sorted(values + only_stats)
    assert every == list(range(len(every)))
    assert every
