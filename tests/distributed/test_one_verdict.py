"""`diagnose` on several ranks has one verdict and one exit code, whichever rank is wrong, late, or dead."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import Finished
from graphprobe.cli.ranks import Ranks, ranks_from

WORDS = ("-m", "graphprobe", "diagnose", "--out", "out")


def settled(folder: Path, codes: list[int | None], *, limit_s: float = 60.0) -> list[tuple[int, bool, str, str]]:
    """What each rank that has a code is told; None: it began, and died."""
    ranks = [Ranks(folder / f"out-rank_{rank}", rank, range(len(codes))) for rank in range(len(codes))]

    def settle(rank: int, code: int) -> tuple[int, bool, str, str]:
        time.sleep(0.3 * rank)
        said = ranks[rank].settled(code, limit_s)
        ranks[rank].leave()
        return *said, ranks[rank].lost

    with ThreadPoolExecutor(len(codes)) as pool:
        return list(pool.map(settle, *zip(*((r, c) for r, c in enumerate(codes) if c is not None), strict=True)))


@pytest.mark.parametrize(
    ("codes", "final", "teller", "words"),
    [
        ([0, 0], 0, 0, " on rank 0; rank 1: healthy"),
        ([0, 1], 1, 1, " on rank 1; rank 0: healthy"),
        ([1, 0, 1], 1, 0, " on rank 0; rank 1: healthy; rank 2: fault"),
        ([125, 1], 1, 1, " on rank 1; rank 0: undecided"),
        ([0, 125, 0], 125, 1, " on rank 1; ranks 0, 2: healthy"),
        ([2, 0], 0, 1, " on rank 1; rank 0: nothing compiled"),
        ([2, 2], 2, 0, " on rank 0; rank 1: nothing compiled"),
    ],
)
def test_all_ranks_have_one_exit_code_and_one_of_them_tells_the_verdict(
    tmp_path: Path, codes: list[int | None], final: int, teller: int, words: str
) -> None:
    said = settled(tmp_path, codes)
    assert [one[0] for one in said] == [final] * len(codes)
    assert [rank for rank, one in enumerate(said) if one[1]] == [teller]
    assert said[teller][2:] == (words, "")
    assert list(tmp_path.iterdir()) == [], "ranks without proofs leave nothing"


@pytest.mark.parametrize(("code", "final"), [(0, 125), (1, 1)])
def test_a_rank_that_died_is_told_and_not_waited_for(tmp_path: Path, code: int, final: int) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    ranks = Ranks(tmp_path / "out-rank_0", 0, range(2))
    Ranks(tmp_path / "out-rank_1", 1, range(2))
    file = tmp_path / "out-rank_1" / "verdict.json"
    file.write_text(re.sub(r'"pid": \d+', f'"pid": {dead.pid}', file.read_text()))
    began = time.monotonic()
    assert ranks.settled(code, 60.0) == (final, True, " on rank 0; rank 1: no verdict")
    assert ranks.lost.startswith("rank 1 ended") and time.monotonic() - began < 10


@pytest.mark.slow
def test_a_rank_that_does_not_come_to_an_end_is_waited_for_up_to_a_limit(tmp_path: Path) -> None:
    ((code, tells, _, lost),) = settled(tmp_path, [0, None], limit_s=0.5)
    assert (code, tells) == (125, True) and lost.startswith("rank 1 ended, or did not come to an end")


def test_what_ranks_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ranks_from({}, tmp_path) is None
    assert ranks_from({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}, None) is None
    assert ranks_from({"RANK": "1", "WORLD_SIZE": "2"}, None) is None, "nothing tells where the others are"
    here = {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2"}
    both = [ranks_from({"RANK": f"{rank}", "LOCAL_RANK": f"{rank - 4}", **here}, None) for rank in (4, 5)]
    folders = [one.folder for one in both if one is not None]
    assert [folder.name.rpartition("-rank_")[2] for folder in folders] == ["4", "5"]
    assert len({folder.name.rpartition("-rank_")[0] for folder in folders}) == 1


def verdicts(text: str) -> list[str]:
    """The last lines of ranks, each with a rank before it."""
    return re.findall(r"^\[rank \d\] (?:HEALTHY|FAULT|UNDECIDED)[^\n]*: .*alone\.py: .*$", text, re.MULTILINE)


RIGHT = r"\[rank 0\] HEALTHY.* on rank 0; rank 1: healthy"
DEAD = r"\[rank 0\] UNDECIDED.* on rank 0; rank 1: no verdict"


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code", "told"), [("right", 0, RIGHT), ("dies", 125, DEAD)])
def test_one_verdict_is_printed(
    run_ranks: Callable[..., Finished], tmp_path: Path, how: str, code: int, told: str
) -> None:
    done = run_ranks(2, "alone.py", how, cwd=tmp_path, before=WORDS, code=code)
    (verdict,) = verdicts(done.out)
    assert re.fullmatch(told, verdict), done.out
    assert how != "dies" or re.search(r"why: +rank 1 ended, or did not come to an end, without a verdict", done.out)
