"""How long a frame takes that fails to trace: the whole script, and its record alone in another process.

    python bench/replay.py [--rounds 5] [--steps 40] [--dir DIR] [--json FILE]

A script of more than 500 lines with a module beside it trains a model of 12 blocks for some steps, uncompiled, and
then compiles a step that Dynamo cannot trace. It runs as it is and under `graphprobe run --record-frames`; then it is
moved away, and the record is replayed by its own `replay.py` and by `graphprobe replay`. Everything runs in processes
of one thread, in turns, one of each way a round. `wall` is the median of the seconds from start to exit, torch's own
import included; `cpu` that of processor time, which is what to look at on a machine with other work. `import` is
`import torch._dynamo` and nothing else; a replay does that with the collector at rest, and may take less.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

AIM_S = 5.0
"""The replay, alone."""

HEAD = '''"""Trains, then compiles."""

import dataclasses
import sys

import torch
from torch import nn

import features


@dataclasses.dataclass
class Config:
    width: int = 128
    blocks: int = {blocks}
    limit: float = 0.0


class Data:
    def __init__(self, config, count):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(count, 64, config.width, generator=generator)
        self.y = torch.randn(count, 64, config.width, generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]
'''
BLOCK = '''

class Block{i}(nn.Module):
    """Number {i}, with a feature of its own."""

    def __init__(self, config):
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 2 * config.width)
        self.down = nn.Linear(2 * config.width, config.width)
        self.scale = nn.Parameter(torch.full((config.width,), 0.1))
        self.register_buffer("calls", torch.zeros(()))

    def extra(self, x):
        return features.feature_{i}(x)

    def mixed(self, x):
        wide = self.up(self.norm(x))
        wide = torch.nn.functional.gelu(wide)
        return self.down(wide) * self.scale

    def forward(self, x):
        if x.dim() != 3:
            raise ValueError(f"three dimensions, not {{x.dim()}}")
        return x + self.mixed(x) + 0.01 * self.extra(x)


def check_{i}(model):
    """Never called."""
    block = model.blocks[{i}]
    if not torch.isfinite(block.scale).all():
        raise ValueError("block {i} is not finite")


def summary_{i}(model):
    """Never called while compiling."""
    lines = []
    for name, value in model.named_parameters():
        if name.startswith("blocks.{i}."):
            lines.append(f"{{name}}: {{tuple(value.shape)}}, {{value.norm().item():.4f}}")
    return "\\n".join(lines)
'''
TAIL = '''

class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList([{classes}])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return gate(x, self.config.limit)


def gate(x, limit):
    """What Dynamo cannot trace."""
    if x.mean() > limit:
        return x
    return torch.tanh(x)


def main(steps):
    torch.manual_seed(0)
    config = Config()
    model = Model(config)
    data = Data(config, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        x, y = data[step % len(data)]
        loss = (model(x[None]) - y[None]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("\\n".join([{summaries}]))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    compiled(data[0][0][None])


if __name__ == "__main__":
    main(int(sys.argv[1]))
'''
FEATURE = """
def feature_{i}(x):
    rolled = torch.roll(x, {i}, dims=-1)
    return rolled * torch.sigmoid(x)

"""


def write_program(folder: Path, *, blocks: int = 12) -> int:
    """Writes the script and its module; returns how many lines the script has."""
    folder.mkdir(parents=True)
    classes = ", ".join(f"Block{i}(config)" for i in range(blocks))
    summaries = ", ".join(f"summary_{i}(model)" for i in range(blocks))
    body = "".join(BLOCK.format(i=i) for i in range(blocks))
    text = HEAD.format(blocks=blocks) + body + TAIL.format(classes=classes, summaries=summaries)
    (folder / "train.py").write_text(text, "utf-8")
    (folder / "features.py").write_text("import torch\n" + "".join(FEATURE.format(i=i) for i in range(blocks)), "utf-8")
    return text.count("\n")


def run(command: list[str], cwd: Path) -> tuple[float, float, subprocess.CompletedProcess[str]]:
    """Wall and processor seconds, and how it ended."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environ, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - begun, cpu, done


def record_in(folder: Path, out: Path, steps: int) -> Path:
    """Records the failing frame of the script."""
    command = [sys.executable, "-m", "graphprobe", "run", "-q", "--record-frames", "--out", str(out), "train.py"]
    _, _, done = run([*command, str(steps)], folder)
    records = list(out.glob("*/graphprobe/frames/*"))
    if len(records) != 1:
        raise SystemExit(f"{len(records)} records, expected one\n{done.stderr}")
    return records[0]


def measure(work: Path, rounds: int, steps: int) -> dict[str, Any]:
    """Everything, as the JSON file holds it."""
    lines = write_program(work / "program")
    record = record_in(work / "program", work / "out", steps)
    plain = [sys.executable, "train.py", str(steps)]
    ways: dict[str, tuple[list[str], Path, int]] = {
        "script": (plain, work / "program", 1),
        "import": ([sys.executable, "-c", "import torch._dynamo"], work, 0),
        "replay.py": ([sys.executable, str(record / "replay.py")], work, 1),
        "graphprobe replay": ([sys.executable, "-m", "graphprobe", "replay", str(record)], work, 1),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    hidden = work / "hidden"
    for _ in range(rounds):
        for name, (command, cwd, code) in ways.items():
            if name == "replay.py":
                (work / "program").rename(hidden)  # the record is all that there is
            wall, cpu, done = run(command, cwd)
            if done.returncode != code or (code and "Data-dependent branching" not in done.stdout + done.stderr):
                raise SystemExit(f"{name}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
            times[name].append((wall, cpu))
        hidden.rename(work / "program")
    result: dict[str, Any] = {"lines": lines, "steps": steps, "rounds": rounds}
    result["record_bytes"] = sum(path.stat().st_size for path in record.rglob("*") if path.is_file())
    result["lines_kept"] = sum(bool(s.strip()) for s in (record / "program.py").read_text("utf-8").split("\n"))
    for name, taken in times.items():
        wall, cpu = (statistics.median(column) for column in zip(*taken, strict=True))
        result[name] = {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2)}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    work = options.dir or Path(tempfile.mkdtemp(prefix="bench-replay-"))
    try:
        result = measure(work, options.rounds, options.steps)
    finally:
        if options.dir is None:
            shutil.rmtree(work, ignore_errors=True)
    print(f"script of {result['lines']} lines, {result['steps']} steps before the frame that fails")
    print(f"record: {result['record_bytes'] / 1e6:.2f} MB, {result['lines_kept']} lines of text")
    script = result["script"]
    for name in ("script", "import", "replay.py", "graphprobe replay"):
        row = result[name]
        ratio = f"{row['wall_s'] / script['wall_s']:.2f} of the script, cpu {row['cpu_s'] / script['cpu_s']:.2f}"
        print(f"{name:<18} wall {row['wall_s']:6.2f} s   cpu {row['cpu_s']:6.2f} s   {ratio}")
    alone = result["replay.py"]["wall_s"]
    print(f"replay alone: {alone:.2f} s, aim under {AIM_S:g} s: {'met' if alone < AIM_S else 'missed'}")
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
