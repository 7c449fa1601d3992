"""What a session of tests makes once, on first use: a run and dumps.

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
