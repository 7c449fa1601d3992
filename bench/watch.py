"""What it costs to watch a training: step time watched and not, by turns in one run.

    python bench/watch.py [--layers 4] [--rounds 40] [--json FILE]

The model is `gpt` of bench/api_dump.py (d=256, batch 8 x 128), compiled with Inductor, trained with AdamW in one
thread. It takes a step that is watched and one while the watch looks away, each first in every second round, behind a
step that is not measured. (Two trainings that are the same differ by up to 1 % by where their memory is.) A ratio is
the median over the rounds of a watched step's time divided by that of the other step of its round. `observed` is a step
of which loss and gradients are seen; `each parameter` is one in which the norms and digests of all parameters are, too;
`copy` is a step that begins with a fork of the program, which `--keep` asks for; `shadow` is one whose call
is made uncompiled as well. `every 50` is what these come to with `--every 50`, without and with copies; `shadow 100` is
one `shadow` step in a hundred. `cpu` is the ratio of processor time, that of child processes included, which is what to
look at on a machine with other work. The first line is the memory that belongs to a sleeping copy alone when the
training has made ten more steps, beside the bytes of parameters and moments; the rest is memory that gradients and
activations were put into.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from api_dump import Training, models

import graphprobe

EVERY, SHADOW = 50, 100
AIMS = {"every 50": 1.01, "with copies": 1.03, "shadow 100": 1.03}
KEEP = 2


def timed(run: Callable[[], None]) -> tuple[float, float]:
    """Wall and processor time in seconds, with that of the children that have ended."""
    wall, before = time.perf_counter(), _processor_s()
    run()
    return time.perf_counter() - wall, _processor_s() - before


def _processor_s() -> float:
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def compiled(layers: int) -> Training:
    training = models(layers)["gpt"]()
    training.model = torch.compile(training.model)
    training.step()
    training.step()
    return training


def _own_mib(watch: Any) -> float:
    """What the newest copy shares with no other process, in MiB."""
    with open(f"/proc/{watch._sleepers._asleep[-1].process}/smaps_rollup", encoding="ascii") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private_")) / 1024


def _changed_mib(training: Training) -> float:
    parameters = [*training.model.parameters()]
    moments = [v for state in training.optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    return sum(t.nbytes for t in (*parameters, *moments)) / 2**20


def measured(layers: int, rounds: int) -> dict[str, dict[str, float]]:
    taken: dict[str, list[tuple[float, float, float, float]]] = {
        "observed": [],
        "each parameter": [],
        "copy": [],
        "shadow": [],
    }
    with tempfile.TemporaryDirectory() as folder, graphprobe.watch(out_dir=folder, quiet=True) as watch:
        watched = compiled(layers)

        def step_with_a_copy() -> None:
            watch._keep = KEEP
            watch._put_to_sleep()
            watch._keep = 0
            watched.step()

        for _ in range(rounds):
            for way in ("observed", "each parameter", "observed", "copy", "observed", "shadow"):
                seen = taken[way]
                watch._every = 1 if way == "each parameter" else rounds * 10_000
                watch._shadow = int(way == "shadow")
                runs = {True: watched.step, False: step_with_a_copy if way == "copy" else watched.step}
                watch.ended = True
                watched.step()
                pair = {}
                for watch.ended in (True, False) if len(seen) % 2 else (False, True):
                    pair[watch.ended] = timed(runs[watch.ended])
                seen.append((*pair[False], *pair[True]))
        taken = {way: seen[3 if way == "observed" else 1 :] for way, seen in taken.items()}
        step_with_a_copy()
        for _ in range(10):
            watched.step()
        print(f"memory of a copy {_own_mib(watch):.0f} MiB, of parameters and moments {_changed_mib(watched):.0f} MiB")
        assert watch.answer is None
        assert watch._writer is not None and not watch._writer.manifest.notes
    figures: dict[str, dict[str, float]] = {}
    for way, seen in taken.items():
        wall, cpu = (statistics.median(one[i] / one[i + 2] for one in seen) for i in (0, 1))
        figures[way] = {"wall": wall, "cpu": cpu, "step_ms": 1e3 * statistics.median(one[2] for one in seen)}
    seldom = {"every 50": ["each parameter"], "with copies": ["each parameter", "copy"], "shadow 100": ["shadow"]}
    for name, ways in seldom.items():
        parts = [figures["observed"]] * ((SHADOW if "shadow" in ways else EVERY) - len(ways))
        parts += [figures[way] for way in ways]
        figures[name] = {key: statistics.mean(part[key] for part in parts) for key in ("wall", "cpu")}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, Any] = measured(options.layers, options.rounds)
    for way, values in figures.items():
        aim = f"   aim {AIMS[way]}" if way in AIMS else ""
        print(f"{way:16}", *(f"{key} {value:8.4f}" for key, value in values.items()), aim)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)


if __name__ == "__main__":
    main()
