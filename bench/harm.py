"""Does watching change a program? Programs by modes, killed at any moment, and without room for what is collected.

    python bench/harm.py [table] [--programs t5,ddp] [--modes "run,dump stats"] [--cold]
    python bench/harm.py kills [--times 100] [--seed 0] [--modes …]
    python bench/harm.py shortage [--programs mutating,exits]

`table`: each program (tests/harmless/programs) runs twice as it is and once in each mode, and says all that watching
must not change: outputs, losses, gradients, parameters, buffers, how often each tensor was written to, generators of
torch, numpy and Python, hooks, signal handlers, warning filters, settings of the compiler, environment, arguments, and
how it ends. `=`: every bit of it, the exit code, stdout and stderr are those of the plain run. Otherwise what differs
is named. The number behind it: its seconds over those of the plain run. A mode that says of itself that it changes what
is computed (`perturbs`, docs/dump.md) may differ, if its records say so; its cell is in brackets. Exit code 1:
something else is unequal.

`kills`: `kill -9` of a program at a random moment, then every reader on what is there. Each must open it, or say in one
message that there is nothing, and then there has to be nothing.

`shortage` (as root): a tmpfs that fills up, or is filled by somebody else, a mount that turns read-only, a closed
stdout, and a disk that is full or read-only from the start; the program against a plain run.

Programs start as forks of a process that has torch loaded; `--cold` starts each as `python` does, and so do ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from warm.pool import Warm

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "tests" / "harmless" / "programs"
MORE = str(ROOT / "bench" / "harm_programs.py")

TIMEOUT_S = 900


@dataclass(frozen=True)
class Program:
    file: str
    args: tuple[str, ...]
    ranks: int = 0


PROGRAMS = {
    name: Program(MORE if name in ("lstm", "autocast") else "families.py", (name, "inductor"))
    for name in ("t5", "vit", "llama", "gpt2", "lstm", "autocast")
}
PROGRAMS |= {
    name: Program(MORE if name == "breaking" else "families.py", (name, "inductor", "aot_eager"))
    for name in ("branching", "mutating", "breaking")
}
PROGRAMS |= {name: Program(MORE, (name,)) for name in ("exits", "raises", "loads")}
PROGRAMS |= {name: Program(MORE, (name,), ranks=2) for name in ("ddp", "fsdp2")}
PROGRAMS |= {
    name: Program("threads.py", (name, "watched"))
    for name in ("pool", "to_thread", "server", "loader", "daemon", *["asgi"] * (find_spec("uvicorn") is not None))
}


@dataclass(frozen=True)
class Mode:
    """Words before the program, with OUT for a folder.

    `reports`: a report stands behind what the program says, and the exit code is that of the report. `known`: evidence
    that is another on purpose. `perturbs`: its records may say that it changes what is computed.
    """

    words: tuple[str, ...] = ()
    watched: str = ""
    debug: bool = False
    reports: bool = False
    known: tuple[str, ...] = ()
    perturbs: bool = False
    config: str = ""


def ran(*words: str, perturbs: bool = False, config: str = "", known: tuple[str, ...] = ()) -> Mode:
    return Mode(("run", "-q", "--out", "OUT/run", *words), perturbs=perturbs, config=config, known=known)


GRAPHS = ("--dump-to", "OUT/graphs")
DUMP = '{"dump": {"dump_path": "OUT", %s}}'
SEES_CALLS = ("modes",)  # it is a mode of torch's, one of the stack that the program can look at
TAKES_SIGNALS = ("signal handlers",)  # Ctrl-C and SIGTERM end the program, and what is known then is still told
MODES = {
    "run": ran(),
    "run everything": ran("--save-inputs", "--graph-dump", "py", "--log-level", "debug"),
    "record frames": ran("--record-frames"),
    "dump stats": ran("--dump", "stats", known=SEES_CALLS),
    "dump tensor": ran("--dump", "tensor", "--level", "mix", known=SEES_CALLS),
    "graph stats": ran("--dump-graph", "stats", *GRAPHS),
    "graph tensor": ran("--dump-graph", "tensor", *GRAPHS),
    "write through": ran("--dump-graph", "tensor", "--dump-write-through", *GRAPHS),
    "overflow": ran("--dump-config", "OUT/dump.json", config=DUMP % '"dump_debug": "on"'),
    "watcher": ran("--dump-config", "OUT/dump.json", config=DUMP % '"dump_scene": "watcher"'),
    "exception": ran("--dump-config", "OUT/dump.json", config=DUMP % '"dump_scene": "exception"'),
    "trace()": Mode(watched="trace:OUT/run"),
    "enable()": Mode(watched="enable:OUT/run"),
    "dump()": Mode(watched="dump:OUT/calls", known=SEES_CALLS),
    "COMPILE_DEBUG": Mode(watched="import", debug=True),
    "profile": Mode(("profile", "-q", "-o", "OUT/profile.json"), known=TAKES_SIGNALS),
    "explain": Mode(("explain",), reports=True, known=TAKES_SIGNALS),
    "recompiles": Mode(("recompiles",), reports=True, known=TAKES_SIGNALS),
    "interpreter": ran("--dump-graph", "stats", "--dump-engine", "interpreter", *GRAPHS, perturbs=True),
    "eager ops": ran(
        "--dump-config",
        "OUT/dump.json",
        config=DUMP % '"dump_list": [], "dump_op_switch": "on"',
        perturbs=True,
        known=SEES_CALLS,
    ),
}


@dataclass(frozen=True)
class Said:
    """How a process ended, what it said, and the evidence, of one rank after the other."""

    code: int
    out: str
    err: str
    evidence: tuple[str, ...] = ()
    seconds: float = 0.0


class Bench:
    """Starts programs, in folders of their own, with one cache of kernels for all."""

    def __init__(self, folder: Path, *, cold: bool) -> None:
        self.folder = folder
        os.environ |= {
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH")))),
            "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor")),
        }
        self._warm = None if cold else Warm()
        self._numbers = iter(range(10**6))

    def new(self) -> Path:
        path = self.folder / f"{next(self._numbers):05d}"
        (path / "cwd").mkdir(parents=True)
        return path

    def close(self) -> None:
        if self._warm is not None:
            self._warm.close()

    def command(self, program: Program, words: tuple[str, ...], *, cold: bool = False) -> list[str]:
        warm = self._warm if program.ranks == 0 and not cold else None
        python = sys.executable if warm is None else warm.executable
        launcher = (
            ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(program.ranks)]
            if program.ranks
            else []
        )
        module = ["-m", "graphprobe", *words] if words else []
        return [python, *launcher, *module, str(HERE / program.file), *program.args]

    def run(
        self,
        program: Program,
        mode: Mode,
        out: Path,
        *,
        cwd: Path | None = None,
        closed: bool = False,
    ) -> Said:
        """The program in a mode, whose OUT is the folder `out`."""
        if mode.config:
            (out / "dump.json").write_text(mode.config.replace("OUT", str(out)), "utf-8")
        words = tuple(word.replace("OUT", str(out)) for word in mode.words)
        env = {**os.environ, **({"TORCH_COMPILE_DEBUG": "1"} if mode.debug else {})}
        env["EVIDENCE"] = str(self.folder / "evidence")
        for path in self.folder.glob("evidence.*"):
            path.unlink()
        if mode.watched:
            env["WATCHED"] = mode.watched.replace("OUT", str(out))
        command = self.command(program, words, cold=closed)
        if closed:
            command = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
        began = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=cwd or out / "cwd", env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return Said(-1, "", f"nothing for {TIMEOUT_S} s")
        evidence = [path.read_text("utf-8") for path in sorted(self.folder.glob("evidence.*"))]
        seconds = time.monotonic() - began
        return Said(done.returncode, done.stdout, done.stderr, tuple("\n".join(evidence).splitlines()), seconds)


def comparable(text: str) -> str:
    """Without what graphprobe says; torch's log prefix `W1121 05:08:28.185000 25861` has a time and a process id."""
    text = re.sub(r"^(graphprobe|dump): .*\n", "", text, flags=re.M)
    return re.sub(r"\b([A-Z])\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ ", r"\1 TIME PID ", text)


