"""How many runs mixing takes to find the faulty kernels of a compiled transformer, beside a bisection that compiles.

    python bench/mixing.py [--layers 6] [--faults 1 2 3] [--seed 0] [--json FILE]

Faults are planted in the C++ of single launches: one element of a kernel's last output is wrong. *mixing* is what
`diagnose` does: the compiled graph is run with ever other launches replaced, nothing is compiled. *recompile* is what
there is without it: the graph is compiled again for every question with the code generation of some of the kernels
repaired, in the same search over generated kernels only, and the outputs are judged in the same way. Both have the
compiled graph, its inputs and the uncompiled run to begin with; that is not counted. Times are of one process with one
thread, wall seconds, both in the same run of this script.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "diagnose"))

import mixing_cases
import planting

from graphprobe.diagnose.kernel_check import CompiledGraph, WholeGraph
from graphprobe.diagnose.searches.kernel_names import mix
from graphprobe.engine.interpret import GraphRun, run_graph


def compile_with(faults: Collection[int], layers: int) -> CompiledGraph:
    """The transformer with these of its kernels wrong, counted from 0 in the order of their launches."""
    model, x = mixing_cases.transformer(layers)
    torch._dynamo.reset()
    with planting.kernel(lambda number, _: number in faults):
        return mixing_cases.compiled_graphs(model, [x])[0]


def kernels_of(compiled: CompiledGraph) -> list[int]:
    """Positions of the generated kernels among the launches."""
    from graphprobe.engine.replaced_launches import MixedGraph

    assert compiled.lowered is not None and compiled.compiled is not None
    launches = MixedGraph(compiled.lowered, compiled.compiled).launches
    return [at for at, launch in enumerate(launches) if launch.io.kind == "kernel"]


def by_compiling(faults: Collection[int], kernels: int, layers: int, run: GraphRun) -> tuple[set[int], int]:
    """The faulty kernels, and how often the graph was compiled: the same search, kernels repaired at compile time."""
    compiles = 0
    found: set[int] = set()

    def wrong(repaired: Collection[int]) -> bool:
        nonlocal compiles
        compiles += 1
        compiled = compile_with(set(faults) - set(repaired), layers)
        error = WholeGraph(compiled, 0, run).judge(compiled.outputs[0], compiled.after[0])
        return error.answer == "worse"

    right = kernels
    while wrong(found):
        low = 0
        while right - low > 1:
            middle = (low + right) // 2
            low, right = (middle, right) if wrong({*range(middle), *found}) else (low, middle)
        found.add(right - 1)
        right -= 1
    return found, compiles


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def row(faults: list[int], layers: int) -> dict[str, Any]:
    """Both searches for one set of faults."""
    compiled = compile_with(faults, layers)
    run = run_graph(compiled.final, compiled.inputs[0])
    positions = kernels_of(compiled)
    report, mixing_s = timed(lambda: mix(compiled, 0, run))
    expected = {positions[number] for number in faults}
    (found, compiles), compiling_s = timed(lambda: by_compiling(faults, len(positions), layers, run))
    return {
        "faults": len(faults),
        "launches": report.launches,
        "kernels": len(positions),
        "mixing": {
            "found": len(expected & {launch.position for launch in report.found}),
            "wrongly": len({launch.position for launch in report.found} - expected),
            "runs": report.runs,
            "compiles": report.compilations,
            "seconds": round(mixing_s, 2),
        },
        "recompile": {
            "found": len(found & set(faults)),
            "wrongly": len(found - set(faults)),
            "compiles": compiles,
            "seconds": round(compiling_s, 2),
        },
        "limit_runs": round(len(faults) * (2 * math.log2(report.launches) + 4), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--faults", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    draw = random.Random(given.seed)
    kernels = len(kernels_of(compile_with((), given.layers)))
    rows = []
    for count in given.faults:
        made = row(sorted(draw.sample(range(kernels), count)), given.layers)
        rows.append(made)
        mixing, other = made["mixing"], made["recompile"]
        print(
            f"{count} fault(s), {made['launches']} launches: mixing {mixing['found']}/{count} in {mixing['runs']} runs "
            f"(limit {made['limit_runs']}), {mixing['compiles']} compiles, {mixing['seconds'] / count:.2f} s a fault; "
            f"recompile {other['found']}/{count} in {other['compiles']} compiles, {other['seconds'] / count:.2f} s a "
            f"fault; {other['seconds'] / mixing['seconds']:.1f}x",
            flush=True,
        )
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
