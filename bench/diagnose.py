"""`graphprobe.diagnose` beside torch's own tools on the same faults: who names the culprit, in what time, by how many
compilations.

    python bench/diagnose.py [--cases NAME ...] [--tools TOOL ...] [--timeout 300] [--json FILE]

| tool | what runs | named when |
|---|---|---|
| diagnose | `graphprobe.diagnose` | a finding has the right stage and, among its first suspects, the op |
| minifier | the program with `TORCHDYNAMO_REPRO_AFTER=aot`, then `minifier_launcher.py` | the culprit op is among the at most 5 calls that are left in its `repro.py` |
| bisector | `CompilerBisector.do_bisect`, told whether the results are close to eager's (1e-4) | the subsystem is of the right stage; of lowerings and decompositions, the op too |

The minifier gets the level that fits the symptom: 4 for wrong numbers, 2 for exceptions, which level 4 lets pass. It runs
in one process, which is about ten times as fast as its default, and by its default if that process dies.

The fault is in every process of every tool, as a bug of torch would be: a `sitecustomize` of the benchmark puts it there.
The same counts compilations: calls of Inductor's `_compile_fx_inner`, in all processes together, forked ones included.
(`Diagnosis.compiles` is in the JSON.) What only AOTAutograd or Dynamo compiles is not counted, for no tool.

Each tool starts with an empty Inductor cache. Wall seconds are those of its processes, imports included. `× compile` is
the time of the tool itself, without imports, by that of a cold compile and run of the same program, with the same imports
done, without the fault, in the same run; the minifier is processes of its own, so that it has no such time.
"""  # noqa: E501 - a table

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests"
TOOLS = ("diagnose", "minifier", "bisector")
SMALL = 5
"""Calls that a minified program may have for its culprit to count as named."""


@dataclass(frozen=True)
class Case:
    """A file of `tests/diagnose`; `grad` None: as that file has it."""

    folder: str
    file: str
    grad: bool | None = None


CASES = {
    **{
        f"transformer-{mode}-{kind}": Case("injected", f"inductor_relu_{kind}-forward", mode == "step")
        for kind in ("accuracy", "compile_error", "runtime_error")
        for mode in ("forward", "step")
    },
    **{
        name: Case("planted", name)
        for name in (
            "decomp_gelu_transformer",
            "joint_reciprocal_rounded",
            "postgrad_div_swapped_convnet",
            "lowering_where_mask_transformer",
        )
    },
    **{name: Case("tracker", name) for name in ("custom_op_on_clone", "emb_sinh_overflow", "emb_std_overflow")},
}

HOOK = '''
"""Once torch is imported: the case is loaded, its fault is active, and compilations are counted."""
import importlib, importlib.abc, importlib.util, os, sys

def count():
    module = importlib.import_module("torch._inductor.compile_fx")
    inner = module._compile_fx_inner
    def counted(*args, **kwargs):
        file = os.open(os.environ["BENCH_COUNT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, b".")
        os.close(file)
        return inner(*args, **kwargs)
    module._compile_fx_inner = counted

def load():
    import torch
    cases = importlib.import_module("cases")
    folder, name = os.environ["BENCH_CASE"].split("/")
    module = sys.modules["bench_case"] = cases.load(cases.path(folder, name))
    if os.environ["BENCH_PLANT"] == "1" and hasattr(module, "plant"):
        module.planted = module.plant()
        module.planted.__enter__()  # never left
        # A cache that only ever sees the fault may be used. Without, no kernel is compiled once only, in no tool.
        torch.compiler.config.force_disable_caches = False

class Loader(importlib.abc.Loader):
    def __init__(self, inner): self.inner = inner
    def create_module(self, spec): return self.inner.create_module(spec)
    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.inner
        self.inner.exec_module(module)
        count()
        load()

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        spec.loader = Loader(spec.loader)
        return spec

sys.meta_path.insert(0, Finder())
'''


# --- In a process of its own: the program, and the tools that work within a process.


@dataclass(frozen=True)
class Program:
    """A loaded case."""

    fn: Any
    args: Any
    kwargs: Any
    grad: bool
    settings: dict[str, Any]
    expected: dict[str, Any]


