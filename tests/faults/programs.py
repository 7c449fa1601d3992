"""A small training step, with room for a fault, and how to compare two runs of it."""

import re
from pathlib import Path

from conftest import damaged
from graphprobe.store import Run

STEP = """\
import os, shutil, signal, subprocess, sys, threading, time
import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass

def f(x):
    return torch.relu(x @ x).sum()

def g(x):
    return torch.sin(x).cos().mean()

class Custom(CustomGraphPass):
    calls = 0
    def __call__(self, graph):
        Custom.calls += 1
        custom_pass(graph, Custom.calls)
    def uuid(self):
        return None

def custom_pass(graph, call):
    pass

{setup}
x = torch.arange(64.0).reshape(8, 8).div(64).requires_grad_()
out = torch.compile(f{options})(x)
print("FORWARD", float(out.detach()), flush=True)
{between}
out.backward()
print("BACKWARD", float(x.grad.sum()), flush=True)
print("SECOND", float(torch.compile(g{options})(x.detach())), flush=True)
"""


def write_step(path: Path, *, setup: str = "", between: str = "", options: str = "") -> Path:
    """The step as a script at `path`; `options` are further arguments of torch.compile, each with its comma."""
    path.write_text(STEP.format(setup=setup, between=between, options=options))
    return path


def without_our_frames(stderr: str) -> list[str]:
    """The program's own frames and the exception itself: what a reader of a traceback looks for.

    torch's frames are left out: watching adds some between them.
    """
    lines = [line for line in stderr.splitlines() if not line.startswith("graphprobe:")]
    kept = [line for line in lines if re.match(r'  File ".*step\.py"', line)]
    return kept + [line for line in lines if re.match(r"[A-Za-z_.]+(Error|Exception|Failed|Interrupt)\b", line)]


def sound(run: Run) -> None:
    """What is there is whole: listed files are as written, lines are events but for a last torn one."""
    events = run.events()
    assert damaged(run) == []
    assert [event.seq for event in events] == list(range(len(events)))
    assert all("is cut off" in problem for problem in run.problems), run.problems
    assert len(run.problems) <= 1
    assert not any(".tmp-" in (event.path or "") for event in events)


def size_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
