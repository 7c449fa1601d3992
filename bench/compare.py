"""Time and memory of a comparison: many records with statistics, and two dumps with gigabytes of values.

    python bench/compare.py records [--count 100000]
    python bench/compare.py values [--gigabytes 2] [--folder DIR] [--jobs N]
    python bench/compare.py steps [--most 100000]

`steps` compares dumps of a compiled training step with themselves, of 1,000 records and 10 times as many each time,
all of steps with as many records; a record should cost the same whatever the number of steps. `ratio` is its cost over
that of the first.

`values` writes raw files and maps them, and reads the same bytes once for comparison. Run it alone
on the machine; figures depend on whether the files are in the page cache, which is told.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from graphprobe.compare.options import Options
from graphprobe.compare.run import compare_dumps
from graphprobe.records import TensorMeta, TensorStats
from graphprobe.store.calls import Call, CallSlot, Scalar

KNOWN = ("min", "max", "mean", "std", "l2", "nan", "positive_inf", "negative_inf", "zeros")
APIS = ("torch.nn.functional.linear", "torch.Tensor.add", "torch.nn.functional.gelu")
ELEMENTS = 1 << 22


class Records:
    """A dump of statistics that is made up as it is read; `error` is a relative one in every activation."""

    format = "made up"

    def __init__(self, count: int, error: float) -> None:
        self.title, self.count, self.error = f"{count} records, error {error}", count, error
        self.facts: dict[str, str] = {}

    def ranks(self) -> tuple[int, ...]:
        return (0,)

    def steps(self, rank: int) -> tuple[int, ...]:
        return (0,)

    def problems(self) -> tuple[str, ...]:
        return ()

    def values(self, call: Call, slot: CallSlot) -> Any:
        raise NotImplementedError

    def calls(self, rank: int, step: int) -> Iterator[Call]:
        before = 1.0
        for i in range(self.count):
            given = 1 + (i % 977) / 977 + i * 1e-6
            shake = 1 + self.error * ((i * 7919) % 101 - 50) / 50
            slots = (
                self.slot("input.0", before, (64, 64), shake),
                self.slot("input.1", given * 3, (64, 64), 1.0),
                self.slot("input.2", given * 5, (64,), 1.0),
                CallSlot(name="kwarg.eps", role="input", scalar=Scalar("float", "1e-05")),
                self.slot("output.0", given, (64, 64), shake),
            )
            before = given
            module, source = f"blocks.{i // 50}.m{i % 50}", f"model.py:{i % 400}"
            api = APIS[i % 3]
            yield Call(
                position=i,
                kind="api",
                api=api,
                label=f"call.{i}",
                index=i // 3,
                module=module,
                source=source,
                slots=slots,
            )

    def slot(self, name: str, size: float, shape: tuple[int, ...], shake: float) -> CallSlot:
        v = size * shake
        digest = f"{hash((v, name)) & 0xFFFFFFFFFFFF:012x}"
        stats = TensorStats(count=4096, min=-v, max=v * 1.1, mean=v * 0.01, std=v * 0.4, l2=v * 25, digest=digest)
        role = "output" if name.startswith("output") else "input"
        meta = TensorMeta("float32", shape, (), "cpu")
        return CallSlot(
            name=name, role=role, meta=meta, stats=stats, known=KNOWN, digest=digest, digest_kind="graphprobe"
        )


class Mapped:
    """A dump of one value a call, in raw files that are mapped."""

    format = "mapped"

    def __init__(self, folder: Path, count: int) -> None:
        self.title, self.folder, self.count = str(folder), folder, count
        self.facts: dict[str, str] = {}

    def ranks(self) -> tuple[int, ...]:
        return (0,)

    def steps(self, rank: int) -> tuple[int, ...]:
        return (0,)

    def problems(self) -> tuple[str, ...]:
        return ()

    def calls(self, rank: int, step: int) -> Iterator[Call]:
        for i in range(self.count):
            digest = f"{self.folder.name}{i}"
            stats = TensorStats(count=ELEMENTS, min=-5.0, max=5.0, mean=0.0, std=1.0, l2=ELEMENTS**0.5, digest=digest)
            slot = CallSlot(
                name="output.0",
                role="output",
                meta=TensorMeta("float32", (ELEMENTS,)),
                stats=stats,
                known=KNOWN,
                digest=digest,
                digest_kind="graphprobe",
                value=str(i),
            )
            yield Call(position=i, kind="api", api="torch.relu", label=f"relu.{i}", index=i, slots=(slot,))

    def values(self, call: Call, slot: CallSlot) -> Any:
        return np.memmap(self.folder / slot.value, np.float32, "r")


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def records(count: int) -> dict[str, Any]:
    start = time.perf_counter()
    for dump in (Records(count, 0.0), Records(count, 1e-7)):
        for _ in range(2):
            for _ in dump.calls(0, 0):
                pass
    made_s = time.perf_counter() - start
    base, start, cpu = peak_mb(), time.perf_counter(), time.process_time()
    with compare_dumps(Records(count, 0.0), Records(count, 1e-7)) as comparison:
        outcome = comparison.summary.outcome
    return {
        "records": count,
        "outcome": outcome,
        "seconds": round(time.perf_counter() - start, 2),
        "cpu_s": round(time.process_time() - cpu, 2),
        "of_it_making_records_s": round(made_s, 2),
        "peak_mb": round(peak_mb()),
        "peak_before_mb": round(base),
    }


def values(gigabytes: float, folder: Path, jobs: int | None) -> dict[str, Any]:
    count = max(1, round(gigabytes * 2**30 / (4 * ELEMENTS)))
    random = np.random.default_rng(0)
    for name in ("a", "b"):
        (folder / name).mkdir()
    for i in range(count):
        array = random.standard_normal(ELEMENTS, np.float32)
        array.tofile(folder / "b" / str(i))
        (array * np.float32(1 + 2.0**-22)).tofile(folder / "a" / str(i))
    start = time.perf_counter()
    for name in ("a", "b"):
        for i in range(count):
            with open(folder / name / str(i), "rb", buffering=0) as file:
                buffer = bytearray(1 << 22)
                while file.readinto(buffer):
                    pass
    read_s = time.perf_counter() - start
    start, cpu = time.perf_counter(), time.process_time()
    with compare_dumps(Mapped(folder / "a", count), Mapped(folder / "b", count), Options(jobs=jobs)) as comparison:
        outcome = comparison.summary.outcome
    compare_s = time.perf_counter() - start
    size = 2 * count * ELEMENTS * 4 / 1e9
    return {
        "gigabytes": round(size, 2),
        "jobs": jobs,
        "outcome": outcome,
        "read_gb_s": round(size / read_s, 2),
        "compare_gb_s": round(size / compare_s, 2),
        "compare_cpu_s": round(time.process_time() - cpu, 2),
        "share_of_reading": round(read_s / compare_s, 2),
        "page_cache": "warm: written just before",
        "peak_mb": round(peak_mb()),
    }


def steps(most: int, folder: Path) -> list[dict[str, Any]]:
    """Processor time of a record, for dumps of ever more steps."""
    import torch

    import graphprobe
    from graphprobe.compare.open import open_dump

    one = folder / "one"
    one.mkdir()
    (folder / "dump.json").write_text(json.dumps({"dump": {"dump_path": str(one), "dump_data": "stats"}}))
    config = graphprobe.CompilerConfig()
    config.dump_config.enable_dump = True
    config.dump_config.dump_config_path = str(folder / "dump.json")
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    compiled: Any = torch.compile(model, backend=graphprobe.get_backend(compiler_config=config))
    compiled(torch.randn(4, 8)).sum().backward()
    del compiled
    open_dump(one)
    found: list[dict[str, Any]] = []
    count = 1000
    while count <= most:
        many = folder / str(count)
        shutil.copytree(one, many)
        (index,) = many.rglob("ops.jsonl")
        lines = [line for line in index.read_text().splitlines() if line]
        with open(index, "w") as file:
            for number in range(count // len(lines)):
                file.writelines(line.replace('"step":0', f'"step":{number}') + "\n" for line in lines)
        begun = time.process_time()
        with compare_dumps(open_dump(many), open_dump(many)) as comparison:
            pairs, outcome = comparison.summary.counts.pairs, comparison.summary.outcome
        cost_us = 1e6 * (time.process_time() - begun) / pairs
        ratio = round(cost_us / found[0]["us_a_record"], 2) if found else 1.0
        found.append({"records": pairs, "outcome": outcome, "us_a_record": round(cost_us, 1), "ratio": ratio})
        shutil.rmtree(many)
        count *= 10
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("records", "values", "steps"))
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--most", type=int, default=100_000, help="records of the largest dump of `steps`")
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--jobs", type=int, help="threads; without it as many as graphprobe compare takes")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.what == "records":
        print(json.dumps(records(given.count)))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        if given.what == "steps":
            print(json.dumps(steps(given.most, Path(folder)), indent=1))
            return
        print(json.dumps(values(given.gigabytes, Path(folder), given.jobs)))


if __name__ == "__main__":
    main()
