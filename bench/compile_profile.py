"""How much of a GPT-2 compile does `graphprobe.profile()` explain, and what does it cost?

    python bench/compile_profile.py [--repeats 3] [--layers 4] [--width 256] [--warm-kernels] [--json FILE]

One process. The first compile (forward and backward of one training step, an empty Inductor cache) is profiled and its
slowest phases and passes are shown. The share that is accounted for is the time of named phases over the time of the
first step minus that of a second one, which compiles nothing: a clock that the profile has no part in. Then compiles
with and without the profile take turns; reported are the ratios of each pair, median over them, of wall time and of
processor time (children included: the C++ compiler). With `--warm-kernels` the C++ kernels are compiled before and the
graph caches are off, so that the C++ compiler's time does not hide the profile's; TORCHINDUCTOR_CACHE_DIR may name a
folder that has the kernels already. Last, the cost of one span alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch._functorch.config
import torch._inductor.config
from torch._inductor.utils import fresh_cache
from transformers import GPT2Config, GPT2LMHeadModel

import graphprobe
from graphprobe.internals.compile_timing import SpanRecorder


def cpu_s() -> float:
    return sum(os.times()[:4])


def compile_once(layers: int, width: int, profiled: bool) -> dict[str, Any]:
    """Wall and CPU seconds of the first step minus those of the second, in a model that was never compiled before."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    size = {"n_layer": layers, "n_embd": width, "n_head": 4, "vocab_size": 512, "n_positions": 64}
    model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0))
    ids = torch.randint(0, 512, (2, 32))
    profile = graphprobe.profile(program=f"GPT-2, {layers} layers") if profiled else None
    with profile or contextlib.nullcontext():
        compiled = torch.compile(model)
        wall, cpu = time.perf_counter(), cpu_s()
        compiled(input_ids=ids, labels=ids).loss.backward()
        wall, cpu = time.perf_counter() - wall, cpu_s() - cpu
    again, cpu_again = time.perf_counter(), cpu_s()
    compiled(input_ids=ids, labels=ids).loss.backward()
    again, cpu_again = time.perf_counter() - again, cpu_s() - cpu_again
    return {"wall_s": wall - again, "cpu_s": cpu - cpu_again, "profile": profile}


def span_us() -> float:
    """Microseconds of one span: begun, ended."""
    recorder = SpanRecorder()
    begin = time.perf_counter()
    for _ in range(20_000):
        recorder.begin("x")
        recorder.end_named("x")
    return (time.perf_counter() - begin) / 20_000 * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--warm-kernels", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if options.warm_kernels:
            torch._inductor.config.fx_graph_cache = False
            torch._functorch.config.enable_autograd_cache = False
            if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
                stack.enter_context(fresh_cache())
            compile_once(options.layers, options.width, False)

        def measure(profiled: bool) -> dict[str, Any]:
            with contextlib.nullcontext() if options.warm_kernels else fresh_cache():
                return compile_once(options.layers, options.width, profiled)

        first = measure(True)
        pairs = []
        for repeat in range(options.repeats):
            order = (False, True) if repeat % 2 == 0 else (True, False)
            got = {profiled: measure(profiled) for profiled in order}
            pairs.append((got[False], got[True]))
    profile = first["profile"]
    summary = profile.summary()
    share = summary.named_ns / 1e9 / first["wall_s"]
    spans = len(profile.result.spans)
    result: dict[str, Any] = {
        "options": vars(options),
        "share_accounted": share,
        "share_of_own_clock": summary.accounted,
        "spans": spans,
        "span_us": span_us(),
        "first_wall_s": first["wall_s"],
        "first_cpu_s": first["cpu_s"],
        "passes": [(row.name, row.total_ns / 1e9) for row in summary.passes[:10]],
    }
    for key in ("wall_s", "cpu_s"):
        result[f"ratios_{key}"] = [on[key] / off[key] for off, on in pairs]
        result[f"plain_{key}"] = [off[key] for off, _ in pairs]
    profile.report(file=sys.stdout)
    print()
    print(f"first compile: {first['wall_s']:.2f} s wall, {first['cpu_s']:.2f} s CPU, {spans} spans")
    print(f"accounted: {share:.1%} of first step minus second ({summary.accounted:.1%} by the profile's own clock)")
    for key, name in (("wall_s", "wall"), ("cpu_s", "CPU")):
        if pairs:
            ratios = ", ".join(f"{ratio:.3f}" for ratio in result[f"ratios_{key}"])
            print(f"with over without, {name}: median {statistics.median(result[f'ratios_{key}']):.3f} of {ratios}")
    cost = spans * result["span_us"] / 1e6
    print(f"one span costs {result['span_us']:.1f} us, {spans} of them {cost / first['cpu_s']:.3%} of the CPU time")
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
