"""Make small faults in the sources, one at a time, and see whether the tests catch them.

    python scripts/mutants.py list                  the mutants: where, what
    python scripts/mutants.py cover                 runs all quick and slow tests once, and notes which reach a mutant
    python scripts/mutants.py run [--tier test]     for each mutant, runs the tests that reach it until one fails
    python scripts/mutants.py table FILE [FILE]     results of several runs side by side

The mutants are the same for the same sources and seed: one in a module, spread over all rooms; a condition negated, a
comparison shifted, a returned value dropped, an `except` widened. Nothing is written to the checkout itself: each
worker changes a copy of its own in build/mutants. To hold two versions of the tests against each other, name the other
checkout: `run --checkout OTHER`, with `--against OTHER` each time, so that only modules that both have are changed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "mutants"
SECONDS = ROOT / "tests" / "durations.json"
TIERS = {"test": "not slow and not heavy and not cuda", "all": "not heavy and not cuda"}
USAGE_ERROR = 4
"""Exit code of pytest where it does not know a test, among others."""

SHIFTED = {
    **{ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="},
    **{ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"},
}
HITS = """
import os
_seen = set()
def hit(mutant):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if test and (mutant, test) not in _seen:
        _seen.add((mutant, test))
        with open(os.path.join({folder!r}, str(mutant)), "a") as file:
            file.write(test + "\\n")
"""
"""A module that the probes of `cover` call: it notes the test that runs, in processes of the test, too."""


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        file: from the root of the checkout.
        line: from 1.
        kind: what is done.
        start, end: of what is replaced, in bytes of the file.
        text: what stands there instead; `{}` is what was there.
        probe: the same, for a program that does what it did and notes that it came here.
    """

    file: str
    line: int
    kind: str
    start: int
    end: int
    text: str
    probe: str

    @property
    def room(self) -> str:
        return Path(self.file).parts[2].removesuffix(".py")

    def applied(self, source: bytes, text: str) -> bytes:
        before = source[self.start : self.end].decode()
        return source[: self.start] + text.replace("{}", before).encode() + source[self.end :]


