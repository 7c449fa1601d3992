"""Through how many modules does one thing go? A profiler over one small model, compiled on the CPU.

    python scripts/walk.py [--paths]

`compile`: all that a compile under `graphprobe.trace()` enters, its second one, so that no import counts. `statistics`:
what the third call of a model enters whose compiled operations are dumped as statistics, from the tensor to the row of
`stats.csv`. For each, the modules of graphprobe, how often the way changes from one to another, and of statistics this
for an operation. `--paths` prints the modules in the order in which they are entered first, with their calls. Budgets:
40 modules for a compile; 12 modules and 15 changes an operation for statistics. Threads of graphprobe count, too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import graphprobe
from graphprobe.probe.dump import sessions

PACKAGE = Path(graphprobe.__file__).resolve().parent
BUDGETS = {"compile": (40, None), "statistics": (12, 15)}


class Walk:
    """Counts the modules of graphprobe that are entered, and the changes from one to another, in each thread."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.changes = 0
        self._last: dict[int, str] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event != "call" or frame.f_code.co_name == "<module>" or not name.startswith(str(PACKAGE)):
            return
        module = str(Path(name).relative_to(PACKAGE))
        thread = threading.get_ident()
        self.changes += self._last.get(thread, module) != module
        self._last[thread] = module
        self.calls[module] += 1

    def over(self, does: Callable[[], object]) -> None:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            does()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())


def compiling(folder: Path) -> Walk:
    """One compile with all stages on disk; another one before it has imported what there is to import."""
    with graphprobe.trace(folder / "run"):
        for walk in (Walk(), Walk()):
            torch.compiler.reset()
            compiled = torch.compile(model())
            walk.over(partial(compiled, torch.ones(2, 8)))
    return walk


def collecting(folder: Path) -> tuple[Walk, int]:
    """The third call of a model with statistics on, and how many operations of it were recorded."""
    folder.mkdir()
    config = graphprobe.CompilerConfig()
    config.dump_config.enable_dump = True
    config.dump_config.dump_path = str(folder)
    config.dump_config.dump_data = "stats"
    walk, compiled = Walk(), torch.compile(model(), backend=graphprobe.get_backend(compiler_config=config))
    with torch.no_grad():
        for _ in range(2):
            compiled(torch.ones(2, 8))
        walk.over(lambda: compiled(torch.ones(2, 8)))
    sessions.close_all()
    return walk, sum(op.record.place.step == 2 for op in graphprobe.open_dump(folder).ops())


def shown(name: str, walk: Walk, operations: int, *, paths: bool) -> str:
    most, most_changes = BUDGETS[name]
    line = f"{name}: {len(walk.calls)} modules (budget {most}), {walk.changes} changes"
    if operations:
        line += f", {walk.changes / operations:.0f} for each of {operations} operations (budget {most_changes})"
    if paths:
        line += "".join(f"\n    {calls:6} {module}" for module, calls in walk.calls.items())
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paths", action="store_true", help="print the modules, too")
    paths = parser.parse_args().paths
    with tempfile.TemporaryDirectory() as folder:
        print(shown("compile", compiling(Path(folder)), 0, paths=paths))
        walk, operations = collecting(Path(folder) / "dump")
        print(shown("statistics", walk, operations, paths=paths))


if __name__ == "__main__":
    main()
