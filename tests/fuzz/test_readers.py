"""No damaged file brings a reader down: it is read, or refused with an error of ours, in bounded time and memory.

A failure names the seeds; `case(reader, whole, folder, seed)` makes the damaged files again.
"""

import os
import random
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner, Result

from fuzz import samples
from fuzz.mutations import mutated
from graphprobe.cli.main import main
from graphprobe.diagnose.reduction.case_folder import read_state
from graphprobe.dump_plan.build import plan_from
from graphprobe.errors import EXIT_UNDECIDED, EXIT_USAGE, GraphprobeError
from graphprobe.probe.api.plan import arguments_from_file
from graphprobe.settings import resolve

FEW, MANY = 30, 2000
"""Damages a reader: in `make test`, and in all."""
MOST_SECONDS = 60.0
MOST_GROWTH_KB = 500 * 1024
NO_FILE = "error[artifact-not-found]"
"""Of an address or a pass that was asked for and is in no file."""
AT_ONCE = 3
"""Commands that read one damaged file; of more, each seed takes the next ones."""


class Reader(NamedTuple):
    """Which files of which sample are damaged, and what reads them: `{d}` is the sample, `{o}` a new file."""

    sample: str
    files: str
    commands: tuple[str, ...]


COMPARE = "compare --no-replay {d} {whole}"
CONVERT = "convert {d} --out {o}.values --force"
TEXTS = "compare --no-replay {d}/dump.pkl {whole}/dump.pkl"
REPORT = "report {d} -o {o}.html --force"
GRAPH, PASSED = "model__0/forward/graph", "model__0/forward/after:remove_noop_ops"
RUN = (
    "ls {d} --all", "ls {d} --json", "show {d} " + GRAPH, "show {d} --json compile", "diff {d} --pass remove_noop_ops",
    f"diff {{d}} {GRAPH} {PASSED}", "logs {d}", "logs {d} --component dynamo --json", "logs {d} --component fx",
    "recompiles {d}", "recompiles --json {d}", "explain {d}", REPORT, "export {d} --to chrome-trace -o {o} --force",
    "export {d} --to onnx-text -o {o}.onnx --force", "export {d} --to model-explorer -o {o}.explorer --force",
)  # fmt: skip
PROOF = "{d}/proofs/codegen-aten.relu.default"
DIAGNOSIS = ("report {d}/result.json -o {o}.html --force", REPORT)
DOSSIER = (*DIAGNOSIS, f"report {PROOF} -o {{o}}.html --force", f"issue {PROOF}", f"issue {PROOF} --private")
PROFILE = (
    "profile {d}/profile.json", "profile {d}/profile.json --json", "profile {d}/profile.json {whole}/profile.json",
    "profile {d}/profile.json --trace {o} --force", "report {d}/profile.json -o {o}.html --force",
    "export {d}/profile.json --to chrome-trace -o {o} --force",
)  # fmt: skip
EXPORT = ("export {d} --to model-explorer -o {o} --force",)
READERS: dict[str, Reader] = {
    "API dump: manifest": Reader("calls", "**/manifest.json", (COMPARE, "merge {d} {whole} --out {o} --force")),
    "API dump: calls": Reader("calls", "**/*.jsonl", (COMPARE, "parse {d} empty.0.forward", REPORT, *EXPORT)),
    "API dump: values": Reader("calls", "**/*.safetensors", (COMPARE, "parse {d} nn.functional.linear.0")),
    "graph dump: index": Reader("graphs", "**/ops.jsonl", (COMPARE, REPORT, CONVERT, *EXPORT)),
    "graph dump: manifest": Reader("graphs", "**/manifest.json", (COMPARE, REPORT)),
    "graph dump: statistics": Reader("graphs", "**/stats.csv", (COMPARE, REPORT)),
    "graph dump: values": Reader("values", "**/Data.* **/cpp_fused.*", (COMPARE, REPORT, CONVERT)),
    "graph dump: findings": Reader("graphs", "**/findings.jsonl **/overflow.json **/exception.json", (REPORT,)),
    "msprobe: JSON": Reader("msprobe", "**/*.json", (COMPARE, REPORT)),
    "msprobe: values": Reader("msprobe", "**/*.pt", (COMPARE,)),
    "ptdbg: text": Reader("ptdbg", "*.pkl", (TEXTS, "parse {d}/dump.pkl 1_Torch_empty_forward")),
    "ptdbg: values": Reader("ptdbg", "**/*.npy", (TEXTS,)),
    "ranks: index": Reader("ranks", "graphprobe-ranks.json", (COMPARE,)),
    "comparison": Reader("comparison", "*.json*", (REPORT, *EXPORT)),
    "run: manifest": Reader("run", "graphprobe/manifest.json", RUN),
    "run: events": Reader("run", "graphprobe/events.jsonl", RUN),
    "run: steps and breaks": Reader("run", "*/steps.jsonl */recompiles.jsonl */graph_breaks.jsonl", RUN),
    "run: logs": Reader("run", "graphprobe/**/*.log", RUN),
    "run: facts of a compile": Reader("run", "**/model__0/**/*.json", RUN),
    "run: records of graphs": Reader("run", "**/graphs.jsonl", RUN),
    "run: graphs and code": Reader("run", "**/forward/*.txt **/forward/*.py", RUN),
    "diagnosis": Reader("diagnosis", "result.json", DIAGNOSIS),
    "dossier": Reader("diagnosis", "proofs/*/*", DOSSIER),
    "profile": Reader("profile", "profile.json", PROFILE),
    "frame record": Reader("frame", "record.json", ("replay {d}", "replay {d} --json")),
}  # fmt: skip
SETTINGS: dict[str, Callable[[Path], object]] = {
    "dump.json": lambda path: plan_from(options={"dump_config_path": str(path)}),
    "api.json": arguments_from_file,
    "graphprobe.json": lambda path: resolve(arguments={"config_path": str(path)}, environ={}),
    "reduction.json": lambda path: read_state(path.parent),
}
"""JSON that says what to do, and what reads it."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    samples.everything(folder)
    return folder


def copied(reader: Reader, whole: Path, folder: Path) -> list[Path]:
    place = folder / "damaged"
    if not place.exists():
        shutil.copytree(whole / reader.sample, place)
    return sorted(path for pattern in reader.files.split() for path in place.glob(pattern) if path.is_file())


def case(reader: Reader, whole: Path, folder: Path, seed: int) -> tuple[Path, bytes]:
    """Damages one file of the copy; which one, and what it held."""
    chance = random.Random(seed)
    path = chance.choice(copied(reader, whole, folder))
    data = path.read_bytes()
    path.write_bytes(mutated(data, chance))
    return path, data


def taken(reader: Reader, seed: int) -> list[str]:
    many = len(reader.commands)
    return [reader.commands[(seed * AT_ONCE + i) % many] for i in range(min(AT_ONCE, many))]


def invoked(reader: Reader, command: str, whole: Path, folder: Path) -> Result:
    given = command.format(d=folder / "damaged", o=folder / "out", whole=whole / reader.sample).split()
    return CliRunner().invoke(main, given)


def check(reader: Reader, whole: Path, folder: Path, seed: int) -> str:
    """What is wrong with how the commands take a damaged sample; empty if nothing is."""
    path, data = case(reader, whole, folder, seed)
    try:
        for command in taken(reader, seed):
            begun = time.monotonic()
            done = invoked(reader, command, whole, folder)
            if said := fault(done, time.monotonic() - begun, folder):
                return f"{command}: {said}"
        return ""
    finally:
        path.write_bytes(data)


def fault(done: Result, took_s: float, folder: Path) -> str:
    """What is wrong with how one command has taken the damaged sample; empty if nothing is."""
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return f"{type(done.exception).__name__}: {str(done.exception)[:300]}"
    if "Traceback (most recent call last)" in done.output or "please report" in done.output:
        return "a traceback"
    if took_s > MOST_SECONDS:
        return f"{took_s:.0f} s"
    if done.exit_code not in (EXIT_USAGE, EXIT_UNDECIDED) and ("error[" in done.output or done.exit_code not in (0, 1)):
        return f"exit code {done.exit_code}: {done.output[:300]}"
    if done.exit_code == EXIT_USAGE and str(folder) not in done.output and NO_FILE not in done.output:
        return f"refused without the name of a file: {done.output[:300]}"
    return ""


def check_seeds(count: int, why: Callable[[int], str]) -> None:
    seeds = range(0 if count == FEW else FEW, count)
    wrong = {seed: said for seed in seeds if (said := why(seed))}
    assert not wrong, f"{len(wrong)} of {count} seeds: {dict(list(wrong.items())[:5])}"


COUNTS = pytest.mark.parametrize(
    "count", [FEW, pytest.param(MANY, marks=[pytest.mark.heavy, pytest.mark.timeout(3600)])]
)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
@COUNTS
def test_no_damage_brings_a_reader_down(name: str, count: int, whole: Path, tmp_path: Path) -> None:
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check_seeds(count, lambda seed: check(READERS[name], whole, tmp_path, seed))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < MOST_GROWTH_KB


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
@COUNTS
def test_settings_that_are_damaged_are_refused(name: str, count: int, whole: Path, tmp_path: Path) -> None:
    data, file = (whole / "settings" / name).read_bytes(), tmp_path / name
    file.write_bytes(data)
    SETTINGS[name](file)

    def why(seed: int) -> str:
        file.write_bytes(mutated(data, random.Random(seed)))
        try:
            SETTINGS[name](file)
        except GraphprobeError as error:
            return "" if name in str(error) else f"without the name of the file: {error}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    check_seeds(count, why)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_whole_files_are_read_and_what_is_no_regular_file_is_not_opened(name: str, whole: Path, tmp_path: Path) -> None:
    reader = READERS[name]
    paths = copied(reader, whole, tmp_path)
    assert paths
    for command in reader.commands:
        done = invoked(reader, command, whole, tmp_path)
        accepted = (0, 1, EXIT_UNDECIDED) if "error[" not in done.output else ()
        assert done.exit_code in accepted, f"{command}: {done.output[-500:]}"
    for path in paths:
        path.unlink()
        os.mkfifo(path)  # a reader that opens it waits for ever
    for command in reader.commands:
        done = invoked(reader, command, whole, tmp_path)
        assert isinstance(done.exception, SystemExit | None), f"{command}: {done.exception!r}"
