"""No damaged file brings a reader down: it is read, or refused with an error of ours, in bounded time and memory.

A failure names the seeds; `case(reader, whole, folder, seed)` makes the damaged dump again.
"""

from __future__ import annotations

import random
import resource
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from compare import pairs
from fuzz.mutations import mutated
from graphprobe.cli.main import main

FEW, MANY = 100, 2000
"""Damages a reader: in `make test`, and in all."""
MOST_SECONDS = 60.0
MOST_GROWTH_KB = 500 * 1024


class Reader(NamedTuple):
    """Which files of which dump are damaged, and the commands that read it: `{d}` is the dump, `{o}` a new file."""

    dump: str
    files: str
    commands: tuple[str, ...]


COMPARE = "compare --no-replay {d} {whole}"
REPORT = "report {d} -o {o}.html --force"
READERS: dict[str, Reader] = {
    "API dump: manifest": Reader("calls", "**/manifest.json", (COMPARE, "merge {d} --out {o} --force")),
    "API dump: calls": Reader("calls", "**/calls.jsonl", (COMPARE, "parse {d} linear.0", REPORT)),
    "API dump: values": Reader("calls", "**/*.safetensors", (COMPARE, "parse {d} nn.functional.linear.0")),
    "graph dump: index": Reader("graphs", "**/ops.jsonl", (COMPARE, REPORT, "convert {d} --out {o} --force")),
    "graph dump: manifest": Reader("graphs", "**/manifest.json", (COMPARE, REPORT)),
    "graph dump: statistics": Reader("graphs", "**/stats.csv", (COMPARE, REPORT)),
    "msprobe: JSON": Reader("msprobe", "**/*.json", (COMPARE, REPORT)),
    "msprobe: values": Reader("msprobe", "**/*.pt", (COMPARE,)),
    "ptdbg: text": Reader(
        "ptdbg", "*.pkl", ("compare --no-replay {d}/dump.pkl {whole}/dump.pkl", "parse {d}/dump.pkl 0_ones")
    ),
    "ptdbg: values": Reader("ptdbg", "**/*.npy", ("compare --no-replay {d}/dump.pkl {whole}/dump.pkl",)),
    "ranks: index": Reader("ranks", "graphprobe-ranks.json", (COMPARE,)),
    "comparison": Reader("comparison", "*.json*", (REPORT, "export {d} --to model-explorer -o {o}.json --force")),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One dump of each kind."""
    folder = tmp_path_factory.mktemp("whole")
    pairs.dumped(pairs.Run(pairs.trained(2, depth=1)), folder / "calls", data="tensor")
    pairs.graphs_dumped(folder / "graphs")
    told = str(folder / "calls")
    for command in (
        f"convert {told} --to msprobe --out {folder / 'msprobe'}",
        f"convert {told} --to ptdbg --out {folder / 'ptdbg' / 'dump.pkl'}",
        f"compare --no-replay {told} {told} --out {folder / 'comparison'}",
    ):
        (folder / "ptdbg").mkdir(exist_ok=True)
        assert CliRunner().invoke(main, command.split()).exit_code == 0, command
    ranks = folder / "ranks"
    shutil.copytree(folder / "calls", ranks / "one")
    (ranks / "graphprobe-ranks.json").write_text('{"schema": 1, "ranks": {"0": "one"}}')
    return folder


def case(reader: Reader, whole: Path, folder: Path, seed: int) -> Path:
    """The copy of a dump with one of its files damaged."""
    chance = random.Random(seed)
    place = folder / "damaged"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(whole / reader.dump, place)
    path = chance.choice(sorted(p for p in place.glob(reader.files) if p.is_file()))
    path.write_bytes(mutated(path.read_bytes(), chance))
    return place


def check(reader: Reader, whole: Path, folder: Path, seed: int) -> str:
    """What is wrong with how the commands take a damaged dump; empty if nothing is."""
    place = case(reader, whole, folder, seed)
    for number, command in enumerate(reader.commands):
        given = command.format(d=place, o=folder / f"out{number}", whole=whole / reader.dump).split()
        begun = time.monotonic()
        done = CliRunner().invoke(main, given)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            return f"{command}: {type(done.exception).__name__}: {str(done.exception)[:300]}"
        if "Traceback (most recent call last)" in done.output:
            return f"{command}: a traceback"
        if time.monotonic() - begun > MOST_SECONDS:
            return f"{command}: {time.monotonic() - begun:.0f} s"
        if done.exit_code not in (0, 1, 2, 125):
            return f"{command}: exit code {done.exit_code}"
    return ""


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=[pytest.mark.heavy, pytest.mark.timeout(3600)])])
def test_no_damage_brings_a_reader_down(name: str, count: int, whole: Path, tmp_path: Path) -> None:
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first = 0 if count == FEW else FEW
    wrong = {seed: why for seed in range(first, count) if (why := check(READERS[name], whole, tmp_path, seed))}
    assert not wrong, f"{len(wrong)} of {count - first} seeds: {dict(list(wrong.items())[:5])}"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < MOST_GROWTH_KB