def program(case: Case) -> Program:
    """The case that the hook has loaded."""
    importlib.import_module("torch")
    module: Any = sys.modules["bench_case"]  # as the hook loaded it
    fn, args, kwargs = module.make()
    grad = getattr(module, "GRAD", False) if case.grad is None else case.grad
    return Program(fn, args, kwargs, grad, getattr(module, "COMPILE", {}), module.EXPECT)


def results(what: Program, *, compiled: bool) -> list[Any]:
    """Outputs, arguments after the call and gradients, of a run on copies."""
    import torch

    fn, args, kwargs = copy.deepcopy((what.fn, what.args, what.kwargs))
    weights = list(fn.parameters()) if isinstance(fn, torch.nn.Module) else []
    inputs = [v for v in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
    run = torch.compile(fn, **what.settings) if compiled else fn
    with torch.set_grad_enabled(what.grad):
        out = [v for v in torch.utils._pytree.tree_leaves(run(*args, **kwargs)) if isinstance(v, torch.Tensor)]
    if what.grad:
        loss: Any = sum(v.sum() for v in out if v.requires_grad)
        loss.backward()
    return [*out, *inputs, *(v.grad for v in weights + inputs if v.grad is not None)]


def by_compile(what: Program) -> dict[str, Any]:
    """What the other times are measured in."""
    started = time.perf_counter()
    results(what, compiled=True)
    return {"seconds": time.perf_counter() - started, "expected": what.expected}


def by_diagnose(what: Program) -> dict[str, Any]:
    import graphprobe

    score = importlib.import_module("score")
    started = time.perf_counter()
    found = graphprobe.diagnose(
        what.fn,
        *what.args,
        grad=what.grad,
        dynamic=what.settings.get("dynamic"),
        out=Path("dossiers"),
        **what.kwargs,
    )
    seconds = time.perf_counter() - started
    points = score.judge(what.expected, found.to_json(), planted=True)
    first = found.findings[0] if found.findings else None
    return {
        "seconds": seconds,
        "found": points["found"],
        "named": points["stage"] and points["op"],
        "answer": f"{first.stage}: {first.op}" if first else found.verdict,
        "own_count": found.compiles,
        "points": points,
        "notes": found.notes,
    }


STAGES_OF = {
    "decomposition": ("decomposition",),
    "pre_grad_passes": ("pre_grad",),
    "joint_graph_passes": ("joint",),
    "post_grad_passes": ("post_grad",),
    "lowerings": ("lowering", "codegen"),
}
"""Stages that a subsystem of the bisector stands for."""


def by_bisector(what: Program) -> dict[str, Any]:
    import torch
    from torch._inductor import compiler_bisector

    cases = importlib.import_module("cases")
    expected = what.expected
    right = results(what, compiled=False)
    tries = 0

    def passes() -> bool:
        nonlocal tries
        tries += 1
        torch.compiler.reset()
        try:
            torch.testing.assert_close(results(what, compiled=True), right, rtol=1e-4, atol=1e-4, equal_nan=True)
        except Exception:
            return False
        return True

    started = time.perf_counter()
    bisector: Any = compiler_bisector.CompilerBisector
    found = bisector.do_bisect(passes)
    seconds = time.perf_counter() - started
    answer = "no issue"
    named = False
    if found is not None:
        where = f"{found.subsystem} {found.bisect_number}: {found.debug_info or '?'}"
        answer = where if found.subsystem else f"{found.backend}, no subsystem"
        stages = STAGES_OF.get(found.subsystem or "", ())
        named = any(stage in cases.accepted(expected, "stage") for stage in stages)
        if found.subsystem in ("decomposition", "lowerings"):
            info = (found.debug_info or "").lower()
            named = named and any(op.split(".")[1].rstrip("_") in info for op in cases.accepted(expected, "ops"))
    return {"seconds": seconds, "found": found is not None, "named": named, "answer": answer, "tries": tries}


def by_victim(what: Program) -> dict[str, Any]:
    """The program as it runs under the minifier's settings."""
    results(what, compiled=True)
    return {}


def child(tool: str, name: str, out: str) -> None:
    what = program(CASES[name])
    for module in ("torch._dynamo", "torch._inductor.compile_fx", "torch._functorch.config"):
        importlib.import_module(module)  # imports are not what is measured
    work = {"compile": by_compile, "diagnose": by_diagnose, "bisector": by_bisector, "victim": by_victim}[tool]
    Path(out).write_text(json.dumps(work(what)), encoding="utf-8")


# --- The processes.


@dataclass
class Ended:
    """A process that ended; `code` None: stopped after its time."""

    code: int | None
    seconds: float
    log: str


class Room:
    """A scratch folder with the environment for the processes of one tool on one case."""

    def __init__(self, root: Path, name: str, *, plant: bool = True) -> None:
        self.root, self.name = root, name
        (root / "hook").mkdir(parents=True)
        (root / "hook" / "sitecustomize.py").write_text(HOOK, encoding="utf-8")
        case = CASES[name]
        path = [str(root / "hook"), str(TESTS), str(TESTS / "diagnose"), os.environ.get("PYTHONPATH", "")]
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("TORCH", "PYTHONPATH"))}
        self.env = kept | {
            "PYTHONPATH": os.pathsep.join(p for p in path if p),
            "TORCHINDUCTOR_CACHE_DIR": str(root / "cache"),
            "BENCH_CASE": f"{case.folder}/{case.file}",
            "BENCH_PLANT": str(int(plant)),
            "BENCH_COUNT": str(root / "count"),
        }

    def run(self, command: list[str], timeout_s: float, folder: str = "work", **env: str) -> Ended:
        """One process group, ended after its time."""
        cwd = self.root / folder
        cwd.mkdir(exist_ok=True)
        log = cwd / "log.txt"
        started = time.perf_counter()
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command, cwd=cwd, env=self.env | env, stdout=sink, stderr=sink, start_new_session=True
            )
            try:
                code: int | None = process.wait(max(1.0, timeout_s))
            except subprocess.TimeoutExpired:
                code = None
            finally:  # also when this process is interrupted; and of what a dead one has left
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return Ended(code, time.perf_counter() - started, log.read_text(encoding="utf-8", errors="replace"))

    def child(self, tool: str, timeout_s: float, **env: str) -> tuple[Ended, dict[str, Any] | None]:
        """This file in a process; without its folder on the path, where its name hides that of the tests' package."""
        out = self.root / f"{tool}.json"
        command = [sys.executable, "-P", str(Path(__file__).resolve()), "--child", tool, self.name, str(out)]
        ended = self.run(command, timeout_s, **env)
        return ended, json.loads(out.read_text(encoding="utf-8")) if out.exists() else None

    @property
    def compilations(self) -> int:
        count = self.root / "count"
        return count.stat().st_size if count.exists() else 0


