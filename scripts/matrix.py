"""Checks graphprobe with versions of torch and Python, and writes what came out to docs/versions.md and README.md.

    python scripts/matrix.py [VERSION]... [--stages doctor,names,…] [--again] [--failed]
        [--limit MINUTES] [--folder FOLDER]

A VERSION is one of torch, such as `2.15`, or with a Python behind it: `2.13-py3.13`.

Each has an environment in .matrix (scripts/matrix_env.py) and goes through the stages one after the other. A
stage that is done is not run again, unless `--again` asks for it, or `--failed`, which repeats only those of its tests
that failed; tests that met the limit go on where they were stopped. What was not run is written as such. Exits with 1
if something failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matrix_env
from pytest_results import Results

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "scripts" / "replay_programs"
PAGE = ROOT / "docs" / "versions.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- written by make test-matrix -->", "<!-- end -->"

VERSIONS = ("2.11.0", "2.12.1", "2.13.0", "2.13.0-py3.12", "2.13.0-py3.13", "2.14.1", "2.15.0")
"""Of torch; with a Python where that is not the one that runs this, 3.11."""

LIMIT_MINUTES = 60.0
MAX_CRASHES = 10
"""After so many tests that ended their process, the rest of a stage is given up."""

MAX_LISTED = 30
"""Failures of one stage that the page lists."""

NOT_RUN = "not run"


@dataclasses.dataclass(frozen=True)
class Check:
    """What one check has shown.

    Attributes:
        outcome: `passed`, `failed` or `skipped`.
        why: one line, unless it passed.
    """

    outcome: str
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a stage has shown with one torch and Python.

    Attributes:
        torch: the whole version, such as `2.15.0+cu132`.
        commit: of graphprobe, with a `+` if its files have been changed since.
        checks: by name.
        done: no check is left.
    """

    torch: str
    commit: str
    checks: dict[str, Check]
    done: bool

    @classmethod
    def read(cls, path: Path) -> Outcome | None:
        """What a file says; None if there is none."""
        if not path.exists():
            return None
        found = json.loads(path.read_text("utf-8"))
        return cls(**{**found, "checks": {name: Check(**check) for name, check in found["checks"].items()}})

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False), encoding="utf-8")

    def having(self, outcome: str) -> dict[str, str]:
        """The checks of an outcome, and why."""
        return {name: check.why for name, check in self.checks.items() if check.outcome == outcome}


def in_words(outcomes: Sequence[Outcome | None]) -> str:
    """A cell of a table: how many checks of these stages passed, and what did not."""
    found = [outcome for outcome in outcomes if outcome is not None]
    counts = Counter(check.outcome for outcome in found for check in outcome.checks.values())
    if not found:
        return NOT_RUN
    words = [f"{counts[kind]} {kind}" for kind in ("passed", "skipped", "failed") if counts[kind] or kind == "passed"]
    if len(found) < len(outcomes) or not all(outcome.done for outcome in found):
        words.append("the rest not run")
    return ", ".join(words)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where the stages of one version run.

    Attributes:
        python: of the environment.
        folder: for results.
        limit_s: for one stage.
    """

    python: Path
    folder: Path
    limit_s: float

    def run(
        self, *args: str, cwd: Path = ROOT, limit_s: float | None = None, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`python ARGS`; its code is 124 if it did not end in time. Kernels of different versions do not meet."""
        variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "kernels"), **(variables or {})}
        said = self.folder / "said.txt"
        with said.open("w") as out:
            process = subprocess.Popen(
                [self.python, *args],
                cwd=cwd,
                env=variables,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(self.limit_s if limit_s is None else limit_s)
            except subprocess.TimeoutExpired:
                code = 124
            finally:
                end_group(process)
        return subprocess.CompletedProcess(args, code, said.read_text("utf-8", errors="replace"))


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a group of its own, and what is left of the group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


Checks = dict[str, Check]
Stage = Callable[[Place], tuple[Checks, bool]]
"""Gives what its checks have shown, and whether no check is left."""


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "nothing was said")


