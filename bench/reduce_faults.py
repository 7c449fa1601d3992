"""`graphprobe reduce script.py` beside torch's minifier on the same faults of Inductor: what is left, by how many
queries, in what time.

    python bench/reduce_faults.py [--quick] [--cases SUBSTRING ...] [--tools TOOL ...] [--timeout 600] [--json FILE]

| tool | what runs |
|---|---|
| graphprobe | `graphprobe reduce program.py CASE`: Dynamo's graphs, all kinds of failures, which is the default |
| graphprobe-aot | the same with `--after aot`: the graphs that torch's minifier takes, too; not run unless asked for |
| torch | the program with `TORCHDYNAMO_REPRO_AFTER=aot`, then `minifier_launcher.py minify`: one process per query |
| torch-shared | the same launcher with `--no-isolate`: all queries in one process |

The programs are in `reduce_faults_programs.py`: {models} x {directions} x {kinds}, and some
that are hard to start from. torch's minifier gets the level that fits: 2 for exceptions, 4 for wrong numbers, 3 for
crashes and hangs; and `dynamo` for a backend of the user, which `aot` never sees. graphprobe is told nothing.

What no setting of torch can inject is in the torch of every process, those included that the tools start, and those
that judge the repros: they run in a virtual environment whose torch gets the fault when it is imported.

- reproduced: the repro that was written fails, in a new process, in the way of the case.
- calls: of the graph, at the start and in the repro. graphprobe starts from Dynamo's graph: a layer is one call there,
  and the backward is not seen.
- queries: candidates that were compiled; of graphprobe, the trial of the graph before it runs included, and what asks
  whether the failure is steady; of torch, "Made N queries".
- seconds: of all processes of the tool, imports and the program itself included, and that graphprobe runs its repro
  once, but not the run that judges it here. cpu: seconds of the processors, which depend less on what else runs.
- ratios: of the tool to torch's isolated minifier on the case, of queries and of seconds.

In cases that hang, --query-timeout is graphprobe's `--timeout`; the program that is to write torch's launcher is
stopped after it as well. The minifier's queries have no time of their own: the first that hangs lasts until --timeout
ends it.

Each tool has a folder and an empty Inductor cache of its own, one thread for OpenMP (where a kernel runs in several, an
exception is a crash) and one for compilation. --json is written after every case.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import ctypes
import json
import os
import re
import resource
import shutil
import signal
import site
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reduce_faults_programs as programs

TOOLS = ("graphprobe", "graphprobe-aot", "torch", "torch-shared")
BASELINE = "torch"
QUICK = ("mlp-forward-compile_error", "mlp-forward-segfault", "user_backend", "custom_op")
LEVELS = {"accuracy": "4", "segfault": "3", "hang": "3"}
SIGNS = {
    "compile_error": "CppCompileError|CompileError",
    "runtime_error": "Error",
    "accuracy": "AccuracyError|Bad accuracy",
    "user_backend": "this backend has no relu",
}
"""What the output of a failing repro holds; of a compile error where not said."""

HOOK = '''
"""Makes an op of Inductor's C++ faulty, as soon as the module is imported that writes it."""
import importlib.abc, importlib.util, os, sys

NAME = "torch._inductor.codegen.cpp"

class Loader(importlib.abc.Loader):
    def __init__(self, inner): self.inner = inner
    def create_module(self, spec): return self.inner.create_module(spec)
    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.inner
        self.inner.exec_module(module)
        import bench_reduce_faults_programs
        bench_reduce_faults_programs.plant(module, FAULT)

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(NAME)
        spec.loader = Loader(spec.loader)
        return spec

if FAULT:
    sys.meta_path.insert(0, Finder())
