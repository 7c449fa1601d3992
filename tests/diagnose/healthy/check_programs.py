#!/usr/bin/env python
"""check_programs.py [FAMILY[_PRECISION[_MODE]] ...]: does stock torch compile these programs rightly?

Each runs uncompiled, compiled, and in float64 with the same weights; all three draw the same dropout. A line says how
far off the worst tensor is (of loss, outputs, gradients), as a share of its norm, uncompiled and compiled. It is right
when the compiled one is off by no more than four times what the uncompiled one is, or by no more than some roundings,
and Dynamo made a graph of it.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from families import FAMILIES, PRECISIONS, cast
from programs import MODES, Autocast, make
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor import config
from torch.utils._pytree import tree_leaves

ROUNDINGS = {"fp32": 64 * 2.0**-24, "bf16": 4 * 2.0**-9, "autocast": 4 * 2.0**-9}
"""A share of the norm that needs no excuse."""


def module_of(program: Callable[..., Any]) -> nn.Module:
    """The module that a program is, or that its step closes over."""
    cells = [] if isinstance(program, nn.Module) else [cell.cell_contents for cell in program.__closure__ or ()]
    return next(x for x in [program, *cells] if isinstance(x, nn.Module))


def results(family: str, precision: str, mode: str, kind: str) -> dict[str, Tensor]:
    """What a program gives, by name, in float64; `kind` is `eager`, `compiled` or `double`."""
    program, _, batch = make(family, precision, mode)
    module = module_of(program)
    if kind == "double":
        module.double()
        if isinstance(module, Autocast):
            module.forward = module.model.forward
        for part in module.modules():
            if hasattr(part, "set_experts_implementation"):
                part.set_experts_implementation("eager")  # the other one has no float64
        batch = cast(batch, torch.float64)
    run = torch.compile(program) if kind == "compiled" else program
    torch.manual_seed(1)
    out = run(**batch)
    if mode == "training":
        out.backward()
    found = {f"output {i}": x for i, x in enumerate(tree_leaves(out)) if isinstance(x, Tensor)}
    found |= {f"gradient of {name}": x.grad for name, x in module.named_parameters() if x.grad is not None}
    return {name: x.detach().double() for name, x in found.items()}


def off(found: dict[str, Tensor], true: dict[str, Tensor], name: str) -> float:
    """How far off a tensor is, as a share of its norm; gradients that are next to nothing count by the largest one."""
    largest = max(float(x.norm()) for key, x in true.items() if key.split()[0] == name.split()[0])
    return float((found[name] - true[name]).norm()) / max(float(true[name].norm()), 1e-3 * largest, 1e-30)


def check(family: str, precision: str, mode: str) -> bool:
    start = time.perf_counter()
    torch.compiler.reset()
    counters.clear()
    eager, compiled, true = (results(family, precision, mode, kind) for kind in ("eager", "compiled", "double"))
    graphs = counters["stats"]["unique_graphs"]
    right = eager.keys() == compiled.keys() == true.keys() and graphs > 0
    excess = {name: off(compiled, true, name) / max(4 * off(eager, true, name), ROUNDINGS[precision]) for name in true}
    worst = max(excess, key=lambda name: math.inf if math.isnan(excess[name]) else excess[name])
    right = right and excess[worst] <= 1
    share = [f"{off(x, true, worst):.1e}" for x in (eager, compiled)]
    seconds = time.perf_counter() - start
    name = f"{family}_{precision}_{mode}"
    print("right" if right else "WRONG", name, *share, worst, f"{graphs} graphs, {seconds:.0f} s", flush=True)
    return right


def main(asked: list[str]) -> int:
    config.fallback_random = True
    torch._dynamo.config.recompile_limit = 64
    names = [(family, precision, mode) for family in FAMILIES for precision in PRECISIONS for mode in MODES]
    chosen = [x for x in names if not asked or any(f"{'_'.join(x)}_".startswith(f"{name}_") for name in asked)]
    wrong = [name for name in chosen if not check(*name)]
    return 1 if wrong or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
