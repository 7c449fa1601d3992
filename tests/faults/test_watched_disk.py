"""A disk that is full while a program is watched: the program ends as without, and what is missing is said."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Finished
from faults.test_disk import NO_SPACE, disk, filled, mount
from graphprobe.store import Run, layout

__all__ = ["disk"]

PROGRAM = """
import sys, time, torch

torch.manual_seed(0)
layer = torch.nn.Linear(3, 3)
compiled = torch.compile(lambda x: torch.log(layer(x).square()).mean(), backend="eager")
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
for step in range(1, 9):
    if step == 4:
{filled}
    if step == 7:
        layer.bias.data.zero_()
    loss = compiled(torch.zeros(2, 3) if step == 7 else torch.ones(2, 3))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
    time.sleep(0.02)
sys.exit(5)
"""


@pytest.mark.slow
def test_a_full_disk_ends_the_observations_and_not_the_program(
    run_warm: Callable[..., Finished], disk: Path, tmp_path: Path
) -> None:
    text = PROGRAM.replace("{filled}", "".join(f"        {line}\n" for line in filled(disk).splitlines()))
    (tmp_path / "train.py").write_text(text, "utf-8")
    mount(disk, "size=1m")
    done = run_warm("-m", "graphprobe", "watch", "-o", str(disk / "out"), "train.py", cwd=tmp_path)
    (disk / "hog").unlink()
    plain = run_warm("train.py", cwd=tmp_path)
    assert (done.code, done.out) == (5, plain.out)
    assert "Traceback" not in done.err
    assert re.search(f"^graphprobe: missing: .*{NO_SPACE}", done.err, re.MULTILINE)
    assert "NOT FINITE in step 7" in done.err and "torch.log at train.py:6" in done.err
    run = Run.open(disk / "out")
    assert run.state == "finished"
    lines = (run.tool_dir / layout.WATCH).read_text("utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines[:3]] == [1, 2, 3]
    assert run.problems == []