def judged(done: subprocess.CompletedProcess[str], code: int, says: str = "") -> Check:
    """A command is to end with this code, and to say this."""
    if done.returncode != code:
        return Check("failed", f"exit code {done.returncode}, not {code}: {last_line(done.stdout)}")
    return Check("passed") if says in done.stdout else Check("failed", f"it does not say {says!r}")


def doctor(place: Place) -> tuple[Checks, bool]:
    """Each feature as `graphprobe doctor` has it, and its exit code."""
    file = place.folder / "doctor.found.json"
    file.unlink(missing_ok=True)
    checks = {"exit code": judged(place.run("-m", "graphprobe", "doctor", f"--json={file}"), 0)}
    for row in json.loads(file.read_text("utf-8"))["features"] if file.exists() else ():
        right = row["status"] == "works"
        checks[row["feature"]] = Check("passed") if right else Check("failed", f"{row['status']}: {row['detail']}")
    return checks, True


def names(place: Place) -> tuple[Checks, bool]:
    """Each private name of the table, and each path of torch that the sources use, looked up in this torch."""
    file = place.folder / "names.found.json"
    file.unlink(missing_ok=True)
    done = place.run("scripts/torch_names.py", "--installed", str(file))
    if not file.exists():
        return {"names": Check("failed", last_line(done.stdout))}, True
    return {
        name: Check("failed" if why else "passed", why) for name, why in json.loads(file.read_text("utf-8")).items()
    }, True


@dataclasses.dataclass(frozen=True)
class Command:
    """One call of graphprobe: the code that it is to end with, and what it is to say."""

    args: str
    code: int = 0
    says: str = ""


COMMANDS = (
    Command("run -o out programs/mlp_train.py", says="1 compiled graph"),
    Command("ls out", says="model__0/forward/code"),
    Command("logs out"),
    Command("report out -o report.html"),
    Command("run -o breaks programs/break_recompile.py", says="compiled graphs"),
    Command("explain breaks", 1, says="graph break"),
    Command("recompiles breaks", 1, says="recompil"),
    Command("profile -o profile.json programs/mlp_train.py"),
    Command("diagnose --json=result.json -o proofs programs/faulty.py:make", 1, says="aten.relu.default"),
    Command("diagnose programs/healthy.py:make", says="HEALTHY"),
    Command("reduce proofs/codegen-aten.relu.default", 1, says="REDUCED"),
    Command("run -o out_tensor --dump-graph tensor --dump-to tensor programs/mlp_train.py"),
    Command("run -o out_stats --dump-graph stats --dump-to stats programs/mlp_train.py"),
    Command("run -o out_nodes --dump-graph stats --dump-engine interpreter --dump-to nodes programs/mlp_train.py"),
    Command("compare tensor tensor", says="SAME"),
    Command("compare stats stats", says="SAME"),
    Command("run -o out_values --dump tensor --level api --dump-to values programs/mlp_eager.py"),
    Command("run -o out_mix --dump stats --level mix --dump-to mix programs/mlp_eager.py"),
    Command("run -o out_changed --dump tensor --level api --dump-to changed programs/mlp_eager.py 1.01"),
    Command("compare values values", says="SAME"),
    Command("compare mix mix", says="SAME"),
    Command("compare changed values", 1, says="DIFFERENT"),
)
"""Each kind of run, diagnosis, reduction, dump and comparison; later ones need what earlier ones have left."""


def commands(place: Place) -> tuple[Checks, bool]:
    """All commands in one folder, which stays for whoever wants to see why one failed."""
    work = place.folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(PROGRAMS, work / "programs")
    deadline = time.monotonic() + place.limit_s
    checks: Checks = {}
    for command in COMMANDS:
        if (left := deadline - time.monotonic()) <= 0:
            return checks, False
        done = place.run("-m", "graphprobe", *command.args.split(), cwd=work, limit_s=left)
        checks[command.args] = judged(done, command.code, command.says)
        (work / f"said_{len(checks):02}.txt").write_text(done.stdout, encoding="utf-8")
    return checks, True


