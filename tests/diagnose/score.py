"""What `graphprobe.diagnose` makes of the cases: found, stage, op, kind, repro; and which healthy programs it accuses.

python tests/diagnose/score.py [FOLDER | NAME]… [--out FILE] [--jobs N]
python tests/diagnose/score.py --of RESULTS.xml: rows that `pytest --junitxml RESULTS.xml` recorded (judged_cases.py)
python tests/diagnose/score.py --table FILE…: the workarounds in what `--out` has written, here or of a ward
folders: planted, tracker, controls, injected
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import bare
import cases

FOLDERS = cases.FOLDERS


def located(name: str) -> Path:
    if name.endswith(".py"):
        return Path(name)
    found = next((cases.path(folder, name) for folder in FOLDERS if name in cases.names(folder)), None)
    if found is None:
        raise SystemExit(f"there is no case {name!r} in {', '.join(FOLDERS)}")
    return Path(found)


def child(name: str, out: str) -> None:
    import graphprobe

    case = cases.load(located(name))
    fn, args, *rest = case.make()
    kwargs: dict[str, Any] = rest[0] if rest else {}
    extra: dict[str, Any] = {}
    if hasattr(case, "extra_calls"):
        extra["calls"] = [(args, kwargs), *case.extra_calls()]
    if hasattr(case, "between"):
        extra["between"] = case.between
    settings = dict(getattr(case, "COMPILE", {}))
    plant = getattr(case, "plant", contextlib.nullcontext)
    with plant():
        found = graphprobe.diagnose(
            fn,
            *args,
            grad=getattr(case, "GRAD", False),
            backend=getattr(case, "BACKEND", "inductor"),
            dynamic=settings.get("dynamic"),
            options=settings.get("options"),
            out=Path(out).parent / "dossiers",
            **extra,
            **kwargs,
        )
    Path(out).write_text(json.dumps(found.to_json()), encoding="utf-8")


def judge(expected: dict[str, Any], found: dict[str, Any], *, planted: bool) -> dict[str, Any]:
    """Each of the points as a yes or no; those of a control are `silent` alone."""
    if expected["kind"] == "control":
        return {"silent": found["verdict"] != "fault", "healthy": found["verdict"] == "healthy"}
    findings = found["findings"]
    ops = {stem(op) for op in cases.accepted(expected, "ops")}
    points = {
        "found": found["verdict"] == "fault",
        "stage": any(f["stage"] in cases.accepted(expected, "stage") for f in findings),
        "op": any(stem(f["op"]) in ops or any(stem(op) in ops for op in f["also"][:2]) for f in findings),
        "kind": any(f["kind"] in cases.accepted(expected, "kind") for f in findings),
        "repro": any(f["dossier"] and (planted or "does not fail in a process" not in f["reason"]) for f in findings),
    }
    if "source" in expected:
        points["source"] = any(Path(f["source"] or "").name == expected["source"] for f in findings)
    return points


def stem(op: str | None) -> str:
    """`aten.add` of `aten.add.Tensor`; names of functions stay whole."""
    name = (op or "").replace("torch.ops.", "")
    return name if name.startswith("torch.") else ".".join(name.split(".")[:2])


def run(name: str, timeout_s: float, python: str = sys.executable) -> dict[str, Any]:
    """One case in a process of its own, which `python` starts."""
    started = time.monotonic()
    expected = cases.load(located(name)).EXPECT
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "diagnosis.json"
        where = str(located(name).resolve()) if name.endswith(".py") else name
        command = [python, __file__, "--child", where, str(out)]
        try:
            # A test of torchrun in this process leaves one thread to all that come after it.
            env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=timeout_s, cwd=folder, env=env, check=False
            )
            log = done.stderr
        except subprocess.TimeoutExpired:
            log = "timeout"
        seconds = round(time.monotonic() - started, 1)
        found = json.loads(out.read_text(encoding="utf-8")) if out.exists() else None
        group = located(name).parent.name
        score = {"error": log[-800:]} if found is None else judge(expected, found, planted=group == "planted")
        repros = [Path(f["dossier"]) / "repro.py" for f in (found or {}).get("findings", []) if f["dossier"]]
        lines = [repro.read_text(encoding="utf-8").count("\n") for repro in repros if repro.is_file()]
        score["lines"] = min(lines, default=None)
        if group == "injected" and found is not None:
            score["repro"] = bool(repros) and all(bare.run_alone(repro) == 1 for repro in repros)
    return {"name": name, "expected": expected, "seconds": seconds, "score": score, "diagnosis": found}


KINDS = ("setting", "fallback", "uncompiled", "backend", "none")
"""Of workarounds; a set of changes counts as the last of its kinds."""


def table(files: Sequence[Path]) -> None:
    """For each stage how many findings have a workaround of each kind; then who has none, with what was tried."""
    rows = [row for file in files for row in json.loads(file.read_text(encoding="utf-8"))]
    diagnoses = [(row["name"], row.get("diagnosis") or row.get("result") or {"findings": []}) for row in rows]
    counts, without = Counter[tuple[str, str]](), list[str]()
    for name, finding in ((name, finding) for name, one in diagnoses for finding in one["findings"]):
        kinds = [one["kind"] for one in finding["workarounds"]] or ["none"]
        counts[finding["stage"], max(kinds, key=KINDS.index)] += 1
        if not finding["workarounds"]:
            why = f"{len(finding['tried'])} changes were tried" if finding["tried"] else "none is tried"
            without.append(f"{name}: {finding['stage']}, {finding['op']}: {why}")
    print(f"{'':<14}", *(f"{kind:>10}" for kind in KINDS), f"{'all':>6}")
    for stage in (*sorted({stage for stage, _ in counts}), "all"):
        of = [sum(n for (s, k), n in counts.items() if k == kind and stage in (s, "all")) for kind in KINDS]
        print(f"{stage:<14}", *(f"{n:>10}" for n in of), f"{sum(of):>6}")
    print(*without, sep="\n")


def recorded(results: Path) -> list[dict[str, Any]]:
    """Rows that the tests of the cases recorded in the JUnit file of a test run."""
    found = ElementTree.parse(results).iterfind(".//property[@name='row']")
    return [json.loads(each.attrib["value"]) for each in found]


def total(rows: list[dict[str, Any]]) -> None:
    for point in ("found", "stage", "op", "source", "kind", "repro", "silent", "healthy"):
        judged = [row["score"][point] for row in rows if point in row["score"]]
        if judged:
            print(f"{point} {sum(judged)}/{len(judged)}")
    lines = [row["score"]["lines"] for row in rows if row["score"].get("lines")]
    print(f"repro of 40 lines or fewer {sum(count <= 40 for count in lines)}/{len(lines)}")
    print("errors", sum("error" in row["score"] for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=list(FOLDERS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--of", type=Path, metavar="RESULTS.xml")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--child", nargs=2)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    if options.table:
        table(options.table)
        return
    if options.of:
        rows = recorded(options.of)
        for row in rows:
            print(row["name"], row["expected"]["kind"], row["seconds"], row["score"])
        total(rows)
        return
    names = [name for what in options.what for name in (cases.names(what) if what in FOLDERS else [what])]
    rows = []
    for name in names:  # here, for threads that import parts of torch at once break each other
        cases.load(located(name))
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda name: run(name, options.timeout), names):
            rows.append(row)
            print(row["name"], row["expected"]["kind"], row["seconds"], row["score"], flush=True)
            if options.out:
                options.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    total(rows)


if __name__ == "__main__":
    main()
