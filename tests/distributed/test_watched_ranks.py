"""`watch` on two ranks: each has observations of its own, a trigger names its rank, and both end as without."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Finished
from graphprobe.store import Run, layout


def ranks_said(done: Finished) -> list[str]:
    return sorted(re.findall(r"RANK (?:(?!RANK).)*", done.out))  # two may be on one line


@pytest.mark.slow
def test_a_trigger_names_its_rank_and_the_other_goes_on(torchrun: Callable[..., Finished], tmp_path: Path) -> None:
    plain = torchrun("late_fault.py", cwd=tmp_path, env={})
    watched = ("-m", "graphprobe", "watch", "--shadow", "2", "--keep", "2", "-o", str(tmp_path / "runs"))
    done = torchrun("late_fault.py", cwd=tmp_path, before=watched, env={})
    assert (done.code, ranks_said(done)) == (plain.code, ranks_said(plain))
    assert len(ranks_said(done)) == 2
    runs = sorted(Run.find_all(tmp_path / "runs"), key=lambda run: run.manifest.rank)
    for run in runs:
        lines = (run.tool_dir / layout.WATCH).read_text("utf-8").splitlines()
        assert [json.loads(line)["step"] for line in lines] == [*range(1, 8)]
    silent, answered = (run.tool_dir / layout.ANSWER for run in runs)
    assert not silent.exists()
    answer = json.loads(answered.read_text("utf-8"))
    assert (answer["rank"], answer["step"], answer["operation"]["op"]) == (1, 5, "torch.exp")
    assert "graphprobe: rank 1: step 5: the loss is inf" in done.err
    assert "NOT FINITE in step 5 of rank 1" in done.err
    assert "rank 0: <lambda> (" in done.err
    assert "late_fault.py:12) talks to other ranks: its calls were not compared" in done.err
    assert done.err.count("looking into the step") == 1