def tests(name: str, *args: str) -> Stage:
    """What pytest runs with these arguments, but for what needs a GPU or much time."""

    def stage(place: Place) -> tuple[Checks, bool]:
        file = place.folder / f"{name}.jsonl"
        deadline = time.monotonic() + place.limit_s
        options = ("-q", "-p", "no:cacheprovider", "-m", "not heavy and not cuda", "--continue-on-collection-errors")
        variables = {"PYTHONPATH": str(ROOT / "scripts"), "PYTEST_RESULTS": str(file)}
        for _ in range(MAX_CRASHES):
            left = deadline - time.monotonic()
            done = place.run("-m", "pytest", "-p", "pytest_results", *options, *args, limit_s=left, variables=variables)
            results = Results(file)
            if done.returncode == 124:
                return shown(results), False
            if results.begun is None:
                ended = {} if done.returncode in (0, 1, 5) else {"pytest": judged(done, 0)}
                return {**shown(results), **ended}, True
            results.end(results.begun, "failed", f"the process ended with code {done.returncode}")
        return shown(results), False

    return stage


def shown(results: Results) -> Checks:
    return {test: Check(outcome, why) for test, (outcome, why) in results.outcomes.items()}


IR_TESTS = "tests/internals/test_ir_eval.py"
STAGES: dict[str, Stage] = {
    "doctor": doctor,
    "names": names,
    "ir": tests("ir", IR_TESTS),
    "commands": commands,
    "internals": tests("internals", "tests/internals", f"--ignore={IR_TESTS}"),
    "engine": tests("engine", "tests/engine"),
    "probe": tests("probe", "tests/probe"),
    "diagnose": tests("diagnose", "tests/diagnose"),
    "analysis": tests("analysis", "tests/analysis"),
}
"""In this order, the cheap ones first."""

MEANINGS = {
    "doctor": "features of `graphprobe doctor`",
    "names": "private names",
    "ir": "evaluation of Inductor's IR",
    "commands": "commands on small programs",
    "internals": "`tests/internals`",
    "engine": "`tests/engine`",
    "probe": "`tests/probe`",
    "diagnose": "`tests/diagnose`",
    "analysis": "`tests/analysis`",
}

TESTS = ("internals", "engine", "probe", "diagnose", "analysis")


def run_stage(name: str, version: str, place: Place, *, again: bool, failed: bool = False) -> Outcome:
    """What a stage shows; from its file, if it was run before, but for what `failed` asks for."""
    file = place.folder / f"{name}.json"
    before = Outcome.read(file)
    repeated = failed and before is not None and bool(before.having("failed"))
    if before is not None and before.done and not (again or repeated):
        print(f"torch {version}: {name}: {in_words([before])} (before)", flush=True)
        return before
    if again:
        file.with_suffix(".jsonl").unlink(missing_ok=True)
    elif repeated:
        Results(file.with_suffix(".jsonl")).forget("failed")
    print(f"torch {version}: {name} …", flush=True)
    checks, done = STAGES[name](place)
    torch = last_line(place.run("-c", "import torch; print(torch.__version__)").stdout)
    commits = {commit(), *(before.commit.split(", ") if repeated and before is not None else ())}
    outcome = Outcome(torch, ", ".join(sorted(commits)), checks, done)
    outcome.write(file)
    print(f"torch {version}: {name}: {in_words([outcome])}", flush=True)
    for check, why in outcome.having("failed").items():
        print(f"    {check}: {why}", flush=True)
    return outcome


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


Shown = dict[str, dict[str, Outcome | None]]
"""By version and stage; None: not run."""


def read_all(folder: Path, versions: Sequence[str] = VERSIONS) -> Shown:
    return {v: {name: Outcome.read(folder / v / f"{name}.json") for name in STAGES} for v in versions}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def page(shown: Shown) -> str:
    """Every stage of every version, and what failed or was skipped, with the reason."""
    rows = [
        ["build of torch", *(", ".join(_said(stages, "torch")) or NOT_RUN for stages in shown.values())],
        ["commit of graphprobe", *(", ".join(_said(stages, "commit")) or NOT_RUN for stages in shown.values())],
    ]
    rows += [[MEANINGS[name], *(in_words([stages[name]]) for stages in shown.values())] for name in STAGES]
    lines = table(["", *map(in_title, shown)], rows)
    for version, stages in shown.items():
        told = [line for name, outcome in stages.items() if outcome is not None for line in _reasons(name, outcome)]
        if told:
            lines += ["", f"### torch {in_title(version)}", "", *told]
    return "\n".join(lines)


