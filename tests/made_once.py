"""What a session of tests makes once, on first use: a run, dumps, diagnoses, a comparison, a profile.

Nobody may change what is made here: copy it first.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Finished

PROGRAM = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
compiled = torch.compile(model)
for _ in range(2):
    compiled(torch.ones(4, 8)).square().mean().backward()
torch.compile(lambda x: (x + 1).log(), backend="aot_eager")(torch.zeros(3) - 1)  # not finite
"""

GRAPHS = """
import json, pathlib, sys, torch, graphprobe
for name in sys.argv[1:]:
    folder = pathlib.Path(name)
    folder.mkdir()
    plan = folder.with_suffix(".json")
    data = "tensor" if folder.name == "values" else "stats"
    plan.write_text(json.dumps({"dump": {"dump_path": str(folder), "dump_data": data}}))
    config = graphprobe.CompilerConfig()
    config.dump_config.enable_dump = True
    config.dump_config.dump_config_path = str(plan)
    with torch.no_grad():
        torch.compile(lambda x: torch.sin(x) + 1, backend=graphprobe.get_backend(compiler_config=config))(torch.ones(4))
"""
"""Dumps a compiled graph into each folder that it is given: `values` gets values, any other one statistics."""

CALLS = """
import sys, torch, graphprobe
for name, factor in (("old", 1.0), ("new", 1.01)):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    with graphprobe.dump(name, model=model, data="tensor", stack=True):
        (model[2](model[1](model[0](torch.ones(4, 8))) * factor)).sum().backward()
"""

FUNCTION = """
import torch

def scaled(x):
    return torch.relu(x) * 2

def make():
    torch.manual_seed(0)
    return scaled, (torch.randn(4, 8),)
"""
FAULTY = f'{FUNCTION}\nimport torch._inductor.config as c\nc.cpp.inject_relu_bug_TESTING_ONLY = "accuracy"\n'
"""With a fault of Inductor's own, made for testing: the C++ for ReLU adds 1."""

Command = Callable[..., Path]


@pytest.fixture(scope="session")
def in_folder(tmp_path_factory: pytest.TempPathFactory, run_warm: Callable[..., Finished]) -> Command:
    """`in_folder(name, {file: text}, *args, code=0)`: a folder in which `python ARGS` has run, and ended so."""

    def run(name: str, files: dict[str, str], *args: str, code: int = 0) -> Path:
        folder = tmp_path_factory.mktemp(name)
        for file, text in files.items():
            (folder / file).write_text(text, "utf-8")
        done = run_warm(*args, cwd=folder)
        assert done.code == code, done.out + done.err
        (folder / "said.txt").write_text(done.out + done.err, "utf-8")
        return folder

    return run


@pytest.fixture(scope="session")
def recorded_run(in_folder: Command) -> Path:
    """The folder in which `graphprobe run` watched `program.py`, with both dumps: torch_compile_debug is in it."""
    command = "-m graphprobe run --dump stats --dump-graph stats program.py"
    return in_folder("run", {"program.py": PROGRAM}, *command.split())


@pytest.fixture(scope="session")
def graph_dumps(in_folder: Command) -> dict[str, Path]:
    """Dumps of one compiled graph, by what they hold: `stats` or `values`."""
    folder = in_folder("graphs", {}, "-c", GRAPHS, "stats", "values")
    return {name: folder / name for name in ("stats", "values")}


@pytest.fixture(scope="session")
def call_dumps(in_folder: Command) -> dict[str, Path]:
    """Dumps of torch's calls with values, of an `old` program and a `new` one, in which a factor is wrong."""
    folder = in_folder("calls", {}, "-c", CALLS)
    return {name: folder / name for name in ("old", "new")}


@pytest.fixture(scope="session")
def compared_dumps(in_folder: Command, call_dumps: dict[str, Path]) -> Path:
    """The folder of the comparison of `call_dumps`: comparison.json, rows.jsonl, report.html."""
    command = f"-m graphprobe compare {call_dumps['new']} {call_dumps['old']} --out out"
    return in_folder("comparison", {}, *command.split(), code=1) / "out"


@pytest.fixture(scope="session")
def profiled(in_folder: Command) -> Path:
    """A profile of `program.py`, as JSON."""
    folder = in_folder("profile", {"program.py": PROGRAM}, *"-m graphprobe profile -o profile.json program.py".split())
    return folder / "profile.json"


DIAGNOSE = "-m graphprobe diagnose --no-grad --json result.json --out proofs model.py:make".split()


@pytest.fixture(scope="session")
def diagnosed_healthy(in_folder: Command) -> Path:
    """The folder of a diagnosis that found nothing, with `result.json`."""
    return in_folder("healthy", {"model.py": FUNCTION}, *DIAGNOSE)


@pytest.fixture(scope="session")
def diagnosed_fault(in_folder: Command) -> Path:
    """The folder of a diagnosis that found a fault, with `result.json` and its dossier below `proofs`."""
    return in_folder("fault", {"model.py": FAULTY}, *DIAGNOSE, code=1)
