"""Memory that `graphprobe.diagnose` needs, beside a plain compiled run of the same program.

    python bench/diagnose_memory.py PROGRAM.py[:make] [--only plain|diagnose] [--fault FILE.py] [--json FILE]

`make()` gives `(fn, args)` or `(fn, args, kwargs)`, as for `graphprobe diagnose`. Each run is a fresh process with an empty
cache of Inductor. The plain one compiles, calls and runs the backward. All the while the memory of the process and of all
that it has started is summed up: PSS, in which what processes share counts once.

`over` is how far the peak lies above that of the plain run, in units of parameters and gradients together. Step by step,
`growth` is the peak of the step in these units above what the process had once the program was made. `--fault FILE.py`
imports a file with `plant()`, whose context is entered before anything is compiled, in the diagnosis only.
"""  # noqa: E501 - a command line

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EVERY_S = 0.1
MADE = "made"
"""The step that begins once the program is there."""


def loaded(file: str) -> Any:
    """A file as a module."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[Path(file).stem] = module
    spec.loader.exec_module(module)
    return module


def child(what: str, target: str, folder: Path, fault: str) -> None:
    """The process that is watched."""
    import torch

    import graphprobe
    from graphprobe.diagnose.program import weighted_sum
    from graphprobe.internals.tensors import tree_leaves

    def on_step(name: str) -> None:
        with (folder / "steps").open("a", encoding="utf-8") as file:
            file.write(name + "\n")

    path, _, name = target.partition(":")
    fn, args, *rest = getattr(loaded(path), name or "make")()
    kwargs = rest[0] if rest else {}
    parts = [*fn.parameters(), *fn.buffers()] if isinstance(fn, torch.nn.Module) else []
    counted = sum(p.nbytes for p in parts) + sum(p.nbytes for p in parts if p.requires_grad)
    on_step(MADE)
    told: dict[str, Any] = {"bytes": counted}
    (folder / "told.json").write_text(json.dumps(told), encoding="utf-8")
    time.sleep(2 * EVERY_S)
    if what == "plain":
        result = torch.compile(fn)(*args, **kwargs)
        leaves: list[Any] = tree_leaves(result)
        weighted_sum([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])
    else:
        with loaded(fault).plant() if fault else contextlib.nullcontext():
            found = graphprobe.diagnose(fn, *args, out=folder / "dossiers", on_step=on_step, **kwargs)
        told |= {"verdict": found.verdict, "notes": found.notes, "rungs": [f"{r.name} {r.state}" for r in found.rungs]}
        told["findings"] = [f"{f.stage}: {f.op} at {f.source}" for f in found.findings]
    (folder / "told.json").write_text(json.dumps(told), encoding="utf-8")


def tree(root: int) -> Iterator[int]:
    """A process and all that it has started."""
    yield root
    for task in Path(f"/proc/{root}/task").glob("*/children"):
        try:
            for pid in task.read_text().split():
                yield from tree(int(pid))
        except OSError:
            continue


def pss(pid: int) -> int:
    """Bytes of a process, what it shares with others divided among them; 0 once it is gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


def measured(what: str, options: argparse.Namespace) -> dict[str, Any]:
    """One run in a process of its own, and what it needed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
        command = [sys.executable, "-P", __file__, options.program, "--child", what, str(folder)]
        command += ["--fault", options.fault] if options.fault else []
        started = time.perf_counter()
        process = subprocess.Popen(command, env=env)
        peaks: dict[str, int] = {}
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            steps = (folder / "steps").read_text().split("\n") if (folder / "steps").exists() else ["import", ""]
            peaks[steps[-2]] = max(peaks.get(steps[-2], 0), sum(pss(pid) for pid in tree(process.pid)))
            time.sleep(EVERY_S)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        row = {"what": what, "wall_s": time.perf_counter() - started, "cpu_s": usage.ru_utime + usage.ru_stime}
        told = folder / "told.json"
        row |= json.loads(told.read_text(encoding="utf-8")) if told.exists() else {}
        row |= {"failed": process.returncode} if process.returncode else {}
        return row | {"peak": max(peaks.values()), "steps": peaks}


def show(row: dict[str, Any], plain: dict[str, Any] | None) -> None:
    """A line for the run, and one for each of its steps."""
    unit = row.get("bytes") or 1
    gib, line = 1 << 30, f"{row['what']:<10} peak {row['peak'] / (1 << 30):6.2f} GiB"
    line += f"   wall {row['wall_s']:6.0f} s   processor {row['cpu_s']:6.0f} s"
    if plain is not None and plain is not row:
        line += (
            f"   over {(row['peak'] - plain['peak']) / unit:5.2f} × {unit / gib:.3f} GiB of parameters and gradients"
        )
        line += f"   processor {row['cpu_s'] / plain['cpu_s']:.2f} × plain"
    print(line)
    first = row["steps"].get(MADE, 0)
    for name, peak in row["steps"].items():
        print(f"    {name:<22} {peak / gib:6.2f} GiB   growth {(peak - first) / unit:6.2f}")
    for key in ("failed", "verdict", "rungs", "findings", "notes"):
        if row.get(key):
            print(f"    {key}: {row[key]}")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="PROGRAM.py[:make]")
    parser.add_argument("--only", choices=("plain", "diagnose"), help="one of the two runs")
    parser.add_argument("--fault", default="", metavar="FILE.py")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], options.program, Path(options.child[1]), options.fault)
        return
    plain: dict[str, Any] | None = None
    rows = []
    for what in ("plain", "diagnose"):
        if options.only in (None, what):
            row = measured(what, options)
            plain = row if what == "plain" else plain
            show(row, plain)
            rows.append(row)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
