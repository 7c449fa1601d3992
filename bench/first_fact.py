"""How soon does `graphprobe diagnose` say what is wrong, beside the program itself, which shows the failure?

    python bench/first_fact.py [--cases NAME ...] [--rounds 1] [--json FILE]

Twelve programs: six faults, each in one layer and in the middle of a model of twelve. `plain`: seconds from the start
of `python` to the end of the program, which dies of its exception, or has run uncompiled and compiled and says how far
they are apart. `first fact`: seconds from the start of `graphprobe diagnose` to its line `compiled, …`, where it is
ended by SIGTERM. By turns, each with an empty cache of Inductor, and with graphprobe's bytecode on disk as torch's is,
where pip leaves it.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import graphprobe

FACT = re.compile(r"\bcompiled, ")
RATIO = 1.25
"""What `first fact` may take of `plain`."""

PROGRAM = '''
"""program.py FAULT LAYERS"""
import copy
import os
import sys

import torch
import torch._inductor.config as config
from torch._inductor.custom_graph_pass import CustomGraphPass

fault, layers = sys.argv[1], int(sys.argv[2])


class Pass(CustomGraphPass):
    """Multiplies the first sum over rows."""

    def __call__(self, graph):
        tangents = any("tangents" in node.name for node in graph.nodes if node.op == "placeholder")
        sums = [node for node in graph.nodes if node.target is torch.ops.aten.sum.dim_IntList]
        if tangents and sums:
            with graph.inserting_after(sums[0]):
                wrong = graph.call_function(torch.ops.aten.mul.Tensor, (sums[0], 1.01))
            sums[0].replace_all_uses_with(wrong)
            wrong.args = (sums[0], 1.01)

    def uuid(self):
        return b"wrong"


class Block(torch.nn.Module):
    def __init__(self, odd):
        super().__init__()
        self.odd = odd
        self.norm = torch.nn.LayerNorm(24)
        self.a, self.b = torch.nn.Linear(24, 48), torch.nn.Linear(48, 24)

    def forward(self, x):
        h = torch.nn.functional.gelu(self.a(self.norm(x)))
        if self.odd:
            h = torch.relu(h) + torch.cumsum(h[..., :10], 1).mean(1, keepdim=True).sum(-1, keepdim=True)
            if fault == "dynamo":
                torch._dynamo.graph_break()
        return x + self.b(h)


if fault in ("compile_error", "runtime_error", "accuracy"):
    config.cpp.inject_relu_bug_TESTING_ONLY = fault
elif fault == "gradient":
    config.post_grad_custom_post_pass = Pass()
elif fault == "lowering":
    from torch._inductor.lowering import register_lowering

    @register_lowering(torch.ops.aten.cumsum.default, type_promotion_kind=None)
    def cumsum(x, axis=None, dtype=None):
        raise AssertionError("tile mismatch")

torch.manual_seed(0)
net = torch.nn.Sequential(*[Block(index == layers // 2) for index in range(layers)])
other, x = copy.deepcopy(net), torch.randn(2, 20, 24)
if fault in ("accuracy", "gradient") and os.environ["PLAIN"]:
    other(x).square().mean().backward()
compiled = torch.compile(net, fullgraph=True)
compiled(x).square().mean().backward()
if fault in ("accuracy", "gradient"):
    pairs = [(p.grad, q.grad) for p, q in zip(net.parameters(), other.parameters()) if q.grad is not None]
    print("apart by", max((float((p - q).abs().max()) for p, q in pairs), default=0.0))
'''
FAULTS = ("dynamo", "lowering", "compile_error", "runtime_error", "accuracy", "gradient")
CASES = {f"{fault}-{layers}": (fault, str(layers)) for layers in (1, 12) for fault in FAULTS}


def timed(words: list[str], folder: str, *, fact: bool) -> float:
    """Seconds to the end of the program; of its diagnosis, to the first fact, NaN where there is none."""
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "kernels"), "PLAIN": "" if fact else "1"}
    command = [sys.executable, *(["-m", "graphprobe", "diagnose"] if fact else []), "program.py", *words]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    found, started = float("nan"), time.monotonic()
    with subprocess.Popen(command, cwd=folder, env=env, **pipes) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if fact and FACT.search(line) and found != found:
                found = time.monotonic() - started
                run.send_signal(signal.SIGTERM)
    return found if fact else time.monotonic() - started


def row(name: str, rounds: int) -> dict[str, Any]:
    """Medians of the rounds of one case."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for fact, of in seconds.items():
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "program.py").write_text(PROGRAM, encoding="utf-8")
                of.append(timed([*CASES[name]], folder, fact=fact))
    plain, first = statistics.median(seconds[False]), statistics.median(seconds[True])
    return {"case": name, "plain": plain, "first": first, "ratio": first / plain}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", choices=tuple(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    compileall.compile_dir(graphprobe.__path__[0], quiet=1)
    rows = []
    print("| program | plain, s | first fact, s | × plain |\n|---|---|---|---|", flush=True)
    for name in options.cases:
        rows.append(one := row(name, options.rounds))
        print("|", " | ".join([name, *(f"{one[key]:.2f}" for key in ("plain", "first", "ratio"))]), "|", flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(f"{sum(one['ratio'] <= RATIO for one in rows)} of {len(rows)} within {RATIO} times plain")


if __name__ == "__main__":
    main()
