"""What a dump costs: step time off, with statistics and with values against a plain step; and the values' throughput.

    python bench/dump_overhead.py [--dir DIR] [--rounds 15] [--batch 8] [--threads N] [--json FILE]

Three models, trained forward and backward: `compiled`, a transformer with large tensors; `eager-size`, a perceptron
whose launches take as long as ops of a usual eager program; and `tiny`, the same with tensors of a few kilobytes, whose
launches take microseconds: no aim is set for it, it shows what an op costs. Each is compiled four times: plainly by
`torch.compile`; by `get_backend` with `enable_dump` False (off); with `dump_data` stats; with tensor. Steps are taken
in turns, two of each a round, so that a slow moment of the machine hits all alike. The second is timed: the first
leaves the caches as such a step leaves them, and not as one of another kind does. The queue is empty when one begins.
The figure is the median over the rounds of a step's time divided by that of the plain step of the round.

Beside it stands the same of the CPU time of the program's thread, which says more than the clock while other programs
run, and does not see what the writing thread costs.

Throughput: the bytes that the tensor dump has written, by the time from the first step until the last byte is written;
against one sequential write of as many bytes in pieces of a MiB to the same folder, in turns. 1 is as fast as the disk.
The time of the step itself is taken off: what is compared is what the dump adds.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import graphprobe
from graphprobe.probe.dump.sessions import close_all, open_sessions

WAYS = ("plain", "off", "stats", "tensor")
AIMS = {"off": "<= 1.01", "stats": "<= 1.3", "tensor": ""}


def transformer(batch: int) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(batch, 128, 256)


def perceptron(batch: int, width: int = 512) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    kinds = (lambda: torch.nn.Linear(width, width), lambda: torch.nn.LayerNorm(width), torch.nn.GELU)
    return torch.nn.Sequential(*(kind() for _ in range(8) for kind in kinds)), torch.randn(32 * batch, width)


def tiny(batch: int) -> tuple[torch.nn.Module, torch.Tensor]:
    return perceptron(1, 64)


def backend(way: str, folder: Path) -> Any:
    if way == "plain":
        return "inductor"
    config = graphprobe.CompilerConfig()
    if way != "off":
        (folder / way).mkdir(parents=True)
        config.dump_config.enable_dump = True
        config.dump_config.dump_path = str(folder / way)
        config.dump_config.dump_data = way
        config.dump_config.max_bytes = 1 << 40
    return graphprobe.get_backend(compiler_config=config)


def step_of(way: str, make: Callable[[int], Any], batch: int, folder: Path) -> Callable[[], None]:
    model, x = make(batch)
    # Each way is a function of its own to Dynamo: else the second would find the first one's code.
    namespace: dict[str, Any] = {"model": model}
    exec(compile(f"def step_{way}(x):\n    return model(x)", f"<{make.__name__}-{way}>", "exec"), namespace)
    compiled = torch.compile(namespace[f"step_{way}"], backend=backend(way, folder))

    def step() -> None:
        compiled(x).square().mean().backward()
        model.zero_grad(set_to_none=True)

    return step


def written_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def plain_write_s(path: Path, size_bytes: int) -> float:
    block = os.urandom(1 << 20)
    began = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for _ in range(size_bytes >> 20):
            file.write(block)
        file.write(block[: size_bytes & ((1 << 20) - 1)])
    elapsed = time.perf_counter() - began
    path.unlink()
    return elapsed


def measure(make: Callable[[int], Any], batch: int, rounds: int, folder: Path) -> dict[str, Any]:
    steps = {way: step_of(way, make, batch, folder) for way in WAYS}
    for step in steps.values():
        step()
        step()
    sessions = {session.plan.data: session for session in open_sessions()}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    cpu: dict[str, list[float]] = {way: [] for way in WAYS}
    ratios = []
    for _ in range(rounds):
        for way, step in steps.items():
            step()
            for session in sessions.values():
                session.flush()
            before = written_bytes(folder / way) if way == "tensor" else 0
            began, cpu_began = time.perf_counter(), time.thread_time()
            step()
            times[way].append(time.perf_counter() - began)
            cpu[way].append(time.thread_time() - cpu_began)
            if way != "tensor":
                continue
            sessions["tensor"].flush()
            whole = time.perf_counter() - began
            size = written_bytes(folder / way) - before
            plain = plain_write_s(folder / "plain", size)
            ratios.append((plain / max(whole - times["plain"][-1], 1e-9), size, whole))
    medians = {way: statistics.median(found) for way, found in times.items()}
    return {
        "step_ms": {way: 1000 * value for way, value in medians.items()},
        "ratio": {way: _median_ratio(times[way], times["plain"]) for way in WAYS[1:]},
        "cpu_ratio": {way: _median_ratio(cpu[way], cpu["plain"]) for way in WAYS[1:]},
        "tensor_mb_a_step": ratios[-1][1] / 1e6,
        "tensor_mb_a_second": statistics.median(size / 1e6 / whole for _, size, whole in ratios),
        "throughput_of_plain_write": statistics.median(ratio for ratio, _, _ in ratios),
        "ops_a_step": {data: s.writer().manifest.ops / (2 * rounds + 2) for data, s in sessions.items()},
    }


def _median_ratio(times: list[float], plain: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(times, plain, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    logging.getLogger("graphprobe").setLevel(logging.ERROR)
    folder = Path(tempfile.mkdtemp(prefix="dump-overhead-", dir=arguments.dir))
    home = Path.cwd()
    os.chdir(folder)
    results = {}
    try:
        for name, make in (("compiled", transformer), ("eager-size", perceptron), ("tiny", tiny)):
            results[name] = found = measure(make, arguments.batch, arguments.rounds, folder / name)
            plain_ms, ops = found["step_ms"]["plain"], found["ops_a_step"]["tensor"]
            print(f"{name}: plain step {plain_ms:.2f} ms, {ops:.0f} ops a step")
            for way, ratio in found["ratio"].items():
                cost_us = 1000 * (found["step_ms"][way] - plain_ms) / ops
                cost = f"{cost_us:8.1f} us an op" if way != "off" else ""
                cpu = f"{found['cpu_ratio'][way]:6.3f} of its thread's CPU"
                print(
                    f"  {way:7} {ratio:6.3f} x plain  {cpu}  {cost:17} {AIMS[way] if name != 'tiny' else ''}".rstrip()
                )
            print(
                f"  tensor dump: {found['tensor_mb_a_step']:.1f} MB a step at {found['tensor_mb_a_second']:.0f} MB/s, "
                f"{found['throughput_of_plain_write']:.2f} of a plain write   >= 0.7"
            )
            close_all()
            torch.compiler.reset()
    finally:
        close_all()
        graphprobe.disable()
        os.chdir(home)
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1), "utf-8")


if __name__ == "__main__":
    main()
