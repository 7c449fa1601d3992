"""No room, no budget, a rank that dies: the program computes what it would, and the manifest says what is missing."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphprobe.probe.dump.sessions import open_sessions
from graphprobe.store import DumpFolder, open_dump

PROGRAMS = Path(__file__).parent / "programs"


def read(folder: DumpFolder) -> dict[str, list[int]]:
    """The steps of each op; every value and every row is read."""
    found: dict[str, list[int]] = {}
    for op in folder.ops():
        for value in op.values().values() if op.has_values else ():
            value.array()
        assert op.record.place.step is not None
        found.setdefault(op.record.op.op_name, []).append(op.record.place.step)
    list(folder.stats())
    assert folder.problems == []
    return found


class Disk:
    """What a dump writes to; `refuses` says for how many bytes it has which error."""

    def __init__(self) -> None:
        self.refuses: Callable[[int], int] = lambda size: 0

    def guarded(self, write: Callable[..., int]) -> Callable[..., int]:
        def call(descriptor: int, data: Any) -> int:
            if error := self.refuses(sum(map(len, data)) if isinstance(data, list) else len(data)):
                raise OSError(error, os.strerror(error))
            return write(descriptor, data)

        return call


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    for name in ("write", "writev"):
        monkeypatch.setattr(os, name, made.guarded(getattr(os, name)))
    return made


def test_a_disk_that_refuses_large_files(dumping: Any, disk: Disk) -> None:
    disk.refuses = lambda size: errno.EFBIG if size > 128 * 1024 else 0
    compiled = dumping.compile(lambda x: (x.repeat(1000) * 2).sum() + x.sum(), "aot_eager")
    for step in range(4):
        assert compiled(torch.full((64,), float(step))).item() == 64.0 * step * 2001
    found = dumping.end()
    steps = read(found.folder)
    assert steps["arg0_1"] == steps["add"] == [0, 1, 2, 3]
    assert not {"repeat", "mul"} & set(steps), "256 KB a value"
    (missing,) = found.manifest.missing
    count = int(missing.split()[0])
    assert f"ops not written: {os.strerror(errno.EFBIG)}; first: repeat" in missing
    assert count >= 8 and count + found.manifest.ops == 4 * len(set(steps) | {"repeat", "mul", "sum_1"})
    assert not list(found.folder.time_dir.rglob(".tmp-*")), "what was begun is taken away"


@pytest.mark.parametrize("data", ["tensor", "stats"])
@pytest.mark.parametrize("full", [False, True])
def test_a_full_disk_does_not_stop_the_program(
    data: str, full: bool, dumping: Any, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the third step to the fifth, 10 s each, there is no room for what a dump writes; then there is again."""
    step, now = 0, time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 10 * step)
    disk.refuses = lambda size: errno.ENOSPC if full and 2 <= step < 5 else 0
    compiled = dumping.compile(lambda x: (x.sin() + 1).cos(), "aot_eager", dump_data=data)
    x = torch.randn(8)
    for step in range(8):  # noqa: B007  # the clock and the disk look at it
        assert torch.equal(compiled(x), (x.sin() + 1).cos())
        open_sessions()[0].flush()
    found = dumping.end()
    steps = read(found.folder)
    assert set(map(tuple, steps.values())) == {(0, 1, 5, 6, 7) if full else tuple(range(8))}
    assert found.manifest.state == "finished" and found.manifest.stopped is None
    lost = 3 * len(steps)
    text = f"{lost} ops not written: {os.strerror(errno.ENOSPC)}; first: "
    assert [line[: len(text)] for line in found.manifest.missing] == ([text] if full else [])
    assert found.manifest.ops == 8 * len(steps) - (lost if full else 0)


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_the_byte_budget_ends_the_dump_and_not_the_program(data: str, dumping: Any) -> None:
    limit = 160_000
    compiled = dumping.compile(lambda x: (x.sin() + 1).cos(), "aot_eager", dump_data=data, max_bytes=limit)
    x = torch.randn(1000)
    for _ in range(60):
        assert torch.equal(compiled(x), (x.sin() + 1).cos())
    found = dumping.end()
    files = [path for path in found.folder.time_dir.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= limit
    assert found.manifest.stopped is not None and "max_bytes" in found.manifest.stopped
    numbers = [op.record.seq for op in found.ops()]
    read(found.folder)
    assert numbers == list(range(len(numbers))) and numbers, "a prefix"
    (missing,) = found.manifest.missing  # of what was handed in by then: later calls are not looked at
    assert f"not written: {found.manifest.stopped}; first: " in missing and f"(op {len(numbers)})" in missing


@pytest.mark.heavy
@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_a_rank_that_is_killed_in_an_op(data: str, run_warm: Callable[..., Any], tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    program = str(PROGRAMS / "ranks_killed.py")
    done = run_warm(*torchrun, program, str(tmp_path), data, cwd=tmp_path, env={"OMP_NUM_THREADS": "1"})
    assert done.code != 0 and "SIGKILL" in done.err + done.out
    folders = {folder.time_dir.parent.name: folder for folder in open_dump(tmp_path).folders}
    whole, torn = (folders[f"worldsize2_global_rank{rank}"] for rank in (0, 1))
    assert (whole.state, torn.state) == ("finished", "killed")
    assert whole.manifest is not None and whole.manifest.missing == []
    for rank, folder in enumerate((whole, torn)):
        assert folder.manifest is not None and (folder.manifest.rank, folder.manifest.world_size) == (rank, 2)
        (data_of_first, *_) = (op for op in folder.ops() if op.record.op.op_type == "Data")
        assert data != "tensor" or data_of_first.values()["output.0"].array().tolist() == [10.0 * rank] * 2
    assert set(map(tuple, read(whole).values())) == {(0, 1, 2, 3, 4, 5)}
    steps = read(torn)
    assert all(seen[:3] == [0, 1, 2] and max(seen) <= 3 for seen in steps.values())
    assert steps["add"] == [0, 1, 2], "the step in which it died did not come so far"
