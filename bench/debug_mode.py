"""Torch's own DebugMode beside graphprobe's dump of calls: what a step costs, and what each names of planted faults.

    python bench/debug_mode.py [cost] [faults] [--rounds 7] [--only NAME...]

`cost`: a training step of the models of `api_dump.py`, plain, under `torch.utils._debug_mode.DebugMode` with a hash of
each result, and under `graphprobe.dump` with statistics of each call; by turns, one of each a round. A ratio is the
median over the rounds of a step's time over that of the plain step of its round, and counts all that is written.

`faults`: the GPT and the faults of `compare_faults.py`. DebugMode holds the hashes of two runs against each other by
`check_hash_mismatches`, which ends at the first operation that the other run has not. Its answer is the first mismatch,
or that operation, with the module that DebugMode recorded around it; `named`, `other` and `silent` are those of
`compare_faults.py`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from api_dump import Training, models, timed
from compare_faults import DTYPES, NONE, _answer, chosen, graphprobe_answers, programs
from torch.utils._debug_mode import DebugMode

import graphprobe

TORCH, OURS = "DebugMode, hashes", "graphprobe.dump, statistics"


def recorded(run: Callable[[], object]) -> list[Any]:
    """What DebugMode writes down of a run: operations with hashes of their results, and the modules around them."""
    with DebugMode(record_nn_module=True) as mode, DebugMode.log_tensor_hashes():
        run()
    return list(mode.logs)


def cost(rounds: int) -> None:
    """Print a table for each model."""
    torch.set_num_threads(1)
    for name, make in models(4).items():
        training, folder = make(), Path(tempfile.mkdtemp())
        seconds: dict[str, list[float]] = {"plain": [], TORCH: [], OURS: []}
        for number in range(rounds + 2):
            taken = {"plain": timed(training.step)[0], TORCH: timed(partial(recorded, training.step))[0]}
            taken[OURS] = timed(partial(dumped, training, folder / "dump"))[0]
            shutil.rmtree(folder / "dump")
            if number >= 2:  # the first are for caches
                for way, time in taken.items():
                    seconds[way].append(time)
        shutil.rmtree(folder)
        print(f"| {name} | ms | ratio |\n|---|---|---|")
        for way, times in seconds.items():
            ratio = statistics.median(t / plain for t, plain in zip(times, seconds["plain"], strict=True))
            print(f"| {way} | {1e3 * statistics.median(times):.1f} | {ratio:.2f} |")
        print(flush=True)


def dumped(training: Training, path: Path) -> None:
    """A step under a dump, until its last byte is written."""
    with graphprobe.dump(path, level="api"):
        training.step()


def first_accused(logs: list[Any], reference: list[Any]) -> list[str]:
    """The module of the first difference that `check_hash_mismatches` knows of; nothing where it knows none."""
    places = [place for place, call in enumerate(logs) if getattr(call, "log", None)]
    try:
        if not DebugMode.check_hash_mismatches(logs, reference):
            return []
    except ValueError as error:
        found = re.search(r"at index (\d+)", str(error))
        return [module_at(logs, int(found[1]) if found else min(len(logs), len(reference)))]
    pairs = ((place, DebugMode.check_hash_mismatches([logs[place]], [reference[place]])) for place in places)
    return [module_at(logs, next(place for place, mismatches in pairs if mismatches))]


def module_at(logs: list[Any], place: int) -> str:
    """The path of the module that ran at a place of the record; empty outside of all modules."""
    depth = logs[place].call_depth if place < len(logs) else 0
    for call in reversed(logs[:place]):
        if type(call).__name__ == "_AnnotateCall" and call.call_depth <= depth:
            return str(call.tag).partition(".")[2]
    return ""


def faults(only: list[str] | None) -> None:
    """Print a table for each dtype, as `compare_faults.py` does."""
    planted = chosen(only)
    answers: dict[str, dict[tuple[str, str], str]] = {TORCH: {}}
    reference: list[Any] = []
    for name, dtype, run in programs(planted):
        assert run.before is not None
        model = run.before()
        logs = recorded(partial(run.inside, model))
        if dtype == "reference":
            reference = logs
        else:
            answers[TORCH][name, dtype] = _answer(first_accused(logs, reference), planted[name])
    with tempfile.TemporaryDirectory() as folder:
        answers[OURS] = graphprobe_answers("stats", planted, Path(folder))
    for dtype in DTYPES:
        print(f"| {dtype} against float32 | {' | '.join(answers)} |\n|---|---|---|")
        for name in planted:
            print(f"| {name} | {' | '.join(of[name, dtype] for of in answers.values())} |")
        sums = (sum(of[name, dtype].startswith("named") for name in planted if name != NONE) for of in answers.values())
        print(f"| named, of {len(planted) - 1} | {' | '.join(map(str, sums))} |\n")


def main() -> None:
    """See the top."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=("cost", "faults"), default=["cost", "faults"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", metavar="NAME")
    given = parser.parse_args()
    if "cost" in given.what:
        cost(given.rounds)
    if "faults" in given.what:
        faults(given.only)


if __name__ == "__main__":
    main()