def failed(ended: Ended) -> dict[str, Any]:
    """The row of a tool that gave no answer."""
    last = (ended.log.strip().splitlines() or [""])[-1]
    answer = "timeout" if ended.code is None else f"exit code {ended.code}: {last[:100]}"
    return {"found": False, "named": False, "answer": answer, "log": ended.log[-2000:]}


def calls_left(repro: Path) -> list[str]:
    """Operations that a program of the minifier calls."""
    tree = ast.parse(repro.read_text(encoding="utf-8"))
    forward = next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "forward"), None)
    made = [n.value for n in ast.walk(forward) if isinstance(n, ast.Assign)] if forward else []
    return [ast.unparse(call.func).removeprefix("torch.ops.") for call in made if isinstance(call, ast.Call)]


def minify(room: Room, expected: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """The program, then its launcher."""
    kinds = expected["kind"] if isinstance(expected["kind"], list) else [expected["kind"]]
    level = "2" if any("crash" in kind or "exception" in kind for kind in kinds) else "4"
    victim, _ = room.child(
        "victim",
        timeout_s,
        TORCHDYNAMO_REPRO_AFTER="aot",
        TORCHDYNAMO_REPRO_LEVEL=level,
        TORCH_COMPILE_DEBUG_DIR=str(room.root / "debug"),
    )
    wall = victim.seconds
    launchers = sorted((room.root / "debug").rglob("minifier_launcher.py"))
    if not launchers:
        row = failed(victim) if victim.code != 0 else {"found": False, "named": False, "answer": "nothing noticed"}
        return {**row, "wall_s": wall}
    command = [sys.executable, str(launchers[-1]), "minify"]
    ended = room.run([*command, "--no-isolate"], timeout_s - wall, "minify")
    wall += ended.seconds
    repro = room.root / "minify" / "repro.py"
    isolated = ended.code is not None and ended.code < 0
    if isolated:
        ended = room.run(command, timeout_s - wall, "isolated")
        wall += ended.seconds
        repro = room.root / "isolated" / "repro.py"
    if not repro.exists():
        return {**failed(ended), "wall_s": wall, "isolated": isolated}
    calls = calls_left(repro)
    ops = {".".join(op.split(".")[:2]) for op in expected["ops"].split()}
    named = len(calls) <= SMALL and any(call.rpartition(".")[0] in ops for call in calls)
    late = ", timeout" if ended.code is None else ""
    answer = f"{len(calls)} left{late}: {', '.join(calls[:SMALL])}"
    return {"found": True, "named": named, "answer": answer, "wall_s": wall, "isolated": isolated, "calls": calls}


def measure(name: str, tool: str, root: Path, timeout_s: float, cold: dict[str, Any]) -> dict[str, Any]:
    """One tool on one case."""
    room = Room(root / tool, name)
    if tool == "minifier":
        row = minify(room, cold["expected"], timeout_s)
    else:
        ended, got = room.child(tool, timeout_s)
        row = {**(got or failed(ended)), "wall_s": ended.seconds}
    ratio = row["seconds"] / cold["seconds"] if "seconds" in row else None
    return {"case": name, "tool": tool, **row, "compilations": room.compilations, "ratio": ratio}


def line(row: dict[str, Any]) -> str:
    verdict = "named" if row["named"] else "found" if row["found"] else "no"
    ratio = "–" if row["ratio"] is None else f"{row['ratio']:.1f}"
    return (
        f"{row['case']:<35}{row['tool']:<10}{verdict:<7}{row['wall_s']:>8.1f}{row['compilations']:>8}{ratio:>9}"
        f"  {row['answer'][:90]}"
    )


def medians(rows: list[dict[str, Any]]) -> str:
    """All tools in one line."""
    parts = []
    for tool in dict.fromkeys(row["tool"] for row in rows):
        of = [row for row in rows if row["tool"] == tool]
        wall, compilations = (statistics.median(row[key] for row in of) for key in ("wall_s", "compilations"))
        ratios = [row["ratio"] for row in of if row["ratio"] is not None]
        ratio = f", {statistics.median(ratios):.1f} × compile" if ratios else ""
        named = sum(row["named"] for row in of)
        parts.append(f"{tool} named {named}/{len(of)}, {wall:.1f} s, {compilations:g} compilations{ratio}")
    return "medians: " + "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one tool on one case")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended too
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{len(options.cases)} cases, {os.cpu_count()} cores, load {load}", flush=True)
    print(f"{'case':<35}{'tool':<10}{'result':<7}{'wall s':>8}{'compil.':>8}{'×compile':>9}  answer")
    rows: list[dict[str, Any]] = []
    baselines: dict[str, Any] = {}
    for name in options.cases:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            room = Room(root / "compile", name, plant=False)
            ended, cold = room.child("compile", options.timeout)
            if cold is None:
                raise SystemExit(f"{name}: it cannot be compiled without the fault\n{ended.log[-4000:]}")
            baselines[name] = {**cold, "wall_s": ended.seconds, "compilations": room.compilations}
            print(f"{name:<35}{'(compile)':<17}{cold['seconds']:>8.1f}{room.compilations:>8}{1:>9.1f}", flush=True)
            for tool in options.tools:
                rows.append(measure(name, tool, root, options.timeout, cold))
                print(line(rows[-1]), flush=True)
        if options.json:
            content = {"load": load, "cores": os.cpu_count(), "baselines": baselines, "rows": rows}
            Path(options.json).write_text(json.dumps(content, indent=1), encoding="utf-8")
    print(medians(rows))


if __name__ == "__main__":
    main()
