"""`graphprobe run --dump`: calls of torch's API, with the program's own output and exit code as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphprobe.store.api_reader import open_api_dump

PROGRAM = """
import sys, torch
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("arguments", sys.argv[1:])
sys.exit(7)
"""


def test_dump_by_options(run_warm: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    options = ("--dump", "tensor", "--level", "mix", "--steps", "0|2", "--apis", "Linear,*linear", "--dump-to", "d")
    done = run_warm("-m", "graphprobe", "run", *options, "train.py", "--own", cwd=tmp_path)
    assert done.code == 7, done.err
    assert done.out == "arguments ['--own']\n"
    assert "8 calls dumped to d" in done.err
    dump = open_api_dump(tmp_path / "d")
    assert dump.steps(0) == (0, 2) and dump.problems() == ()
    assert [call.label for call in dump.calls(0, 2)] == [
        "nn.functional.linear.0.forward",
        "Module.Linear.0.forward",
        "nn.functional.linear.0.backward",
        "Module.Linear.0.backward",
    ]
    assert [call.source for call in dump.calls(0, 0)] == ["train.py:6"] * 4


def test_mistakes_are_found_before_the_program_runs(run_warm: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    for options, said in {
        ("--dump", "all"): "'all'",
        ("--level", "mix"): "--level",
        ("--dump", "stats", "--steps", "3-1"): "3-1",
        ("--api-config", "none.json"): "none.json",
    }.items():
        done = run_warm("-m", "graphprobe", "run", *options, "train.py", cwd=tmp_path)
        assert done.code == 2 and said in done.err and "arguments" not in done.out
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
