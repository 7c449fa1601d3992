"""A program run as it is and under graphprobe, held against each other."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from graphprobe.store.reader import Run

PROGRAMS = Path(__file__).parent / "programs"
WAYS: dict[str, tuple[str, ...]] = {
    "default": (),
    "everything": ("--save-inputs", "--graph-dump", "py"),
    "pbtxt": ("--save-inputs", "--graph-dump", "pbtxt", "--log-level", "debug"),
}
"""Options of `graphprobe run` that a program is watched with."""

ENV = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@dataclasses.dataclass(frozen=True)
class Said:
    """What a process ended with and said; `err` without what differs between any two runs."""

    code: int
    out: str
    err: str


def without_time_and_process(text: str) -> str:
    """torch's log prefix `W1121 05:08:28.185000 25861` has a time and a process id."""
    return re.sub(r"\b([A-Z])\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ ", r"\1 TIME PID ", text)


@pytest.fixture(scope="session")
def watched_and_not(
    run_python: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Said, dict[str, tuple[Said, Run]]]]:
    """Runs `PROGRAM ARGS` plain and in each of the ways, two processes at a time."""

    def run(
        program: str, *args: str, ways: tuple[str, ...] = ("default", "everything"), env: dict[str, str] | None = None
    ) -> tuple[Said, dict[str, tuple[Said, Run]]]:
        folders = {way: tmp_path_factory.mktemp(way) for way in ways}
        cwd = tmp_path_factory.mktemp("cwd")
        command = (str(PROGRAMS / program), *args)

        def one(way: str | None) -> Said:
            before = ()
            if way is not None:
                before = ("-m", "graphprobe", "run", "-q", "--out", str(folders[way]), *WAYS[way])
            done = run_python(*before, *command, cwd=cwd, env={**ENV, **(env or {})})
            return Said(done.code, done.out, without_time_and_process(done.err))

        with ThreadPoolExecutor(2) as pool:
            plain, *watched = pool.map(one, [None, *ways])
        assert list(cwd.iterdir()) == [], "something was written where nobody asked for it"
        found = {}
        for way, said in zip(ways, watched, strict=True):
            assert list(folders[way].glob("*")), f"nothing was collected:\n{said.err[-3000:]}"
            found[way] = (said, Run.open(folders[way]))
        return plain, found

    return run
