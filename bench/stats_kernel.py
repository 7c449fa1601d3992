"""What one pass of statistics and digest costs, against `x.sum()` of the same tensor.

    python bench/stats_kernel.py [--threads N ...] [--sets NAME ...] [--cases NAME] [--quick]

All calls of a row are measured in one process, by turns, and the median of each counts: with one thread in CPU time,
which other programs on the machine change less, with more in real time. Compared are `stats_of` with all its checks and
the result it builds, and `Tensor.sum`. The same tensor is read again and again, so that sizes up to the second-level
cache are read from there: the hardest case for statistics, because there `sum` is limited by nothing but the cache. The
threads are the same for both. `--sets` names the instruction sets to measure, instead of the one that is in use; the
others are compared with the first, by the geometric mean of the times over the sizes. `fallback` is the ratio of the
pure numpy version.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from graphprobe.engine.tensor_stats import stats_of
from graphprobe.numerics import native, stats, stats_numpy

SIZES = [1 << n for n in range(10, 27, 2)]
TARGET = 1.5
BUDGET_S = 0.25
"""Time for one measurement of one side."""


def contiguous(dtype: torch.dtype) -> Callable[[int], torch.Tensor]:
    return lambda size: torch.randn(size // dtype.itemsize).to(dtype)


def transposed(size: int) -> torch.Tensor:
    side = int((size // 4) ** 0.5)
    return torch.randn(side, side).t()


def keys(size: int) -> torch.Tensor:
    return torch.randn(4, max(1, size // 4096), 4, 64).to(torch.bfloat16).permute(0, 2, 3, 1)


def channels_last(size: int) -> torch.Tensor:
    side = max(1, int((size // 4 // 64 // 2) ** 0.5))
    return torch.randn(2, 64, side, side).to(memory_format=torch.channels_last)


def every_other(size: int) -> torch.Tensor:
    return torch.randn(size // 4 // 64, 128)[:, ::2]


def rectified(size: int) -> torch.Tensor:
    return torch.randn(size // 4).relu()


def masked(size: int) -> torch.Tensor:
    x = torch.randn(size // 4)
    x[::7] = -torch.inf
    return x


def offset(size: int) -> torch.Tensor:
    return torch.randn(size // 4) + 10


CASES: dict[str, Callable[[int], torch.Tensor]] = {
    "float32": contiguous(torch.float32),
    "bfloat16": contiguous(torch.bfloat16),
    "float16": contiguous(torch.float16),
    "float64": contiguous(torch.float64),
    "float32 transposed": transposed,
    "bfloat16 keys of attention, transposed": keys,
    "float32 channels last": channels_last,
    "float32 every other column": every_other,
    "float32 relu, half zeros": rectified,
    "float32 with -inf": masked,
    "float32 of mean 10": offset,
}


def in_use() -> str:
    return str(native.core.instruction_set()) if native.core else "fallback"


def use(name: str) -> None:
    if name != in_use() and not (native.core and native.core.set_instruction_set(name)):
        raise SystemExit(f"this processor lacks {name}, or there is no such set")


def interleaved(calls: list[tuple[str, Callable[[], object]]], rounds: int) -> list[float]:
    """Median seconds of one call of each, measured by turns, each with the instruction set it is given with."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    repeats = []
    for name, call in calls:
        use(name)
        call()
        begin = clock()
        call()
        repeats.append(max(1, int(BUDGET_S / rounds / max(clock() - begin, 1e-6))))
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for (name, call), repeat, found in zip(calls, repeats, times, strict=True):
            use(name)
            begin = clock()
            for _ in range(repeat):
                call()
            found.append((clock() - begin) / repeat)
    return [statistics.median(found) for found in times]


def with_fallback(tensor: torch.Tensor) -> None:
    kept = stats.compute
    stats.compute = stats_numpy.compute
    try:
        stats_of(tensor)
    finally:
        stats.compute = kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="*", default=sorted({1, torch.get_num_threads()}))
    parser.add_argument("--sets", nargs="+", default=[in_use()], help="instruction sets")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    parser.add_argument("--cases", default="", help="those whose name holds this")
    options = parser.parse_args()
    rounds = 7 if options.quick else 21
    sizes = SIZES[::4] if options.quick else SIZES
    print(f"torch {torch.__version__}; native core: {native.description()}")
    for name in options.sets:
        use(name)
    above = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        for name, make in CASES.items():
            if options.cases not in name:
                continue
            print(f"\n{name}, {threads} thread{'s'[: threads > 1]}")
            columns = "".join(f"{f'{chosen} µs':>13}{'ratio':>8}{'GB/s':>8}" for chosen in options.sets)
            print(f"{'KiB':>8}{'sum µs':>11}{columns}{'fallback':>10}{'copied':>10}")
            rows = []
            for size in sizes:
                x = make(size)
                size_bytes = x.numel() * x.element_size()
                calls = [(chosen, lambda x=x: stats_of(x)) for chosen in options.sets]
                base, *took = interleaved([(options.sets[0], x.sum), *calls], rounds)
                _, slow = interleaved([(options.sets[0], x.sum), (options.sets[0], lambda x=x: with_fallback(x))], 3)
                copied = f"{'':>10}"
                if not x.is_contiguous():
                    (copying,) = interleaved([(options.sets[0], lambda x=x: stats_of(x.contiguous()))], rounds)
                    copied = f"{copying / base:10.1f}"
                found = "".join(f"{t * 1e6:13.2f}{t / base:8.2f}{size_bytes / t / 1e9:8.1f}" for t in took)
                print(f"{size_bytes / 1024:8.0f}{base * 1e6:11.2f}{found}{slow / base:10.1f}{copied}", flush=True)
                rows.append(took)
                if took[0] / base > TARGET:
                    above.append(f"{name}, {threads} thr., {size_bytes / 1024:.0f} KiB: {took[0] / base:.2f}")
            for i, other in enumerate(options.sets[1:], 1):
                mean = statistics.geometric_mean(took[i] / took[0] for took in rows)
                print(f"{other}: {mean:.2f} of the time of {options.sets[0]}")
    print(f"\nabove {TARGET} times the sum, {options.sets[0]}: {'; '.join(above) or 'nothing'}")


if __name__ == "__main__":
    main()