def sites(file: str, source: str) -> Iterator[Mutant]:
    """Every fault that can be made in the functions of a module."""
    offsets = [0]
    for line in source.encode().splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))

    def at(node: ast.expr, kind: str, text: str) -> Mutant:
        start = offsets[node.lineno - 1] + node.col_offset
        end = offsets[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        return Mutant(file, node.lineno, kind, start, end, text, '(__import__("mutant_hits").hit(MUTANT), ({}))[1]')

    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    for node in {id(inner): inner for function in functions for inner in ast.walk(function)}.values():
        if isinstance(node, ast.If) and not isinstance(node.test, ast.NamedExpr):
            yield at(node.test, "condition negated", "not ({})")
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SHIFTED:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            yield at(node, "comparison shifted", f"({left} {SHIFTED[type(node.ops[0])]} {right})")
        elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
            yield at(node.value, "returned value dropped", "None")
        elif isinstance(node, ast.ExceptHandler) and node.type is not None:
            yield at(node.type, "except widened", "BaseException")


def mutants(seed: int, count: int, against: Path) -> list[Mutant]:
    """`count` mutants, one a module that `against` has, too; each room has its turn until no module is left."""
    draw = random.Random(seed)
    rooms: dict[str, list[list[Mutant]]] = defaultdict(list)
    for path in sorted((ROOT / "src" / "graphprobe").rglob("*.py")):
        file, other = str(path.relative_to(ROOT)), against / path.relative_to(ROOT)
        same = other.is_file() and other.read_bytes() == path.read_bytes()
        if same and (found := list(sites(file, path.read_text("utf-8")))):
            rooms[found[0].room].append(found)
    for modules in rooms.values():
        draw.shuffle(modules)
    chosen: list[Mutant] = []
    while len(chosen) < count and any(rooms.values()):
        for modules in rooms.values():
            if modules and len(chosen) < count:
                found = modules.pop()
                kind = draw.choice(sorted({site.kind for site in found}))
                chosen.append(draw.choice([site for site in found if site.kind == kind]))
    return chosen


def copy_of(checkout: Path, name: str) -> Path:
    """A fresh copy of the files of `checkout` that git does not ignore, with what is built in its sources."""
    copy = WORK / name
    shutil.rmtree(copy, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    built = [str(path.relative_to(checkout)) for path in (checkout / "src").rglob("*.so")]
    for file in [*filter(None, listed.split("\0")), *built]:
        if (checkout / file).is_file():
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / file, copy / file)
    subprocess.run(["git", "init", "-q"], cwd=copy, check=True)
    return copy


def python() -> str:
    """A Python with what is installed here, but for this checkout: its finder would hide the copies."""
    environment = WORK / "python"
    if not environment.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
        inner = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
        (environment / inner / "installed.pth").write_text(f"{Path(sys.prefix) / inner}\n", "utf-8")
    return str(environment / "bin" / "python")


def pytest(folder: Path, *arguments: str, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    command = [python(), "-m", "pytest", "-o", f"cache_dir={WORK / 'cache'}", *arguments]
    path = os.pathsep.join([str(folder / "src"), str(WORK / "hits")])
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=timeout_s
    )


def tests_of(folder: Path, tier: str) -> list[str]:
    listing = pytest(folder, "--collect-only", "-q", "-m", TIERS[tier]).stdout
    return [line for line in listing.splitlines() if "::" in line]


def cover(chosen: Sequence[Mutant], checkout: Path) -> None:
    """Write reached.json: for each mutant the tests that come to its place."""
    hits = WORK / "hits"
    shutil.rmtree(hits, ignore_errors=True)
    hits.mkdir(parents=True)
    (hits / "mutant_hits.py").write_text(HITS.format(folder=str(hits)), "utf-8")
    copy = copy_of(checkout, "covered")
    for number, mutant in enumerate(chosen):
        path = copy / mutant.file
        probe = mutant.probe.replace("MUTANT", str(number))
        path.write_bytes(mutant.applied(path.read_bytes(), probe))
    done = pytest(copy, "-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder", "-q", "-m", TIERS["all"])
    (WORK / "cover.log").write_text(done.stdout, "utf-8")
    print(done.stdout[-600:])
    reached = {n: sorted(set(_lines(hits / str(n)))) for n in range(len(chosen))}
    (WORK / "reached.json").write_text(json.dumps(reached, indent=0), "utf-8")


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines() if path.exists() else []


class Runner:
    """Runs the tests of mutants in copies of a checkout, as many at once as there are copies."""

    def __init__(self, checkout: Path, tier: str, reached: Mapping[int, list[str]], most_s: float) -> None:
        self._copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(os.cpu_count() or 1):
            self._copies.put(copy_of(checkout, f"copy{number}"))
        self._reached = reached
        self._most_s = most_s
        self._seconds: dict[str, float] = json.loads(SECONDS.read_text("utf-8"))
        first = self._copies.get()
        self._there = set(tests_of(first, tier))
        self._copies.put(first)

    def caught(self, number: int, mutant: Mutant) -> dict[str, object]:
        """Which test fails with the mutant, if any."""
        own = f"tests/{mutant.room}/"
        tests = [test for test in self._reached[number] if test in self._there]
        tests.sort(key=lambda test: (not test.startswith(own), self._seconds.get(test, 0.05)))
        limited, seconds = [], 0.0
        for test in tests:
            seconds += self._seconds.get(test, 0.05)
            if seconds > self._most_s and limited:
                break
            limited.append(test)
        copy, began = self._copies.get(), time.monotonic()
        path = copy / mutant.file
        before = path.read_bytes()
        failed = ""
        try:
            while limited:
                path.write_bytes(mutant.applied(before, mutant.text))
                failed = self._first_failure(copy, limited)
                path.write_bytes(before)
                if failed not in limited or not self._first_failure(copy, [failed]):
                    break
                limited.remove(failed)  # it fails without the mutant, too
        finally:
            path.write_bytes(before)
            self._copies.put(copy)
        row = {"mutant": number, "where": f"{mutant.file}:{mutant.line}", "kind": mutant.kind}
        row |= {"caught": failed, "tests": len(limited), "reached_by": len(tests)}
        print(
            f"{number:3} {row['where']} {mutant.kind}: {failed or 'not caught'} "
            f"({len(limited)} of {len(tests)} tests, {time.monotonic() - began:.0f} s)",
            flush=True,
        )
        return row

    def _first_failure(self, copy: Path, tests: list[str]) -> str:
        (copy / "tests.txt").write_text("\n".join(tests), "utf-8")
        try:
            done = pytest(copy, "-x", "-q", "--no-header", "@tests.txt", timeout_s=4 * self._most_s)
        except subprocess.TimeoutExpired:
            return "it does not end"
        if done.returncode in (0, 5):
            return ""
        gone = set(re.findall(r"^ERROR: not found: \S*?(tests/.*)$", done.stdout + done.stderr, re.MULTILINE))
        if done.returncode == USAGE_ERROR and gone & set(tests):
            return self._first_failure(copy, [test for test in tests if test not in gone])
        found = re.search(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - |$)", done.stdout, re.MULTILINE)
        return found[1] if found else f"pytest exits with {done.returncode}"


def table(files: Sequence[Path]) -> str:
    """One row a mutant, one column a run."""
    runs = [json.loads(file.read_text("utf-8")) for file in files]
    lines = ["| mutant | " + " | ".join(file.stem for file in files) + " |", "|---" * (len(files) + 1) + "|"]
    for rows in zip(*runs, strict=True):
        cells = [row["caught"] or f"not caught ({row['reached_by']} tests reach it)" for row in rows]
        lines.append(f"| {rows[0]['where']} {rows[0]['kind']} | " + " | ".join(cells) + " |")
    sums = [f"{sum(bool(row['caught']) for row in run)} of {len(run)}" for run in runs]
    return "\n".join([*lines, "| **caught** | " + " | ".join(sums) + " |"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("list", "cover", "run", "table"))
    parser.add_argument("files", nargs="*", type=Path, help="results, for `table`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--tier", choices=tuple(TIERS), default="all", help="of `make test`, or the slow tests, too")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="whose tests are run")
    parser.add_argument("--against", type=Path, default=ROOT, help="leaves out modules that differ from this checkout")
    parser.add_argument("--reached", type=Path, default=WORK / "reached.json", help="which `cover` writes")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the mutants to run, as `list` has them")
    parser.add_argument("--seconds", type=float, default=120, help="of tests for one mutant, at most")
    parser.add_argument("--out", type=Path, default=WORK / "results.json")
    options = parser.parse_args()
    chosen = mutants(options.seed, options.count, options.against)
    WORK.mkdir(parents=True, exist_ok=True)
    if options.command == "list":
        print(*(f"{n:3} {m.file}:{m.line} {m.kind}" for n, m in enumerate(chosen)), sep="\n")
    elif options.command == "cover":
        cover(chosen, options.checkout)
    elif options.command == "table":
        print(table(options.files))
    else:
        reached = {int(n): tests for n, tests in json.loads(options.reached.read_text("utf-8")).items()}
        runner = Runner(options.checkout, options.tier, reached, options.seconds)
        wanted = [(n, mutant) for n, mutant in enumerate(chosen) if options.only is None or n in options.only]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            rows = list(pool.map(runner.caught, *zip(*wanted, strict=True)))
        options.out.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
        print(f"caught {sum(bool(row['caught']) for row in rows)} of {len(rows)}")


if __name__ == "__main__":
    main()
