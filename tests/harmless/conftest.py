"""A program run as it is and under graphprobe, held against each other."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conftest import Finished, damaged
from graphprobe.store import Run

PROGRAMS = Path(__file__).parent / "programs"
WAYS: dict[str, tuple[str, ...]] = {
    "default": (),
    "everything": ("--save-inputs", "--graph-dump", "py"),
    "pbtxt": ("--save-inputs", "--graph-dump", "pbtxt", "--log-level", "debug"),
}
"""Options of `graphprobe run` that a program is watched with."""

ENV = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def without_time_and_process(text: str) -> str:
    """torch's log prefix `W1121 05:08:28.185000 25861` has a time and a process id."""
    return re.sub(r"\b([A-Z])\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ ", r"\1 TIME PID ", text)


@pytest.fixture(scope="session")
def watched_and_not(
    run_warm: Callable[..., Finished], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Finished, dict[str, Run]]]:
    """Runs `PROGRAM ARGS` plain and in each of the ways, two processes at a time; the plain one, and the runs.

    They end alike and say the same, in what `comparable` leaves of stderr, and the runs are whole.
    """

    def run(
        program: str,
        *args: str,
        ways: tuple[str, ...] = ("default", "everything"),
        env: dict[str, str] | None = None,
        comparable: Callable[[str], Any] = without_time_and_process,
    ) -> tuple[Finished, dict[str, Run]]:
        folders = {way: tmp_path_factory.mktemp(way) for way in ways}
        cwd = tmp_path_factory.mktemp("cwd")

        def one(way: str | None) -> Finished:
            before = () if way is None else ("-m", "graphprobe", "run", "-q", "--out", str(folders[way]), *WAYS[way])
            return run_warm(*before, str(PROGRAMS / program), *args, cwd=cwd, env={**ENV, **(env or {})})

        with ThreadPoolExecutor(2) as pool:
            plain, *watched = pool.map(one, [None, *ways])
        assert list(cwd.iterdir()) == [], "something was written where nobody asked for it"
        runs = {}
        for way, said in zip(ways, watched, strict=True):
            assert list(folders[way].glob("*")), f"nothing was collected:\n{said.err[-3000:]}"
            assert said.out == plain.out, way
            assert comparable(said.err) == comparable(plain.err), way
            assert said.code == plain.code, way
            runs[way] = Run.open(folders[way])
            assert runs[way].state == ("failed" if plain.code else "finished"), way
            assert (runs[way].manifest.missing, damaged(runs[way])) == ([], []), way
        return plain, runs

    return run