'''


@dataclass
class Ended:
    """A process that ended; `code` None: stopped after its time."""

    code: int | None
    seconds: float
    log: str

    @property
    def last(self) -> str:
        """The last exception that its output tells of, or its last line."""
        lines = [line.strip() for line in self.log.splitlines() if line.strip()]
        told = [line for line in lines if re.match(r"(?:>>\s+)?[\w.]*(?:Error|Exception|Failed)\b", line)]
        return ([*lines, *told] or [""])[-1][:200]


class Room:
    """A folder for one tool on one case, with an environment whose torch has the fault."""

    def __init__(self, root: Path, case: str, options: argparse.Namespace) -> None:
        self.root, self.case = root, case
        self.kind = "user_backend" if case == "user_backend" else case.rpartition("-")[2]
        self.timeout_s, self.query_s = options.timeout, options.query_timeout
        self.spent_s = self.cpu_s = 0.0
        venv.create(root / "venv", symlinks=True)
        packages = next((root / "venv").glob("lib/python*/site-packages"))
        (packages / "bench_fault_hook.py").write_text(f"FAULT = {programs.planted(case)!r}\n{HOOK}", encoding="utf-8")
        shutil.copy(programs.__file__, packages / "bench_reduce_faults_programs.py")
        added = [path for path in (*site.getsitepackages(), site.getusersitepackages()) if Path(path).is_dir()]
        lines = [*(f"import site; site.addsitedir({path!r})" for path in added), "import bench_fault_hook"]
        (packages / "bench.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.python = str(root / "venv" / "bin" / "python")
        (root / "work").mkdir()
        self.program = root / "work" / "program.py"
        shutil.copy(programs.__file__, self.program)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("TORCH", "PYTHON"))}
        self.env = kept | {
            "TORCHINDUCTOR_CACHE_DIR": str(root / "cache"),
            "TORCH_COMPILE_DEBUG_DIR": str(root / "debug"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }

    def run(self, arguments: list[str], timeout_s: float | None = None, **env: str) -> Ended:
        """Python in a process group, which is ended after the given time, or what is left of that of the case."""
        limit_s = max(1.0, self.timeout_s - self.spent_s if timeout_s is None else timeout_s)
        log = self.root / "log.txt"
        started, cpu_s = time.perf_counter(), cpu_of_children()
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [self.python, *arguments],
                cwd=self.root / "work",
                env=self.env | env,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:  # also when this process is interrupted; and of what a dead one has left
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                end_orphans()
        seconds = time.perf_counter() - started
        self.spent_s += seconds
        self.cpu_s += cpu_of_children() - cpu_s
        return Ended(code, seconds, log.read_text(encoding="utf-8", errors="replace"))

    @property
    def times(self) -> dict[str, float]:
        """What the tool has taken by now."""
        return {"seconds": self.spent_s, "cpu_s": self.cpu_s}

    def fails(self, repro: Path, *, judges: bool) -> tuple[bool, str]:
        """Whether a repro fails in the way of the case, and what it says.

        Args:
            judges: the repro runs the graph in a child of its own and exits with 1 if the fault is there.
        """
        spent = self.spent_s, self.cpu_s
        hangs = self.kind == "hang"
        limit = ["--timeout", f"{self.query_s:g}"] if judges and hangs else []
        ended = self.run([str(repro), *limit], self.query_s + (60 if judges else 0) if hangs else self.timeout_s)
        self.spent_s, self.cpu_s = spent
        if judges:
            return ended.code == 1, ended.last
        if self.kind in ("segfault", "hang"):
            return ended.code == (None if hangs else -signal.SIGSEGV), f"exit code {ended.code}"
        sign = SIGNS.get(self.kind, SIGNS["compile_error"])
        return ended.code not in (0, None) and bool(re.search(sign, ended.log)), ended.last


def adopt_orphans() -> None:
    """Make this process the parent of what its descendants leave behind, so that it can be ended and counted."""
    pr_set_child_subreaper = 36
    if ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1) != 0:
        raise SystemExit("prctl(PR_SET_CHILD_SUBREAPER) failed: this benchmark needs Linux")


def children() -> list[int]:
    """Processes whose parent this one is."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parent = file.read_text("utf-8", "replace").rpartition(")")[2].split()[1]
            found += [int(file.parent.name)] if int(parent) == os.getpid() else []
    return found


def end_orphans() -> None:
    """End what a tool has left behind, also in sessions of its own: a kernel that hangs would take a core for ever."""
    while left := children():
        for pid in left:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def cpu_of_children() -> float:
    """CPU seconds of the processes that ended and were waited for, their own children included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def by_graphprobe(room: Room, *more: str) -> dict[str, Any]:
    """One process."""
    result, out = room.root / "result.json", room.root / "reduced"
    command = ["-m", "graphprobe", "reduce", *more, "-o", str(out), "--json", str(result)]
    limit = ["--timeout", f"{room.query_s:g}"] if room.kind == "hang" else []
    ended = room.run([*command, *limit, str(room.program), room.case])
    row: dict[str, Any] = {"exit_code": ended.code, **room.times, "log": ended.log[-4000:]}
    if result.exists():
        told = json.loads(result.read_text(encoding="utf-8"))
        row |= {"told": told, "start": told["before"], "left": told["after"], "queries": told["asked"]}
        row["answer"] = told["signature"] if told["minimal"] else f"{told['signature']}; {told['stopped']}"
    repro = out / "repro" / "repro.py"
    if not repro.exists():
        return row | {"reproduced": False, "answer": "timed out" if ended.code is None else ended.last}
    row["reproduced"], row["repro_says"] = room.fails(repro, judges=True)
    if ended.code is None:
        row["answer"] = "timed out; the repro is of what was found by then"
    return row


def calls_of(program: Path) -> list[str] | None:
    """The operations in the graph of a program that torch's minifier wrote; None where that is no Python."""
    try:
        tree = ast.parse(program.read_text(encoding="utf-8"))
    except SyntaxError:
        return None
    # A graph of Dynamo has operators as such. Modules of a higher-order operator have a `forward` of their own.
    bodies = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "forward"]
    made = [n.value for body in bodies for n in ast.walk(body) if isinstance(n, ast.Assign)]
    done = [n for n in made if isinstance(n, ast.Call | ast.BinOp | ast.UnaryOp | ast.Compare | ast.Subscript)]
    names = [n.func if isinstance(n, ast.Call) else n for n in done]
    return [ast.unparse(name).removeprefix("torch.ops.") for name in names]


def by_torch(room: Room, *more: str) -> dict[str, Any]:
    """The program, then its launcher."""
    hangs = room.kind == "hang"
    victim = room.run(
        [str(room.program), room.case],
        room.query_s if hangs else None,
        TORCHDYNAMO_REPRO_AFTER="dynamo" if room.kind == "user_backend" else "aot",
        TORCHDYNAMO_REPRO_LEVEL=LEVELS.get(room.kind, "2"),
    )
    row: dict[str, Any] = {"reproduced": False, "queries": None, "log": victim.log[-2000:]}
    launchers = sorted((room.root / "debug").rglob("minifier_launcher.py"))
    if not launchers:
        return row | {**room.times, "answer": f"wrote no launcher; {victim.last}"}
    calls = calls_of(launchers[-1])
    row["start"] = None if calls is None else len(calls)
    ended = room.run([str(launchers[-1]), "minify", *more])
    row |= {**room.times, "exit_code": ended.code, "log": ended.log[-4000:]}
    made = re.search(r"Made (\d+) queries", ended.log)
    isolated = len(list((room.root / "work").glob("isolate/*.py")))
    row["queries"] = int(made[1]) if made else isolated or None
    late = "timed out" if ended.code is None else "" if made else f"exit code {ended.code}: {ended.last}"
    repro = room.root / "work" / "repro.py"
    if not repro.exists():
        return row | {"answer": late or "wrote no repro"}
    left = calls_of(repro) or []
    row |= {"left": len(left), "calls": left}
    row["reproduced"], row["repro_says"] = room.fails(repro, judges=False)
    return row | {"answer": "; ".join(filter(None, [late, ", ".join(left[:4])]))}


RUN: dict[str, Callable[[Room], dict[str, Any]]] = {
    "graphprobe": by_graphprobe,
    "graphprobe-aot": lambda room: by_graphprobe(room, "--after", "aot"),
    "torch": by_torch,
    "torch-shared": lambda room: by_torch(room, "--no-isolate"),
}


def measure(case: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All tools on one case, torch's isolated minifier first, to which the others are held."""
    rows = []
    for tool in sorted(options.tools, key=lambda tool: (tool != BASELINE, TOOLS.index(tool))):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            row = {"case": case, "tool": tool, **RUN[tool](Room(Path(folder), case, options))}
        base = rows[0] if rows and rows[0]["tool"] == BASELINE else row if tool == BASELINE else {}
        for key in ("queries", "seconds"):
            row[f"{key}_ratio"] = row[key] / base[key] if row.get(key) and base.get(key) else None
        rows.append(row)
        print(line(row), flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    def shown(value: Any, form: str) -> str:
        return "–" if value is None else format(value, form)

    calls = f"{shown(row.get('start'), 'd')} → {shown(row.get('left'), 'd')}"
    return (
        f"{row['case']:<34}{row['tool']:<15}{'yes' if row['reproduced'] else 'NO':<5}{calls:>11}"
        f"{shown(row.get('queries'), 'd'):>8}{row['seconds']:>8.1f}{row['cpu_s']:>8.1f}"
        f"{shown(row['queries_ratio'], '.2f'):>8}{shown(row['seconds_ratio'], '.2f'):>8}  {row.get('answer', '')[:90]}"
    )


def medians(rows: list[dict[str, Any]]) -> str:
    """All tools in one line each."""
    lines = []
    for tool in dict.fromkeys(row["tool"] for row in rows):
        of = [row for row in rows if row["tool"] == tool]
        text = f"{tool}: reproduced {sum(row['reproduced'] for row in of)} of {len(of)}"
        left = [row["left"] for row in of if row["reproduced"] and "left" in row]
        text += f", {statistics.median(left):g} calls left (at most {max(left)})" if left else ""
        for key in ("queries", "seconds"):
            ratios = [row[f"{key}_ratio"] for row in of if row[f"{key}_ratio"] is not None]
            text += f", {statistics.median(ratios):.2f} of torch's {key}" if ratios and tool != BASELINE else ""
        lines.append(text)
    return "\n".join(lines)


def main() -> None:
    every = [*programs.CASES, *programs.EDGES]
    about = (__doc__ or "").format(
        models=", ".join(programs.MODELS), directions=", ".join(programs.DIRECTIONS), kinds=", ".join(programs.KINDS)
    )
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", metavar="SUBSTRING", help="; ".join(every))
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK)}: three minutes")
    parser.add_argument(
        "--tools", nargs="+", choices=TOOLS, default=[t for t in TOOLS if t != "graphprobe-aot"], metavar="TOOL"
    )
    parser.add_argument("--skip-torch", action="store_true", help="only graphprobe")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one tool on one case")
    parser.add_argument("--query-timeout", type=float, default=60.0, help="seconds for one query that hangs")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if options.skip_torch:
        options.tools = [tool for tool in options.tools if tool.startswith("graphprobe")]
    chosen = QUICK if options.quick else every
    chosen = [case for case in chosen if not options.cases or any(part in case for part in options.cases)]
    if not chosen or not options.tools:
        parser.error("no case, or no tool, is left")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended too
    adopt_orphans()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{len(chosen)} cases, {os.cpu_count()} cores, load {load}; ratios to {BASELINE}, by queries and seconds")
    head = f"{'case':<34}{'tool':<15}{'repr':<5}{'calls':>11}{'queries':>8}{'seconds':>8}{'cpu':>8}{'/q':>8}{'/s':>8}"
    rows: list[dict[str, Any]] = []
    for title, cases in (
        ("faults of Inductor", [case for case in chosen if case not in programs.EDGES]),
        ("hard to start from", [case for case in chosen if case in programs.EDGES]),
    ):
        if not cases:
            continue
        print(f"\n{title}\n{head}", flush=True)
        of: list[dict[str, Any]] = []
        for case in cases:
            of += measure(case, options)
            if options.json:
                content = {"load": load, "cores": os.cpu_count(), "options": vars(options), "rows": [*rows, *of]}
                Path(options.json).write_text(json.dumps(content, indent=1), encoding="utf-8")
        rows += of
        print(medians(of), flush=True)


if __name__ == "__main__":
    main()
