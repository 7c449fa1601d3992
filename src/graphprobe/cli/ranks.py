"""One verdict for all ranks of a program, each of which is a process with a diagnosis of its own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from graphprobe.cli.ending import AtSignal, Signals, at_signal
from graphprobe.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED, EXIT_USAGE
from graphprobe.report.visible import echo
from graphprobe.store.files import read_file, replace_file
from graphprobe.store.reader import is_alive

WAIT_S, UNSEEN_S, DONE_S, SAID_S = 3600.0, 20.0, 10.0, 2.0
"""How long this rank waits for one that still diagnoses, for one that has left no file at all, for all to be done; and
when it says so."""

FIRST = (EXIT_FOUND, EXIT_UNDECIDED, EXIT_OK, EXIT_USAGE)
"""Of several exit codes, the one that is that of all: a rank that compiles nothing does not contradict the others."""

NONE = "no verdict"
WORDS = {
    EXIT_OK: "healthy",
    EXIT_FOUND: "fault",
    EXIT_UNDECIDED: "undecided",
    EXIT_USAGE: "nothing compiled",
    None: NONE,
}


class Ranks:
    """This rank among the others. Each has a file in its folder of proofs, so that one that has died is noticed.

    Attributes:
        folder: for the proofs of this rank.
        lost: what is to be said of ranks that have no verdict.
    """

    def __init__(self, folder: Path, rank: int, others: Iterable[int]) -> None:
        """`folder`: its name ends in -rank_N, as those of the others do."""
        self.folder, self.rank, self.lost = folder, rank, ""
        self._others = [other for other in others if other != rank]
        self._write(None)

    def settled(self, code: int, limit_s: float) -> tuple[int, bool, str]:
        """The exit code of all ranks, whether this one is to tell the verdict, and what is to be said of the others."""
        self._code = code
        self._write(code)
        self._wait(lambda told: told["code"] is not None, min(WAIT_S, limit_s), UNSEEN_S)
        codes = {self.rank: code} | {rank: (self._read(rank) or {"code": None})["code"] for rank in self._others}
        final = min((EXIT_UNDECIDED if found is None else found for found in codes.values()), key=FIRST.index)
        tellers = [rank for rank, found in codes.items() if found == final]
        teller = min(tellers or [rank for rank, found in codes.items() if found is not None])
        return final, teller == self.rank, self._in_words(codes)

    def leave(self) -> None:
        """Tell the others that this rank is done, wait until they are, since a launcher ends all with the first."""
        self._write(self._code, done=True)
        self._wait(lambda told: told["done"], DONE_S, 0.0)
        with contextlib.suppress(OSError):
            self._file(self.rank).unlink()
            self.folder.rmdir()  # where there are no proofs in it

    def _in_words(self, codes: dict[int, int | None]) -> str:
        found: dict[str, list[int]] = {}
        for rank, code in sorted(codes.items()):
            if rank != self.rank:
                found.setdefault(WORDS[code], []).append(rank)
        if NONE in found:
            self.lost = f"{_named(found[NONE])} ended, or did not come to an end, without a verdict"
        return "".join([f" on rank {self.rank}", *(f"; {_named(ranks)}: {word}" for word, ranks in found.items())])

    def _wait(self, is_there: Callable[[dict[str, Any]], bool], limit_s: float, unseen_s: float) -> None:
        began, said = time.monotonic(), False
        stopped = [""] * (Signals.current is not None and Signals.current.code is not None)
        with at_signal(AtSignal(stopped.append)):
            while not stopped:
                now_s = time.monotonic() - began
                told = {rank: self._read(rank) for rank in self._others}
                left = [rank for rank, one in told.items() if one is not None and one["alive"] and not is_there(one)]
                left += [rank for rank, one in told.items() if one is None and now_s < unseen_s]
                if not left or now_s > limit_s:
                    return
                if now_s > SAID_S and not said:
                    said = True
                    echo(f"graphprobe: waiting for the verdict of {_named(left)} …", err=True)
                time.sleep(0.2)

    def _file(self, rank: int) -> Path:
        return self.folder.with_name(f"{self.folder.name.rpartition('_')[0]}_{rank}") / "verdict.json"

    def _write(self, code: int | None, *, done: bool = False) -> None:
        document = {"code": code, "done": done, "pid": os.getpid(), "host": socket.gethostname()}
        with contextlib.suppress(OSError):  # the disk is full, which the end says
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self._file(self.rank), json.dumps(document).encode())

    def _read(self, rank: int) -> dict[str, Any] | None:
        """What the rank has written; None where there is nothing. `alive`: it may still go on, as far as is known."""
        try:
            told: dict[str, Any] = json.loads(read_file(self._file(rank)))
        except (OSError, ValueError):
            return None
        told["alive"] = told["host"] != socket.gethostname() or is_alive(told["pid"])
        return told


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def ranks_from(environ: Mapping[str, str], out: Path | None) -> Ranks | None:
    """This rank, as a launcher has set the environment; None where there is one rank, or nothing that all could share.

    `out`: the folder that `--out` names, of this rank. Without it, the ranks of this machine share one that is named
    after the launcher, if that tells which ranks are on this machine.
    """
    rank, world, here = (environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if not (rank.isdecimal() and world.isdecimal() and int(world) > 1):
        return None
    if out is not None:
        return Ranks(out, int(rank), range(int(world)))
    if not here.isdecimal():
        return None
    first, parent, began = int(rank) - int(environ.get("LOCAL_RANK", "0")), os.getppid(), "0"
    with contextlib.suppress(OSError, IndexError):
        began = Path(f"/proc/{parent}/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    name = f"{began}-{parent}-{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}-rank_{rank}"
    return Ranks(Path("graphprobe-diagnosis").absolute() / name, int(rank), range(first, first + int(here)))