def _said(stages: Mapping[str, Outcome | None], field: str) -> list[str]:
    found = [str(getattr(outcome, field)) for outcome in stages.values() if outcome is not None]
    return sorted({part for text in found for part in text.split(", ")})


def _reasons(stage: str, outcome: Outcome) -> list[str]:
    failed = [f"- {stage}, failed: `{name}`: {_cell(why)}" for name, why in outcome.having("failed").items()]
    if len(failed) > MAX_LISTED:
        failed[MAX_LISTED:] = [f"- {stage}: {len(failed) - MAX_LISTED} more failed"]
    skipped = Counter(outcome.having("skipped").values())
    return failed + [f"- {stage}, skipped, {count}: {_cell(why)}" for why, count in skipped.most_common()]


def _cell(text: str) -> str:
    """Somebody else's words in Markdown."""
    return f"`{text.replace('`', chr(39))}`"


def summary(shown: Shown) -> str:
    """One row a version, for the README."""
    groups = [
        ("private names", ("names",)),
        ("evaluation of IR", ("ir",)),
        ("commands", ("commands",)),
        ("tests", TESTS),
    ]
    rows = [
        [in_title(version), *(in_words([stages[name] for name in group]) for _, group in groups)]
        for version, stages in shown.items()
    ]
    return "\n".join(table(["torch", *(name for name, _ in groups)], rows))


def replaced(text: str, part: str) -> str:
    """`text` with `part` between the marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the marks {BEGIN} and {END} are not both there")
    return f"{before}{BEGIN}\n{part}\n{END}{after}"


def write_pages(shown: Shown) -> None:
    for file, part in ((PAGE, page(shown)), (README, summary(shown))):
        file.write_text(replaced(file.read_text("utf-8"), part), encoding="utf-8")


def full_version(text: str) -> str:
    """`2.11` is the patch of it that is known here, `2.13-py3.13` too; anything else stays."""
    torch, python, version = text.partition("-py")
    return next((k for k in VERSIONS if k.startswith(f"{torch}.") and k.endswith(python + version)), text)


def in_title(version: str) -> str:
    """`2.13.0-py3.13` as `2.13.0, Python 3.13`."""
    return version.replace("-py", ", Python ")


def parsed(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", type=full_version, metavar="VERSION", help=f"of {', '.join(VERSIONS)}")
    parser.add_argument("--stages", default=",".join(STAGES), help="separated by commas; all, unless some are named")
    repeat = parser.add_mutually_exclusive_group()
    repeat.add_argument("--again", action="store_true", help="run stages that were run before")
    repeat.add_argument("--failed", action="store_true", help="run what failed before, and the rest not again")
    parser.add_argument("--limit", type=float, default=LIMIT_MINUTES, metavar="MINUTES", help="for one stage")
    parser.add_argument("--folder", type=Path, default=ROOT / ".matrix", help="for environments and results")
    given = parser.parse_args(args)
    given.versions = given.versions or list(VERSIONS)
    given.stages = given.stages.split(",")
    for kind, known, names in (("version", VERSIONS, given.versions), ("stage", tuple(STAGES), given.stages)):
        if unknown := [name for name in names if name not in known]:
            parser.error(f"no such {kind}: {', '.join(unknown)}; there are {', '.join(known)}")
    return given


def main() -> int:
    given = parsed()
    results = given.folder / "results"
    for version in given.versions:
        python = matrix_env.environment(given.folder / version, *version.split("-py"))
        place = Place(python, results / version, given.limit * 60)
        place.folder.mkdir(parents=True, exist_ok=True)
        for name in STAGES:
            if name in given.stages:
                run_stage(name, version, place, again=given.again, failed=given.failed)
    shown = read_all(results)
    write_pages(shown)
    print(page(shown))
    failed = any(outcome.having("failed") for stages in shown.values() for outcome in stages.values() if outcome)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