def differences(program: Program, mode: Mode, plain: Said, said: Said) -> list[str]:
    """What is not as in the plain run, by name: what came of it."""
    found: dict[str, str] = {}
    for number in range(max(len(plain.evidence), len(said.evidence))):
        was, became = (one.evidence[number] if number < len(one.evidence) else "nothing" for one in (plain, said))
        name = was.partition(": ")[0]
        if was != became and name not in mode.known:
            found.setdefault(name, f"line {number}: {was[-300:]!r} became {became[-300:]!r}")
    if mode.reports:
        return [": ".join(item) for item in found.items()]
    if said.code != plain.code:
        found["exit code"] = f"{plain.code} became {said.code}\n{said.err[-2000:]}"
    outs = [
        [line for line in one.out.splitlines() if line.partition(": ")[0] not in mode.known] for one in (plain, said)
    ]
    if outs[0] != outs[1] and not program.ranks:  # the lines of ranks come in any order
        found["stdout"] = f"{plain.out[-300:]!r} became {said.out[-300:]!r}"
    quiet = not mode.words or "-q" in mode.words
    if quiet and not (mode.debug or program.ranks) and comparable(said.err) != comparable(plain.err):
        found["stderr"] = f"{plain.err[-1500:]!r} became {said.err[-1500:]!r}"
    return [": ".join(item) for item in found.items()]


