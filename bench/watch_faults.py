"""What `graphprobe watch` says of six faults in three models, and of the same models without a fault.

    python bench/watch_faults.py [--models gpt,vit,lstm] [--faults …] [--steps 400] [--healthy 1000] [--json FILE]

Each training (watch_faults_program.py) runs under the command, as a user runs it. A fault is named if the answer has
its step, operation, line, module, and whether the uncompiled program does it, too, as far as the fault has these: a bad
batch has no operation, a signal no compiler. A healthy training must have no trigger.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import watch_faults_program as program

HERE = Path(__file__).parent
SOURCE = HERE / "watch_faults_program.py"
MODELS, FAULTS = ("gpt", "vit", "lstm"), ("overflow", "batch", "kernel", "spoilt", "exception", "killed")
SHADOW, EVERY, KEEP = 20, 20, 3
OPTIONS = {"kernel": ["--shadow", str(SHADOW)], "spoilt": ["--every", str(EVERY), "--keep", str(KEEP)]}
MOST_LOST = 4
"""Observations of the last hundredth of a second, which a process that is killed does not come to write."""

HEALTHY = ["--on", "nan,spike=50,exception,signal", "--shadow", "100"]


def line_of(text: str) -> str:
    (number,) = [i for i, line in enumerate(SOURCE.read_text("utf-8").splitlines(), 1) if text in line]
    return f"{SOURCE.name}:{number}"


def watched(model: str, fault: str, steps: int, options: list[str]) -> dict[str, Any]:
    """The document of a watched training."""
    graphprobe = [sys.executable, "-m", "graphprobe", "watch"]
    with tempfile.TemporaryDirectory() as folder:
        words = [*graphprobe, "-q", "-o", folder, *options, str(SOURCE), model, fault, str(steps)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        shown = subprocess.run([*graphprobe, folder, "--json"], capture_output=True, text=True, check=False)
    try:
        return {**json.loads(shown.stdout), "code": done.returncode, "err": done.stderr[-2000:]}
    except json.JSONDecodeError:
        return {"answer": None, "crash": [], "observations": [], "err": (done.stderr + shown.stderr)[-2000:]}


def lacking(fault: str, seen: dict[str, Any]) -> list[str]:
    """What the document does not say of a fault."""
    answer, first = seen["answer"] or {}, (seen["answer"] or {}).get("operation") or {}
    if fault == "killed":
        last = max((one["step"] for one in seen["observations"]), default=0)
        wrong = {
            "step": not program.KILLED - MOST_LOST <= last < program.KILLED,
            "line": not any("os.kill" in x or "main" in x for x in seen["crash"]),
        }
        return [name for name, lost in wrong.items() if lost]
    steps = {"overflow": program.OVERFLOW, "batch": program.BAD, "spoilt": program.SHOWN, "exception": program.RAISED}
    here, source = answer.get("step"), first.get("source", "")
    late = fault == "kernel" and here is not None and program.SHAPE <= here < program.SHAPE + SHADOW
    wrong = {"step": not (late or here == steps.get(fault))}
    wrong["uncompiled"] = answer.get("uncompiled") != ("no" if fault == "kernel" else "yes")
    if fault in ("overflow", "kernel"):
        wrong["operation"] = ("exp" if fault == "overflow" else "tanh") not in first.get("op", "")
        text = "grown = torch.exp(" if fault == "overflow" else "return torch.tanh(grown"
        wrong["line"] = not source.endswith(line_of(text))
        wrong["module"] = "gate" not in first.get("module", "")
    elif fault == "exception":
        wrong["operation"], wrong["module"] = "Error" not in first.get("op", ""), "ids" not in first.get("module", "")
        wrong["line"] = SOURCE.name not in source
    elif fault == "batch":
        wrong["argument"] = not any("of the arguments" in name for name in answer.get("state", []))
    else:
        wrong["parameter"] = answer.get("state") != ["ids.weight"]
        wrong["since"] = not any("ids.weight was finite before step" in note for note in answer.get("notes", []))
    return [name for name, lost in wrong.items() if lost]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--healthy", type=int, default=1000, help="steps of the trainings without a fault; 0: none")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    rows, named, triggered = [], 0, 0
    for model in options.models.split(","):
        for fault in filter(None, options.faults.split(",")):
            began, seen = time.monotonic(), watched(model, fault, options.steps, OPTIONS.get(fault, []))
            lost = lacking(fault, seen)
            named += not lost
            words = "named" if not lost else f"not named: {', '.join(lost)}"
            print(f"{model:5} {fault:10} {time.monotonic() - began:6.0f} s  {words}", flush=True)
            rows.append({"model": model, "fault": fault, "lacking": lost, **(seen if lost else {})})
        if options.healthy:
            seen = watched(model, "none", options.healthy, HEALTHY)
            wrong = seen["answer"] is not None or not seen["observations"]
            triggered += wrong
            print(f"{model:5} healthy    {'a trigger' if wrong else 'silent'}", flush=True)
            rows.append({"model": model, "fault": "none", **(seen if wrong else {})})
    print(f"named {named} of {sum(row['fault'] != 'none' for row in rows)}; triggers in healthy runs: {triggered}")
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1), "utf-8")


if __name__ == "__main__":
    main()
