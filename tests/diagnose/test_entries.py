"""Programs that are right compiled afresh, and wrong with what torch's caches on disk have kept of earlier ones."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from graphprobe.diagnose.dossier.writer import run_repro

EDITED = """
import os, torch

FACTOR = float(os.environ["FACTOR"])

@torch.library.custom_op("entries::triple", mutates_args=())
def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3

triple.register_fake(torch.empty_like)
triple.register_autograd(lambda ctx, g: g * FACTOR)

def fn(x):
    return triple(x).sin()

args = (torch.ones(4, requires_grad=True),)
"""
"""An operator whose backward is edited: torch's key has its name alone."""

SHARED = """
import os, torch

def fn(x, y):
    x.mul_(2)
    return x + y

memory = torch.ones(8)
args = (memory[:4], memory[2:6]) if os.environ["FACTOR"] == "3" else (torch.ones(4), torch.ones(4))
"""
"""Arguments that share memory, and others that do not: torch's key has their shapes alone."""


RUN = """
import torch

compiled = torch.compile(fn)(*args)
if compiled.requires_grad:
    compiled.sum().backward()
"""

DIAGNOSE = """
import json, logging, graphprobe

logging.basicConfig(level="INFO", filename="log.txt")
found = graphprobe.diagnose(fn, *args, workaround=args[0].requires_grad, out="out")
print(json.dumps([found.to_json(), open("log.txt").read().count("rung plain:")]))
"""


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Runs a program in a process of its own, whose caches are those of the other ones; what it has printed."""

    def run(text: str, factor: str) -> str:
        env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "kept"), "FACTOR": factor}
        script = tmp_path / "program.py"
        script.write_text(text)
        done = subprocess.run(
            [sys.executable, script], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
        )
        return done.stdout

    return run


@pytest.mark.parametrize(
    ("text", "kind", "isolation"),
    [
        pytest.param(EDITED, "wrong_gradient", "fork", id="edited", marks=pytest.mark.slow),
        pytest.param(SHARED, "wrong_value", "fork", id="memory", marks=pytest.mark.slow),
        pytest.param(SHARED, "wrong_value", "process", id="processes", marks=pytest.mark.heavy),
    ],
)
def test_what_was_compiled_before_is_wrong_now(
    text: str, kind: str, isolation: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHPROBE_ISOLATION", isolation)
    run(text + RUN, "2")
    found, times = json.loads(run(text + DIAGNOSE, "3"))
    (finding,) = found["findings"]
    assert (found["verdict"], finding["kind"], finding["stage"], times) == ("fault", kind, "runtime", 2)
    assert [str(part) in finding["reason"] for part in (tmp_path / "kept" / "aotautograd").iterdir()].count(True) == 1
    dossier = tmp_path / finding["dossier"]
    assert finding["proof"] == "program"
    assert run_repro(dossier, "runtime") == 1
    (dossier / "cache").rename(dossier / "away")
    assert run_repro(dossier, "runtime") == 0
    ways = [way["code"].rpartition(".")[2] for way in finding["workarounds"]]
    assert ways == ["enable_autograd_cache = False"] * (kind == "wrong_gradient")


@pytest.mark.slow
@pytest.mark.parametrize(("before", "times"), [("3", 2), (None, 1)], ids=["kept", "nothing"])
def test_entries_that_fit_are_looked_at_and_right(before: str | None, times: int, run: Any) -> None:
    if before is not None:
        run(SHARED + RUN, before)
    found, looked = json.loads(run(SHARED + DIAGNOSE, "3"))
    assert (found["verdict"], found["findings"], looked) == ("healthy", [], times)