def perturbations(folder: Path) -> int:
    """How many records say of themselves that the program was changed."""
    return sum(file.read_text("utf-8").count('"perturbs":true') for file in folder.rglob("ops.jsonl"))


def table(bench: Bench, programs: list[str], modes: list[str]) -> bool:
    """Print the table and what differs; whether all are equal that have to be."""
    print(f"| program | plain again | {' | '.join(modes)} |\n|{'---|' * (len(modes) + 2)}")
    told: list[str] = []
    counts: Counter[str] = Counter()
    for name in programs:
        program = PROGRAMS[name]
        plain: dict[bool, Said] = {}
        cells = []
        for mode_name, mode in {"plain again": Mode(), **{key: MODES[key] for key in modes}}.items():
            if mode.debug not in plain:
                plain[mode.debug] = bench.run(program, Mode(debug=mode.debug), bench.new())
            out = bench.new()
            said = bench.run(program, mode, out)
            different = differences(program, mode, plain[mode.debug], said)
            collected = any(out.rglob("manifest.json")) or any(out.rglob("profile*.json"))
            if not collected and not mode.reports and mode != Mode():
                different.append("nothing collected: no manifest")
            says = perturbations(out) if mode.perturbs else 0
            cell = "=" if not different else ", ".join(text.partition(":")[0] for text in different[:2])
            cell += f" {said.seconds / plain[mode.debug].seconds:.1f}"
            counts["equal" if not different else "said" if says else "unequal"] += 1
            cells.append(f"[{cell}: {says} records say so]" if says and different else cell)
            if different and not says:
                told += [f"{name}, {mode_name}: {text}" for text in different[:4]]
            shutil.rmtree(out)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    for text in told:
        print(text)
    required = counts["equal"] + counts["unequal"]
    print(f"{counts['equal']} of {required} equal; {counts['said']} more differ and say so")
    return not counts["unequal"]


# kill -9

KILLED = (
    Program("families.py", ("mutating", "inductor")),
    Program("families.py", ("branching", "inductor")),
    Program("families.py", ("mutating", "aot_eager", "eager")),
)
KILL_MODES = {
    "run": ran(),
    "everything": ran("--save-inputs", "--graph-dump", "py", "--logs", "debug", "--record-frames"),
    "dump stats": ran("--dump", "stats", "--dump-to", "OUT/calls"),
    "dump tensor": ran("--dump", "tensor", "--level", "mix", "--dump-to", "OUT/calls"),
    "graph stats": ran("--dump-graph", "stats", *GRAPHS),
    "graph tensor": ran("--dump-graph", "tensor", *GRAPHS),
    "write through": ran("--dump-graph", "tensor", "--dump-write-through", *GRAPHS),
}


def read(args: list[str], out: Path) -> tuple[int, str]:
    """A command of graphprobe in a fork: its exit code, or minus the signal, and all that it said."""
    from graphprobe.cli.main import main

    said = out / "said"
    pid = os.fork()
    if pid == 0:
        code = 99
        with contextlib.suppress(OSError):
            descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, 1), os.dup2(descriptor, 2)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
            os.chdir(out)
            try:
                main(args, prog_name="graphprobe")
            except SystemExit as ending:
                code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
            except BaseException as error:
                os.write(2, f"Traceback: {error!r}".encode())
            sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), said.read_text("utf-8", "replace")


def verdict(code: int, text: str, *, there: bool) -> str:
    """`opened`, `absent`, or what is wrong with how a reader ended."""
    if "Traceback" in text or "please report" in text:
        return f"a fault, {code}: {text[-1500:]}"
    if code in (0, 1, 125):
        return "opened"
    if code == 2 and text.count("error[") == 1 and not there:
        return "absent"
    return f"refused, {code}, {'though it is there' if there else 'and nothing is there'}: {text[-1500:]}"


