"""What collecting costs a compile: a GPT-2 training step, plain, with graphprobe's tree, and with torch's own.

    python bench/compile_overhead.py [--repeats 3] [--layers 4] [--warm] [--json FILE]

Each measurement is a process of its own with an empty Inductor cache (`--warm`: kernels compiled before, so that the
C++ compiler's time does not hide the tool's), the variants in turn within each repeat. Reported: wall and CPU seconds
of compiling (forward and backward, first step), the ratio to the plain variant of the same repeat (median over them),
and the bytes that each variant left behind.
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
from pathlib import Path
from typing import Any

VARIANTS = ("plain", "graphprobe", "graphprobe inputs", "torch debug")

CHILD = """
import json, os, sys, time
variant, layers, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if variant.startswith("graphprobe"):
    import graphprobe
    graphprobe.enable(out, save_inputs=variant.endswith("inputs"))
import torch
from transformers import GPT2Config, GPT2LMHeadModel
import torch._dynamo, torch._inductor.compile_fx, torch._functorch.config  # imports are not what is measured
torch._inductor.config.fx_graph_cache = False
torch._functorch.config.enable_autograd_cache = False
torch.manual_seed(0)
size = dict(n_layer=layers, n_embd=128, n_head=4, vocab_size=512, n_positions=64)
config = GPT2Config(**size, bos_token_id=0, eos_token_id=0)
model = torch.compile(GPT2LMHeadModel(config))
ids = torch.randint(0, 512, (2, 32))
wall, cpu = time.perf_counter(), os.times()
model(input_ids=ids, labels=ids).loss.backward()
end, after = time.perf_counter(), os.times()
if variant.startswith("graphprobe"):
    from graphprobe.probe.active import session
    missing = session().writer.manifest.missing
    assert not missing, missing  # what was not collected must not look cheap
print("RESULT " + json.dumps({"wall_s": end - wall, "cpu_s": sum(after[:4]) - sum(cpu[:4])}))
"""


def measure(variant: str, layers: int, cache: Path, scratch: Path) -> dict[str, Any]:
    """One process; seconds of the first step and bytes below `scratch`."""
    scratch.mkdir(parents=True)
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "HF_HUB_OFFLINE": "1"}
    env.pop("TORCH_COMPILE_DEBUG", None)
    if variant == "torch debug":
        env |= {"TORCH_COMPILE_DEBUG": "1", "TORCH_COMPILE_DEBUG_DIR": str(scratch)}
    command = [sys.executable, "-c", CHILD, variant, str(layers), str(scratch)]
    done = subprocess.run(command, env=env, cwd=scratch, capture_output=True, text=True, check=False)
    line = next((text for text in done.stdout.splitlines() if text.startswith("RESULT ")), None)
    if line is None:
        raise SystemExit(f"{variant}: the process failed\n{done.stderr[-4000:]}")
    size = sum(file.stat().st_size for file in scratch.rglob("*") if file.is_file())
    return {**json.loads(line.removeprefix("RESULT ")), "bytes": size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--warm", action="store_true", help="kernels are in the C++ cache already")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {variant: [] for variant in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if options.warm:
            measure("plain", options.layers, root / "warm", root / "warm-up")
        for repeat in range(options.repeats):
            # The order turns, so that no variant always comes first.
            for variant in VARIANTS[repeat % len(VARIANTS) :] + VARIANTS[: repeat % len(VARIANTS)]:
                name = variant.replace(" ", "-")
                cache = root / "warm" if options.warm else root / f"cache-{repeat}-{name}"
                scratch = root / f"out-{repeat}-{name}"
                rows[variant].append(measure(variant, options.layers, cache, scratch))
                shutil.rmtree(scratch)
                if not options.warm:
                    shutil.rmtree(cache)
    print(
        f"GPT-2, {options.layers} layers, one training step, {'warm' if options.warm else 'cold'} kernel cache, "
        f"{options.repeats} repeats, {os.cpu_count()} cores"
    )
    print(f"{'variant':<20}{'wall s':>9}{'CPU s':>9}{'wall ratio':>12}{'CPU ratio':>11}{'bytes':>12}")
    summary = {}
    for variant in VARIANTS:
        ratios = {
            key: statistics.median(r[key] / p[key] for r, p in zip(rows[variant], rows["plain"], strict=True))
            for key in ("wall_s", "cpu_s")
        }
        middle = {key: statistics.median(r[key] for r in rows[variant]) for key in ("wall_s", "cpu_s", "bytes")}
        summary[variant] = {**middle, "wall_ratio": ratios["wall_s"], "cpu_ratio": ratios["cpu_s"]}
        print(
            f"{variant:<20}{middle['wall_s']:>9.2f}{middle['cpu_s']:>9.2f}{ratios['wall_s']:>12.3f}"
            f"{ratios['cpu_s']:>11.3f}{int(middle['bytes']):>12}"
        )
    if options.json:
        Path(options.json).write_text(json.dumps({"options": vars(options), "rows": summary}, indent=1))


if __name__ == "__main__":
    main()
