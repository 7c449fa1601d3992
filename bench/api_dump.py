"""What an API dump costs in eager mode: step time plain, off, with statistics and with values; bytes; time a record.

    python bench/api_dump.py [--layers 4] [--rounds 7] [--models gpt,tiny] [--dir DIR] [--json FILE]
                             [--msprobe PYTHON]

Two models, trained for one step (forward, backward, AdamW): `gpt`, a transformer of d=256, batch 8 x 128; and `tiny`,
1 x 16 tokens of d=64, where nearly all time goes into launching. Everything runs in one thread. Steps are taken in
turns, one of each way a round, so that a slow moment of the machine hits all alike. A ratio is the median over the
rounds of a step's time divided by that of the plain step of its round. A dumped step counts until the program goes on;
`flushed` until the last byte is written; `later` is what a record costs in the second step of the same dump, when
shapes and places in the program are known. `cpu` is the ratio of processor time, the writing thread's included: what to
look at on a machine with other work.

`off` is a plain step after dumps were opened and closed in the process; `step not selected` one inside an open dump of
another step. `--msprobe PYTHON` names an interpreter with
`mindstudio-probe` (PyPI), torch and graphprobe: there this file is run once a level of that tool, each in the same
rounds as ours of the same level.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

WAYS: dict[str, dict[str, Any]] = {
    "stats module": {"level": "module"},
    "stats api": {"level": "api"},
    "stats mix": {"level": "mix"},
    "tensor api": {"level": "api", "data": "tensor"},
}
THEIRS: dict[str, tuple[str, str]] = {
    "msprobe stats module": ("statistics", "L0"),
    "msprobe stats api": ("statistics", "L1"),
    "msprobe stats mix": ("statistics", "mix"),
    "msprobe tensor api": ("tensor", "L1"),
}
AIMS = {"off": 1.02, "step not selected": 1.02, "stats api": 1.3}


class Attention(nn.Module):
    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (z.reshape(b, t, self.heads, d // self.heads).transpose(1, 2) for z in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(d), Attention(d, heads)
        self.ln2, self.fc1, self.fc2 = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, layers: int, d: int, vocab: int, length: int) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(length, d)
        self.blocks = nn.ModuleList(Block(d, 8) for _ in range(layers))
        self.ln_f, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


class Training:
    def __init__(self, *, layers: int, d: int, batch: int, length: int, vocab: int = 1024) -> None:
        torch.manual_seed(0)
        self.model = GPT(layers, d, vocab, length)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.tokens = torch.randint(0, vocab, (batch, length))
        self.targets = torch.randint(0, vocab, (batch, length))

    def step(self) -> None:
        loss = F.cross_entropy(self.model(self.tokens).flatten(0, 1), self.targets.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def models(layers: int) -> dict[str, Callable[[], Training]]:
    return {
        "gpt": lambda: Training(layers=layers, d=256, batch=8, length=128),
        "tiny": lambda: Training(layers=layers, d=64, batch=1, length=16),
    }


def size_of(folder: Path) -> tuple[int, int]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files), len(files)


def timed(run: Callable[[], None]) -> tuple[float, float]:
    """Wall and processor time, in seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def ours(training: Training, way: str, folder: Path) -> dict[str, float]:
    import graphprobe

    path = folder / "ours"
    with graphprobe.dump(path, **WAYS[way]) as dump:
        seconds, cpu = timed(training.step)
        more, more_cpu = timed(dump.flush)
        rank = dump.folder
    manifest = json.loads((rank / "manifest.json").read_bytes())
    assert not manifest.get("missing"), manifest["missing"]
    size, files = size_of(path)
    shutil.rmtree(path)
    whole = {"whole_s": seconds + more, "cpu_s": cpu + more_cpu}
    return {"s": seconds, **whole, "bytes": size, "files": files, "records": manifest["calls"]}


def second_step(training: Training, way: str, folder: Path) -> float:
    """Processor time of a step in a dump that has seen one, in seconds."""
    import graphprobe

    path = folder / "ours"
    with graphprobe.dump(path, **WAYS[way]) as dump:
        training.step()
        dump.flush()
        cpu = timed(training.step)[1] + timed(dump.flush)[1]
    shutil.rmtree(path)
    return cpu


def their_debugger(folder: Path, way: str) -> Any:
    from msprobe.pytorch import PrecisionDebugger

    task, level = THEIRS[way]
    config = folder / "config.json"
    settings = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    whole = {"task": task, "dump_path": str(folder / "theirs"), "rank": [], "step": [], "level": level, task: settings}
    config.write_text(json.dumps(whole))
    return PrecisionDebugger(config_path=str(config))