def readers(out: Path) -> Iterator[tuple[list[str], bool]]:
    """Commands on what a killed process has left, and whether there is anything."""
    run = any((out / "run").rglob("manifest.json"))
    for words in (["ls"], ["logs"], ["report", "-o", "run.html"], ["explain"], ["export", "--to", "chrome-trace"]):
        rest = words[1:] + (["-o", "trace.json"] if words[0] == "export" else [])
        yield [words[0], str(out / "run"), *rest], run
    for name, form, records in (("calls", "msprobe", "calls.jsonl"), ("graphs", "npy", "ops.jsonl")):
        if (path := out / name).exists():
            there = any(path.rglob("manifest.json"))
            full = any(file.stat().st_size for file in path.rglob(records))
            yield ["compare", str(path), str(path)], there
            yield ["convert", str(path), "--to", form, "--out", f"{name}-{form}"], there and full
            yield ["report", str(path), "-o", f"{name}.html"], there


def kill(bench: Bench, program: Program, mode: Mode, after_s: float, *, begun: bool) -> tuple[Path, bool]:
    """The folder of a program that was killed, and whether it had ended before.

    `after_s` are seconds from its start, or from when it had `begun` to collect.
    """
    out = bench.new()
    command = bench.command(program, tuple(word.replace("OUT", str(out)) for word in mode.words))
    process = subprocess.Popen(
        command, cwd=out / "cwd", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    while begun and process.poll() is None and not (out / "run").exists():
        time.sleep(0.01)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(after_s)
    ended = process.poll() is not None
    process.kill()  # the fork that it stands for is killed with its process group, by the server
    process.wait()
    deadline = time.monotonic() + 10
    while str(out / "cwd") in working_directories() and time.monotonic() < deadline:
        time.sleep(0.02)
    return out, ended


def working_directories() -> Iterator[str]:
    """Those of all processes: a killed one has none."""
    for path in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            yield os.readlink(path)


def kills(bench: Bench, times: int, seed: int, modes: list[str]) -> bool:
    """Kill `times` programs; whether each reader opened what was there, or said in one message that nothing is."""
    for name in (
        "main",
        *(f"commands.{name}" for name in ("ls", "logs", "report", "explain", "export", "compare", "convert")),
    ):
        importlib.import_module(f"graphprobe.cli.{name}")  # once, for all forks
    draw = random.Random(seed)
    long = {}
    for name in modes:
        for program in KILLED:
            out, begin = bench.new(), time.time()
            bench.run(program, KILL_MODES[name], out)
            long[name, program] = (time.time() - begin, time.time() - (out / "run").stat().st_mtime)
    counts: Counter[str] = Counter()
    per_mode: dict[str, Counter[str]] = {name: Counter() for name in modes}
    faults: list[str] = []
    for number in range(times):
        name, program = draw.choice(modes), draw.choice(KILLED)
        begun = draw.random() < 0.8
        after_s = draw.uniform(0, 1.1 * long[name, program][begun])
        out, ended = kill(bench, program, KILL_MODES[name], after_s, begun=begun)
        found = set()
        for args, there in readers(out):
            code, text = read(args, out)
            result = verdict(code, text, there=there)
            counts[result if result in ("opened", "absent") else "fault"] += 1
            found.add(result if result in ("opened", "absent") else "fault")
            if result not in ("opened", "absent"):
                faults.append(f"{number}, {name}, {program.args[0]}, after {after_s:.2f} s: {args}: {result}\n{out}")
        kind = "fault" if "fault" in found else "opened" if "opened" in found else "absent"
        per_mode[name].update([kind, *(["ended before"] if ended else [])])
        if kind != "fault":
            shutil.rmtree(out)
    print("| mode | tries | opened | absent | fault | ended before |\n|---|---|---|---|---|---|")
    for name, row in per_mode.items():
        tries = row["opened"] + row["absent"] + row["fault"]
        print(f"| {name} | {tries} | {row['opened']} | {row['absent']} | {row['fault']} | {row['ended before']} |")
    for text in faults:
        print(text)
    whole = sum(row["opened"] + row["absent"] for row in per_mode.values())
    print(f"{counts['opened']} readers opened, {counts['absent']} said that nothing is there, {counts['fault']} faults")
    print(f"{whole} of {times} stores readable or absent (seed {seed})")
    return whole == times


# No room

SHORT_MODES = {
    "run": Mode(("run", "--out", "OUT/run")),
    "dump tensor": Mode(("run", "--out", "OUT/run", "--dump", "tensor", "--dump-to", "OUT/calls"), known=SEES_CALLS),
    "graph tensor": Mode(("run", "--out", "OUT/run", "--dump-graph", "tensor", "--dump-to", "OUT/graphs")),
}
CLOSED = "closed stdout"
TOLD = re.compile(r"graphprobe:.*( missing: | cannot be read)")


def mount(*args: str | Path) -> None:
    subprocess.run(["mount", *args], check=True)


def fill(path: Path) -> None:
    with contextlib.suppress(OSError), (path / "full").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def turn_read_only(path: Path) -> None:
    """By a second mount: `remount,ro` alone is refused while a file is open for writing."""
    mount("--bind", path, path)
    mount("-o", "remount,bind,ro", path)


@contextlib.contextmanager
def room(path: Path, size: str, meanwhile: Callable[[Path], None] | None) -> Iterator[None]:
    """A disk of that size; `meanwhile` happens to it once something has been collected there."""
    stop = threading.Event()

    def wait() -> None:
        while not any(path.rglob("manifest.json")):
            if stop.wait(0.01):
                return
        time.sleep(0.5)
        if meanwhile is not None:
            meanwhile(path)

    mount("-t", "tmpfs", "-o", f"size={size}", "harm", path)
    watch = threading.Thread(target=wait)
    try:
        watch.start()
        yield
    finally:
        stop.set()
        watch.join()
        while path.is_mount():
            subprocess.run(["umount", "-l", path], check=True)


Site = Callable[[Path], contextlib.AbstractContextManager[None]]
SITES: dict[str, Site] = {
    "128 KiB": lambda path: room(path, "128k", None),
    "512 KiB": lambda path: room(path, "512k", None),
    "filled by another": lambda path: room(path, "16m", fill),
    "turns read-only": lambda path: room(path, "16m", turn_read_only),
    "full from the start": lambda path: room(path, "4k", None),
    "read-only from the start": lambda path: room(path, "16m,ro", None),
    CLOSED: lambda path: contextlib.nullcontext(),
}


def shortage(bench: Bench, programs: list[str]) -> bool:
    """Print what is not as in the plain run, and what is said to be missing; whether all is unchanged, and told."""
    counts: Counter[str] = Counter()
    faults: list[str] = []
    print(
        "| program | disk | mode | program | what graphprobe says is missing: lines, the first |\n|---|---|---|---|---|"
    )
    for name in programs:
        plain = {closed: bench.run(PROGRAMS[name], Mode(), bench.new(), closed=closed) for closed in (False, True)}
        for site, mode_name in itertools.product(SITES, SHORT_MODES):
            closed, out = site == CLOSED, bench.new()
            small = out / "small"
            small.mkdir()
            mode = SHORT_MODES[mode_name]
            mode = replace(mode, words=tuple(word.replace("OUT", str(small)) for word in mode.words))
            with SITES[site](small):
                said = bench.run(PROGRAMS[name], mode, out, closed=closed)
                short = not closed and (not os.access(small, os.W_OK) or os.statvfs(small).f_bavail < 2)
            told = [line for line in said.err.splitlines() if TOLD.match(line)]
            different = differences(PROGRAMS[name], mode, plain[closed], said)
            if different or "Traceback" in said.err.replace(plain[closed].err, ""):
                cell = ", ".join(text.partition(":")[0] for text in different[:2]) or "traceback"
            else:
                cell = "silent" if short and not told else "="
            counts[cell if cell == "=" else "fault"] += 1
            line = f"{len(told)}: {told[0].replace(str(small), 'DIR')[:140]}" if told else ""
            print(f"| {name} | {site} | {mode_name} | {cell} | {line} |", flush=True)
            if cell != "=":
                faults += [f"{name}, {site}, {mode_name}: {text}" for text in (*different[:3], said.err[-2000:])]
            shutil.rmtree(out)
    for text in faults:
        print(text)
    print(f"{counts['=']} unchanged, {counts['fault']} faults")
    return not counts["fault"]


def chosen(text: str | None, known: dict[str, object]) -> list[str]:
    names = list(known) if text is None else text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"no {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("table", "kills", "shortage"), default="table")
    parser.add_argument("--programs")
    parser.add_argument("--modes")
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cold", action="store_true", help="start each program as `python` does")
    parser.add_argument("--keep", type=Path, help="a folder that what was collected stays in")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="harm-", dir=given.keep)).resolve()
    bench = Bench(folder, cold=given.cold)
    try:
        if given.what == "table":
            fine = table(bench, chosen(given.programs, PROGRAMS), chosen(given.modes, MODES))
        elif given.what == "kills":
            fine = kills(bench, given.times, given.seed, chosen(given.modes, KILL_MODES))
        else:
            fine = shortage(bench, chosen(given.programs or "mutating,exits", PROGRAMS))
    finally:
        bench.close()
        if given.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(not fine)


if __name__ == "__main__":
    main()
