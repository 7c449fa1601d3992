"""How fast dumped values reach the disk, against a plain sequential write of the same bytes; and what an op costs.

    python bench/dump_writer.py [--dir DIR] [--total-mb 1024] [--sizes-mb 1,16,64] [--repeats 5] [--json FILE]

Throughput: the same buffers go once into one file, one write a buffer, and once through the writer, one op a buffer, in
turns on the same disk. Timed are: until the last write has returned (the page cache has it), until sync has returned,
and the CPU in all threads, which says more than the clock while other programs run. The figure is the median over the
repeats of plain time by dump time; 1 is as fast as the disk, and the aim is 0.7 or more for large tensors. `copy` hands
in a copy of each, as of values that the program goes on to overwrite.

Small ops: what `submit` takes in the caller, while the queue has room, for an op with two inputs and one output of 1 KB
each, and how many such ops a second reach the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from graphprobe.records import Manifest, TensorMeta
from graphprobe.store.dump_records import DumpManifest, DumpValue, OpInfo, Place
from graphprobe.store.dump_writer import DumpWriter

OP = OpInfo(op_type="add", op_name="add_1", engine="interpreter", perturbs=True, target="aten.add.Tensor", source="a:1")
MB = 1 << 20


def manifest() -> DumpManifest:
    facts = Manifest(
        graphprobe="bench",
        python="",
        platform="",
        argv=[],
        cwd="",
        pid=os.getpid(),
        parent_pid=0,
        started_ns=time.time_ns(),
    )
    return DumpManifest.of(facts, engine="interpreter", plan={})


def place(index: int) -> Place:
    return Place(model_name="bench", model_id=0, data_index=index)


Times = tuple[float, float, float]
"""Seconds until the last write has returned, until all is on the disk, and on the CPU until the first of the two."""


def time_plain(folder: Path, buffers: list[np.ndarray]) -> Times:
    folder.mkdir()
    began, cpu_began = time.perf_counter(), time.process_time()
    descriptor = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT, 0o666)
    for buffer in buffers:
        view = memoryview(buffer)
        while view:
            view = view[os.write(descriptor, view) :]
    os.close(descriptor)
    written, cpu = time.perf_counter(), time.process_time()
    os.sync()
    return written - began, time.perf_counter() - began, cpu - cpu_began


def time_dump(folder: Path, buffers: list[np.ndarray], *, copy: bool) -> Times:
    """The same through the writer, its start and end included."""
    folder.mkdir()
    began, cpu_began = time.perf_counter(), time.process_time()
    writer = DumpWriter.create(folder, manifest=manifest())
    for buffer in buffers:
        meta = TensorMeta("float32", (buffer.nbytes // 4,))
        writer.submit(OP, place(0), [DumpValue("output.0", "output", meta, buffer.copy() if copy else buffer)])
    writer.close()
    written, cpu = time.perf_counter(), time.process_time()
    os.sync()
    done = time.perf_counter()
    if writer.manifest.ops != len(buffers):
        raise SystemExit(f"only {writer.manifest.ops} of {len(buffers)} ops were written: {writer.manifest.missing}")
    return written - began, done - began, cpu - cpu_began


def throughput(root: Path, size_mb: int, total_mb: int, repeats: int) -> list[dict[str, float | str]]:
    pool = [np.random.default_rng(seed).integers(0, 255, size_mb * MB, dtype=np.uint8) for seed in range(4)]
    buffers = [pool[index % len(pool)] for index in range(max(1, total_mb // size_mb))]
    times: dict[str, list[Times]] = {"plain": [], "dump": [], "copy": []}
    for turn in range(repeats):
        for name in times if turn % 2 else reversed(list(times)):
            folder = root / name
            os.sync()
            if name == "plain":
                times[name].append(time_plain(folder, buffers))
            else:
                times[name].append(time_dump(folder, buffers, copy=name == "copy"))
            shutil.rmtree(folder)
    rows: list[dict[str, float | str]] = []
    for name in ("dump", "copy"):
        for column, until in enumerate(("cached", "on disk", "CPU")):
            ratios = [plain[column] / dump[column] for plain, dump in zip(times["plain"], times[name], strict=True)]
            seconds = statistics.median(dump[column] for dump in times[name])
            plain_s = statistics.median(plain[column] for plain in times["plain"])
            rows.append(
                {
                    "size_mb": size_mb,
                    "how": name,
                    "until": until,
                    "mb_per_s": len(buffers) * size_mb / seconds,
                    "plain_mb_per_s": len(buffers) * size_mb / plain_s,
                    "ratio": statistics.median(ratios),
                    "lowest": min(ratios),
                    "highest": max(ratios),
                }
            )
    return rows


def small_ops(root: Path, *, count: int = 1000, repeats: int = 5) -> dict[str, float]:
    """Microseconds per `submit` while the queue has room, and ops per second on their way to the page cache."""
    meta = TensorMeta("float32", (256,))
    data = np.zeros(1024, dtype=np.uint8)
    names = (("input.0", "input"), ("input.1", "input"), ("output.0", "output"))
    submit_us, cpu_us, ops_per_s = [], [], []
    for turn in range(repeats):
        folder = root / f"small{turn}"
        folder.mkdir()
        writer = DumpWriter.create(folder, manifest=manifest())
        where = place(turn)
        began, cpu_began = time.perf_counter(), time.thread_time()
        for _ in range(count):
            writer.submit(OP, where, [DumpValue(name, side, meta, data.copy()) for name, side in names])
        submit_us.append((time.perf_counter() - began) / count * 1e6)
        cpu_us.append((time.thread_time() - cpu_began) / count * 1e6)
        writer.flush()
        ops_per_s.append(count / (time.perf_counter() - began))
        writer.close()
    medians = {"submit_us": statistics.median(submit_us), "submit_cpu_us": statistics.median(cpu_us)}
    return medians | {"ops_per_s": statistics.median(ops_per_s)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, help="a folder on the disk to measure; a temporary one by default")
    parser.add_argument("--total-mb", type=int, default=1024)
    parser.add_argument("--sizes-mb", default="1,16,64")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        rows = []
        for size in options.sizes_mb.split(","):
            rows += throughput(Path(folder), int(size), options.total_mb, options.repeats)
        small = small_ops(Path(folder))
    print(f"{'tensor':>8} {'how':>5} {'until':>8} {'dump MB/s':>10} {'plain MB/s':>11} {'ratio':>6}  lowest-highest")
    for row in rows:
        print(
            f"{row['size_mb']:>5} MB {row['how']:>5} {row['until']:>8} {row['mb_per_s']:>10.0f} "
            f"{row['plain_mb_per_s']:>11.0f} {row['ratio']:>6.2f}  {row['lowest']:.2f}-{row['highest']:.2f}"
        )
    print(
        f"small ops: {small['submit_us']:.1f} us a submit in the caller, "
        f"{small['submit_cpu_us']:.1f} us of them on the CPU; {small['ops_per_s']:.0f} ops/s written"
    )
    if options.json:
        options.json.write_text(json.dumps({"throughput": rows, "small": small}, indent=2))


if __name__ == "__main__":
    main()