def theirs(training: Training, debugger: Any, folder: Path) -> dict[str, float]:
    path = folder / "theirs"
    path.mkdir(exist_ok=True)

    def run() -> None:
        debugger.start(training.model, rank_id=0)
        training.step()
        debugger.stop()
        debugger.step()

    seconds, cpu = timed(run)
    size, files = size_of(path)
    records = sum(len(json.loads(file.read_bytes())["data"]) for file in path.rglob("dump.json"))
    shutil.rmtree(path)
    return {"s": seconds, "whole_s": seconds, "cpu_s": cpu, "bytes": size, "files": files, "records": records}


def plain_step(training: Training) -> dict[str, float]:
    seconds, cpu = timed(training.step)
    return {"s": seconds, "cpu_s": cpu}


def step_not_selected(training: Training, folder: Path) -> dict[str, float]:
    import graphprobe

    with graphprobe.dump(folder / "asleep", steps="1000"):
        training.step()
        found = plain_step(training)
    shutil.rmtree(folder / "asleep")
    return found


def measure(training: Training, ways: list[str], rounds: int, folder: Path, their_way: str | None) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {
        "plain": [],
        "off": [],
        "step not selected": [],
        **{way: [] for way in ways},
    }
    debugger = their_debugger(folder, their_way) if their_way else None
    for number in range(rounds + 2):
        results = {"plain": plain_step(training)}
        for way in ways:
            results[way] = ours(training, way, folder) | {"later_s": second_step(training, way, folder)}
        if debugger is not None and their_way is not None:
            results[their_way] = theirs(training, debugger, folder)
            found.setdefault(their_way, [])
        results["off"] = plain_step(training)
        results["step not selected"] = step_not_selected(training, folder)
        if number >= 2:  # the first are for caches
            for way, result in results.items():
                found[way].append(result)
    plain = [one["s"] for one in found["plain"]]
    table = {}
    for way, results in found.items():
        row: dict[str, float] = {"ms": 1e3 * statistics.median(one["s"] for one in results)}
        row["cpu_ratio"] = statistics.median(
            one["cpu_s"] / base["cpu_s"] for one, base in zip(results, found["plain"], strict=True)
        )
        row["ratio"] = statistics.median(one["s"] / base for one, base in zip(results, plain, strict=True))
        if "records" in results[0]:
            row["ratio_with_flush"] = statistics.median(
                one["whole_s"] / base for one, base in zip(results, plain, strict=True)
            )
            row |= {name: results[-1][name] for name in ("bytes", "files", "records")}
            added = statistics.median(
                one["cpu_s"] - base["cpu_s"] for one, base in zip(results, found["plain"], strict=True)
            )
            row["us_a_record"] = 1e6 * added / max(row["records"], 1)
        if "later_s" in results[0]:
            later = statistics.median(
                one["later_s"] - base["cpu_s"] for one, base in zip(results, found["plain"], strict=True)
            )
            row["us_a_later_record"] = 1e6 * later / max(row["records"], 1)
        table[way] = row
    return table


def show(name: str, table: dict[str, Any]) -> None:
    print(
        f"{name}\n  {'':<22}{'ms':>9}{'ratio':>8}{'cpu':>7}{'flushed':>9}{'MB':>9}"
        f"{'files':>7}{'records':>9}{'us/record':>11}{'later':>8}"
    )
    for way, row in table.items():
        line = f"  {way:<22}{row['ms']:>9.1f}{row['ratio']:>8.2f}{row['cpu_ratio']:>7.2f}"
        if "records" in row:
            line += f"{row['ratio_with_flush']:>9.2f}{row['bytes'] / 1e6:>9.2f}{row['files']:>7.0f}"
            line += f"{row['records']:>9.0f}{row['us_a_record']:>11.1f}"
        if "us_a_later_record" in row:
            line += f"{row['us_a_later_record']:>8.1f}"
        aim = AIMS.get(way)
        print(line + (f"  aim <= {aim}" if aim is not None and name == "gpt" else ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--models", default="gpt,tiny")
    parser.add_argument("--dir", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--msprobe", metavar="PYTHON", default=None)
    parser.add_argument("--their-way", default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.msprobe:
        for way in THEIRS:  # their tool stays in the process that has loaded it, so each level gets its own
            command = [arguments.msprobe, __file__, "--layers", str(arguments.layers), "--models", arguments.models]
            command += ["--rounds", str(arguments.rounds), "--their-way", way]
            subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="api-dump-", dir=arguments.dir))
    os.umask(0o027)  # the other tool refuses a folder that others can read
    their = arguments.their_way
    ways = list(WAYS) if their is None else [their.removeprefix("msprobe ")]
    results = {}
    try:
        for name in arguments.models.split(","):
            training = models(arguments.layers)[name]()
            results[name] = measure(training, ways, arguments.rounds, folder, their)
            show(name, results[name])
            sys.stdout.flush()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
