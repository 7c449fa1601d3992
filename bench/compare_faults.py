"""Faults planted in a GPT: which comparison names each one, graphprobe's or msprobe's, and which says nothing.

    python bench/compare_faults.py [--msprobe PYTHON] [--only NAME...] [--folder DIR]

One training step of the GPT of tests/compare/gpt_faults.py is dumped as it is and with each fault of that file, in
float32 and with the model in bfloat16, and held against the float32 run without a fault: by values, and by statistics.
An answer is

    named   the first call that is accused lies in the module that has the fault
    other   something else is accused first
    silent  nothing is accused

`more` counts the causes that graphprobe gives beside the first, which should be none. With `--msprobe PYTHON`, an
interpreter that has `mindstudio-probe`, the same programs are dumped and compared by that, at its level `mix`; it
accuses the first row of its table that did not pass. The last row, `none`, is the program without a fault: `silent` is
right there.

With `--training`, the changes and rewritings of tests/compare/gpt_training.py are planted in a training of two steps
instead, by values and by statistics: the outcome, whether the first finding is of the call that has the change, and
that finding.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT / "tests")  # in place of this folder, whose compare.py hides the package of the tests

from compare.gpt_faults import FAULTS, Planted, gpt  # noqa: E402
from compare.pairs import compared, dumped  # noqa: E402

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
NONE = "none"
DATA = {"tensor": "values", "stats": "statistics"}


def chosen(only: list[str] | None) -> dict[str, Planted]:
    """The faults to plant, by name, and the program without one as the last."""
    unknown = [name for name in only or () if name not in FAULTS]
    if unknown:
        raise SystemExit(f"no such fault: {unknown[0]}; there are {', '.join(FAULTS)}")
    faults = {name: fault for name, fault in FAULTS.items() if not only or name in only}
    return {**faults, NONE: Planted(lambda model: None, "no module")}


def programs(faults: dict[str, Planted]) -> Iterator[tuple[str, str, Any]]:
    """Fault, dtype and program; the reference comes first."""
    yield NONE, "reference", gpt()
    for dtype, of in DTYPES.items():
        for name, fault in faults.items():
            yield name, dtype, gpt(of, fault.plant)


def graphprobe_answers(data: str, faults: dict[str, Planted], folder: Path) -> dict[tuple[str, str], str]:
    """By fault and dtype."""
    from graphprobe.compare.open import open_dump
    from graphprobe.compare.options import Options
    from graphprobe.compare.result import UNDECIDED_KINDS
    from graphprobe.compare.run import compare_dumps
    from graphprobe.diagnose.call_replay import TorchReplayer

    answers = {}
    for number, (name, dtype, run) in enumerate(programs(faults)):
        dumped(run, folder / str(number), data=data)
        if dtype == "reference":
            continue
        options = Options(replayer=TorchReplayer())
        with compare_dumps(open_dump(folder / str(number)), open_dump(folder / "0"), options) as comparison:
            summary = comparison.summary
        accused = [finding for finding in summary.findings if finding.kind not in UNDECIDED_KINDS]
        modules = [call.module for f in accused[:1] for call in (f.candidate, f.reference) if call is not None]
        answer = _answer(modules, faults[name]) + (f", {len(accused) - 1} more" if len(accused) > 1 else "")
        answers[name, dtype] = answer + (", undecided" if summary.outcome == "undecided" else "")
    return answers


def _answer(modules: list[str], fault: Planted) -> str:
    if not modules:
        return "silent"
    return "named" if any(module.startswith(fault.module) for module in modules) else "other"


def training_answers(data: str, name: str, folder: Path, reference: Path) -> str:
    """The outcome, `named` or `other`, and the first finding."""
    from compare.gpt_training import FAULTS as CHANGES
    from compare.gpt_training import dumped as trained

    summary = compared(trained(name, folder, data), reference)
    first = summary.first
    if first is None:
        return summary.outcome
    right = "named" if name in CHANGES and CHANGES[name].names(first) else "other"
    call = first.candidate or first.reference
    return f"{summary.outcome}, {right}: {first.kind} {call.label if call is not None else ''}, step {first.step}"


def print_training(only: list[str] | None, folder: Path) -> None:
    """One line a change, then those that change nothing."""
    from compare.gpt_training import FAULTS as CHANGES
    from compare.gpt_training import HEALTHY
    from compare.gpt_training import dumped as trained

    print(f"| change | {' | '.join(DATA.values())} |\n|---|---|---|")
    for name in [n for n in (*CHANGES, *HEALTHY) if not only or n in only]:
        answers = []
        for data in DATA:
            for side in (NONE, name):
                (folder / data / side).mkdir(parents=True, exist_ok=True)
            reference = folder / data / NONE / "dump"
            reference = reference if reference.exists() else trained(NONE, folder / data / NONE, data)
            answers.append(training_answers(data, name, folder / data / name, reference))
        print(f"| {name} | {' | '.join(answers)} |", flush=True)


def msprobe_answers(python: str, data: str, faults: dict[str, Planted], folder: Path) -> dict[tuple[str, str], str]:
    """By fault and dtype."""
    only = [name for name in faults if name != NONE]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])}
    command = [python, __file__, "--by-msprobe", data, "--folder", str(folder), "--only", *only]
    _run(command, environment)
    answers = {}
    for number, (name, dtype, _) in enumerate(programs(faults)):
        if dtype != "reference":
            (table,) = (folder / f"out{number}").glob("*.csv")
            (tree,) = (folder / "dump" / f"step{number}").rglob("construct.json")
            answers[name, dtype] = _answer(_first_accused(table, json.loads(tree.read_text())), faults[name])
    return answers


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=900)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")


def _first_accused(table: Path, parents: dict[str, Any]) -> list[str]:
    """The module of the first row that did not pass; nothing if all did."""
    with open(table, newline="") as file:
        for row in csv.DictReader(file):
            if row["Result"] not in ("pass", "", "N/A") or row.get("Accuracy Reached or Not") == "No":
                name = row["NPU Name"] if row["NPU Name"] != "N/A" else row["Bench Name"]
                return [_module_of(name, parents)]
    return []


def _module_of(name: str, parents: dict[str, Any]) -> str:
    """`Functional.linear.5.forward.input.0` -> the path of the module that it was called in."""
    call = name
    while call and call not in parents:
        call = call.rpartition(".")[0]
    parent = parents.get(call)
    module = call if call.startswith("Module.") else parent[0] if isinstance(parent, list) else parent or ""
    return ".".join(str(module).split(".")[1:-3])  # without `Module.` and the class, direction and number at the end


def compare_by_msprobe(data: str, faults: dict[str, Planted], folder: Path) -> None:
    """Dump each program as one step, and compare each step with the first. Runs in the interpreter that has msprobe."""
    import msprobe.msprobe
    from msprobe.pytorch import PrecisionDebugger

    task = {"tensor": "tensor", "stats": "statistics"}[data]
    settings = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    config = {"task": task, "dump_path": str(folder / "dump"), "rank": [], "step": [], "level": "mix", task: settings}
    (folder / "config.json").write_text(json.dumps(config))
    debugger = PrecisionDebugger(config_path=str(folder / "config.json"))
    runs = list(programs(faults))
    for _, _, run in runs:
        model = run.before()
        debugger.start(model)
        run.inside(model)
        debugger.stop()
        debugger.step()
    for number in range(1, len(runs)):
        out = folder / f"out{number}"
        out.mkdir()
        sides = [str(folder / "dump" / f"step{step}") for step in (number, 0)]
        sys.argv = ["msprobe", "compare", "-tp", sides[0], "-gp", sides[1], "-o", str(out)]
        msprobe.msprobe.main()


def main() -> None:
    """See the top."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--msprobe", metavar="PYTHON")
    parser.add_argument("--only", nargs="*", metavar="NAME")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--by-msprobe", choices=DATA, help=argparse.SUPPRESS)
    parser.add_argument("--training", action="store_true")
    given = parser.parse_args()
    if given.training:
        with tempfile.TemporaryDirectory(dir=given.folder) as name:
            print_training(given.only, Path(name))
        return
    faults = chosen(given.only)
    os.umask(0o027)  # msprobe refuses what others can write to
    if given.by_msprobe:
        compare_by_msprobe(given.by_msprobe, faults, given.folder)
        return
    columns: dict[str, dict[tuple[str, str], str]] = {}
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        for data, words in DATA.items():
            for tool in ("graphprobe", "msprobe") if given.msprobe else ("graphprobe",):
                folder = Path(name, tool, data)
                folder.mkdir(parents=True)
                if tool == "graphprobe":
                    columns[f"{tool}, {words}"] = graphprobe_answers(data, faults, folder)
                else:
                    columns[f"{tool}, {words}"] = msprobe_answers(given.msprobe, data, faults, folder)
    for dtype in DTYPES:
        print(f"| {dtype} against float32 | {' | '.join(columns)} |")
        print("|---" * (1 + len(columns)) + "|")
        for fault in faults:
            print(f"| {fault} | {' | '.join(answers[fault, dtype] for answers in columns.values())} |")
        sums = (sum(a[f, dtype].startswith("named") for f in faults if f != NONE) for a in columns.values())
        print(f"| named, of {len(faults) - 1} | {' | '.join(map(str, sums))} |\n")


if __name__ == "__main__":
    main()
