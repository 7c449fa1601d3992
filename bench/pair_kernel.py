"""What comparing two tensors in one pass costs, against reading both, and against numpy called once for each figure.

    python bench/pair_kernel.py [--threads N ...] [--cases NAME] [--mib N] [--quick] [--folder DIR]

The two sides lie in two files that are mapped, as two dumps are. Every call of a row is measured by turns in one
process, in CPU time of all threads, and the best of each counts: other programs can only add to it. `read` is the sum
of each side in its own dtype (of the bytes for what numpy cannot add), `usual` is what a comparison in numpy does:
cosine, largest absolute and relative error, ratios within 1/1000 and 5/1000, and minimum, maximum, mean and norm of
each side, in float64. It finds less than `compare_pairs` does.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphprobe.numerics import native, pair, pair_numpy
from graphprobe.numerics.pair import compare_pairs

Array = npt.NDArray[Any]
Side = tuple[Array, str]
TARGET_GB_S = 2.0


def normal(count: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(count, dtype=np.float32)


def noisy(x: Array) -> Array:
    return x * (1 + 1e-6 * normal(x.size, 2))


def bfloat16(x: Array) -> Array:
    return np.ascontiguousarray(x.view(np.uint16)[1::2])


def float32(count: int) -> tuple[Side, Side]:
    x = normal(count, 1)
    return (noisy(x), "float32"), (x, "float32")


def equal(count: int) -> tuple[Side, Side]:
    x = normal(count, 1)
    return (x, "float32"), (x.copy(), "float32")


def masked(count: int) -> tuple[Side, Side]:
    x = normal(count, 1)
    x[::7] = -np.inf
    return (noisy(x), "float32"), (x, "float32")


def narrow(count: int) -> tuple[Side, Side]:
    x = normal(count, 1)
    return (bfloat16(noisy(x)), "bfloat16"), (x, "float32")


def both_narrow(count: int) -> tuple[Side, Side]:
    x = normal(2 * count, 1)
    return (bfloat16(noisy(x)), "bfloat16"), (bfloat16(x), "bfloat16")


def halves(count: int) -> tuple[Side, Side]:
    x = normal(2 * count, 1)
    return (noisy(x).astype(np.float16), "float16"), (x.astype(np.float16), "float16")


def doubles(count: int) -> tuple[Side, Side]:
    x = normal(count // 2, 1).astype(np.float64)
    return (x * (1 + 1e-12), "float64"), (x, "float64")


CASES: dict[str, Callable[[int], tuple[Side, Side]]] = {
    "float32": float32,
    "float32, equal bits": equal,
    "float32, -inf in every 7th": masked,
    "bfloat16 against float32": narrow,
    "bfloat16": both_narrow,
    "float16": halves,
    "float64": doubles,
}


def mapped(folder: str, name: str, side: Side) -> Side:
    path = Path(folder) / f"{name}.npy"
    np.save(path, side[0])
    return np.load(path, mmap_mode="r"), side[1]


def read(sides: tuple[Side, Side]) -> None:
    for array, _ in sides:
        (array.view(np.uint8) if array.dtype.kind == "u" else array).sum()


def wide(side: Side) -> Array:
    array, dtype = side
    if dtype == "bfloat16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


@np.errstate(all="ignore")
def usual(sides: tuple[Side, Side]) -> list[float]:
    c, r = wide(sides[0]), wide(sides[1])
    gap = np.abs(c - r)
    relative = gap / np.abs(r)
    found = [float(c.dot(r) / (np.linalg.norm(c) * np.linalg.norm(r))), gap.max(), relative.max()]
    found += [(relative < bound).mean() for bound in (0.001, 0.005)]
    return found + [f for x in (c, r) for f in (x.min(), x.max(), x.mean(), np.linalg.norm(x))]


def best(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """Seconds of CPU time of each call, the shortest of `rounds`, by turns."""
    times = [float("inf")] * len(calls)
    for _ in range(rounds):
        for i, call in enumerate(calls):
            begin = time.process_time()
            call()
            times[i] = min(times[i], time.process_time() - begin)
    return times


def compared(sides: tuple[Side, Side], threads: int, compute: Callable[..., tuple[Any, ...]]) -> None:
    kept, pair.compute = pair.compute, compute
    try:
        (c, mine), (r, theirs) = sides
        compare_pairs(c, r, candidate_dtype=mine, reference_dtype=theirs, threads=threads)
    finally:
        pair.compute = kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="*", default=[1])
    parser.add_argument("--cases", default="", help="those whose name holds this")
    parser.add_argument("--mib", type=int, default=256, help="of each side; more than the caches hold")
    parser.add_argument("--quick", action="store_true", help="16 MiB and fewer rounds")
    parser.add_argument("--folder", help="for the files; a temporary one if not given")
    options = parser.parse_args()
    mib, rounds = (16, 3) if options.quick else (options.mib, 7)
    print(f"native core: {native.description()}; {mib} MiB a side, GB/s of both sides together, per second of one core")
    print(f"{'':30}{'threads':>8}{'compare':>9}{'read':>8}{'ratio':>7}{'fallback':>10}{'usual':>8}{'times':>7}")
    below = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name, make in CASES.items():
            if options.cases not in name:
                continue
            made = make(mib * (1 << 18))
            sides = mapped(folder, "candidate", made[0]), mapped(folder, "reference", made[1])
            del made
            size = sum(array.nbytes for array, _ in sides) / 1e9
            for threads in options.threads:
                took, base = best([partial(compared, sides, threads, pair.compute), partial(read, sides)], rounds)
                slow, loose = best([partial(compared, sides, 1, pair_numpy.compute), partial(usual, sides)], 1)
                print(
                    f"{name:30}{threads:8}{size / took:9.2f}{size / base:8.2f}{took / base:7.2f}{size / slow:10.3f}"
                    f"{size / loose:8.2f}{loose / took:7.1f}",
                    flush=True,
                )
                if size / took < TARGET_GB_S:
                    below.append(f"{name}, {threads} thr.: {size / took:.2f}")
    print(f"below {TARGET_GB_S} GB/s a core: {'; '.join(below) or 'nothing'}")


if __name__ == "__main__":
    main()
